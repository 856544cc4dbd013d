"""A whole run: a real teacher process, a real socket, a real Ray cluster."""

import json
import shutil

import pytest
import ray
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.runs import losses, read_lines
from support.training import make_config
from tokbridge.errors import InvalidConfigError, TeacherUnavailableError
from tokbridge_trainer.train import run_training

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def finished_run(ray_cluster_address, teacher, model_folders, prompt_file, tmp_path_factory):
    """Two steps of warm start, then three on-policy ones with two workers, one step ahead."""
    folder = tmp_path_factory.mktemp("run")
    written = folder / "written.jsonl"
    messages = [{"role": "user", "content": "q"}]
    lines = [{"messages": messages, "response": f"the answer {i}", "finish": "stop"} for i in range(5)]
    written.write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = make_config(
        model_folders["student"],
        output_dir=str(folder / "run"),
        prompts={"files": [str(prompt_file)]},
        teacher={"urls": [teacher.grpc], "timeout_s": 60},
        warm_start={"steps": 2, "responses": [str(written)], "responses_per_step": 3},
        samples_per_prompt=2,
        max_policy_lag=1,
        rollout={"workers": 2},
        ray={"threads": 1, "learner_cpus": 0.5, "rollout_cpus": 0.5},
        eval={"every": 3, "prompts": [str(prompt_file)], "responses": [str(written)], "limit": 2},
        log={"tensorboard": True, "progress": True, "samples": 2},
    )
    console = Console(record=True, width=120)
    return config, run_training(config, console), console


def test_every_step_is_recorded_with_its_phase(finished_run):
    config, _, _ = finished_run
    lines = read_lines(config.output_dir / "metrics.jsonl")
    assert [(line["step"], line["phase"]) for line in lines] == [
        (0, "warm_start"),
        (1, "warm_start"),
        (2, "on_policy"),
        (3, "on_policy"),
        (4, "on_policy"),
    ]
    assert [line["policy_version"] for line in lines] == [1, 2, 3, 4, 5]
    assert [line["samples/scored"] for line in lines] == [3, 3, 4, 4, 4]
    assert all(line["loss"] > 0 and line["samples/dropped"] == 0 for line in lines)


def test_samples_are_at_most_one_version_behind(finished_run):
    config, _, _ = finished_run
    on_policy = read_lines(config.output_dir / "metrics.jsonl")[2:]
    assert all(line["policy_lag/max"] <= 1 for line in on_policy)
    assert any(line["policy_lag/max"] == 1 for line in on_policy)


def test_the_final_model_is_an_ordinary_hugging_face_folder(finished_run, model_folders):
    _, folder, _ = finished_run
    model = AutoModelForCausalLM.from_pretrained(folder)
    original = AutoModelForCausalLM.from_pretrained(model_folders["student"])
    assert (model.lm_head.weight != original.lm_head.weight).any()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template
    assert (folder / "tokenizer.json").read_text() == (model_folders["student"] / "tokenizer.json").read_text()


def test_samples_evaluations_and_dashboards_are_written(finished_run):
    config, _, console = finished_run
    samples = read_lines(config.output_dir / "samples.jsonl")
    assert [line["step"] for line in samples] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    evaluations = read_lines(config.output_dir / "evaluations.jsonl")
    assert [line["step"] for line in evaluations] == [0, 3, 5]
    wanted = {"eval/loss", "eval/written/student_bits_per_byte", "eval/rollouts/teacher_bits_per_byte"}
    assert all(line.keys() >= wanted for line in evaluations)
    assert list((config.output_dir / "tensorboard").iterdir())
    assert "step 5 [on_policy]" in console.export_text()


def test_a_run_that_is_finished_trains_no_further(finished_run, ray_cluster_address):
    config, _, _ = finished_run
    before = losses(config.output_dir)
    run_training(config)
    assert losses(config.output_dir) == before


def test_a_teacher_that_does_not_answer_is_a_typed_error(ray_cluster_address, finished_run, tmp_path):
    config, _, _ = finished_run
    teacher = config.teacher.model_copy(update={"urls": ["127.0.0.1:1"], "timeout_s": 1.0})
    with pytest.raises(TeacherUnavailableError):
        run_training(config.model_copy(update={"teacher": teacher, "output_dir": tmp_path}))


def test_more_than_the_cluster_has_is_refused_at_once(ray_cluster_address, finished_run, tmp_path):
    config, _, _ = finished_run
    greedy = config.model_copy(
        update={"ray": config.ray.model_copy(update={"learner_cpus": 64.0}), "output_dir": tmp_path}
    )
    with pytest.raises(InvalidConfigError, match="the cluster has"):
        run_training(greedy)
    assert ray.is_initialized()


def test_a_student_without_weights_is_a_typed_error_of_its_own(
    ray_cluster_address, finished_run, model_folders, tmp_path
):
    config, _, _ = finished_run
    student = shutil.copytree(model_folders["student"], tmp_path / "student")
    (student / "model.safetensors").unlink()
    broken = config.student.model_copy(update={"model": str(student)})
    with pytest.raises(InvalidConfigError, match="cannot load the student"):
        run_training(config.model_copy(update={"student": broken, "output_dir": tmp_path / "run"}))
