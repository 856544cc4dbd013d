"""The trainer's RayJob: its run against the code, its pods against Kubernetes' schema, its fields against KubeRay's."""

import copy
import os
import shlex
from pathlib import Path

import pytest
import yaml

from support.deployment import RAYJOB, document, documents
from support.validators import EXTRA, check_manifest
from tokbridge_trainer.config_loading import parse_config

JOB = document(RAYJOB, "RayJob")
SPEC = JOB["spec"]
CLUSTER = SPEC["rayClusterSpec"]
# Fields of KubeRay 1.6 and later that the file uses.
JOB_FIELDS = {
    *("entrypoint", "submissionMode", "submitterPodTemplate", "rayClusterSpec", "backoffLimit"),
    *("shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "preRunningDeadlineSeconds"),
}
WORKER_FIELDS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}


def run_config():
    return parse_config(yaml.safe_load(document(RAYJOB, "ConfigMap")["data"]["run.yaml"]))


def test_the_workers_have_the_gpus_that_the_run_asks_for():
    config = run_config()
    (group,) = CLUSTER["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    wanted = config.ray.learner_gpus + config.ray.rollout_gpus * config.rollout.workers
    assert wanted == int(container["resources"]["limits"]["nvidia.com/gpu"]) * group["replicas"]


def test_the_driver_finds_every_file_of_its_run():
    """It runs on the head: what else reads a file shares the folder of the run with it."""
    config = run_config()
    pods = [group["template"]["spec"] for group in [CLUSTER["headGroupSpec"], *CLUSTER["workerGroupSpecs"]]]
    head, worker = ({m["name"]: m["mountPath"] for m in pod["containers"][0]["volumeMounts"]} for pod in pods)
    (config_map,) = [volume["configMap"] for volume in pods[0]["volumes"] if "configMap" in volume]
    assert config_map["name"] == document(RAYJOB, "ConfigMap")["metadata"]["name"]
    assert shlex.split(SPEC["entrypoint"]) == ["tokbridge", "train", f"{head['config']}/run.yaml"]
    for file in [*config.prompts.files, str(config.teacher.api_key_file), str(config.teacher.tls.ca)]:
        assert any(file.startswith(f"{mount}/") for mount in head.values()), file
    assert str(config.output_dir).startswith(f"{head['runs']}/")
    assert worker["runs"] == head["runs"]
    claims = [[v["persistentVolumeClaim"] for v in pod["volumes"] if v["name"] == "runs"] for pod in pods]
    assert claims[0] == claims[1] == [{"claimName": document(RAYJOB, "PersistentVolumeClaim")["metadata"]["name"]}]


def test_only_fields_that_kuberay_knows_are_used():
    assert (JOB["apiVersion"], JOB["kind"]) == ("ray.io/v1", "RayJob")
    assert len(JOB["metadata"]["name"]) <= 47  # KubeRay's own limit
    assert set(SPEC) == JOB_FIELDS
    assert set(CLUSTER) == {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
    assert CLUSTER["authOptions"] == {"mode": "token"}  # without it, the job server runs anybody's code
    assert set(CLUSTER["headGroupSpec"]) == {"rayStartParams", "template"}
    assert all(set(group) == WORKER_FIELDS for group in CLUSTER["workerGroupSpecs"])


@pytest.mark.nightly
@pytest.mark.parametrize("manifest", documents(RAYJOB)[1:], ids=lambda manifest: manifest["kind"])
def test_what_the_job_names_is_valid(manifest):
    check_manifest(manifest)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "template",
    [SPEC["submitterPodTemplate"], *(g["template"] for g in [CLUSTER["headGroupSpec"], *CLUSTER["workerGroupSpecs"]])],
    ids=["submitter", "head", "worker"],
)
def test_its_pods_are_valid_and_confined(template):
    check_manifest({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}, "template": template})
    pod = template["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in pod["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        mounts = {mount["name"] for mount in container.get("volumeMounts", [])}
        assert mounts == {volume["name"] for volume in pod.get("volumes", [])}


@pytest.mark.nightly
def test_the_job_passes_the_crd_itself():
    """`TOKBRIDGE_RAYJOB_CRD`: the operator's `ray.io_rayjobs.yaml`, which no package carries."""
    path = os.environ.get("TOKBRIDGE_RAYJOB_CRD")
    if path is None:
        pytest.skip("TOKBRIDGE_RAYJOB_CRD does not name KubeRay's ray.io_rayjobs.yaml")
    (version,) = [version for version in document(Path(path))["spec"]["versions"] if version["name"] == "v1"]
    schema = version["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"] = closed(schema["properties"]["spec"])
    validator = pytest.importorskip("jsonschema", reason=EXTRA).Draft202012Validator(schema)
    assert [error.message for error in validator.iter_errors(JOB)] == []
    wrong = copy.deepcopy(JOB)
    wrong["spec"]["backofLimit"] = 1
    assert not validator.is_valid(wrong)


def closed(schema):
    """A CRD's schema in which a field that it does not name is an error, as for `kubectl apply`."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items()}
    if result.get("type") == "object" and "properties" in result:
        result.setdefault("additionalProperties", bool(result.get("x-kubernetes-preserve-unknown-fields")))
    if result.get("x-kubernetes-int-or-string"):
        result.pop("type", None)
    return result
