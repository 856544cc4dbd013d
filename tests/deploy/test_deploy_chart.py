"""The teacher's Helm chart: lint, schemas, and what its manifests promise."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from support.deployment import ALERTS, CHART, document
from support.validators import EXTRA, NEWEST_KUBERNETES, OLDEST_KUBERNETES, check_manifest, helm, render

pytestmark = pytest.mark.nightly

FULL = {
    "model": "/models/teacher",
    "extraArgs": ["--dtype=bfloat16"],
    "extraEnv": [{"name": "OTEL_SERVICE_NAME", "value": "teacher"}],
    "tracing": {"endpoint": "http://collector.monitoring:4317"},
    "image": {"repository": "example/tokbridge-teacher", "digest": "sha256:" + "0" * 64},
    "imagePullSecrets": [{"name": "pull"}],
    "resources": {"limits": {"memory": "64Gi", "nvidia.com/gpu": 1}},
    "auth": {"apiKeys": "trainer:1:k3y\n"},
    "tls": {"existingSecret": "teacher-tls", "clientCA": True},
    "models": {"existingClaim": "models"},
    "cache": {"existingClaim": "cache"},
    "hub": {"tokenSecret": "hub"},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "keySecret": {"name": "k", "key": "m"}},
    "prometheusRule": {"enabled": True},
    "podLabels": {"team": "a"},
    "podAnnotations": {"note": "b"},
    "nodeSelector": {"gpu": "yes"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "runtimeClassName": "nvidia",
    "priorityClassName": "high",
    "serviceAccountName": "teacher",
}
CLOSED = {"model": "m", "networkPolicy": {"clients": [], "scrapers": [], "egress": []}, "hub": {"offline": True}}
VALUES = {"least": {"model": "org/model"}, "full": FULL, "closed": CLOSED}
# Not part of Kubernetes itself: the validator has no schema for them.
OPERATOR_KINDS = {"ServiceMonitor", "PrometheusRule"}
each_values = pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)


def of_kind(values, kind):
    (manifest,) = [manifest for manifest in render(values) if manifest["kind"] == kind]
    return manifest


def pod_of(values):
    """The pod and its one container."""
    pod = of_kind(values, "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


@each_values
def test_lint_has_nothing_to_say(values):
    report = helm().lint(CHART, values, strict=True, kube_version=f"v{OLDEST_KUBERNETES}.0")
    assert not report["errors"]
    assert [message for message in report["messages"] if message["severity"] > 1] == []


@pytest.mark.parametrize("version", [OLDEST_KUBERNETES, NEWEST_KUBERNETES])
@each_values
def test_every_manifest_is_valid(values, version):
    manifests = render(values)
    assert {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"} <= {m["kind"] for m in manifests}
    for manifest in manifests:
        if manifest["kind"] not in OPERATOR_KINDS:
            check_manifest(manifest, version)


def test_the_schema_of_kubernetes_sees_a_fault():
    deployment = of_kind(FULL, "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    validation_error = pytest.importorskip("kubernetes_validate", reason=EXTRA).ValidationError
    with pytest.raises(validation_error, match="livenesProbe"):
        check_manifest(deployment)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"model": ""},
        {"model": "m", "replica": 2},
        {"model": "m", "image": {"repository": "r", "tag": "latest"}},
        {"model": "m", "tls": {"clientCA": True}},
        {"model": "m", "auth": {"existingSecret": "s", "apiKeys": "k"}},
        {"model": "m", "updateStrategy": {"maxSurge": 0, "maxUnavailable": 0}},
        {"model": "m", "service": {"grpcPort": 80}},
        {"model": "m", "tracing": {"endpoint": "http://collector"}},
    ],
    ids=str,
)
def test_values_that_make_no_sense_are_refused(wrong):
    with helm().Chart.load(CHART) as chart, pytest.raises(helm().HelmError):
        chart.validate_schema(wrong)


@pytest.mark.parametrize(("grace_s", "sleep_s"), [(30, 5), (300, 0), (1, 60)])
def test_the_pods_grace_holds_the_sleep_and_the_services_own_grace(grace_s, sleep_s):
    pod, container = pod_of({"model": "m", "shutdownGraceSeconds": grace_s, "preStopSleepSeconds": sleep_s})
    assert f"--shutdown-grace-s={grace_s}" in container["args"]
    hook = {"preStop": {"sleep": {"seconds": sleep_s}}} if sleep_s else None
    assert container.get("lifecycle") == hook
    assert pod["terminationGracePeriodSeconds"] >= grace_s + sleep_s + 10


@each_values
def test_the_pod_is_confined(values):
    """As the pod security standard `restricted` asks, and with a read-only root."""
    pod, container = pod_of(values)
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    written = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert written == {"/tmp", "/cache"}


def test_every_mount_has_its_volume_and_every_file_option_its_mount():
    pod, container = pod_of(FULL)
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in pod["volumes"]}
    files = [argument.split("=", 1)[1] for argument in container["args"] if "=/etc/" in argument]
    assert len(files) == 4
    assert {str(Path(file).parent) for file in files} <= set(mounts.values())


def test_probes_follow_tls():
    def probes(tls):
        _, container = pod_of({"model": "m", "tls": tls})
        return [container[name] for name in ("startupProbe", "readinessProbe", "livenessProbe")]

    for tls, scheme in [({}, "HTTP"), ({"existingSecret": "s"}, "HTTPS")]:
        assert [probe["httpGet"]["path"] for probe in probes(tls)] == ["/readyz", "/readyz", "/healthz"]
        assert {probe["httpGet"]["scheme"] for probe in probes(tls)} == {scheme}
    # The kubelet shows no client certificate.
    assert all("tcpSocket" in probe for probe in probes({"existingSecret": "s", "clientCA": True}))


def test_the_grpc_service_is_headless_so_that_clients_see_every_replica():
    services = {m["metadata"]["name"]: m["spec"] for m in render(FULL) if m["kind"] == "Service"}
    assert services["demo-tokbridge-teacher-grpc"]["clusterIP"] == "None"


def test_the_network_policy_lets_nobody_in_unasked():
    # A rule without `from` would let in everybody.
    assert all(rule["from"] for rule in of_kind(VALUES["least"], "NetworkPolicy")["spec"]["ingress"])
    closed = of_kind(CLOSED, "NetworkPolicy")["spec"]
    assert "ingress" not in closed
    assert [port["port"] for rule in closed["egress"] for port in rule["ports"]] == [53, 53]


@pytest.mark.parametrize("endpoint", ["http://collector.monitoring:4317", "https://10.0.0.7:55680/"])
def test_traces_are_let_out_where_they_are_sent(endpoint):
    values = {**CLOSED, "tracing": {"endpoint": endpoint}}
    _, container = pod_of(values)
    assert f"--otlp-endpoint={endpoint}" in container["args"]
    rules = of_kind(values, "NetworkPolicy")["spec"]["egress"]
    assert [port["port"] for rule in rules for port in rule["ports"]] == [53, 53, urlsplit(endpoint).port]


def test_the_charts_alerts_are_the_alerts():
    assert of_kind(FULL, "PrometheusRule")["spec"] == document(ALERTS)
