"""`tokbridge train`: a dry run needs neither torch nor Ray, and a wrong key is one clear line."""

import subprocess
import sys

import pytest
import yaml

CONFIG = """
output_dir: runs/a
student: {model: s}
prompts: {files: [p.jsonl]}
teacher: {urls: ["localhost:50051"]}
steps: 10
"""


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


def run_train(config_file, *options):
    code = (
        "import sys; sys.modules['torch'] = sys.modules['ray'] = None;"
        f"sys.argv = ['tokbridge', 'train', {str(config_file)!r}, *{list(options)!r}];"
        "from tokbridge_cli.main import main; main()"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def test_a_dry_run_prints_the_resolved_configuration(config_file):
    result = run_train(config_file, "--dry-run", "--set", "optimizer.lr=2e-5", "--set", "loss.whitespace=keep")
    assert result.returncode == 0, result.stderr
    document = yaml.safe_load(result.stdout)
    assert document["optimizer"]["lr"] == 2e-5
    assert document["loss"] == {"beta": 0.5, "skew": 0.1, "whitespace": "keep", "chunk_rows": None}
    assert document["max_policy_lag"] == 1


def test_a_wrong_key_is_named_in_one_line(config_file):
    result = run_train(config_file, "--dry-run", "--set", "optimizer.learning_rate=1")
    assert result.returncode == 2
    assert "optimizer.learning_rate" in result.stderr
    assert "Traceback" not in result.stderr
