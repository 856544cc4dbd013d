"""The report of a run, from records written by hand."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tokbridge.errors import InvalidDataError
from tokbridge_trainer.report import (
    compare,
    count_cases,
    paired_samples,
    read_run,
    share_of_gap_closed,
    write_report,
)

BEFORE = {"eval/written/student_bits_per_byte": 1.4, "eval/written/teacher_bits_per_byte": 0.9, "eval/loss": 0.5}
AFTER = {"eval/written/student_bits_per_byte": 1.2, "eval/written/teacher_bits_per_byte": 0.9, "eval/loss": 0.6}


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    steps = [
        {"step": i, "phase": phase, "loss": 1.0 - 0.1 * i, "rows/aligned": 5.0, "rows/stop": 1.0, "rows/learned": 6.0}
        | {"divergence/aligned": 0.1 * (i + 1), "time/train_s": 2.0, "teacher/bits_per_byte": 1.0}
        for i, phase in enumerate(("warm_start", "warm_start", "on_policy"))
    ]
    write_lines(tmp_path / "metrics.jsonl", steps)
    write_lines(tmp_path / "evaluations.jsonl", [{"step": 0, **BEFORE}, {"step": 3, **AFTER}])
    samples = [
        {"step": step, "prompt_index": i, "prompt": f"prompt {i}", "response": f"<b>{step}</b>", "finish": "length"}
        for step in (0, 3)
        for i in range(2)
    ]
    write_lines(tmp_path / "evaluation_samples.jsonl", samples)
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    return tmp_path


class Links(HTMLParser):
    """Collects everything that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name in ("src", "href") and value and tag != "use"]


def test_report_stands_alone_and_escapes_samples(run: Path):
    html = write_report(run, "a run", notes={"teacher": "T"}).read_text()
    links = Links()
    links.feed(html)
    assert [link for link in links.found if not link.startswith("#")] == []
    assert "&lt;b&gt;3&lt;/b&gt;" in html
    assert "<b>3</b>" not in html
    assert html.count("<figure>") == 5
    assert "40 %" in html
    assert "1.400" in html
    assert "1.200" in html


@pytest.mark.parametrize(("names", "figures"), [(("teacher",), 5), (("large", "small"), 6)])
def test_several_teachers_share_the_loss_in_a_plot_of_their_own(run: Path, names: tuple[str, ...], figures: int):
    lines = [line | {f"teachers/{name}/loss": 0.1 for name in names} for line in read_run(run).metrics]
    write_lines(run / "metrics.jsonl", lines)
    html = write_report(run, "a run").read_text()
    assert html.count("<figure>") == figures
    assert all((name in html) == (figures == 6) for name in ("large", "small"))


def test_report_without_evaluations(run: Path):
    for name in ("evaluations.jsonl", "evaluation_samples.jsonl", "config.yaml"):
        (run / name).unlink()
    assert "before" not in write_report(run, "a run").read_text().lower()


def test_an_empty_run_still_gives_a_report(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text("")
    assert "<svg" not in write_report(tmp_path, "empty").read_text()


def test_a_folder_without_a_run_is_refused(tmp_path: Path):
    with pytest.raises(InvalidDataError, match="not the output folder"):
        read_run(tmp_path)


def test_comparison_knows_which_way_is_better():
    by_label = {c.label: c for c in compare([{"step": 0, **BEFORE}, {"step": 3, **AFTER}])}
    assert [c.improved for c in by_label.values()] == [True, False]
    assert compare([BEFORE]) == []


def test_share_of_the_gap():
    assert share_of_gap_closed([BEFORE, AFTER]) == pytest.approx(0.4)
    assert share_of_gap_closed([BEFORE]) is None
    assert share_of_gap_closed([{"eval/loss": 1.0}, {"eval/loss": 1.0}]) is None


def test_samples_are_paired_by_prompt(run: Path):
    pairs = paired_samples(read_run(run).evaluation_samples, 1)
    assert [(b["step"], a["step"], b["prompt_index"], a["prompt_index"]) for b, a in pairs] == [(0, 3, 0, 0)]


def test_cases_are_summed_over_the_run(run: Path):
    cases = count_cases(read_run(run).metrics)
    assert [(name, count) for name, count, _ in cases] == [("aligned", 15), ("stop", 3)]
    assert cases[0][2] == pytest.approx(0.2)


def test_a_run_that_was_killed_while_it_wrote_has_a_report_too(run: Path):
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
    with (run / "evaluation_samples.jsonl").open("a") as file:
        file.write('{"step": 3, "prompt_index": 5, "response": "a\u2028b"}\n')
    records = read_run(run)
    assert len(records.metrics) == 3
    assert records.evaluation_samples[-1]["response"] == "a\u2028b"


def test_command_prints_the_path(run: Path):
    import typer

    from tokbridge_cli.report import run as command

    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, [str(run)])
    assert result.exit_code == 0
    assert Path(result.output.strip()) == run / "report.html"
