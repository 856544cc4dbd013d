"""The configuration: strict, loadable without heavy packages, and read in full."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

import tokbridge_trainer
from support.training import make_config
from tokbridge.errors import InvalidConfigError
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.config_loading import dump_config, load_config

MINIMAL = """
output_dir: runs/a
student: {model: s}
prompts: {files: [p.jsonl]}
teacher: {urls: ["localhost:50051"]}
steps: 10
"""


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(MINIMAL)
    return path


def test_loads_without_torch_ray_and_transformers():
    code = (
        "import sys; from tokbridge_trainer.config_loading import load_config;"
        "print(sorted({'torch', 'ray', 'transformers', 'datasets'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"


def test_the_dump_loads_to_the_same_configuration(config_file, tmp_path):
    config = load_config(config_file, ["lora.rank=4", "warm_start.steps=2", "warm_start.responses=[w.jsonl]"])
    dumped = tmp_path / "dumped.yaml"
    dumped.write_text(dump_config(config))
    assert load_config(dumped) == config


def test_overrides_are_yaml_and_make_sections(config_file):
    config = load_config(
        config_file,
        ["optimizer.lr=1e-4", "steps=null", "epochs=2", "teacher.urls=[a:1, b:2]", "lora.alpha=8"],
    )
    assert config.optimizer.lr == 1e-4
    assert (config.steps, config.epochs) == (None, 2)
    assert config.teacher.urls == ["a:1", "b:2"]
    assert config.lora is not None
    assert config.lora.alpha == 8


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("optimizer.learning_rate=1", "optimizer.learning_rate"),
        ("unknown=1", "unknown"),
        ("loss.beta=1.5", "loss.beta"),
        ("steps=0", "steps"),
        ("teacher.spanning=lookahead", "(whole document)"),
        ("epochs=1", "(whole document)"),
        ("eval.every=5", "(whole document)"),
        ("teacher.urls=[]", "teacher.urls"),
        ("teacher.urls=['']", "teacher.urls.0"),
        ("teacher.urls=[' ']", "teacher.urls.0"),
        ("teacher.top_k=65535", "teacher.top_k"),
        ("loss.skew=0", "loss.skew"),
        ("optimizer.lr=.inf", "optimizer.lr"),
        ("optimizer.betas=[2,3]", "optimizer.betas.0"),
        ("optimizer.betas=[0.9,1]", "optimizer.betas.1"),
        ("sampling.temperature=.inf", "sampling.temperature"),
        ("sampling.temperature=.nan", "sampling.temperature"),
        ("steps=true", "steps"),
        ("optimizer.lr=true", "optimizer.lr"),
        ("lora.rank=true", "lora.rank"),
        ("seed=4294967296", "seed"),
        ("output_dir=2024-13-45", "output_dir"),
        ("output_dir={a: 1, a: 2}", "output_dir"),
        ("chat_template_kwargs={date_string: 2024-07-26}", "chat_template_kwargs"),
        ("teacher.chat_template_kwargs={share: .nan}", "teacher.chat_template_kwargs"),
    ],
)
def test_wrong_values_name_their_key(config_file, override, field):
    with pytest.raises(InvalidConfigError) as error:
        load_config(config_file, [override])
    assert error.value.details["field"] == field


@pytest.mark.parametrize("override", ["steps", "=3", "steps.more=1", "a=[1"])
def test_malformed_overrides_are_refused(config_file, override):
    with pytest.raises(InvalidConfigError):
        load_config(config_file, [override])


def test_a_missing_or_malformed_file_is_a_typed_error(tmp_path):
    with pytest.raises(InvalidConfigError, match="cannot read"):
        load_config(tmp_path / "none.yaml")
    for content in (b"a: [", b"- 1", b"a: \xff", b"a: 2024-13-45", b"a: " + b"[" * 5000):
        (tmp_path / "bad.yaml").write_bytes(content)
        with pytest.raises(InvalidConfigError) as error:
            load_config(tmp_path / "bad.yaml")
        assert "\n" not in error.value.message


def test_a_key_that_stands_twice_is_refused_wherever_it_is(tmp_path):
    path = tmp_path / "run.yaml"
    for content in ("steps: 1\nseed: 2\nsteps: 3\n", "teacher:\n  urls: [a]\n  urls: [b]\n"):
        path.write_text(content)
        with pytest.raises(InvalidConfigError, match=r"the key '(steps|urls)' stands twice.* line 3"):
            load_config(path)


def test_keys_may_replace_those_that_are_merged_in(config_file):
    text = config_file.read_text()
    config_file.write_text(text + "eval: {<<: {limit: 3}, limit: 7}\n")
    assert load_config(config_file).eval.limit == 7


def test_endless_epochs_are_refused(config_file):
    with pytest.raises(InvalidConfigError, match="epochs"):
        load_config(config_file, ["steps=null", "epochs=.inf"])


def test_truth_values_stay_where_they_belong(config_file):
    config = load_config(config_file, ["prompts.shuffle=false", "log.tensorboard=true", "chat_template_kwargs.x=true"])
    assert (config.prompts.shuffle, config.log.tensorboard) == (False, True)
    assert config.chat_template_kwargs == {"x": True}


def test_epochs_become_steps():
    assert make_config(steps=None, epochs=2, prompts_per_step=4).on_policy_steps(10) == 5
    assert make_config(steps=None, epochs=0.01, prompts_per_step=4).on_policy_steps(10) == 1


def test_every_field_is_read_by_the_trainer():
    assert set(_fields(TrainConfig)) - _attributes_read() == set()


def _fields(model: type[BaseModel]):
    for name, field in model.model_fields.items():
        yield name
        for inner in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from _fields(inner)


_SECTIONS = ("config_sections.py", "config_teachers.py")


def _attributes_read() -> set[str]:
    """Names that are read as an attribute of something in the trainer's sources, configuration sections aside."""
    folder = Path(tokbridge_trainer.__file__).parent
    sources = [path for path in folder.rglob("*.py") if path.name not in _SECTIONS]
    nodes = [node for path in sources for node in ast.walk(ast.parse(path.read_text()))]
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
