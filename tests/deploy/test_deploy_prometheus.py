"""Prometheus' files before promtool: syntax, and cases in which each alert fires and does not."""

import shutil
from pathlib import Path

import pytest
import yaml

from support.deployment import ALERTS, PROMETHEUS, alert_rules, document, panel_queries
from support.validators import promtool, run


def alert_cases():
    return [case for test in document(PROMETHEUS / "alerts_test.yaml")["tests"] for case in test["alert_rule_test"]]


def test_every_alert_has_a_case_in_which_it_fires():
    fired = {case["alertname"] for case in alert_cases() if case.get("exp_alerts")}
    assert fired == {rule["alert"] for rule in alert_rules()}


@pytest.fixture(scope="module")
def prometheus_tool() -> Path:
    return promtool()


@pytest.mark.nightly
@pytest.mark.parametrize("command", ["check config --syntax-only prometheus.yaml", "check rules alerts.yaml"])
def test_a_file_is_valid(command, prometheus_tool):
    result = run(prometheus_tool, *command.split(), cwd=PROMETHEUS)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.nightly
def test_the_alerts_fire_when_they_should(prometheus_tool):
    result = run(prometheus_tool, "test", "rules", "alerts_test.yaml", cwd=PROMETHEUS)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("alert", [rule["alert"] for rule in alert_rules()])
def test_the_cases_see_an_alert_that_never_fires(alert, prometheus_tool, tmp_path):
    rules = document(ALERTS)
    (rule,) = [rule for group in rules["groups"] for rule in group["rules"] if rule["alert"] == alert]
    rule["expr"] = f"({rule['expr']}) and on () vector(1) > 2"
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(rules))
    shutil.copy(PROMETHEUS / "alerts_test.yaml", tmp_path)
    result = run(prometheus_tool, "test", "rules", "alerts_test.yaml", cwd=tmp_path)
    assert result.returncode == 1
    assert alert in result.stdout + result.stderr


@pytest.mark.nightly
def test_the_dashboards_queries_are_promql(prometheus_tool, tmp_path):
    queries = [query.replace("$__rate_interval", "1m").replace("$model", ".*") for _, query in panel_queries()]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    result = run(prometheus_tool, "check", "rules", "panels.yaml", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
