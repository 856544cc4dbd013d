"""Dashboard, alerts and the operators' page against each other, and against the service's own metrics."""

import json
import re
from itertools import combinations

import pytest

from support.deployment import CHART, DASHBOARD, OPERATORS_PAGE, PROMETHEUS, alert_rules, document, panel_queries
from tokbridge.errors import ErrorCode
from tokbridge.targets import RowCase
from tokbridge_teacher.cancellations import CancelReason
from tokbridge_teacher.observability.catalogue import CATALOGUE
from tokbridge_teacher.observability.metrics import ServiceMetrics
from tokbridge_teacher.observability.outcomes import Outcome

QUERIES = [(rule["alert"], rule["expr"]) for rule in alert_rules()] + list(panel_queries())
# What Prometheus itself adds to every scrape.
ADDED_SERIES = {"up"}
ADDED_LABELS = {"job", "instance", "le"}
SUFFIXES = {"counter": ("_total", "_created"), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
SERIES = re.compile(r"\b((?:tokbridge|process)_[a-z_]+|up)\b(?:\{([^}]*)\})?")
GROUPING = re.compile(r"\b(?:by|on|ignoring) \(([^)]*)\)")


@pytest.fixture(scope="module")
def offered() -> dict[str, set[str]]:
    """Labels of every series that a service can show, by its name."""
    declared = {metric.name.removesuffix("_total"): {"model_name", *metric.labels} for metric in CATALOGUE}
    labels = {}
    for family in ServiceMetrics("model").registry.collect():
        own = declared.get(family.name, set())
        assert all(own >= set(sample.labels) - ADDED_LABELS for sample in family.samples)
        labels |= {family.name + suffix: own for suffix in SUFFIXES[family.type]}
    return labels


@pytest.mark.parametrize(("title", "query"), QUERIES, ids=[title for title, _ in QUERIES])
def test_a_query_names_only_series_and_labels_that_exist(title, query, offered):
    used = set()
    for name, matchers in SERIES.findall(query):
        assert name in offered or name in ADDED_SERIES, f"{title}: the service has no {name}"
        used |= offered.get(name, set())
        for label in re.findall(r"(\w+)\s*=?[=~!]", matchers):
            assert label in offered.get(name, set()) | ADDED_LABELS, f"{title}: {name} has no label {label}"
    for label in re.split(r"[,\s]+", ", ".join(GROUPING.findall(query))):
        assert label in used | ADDED_LABELS | {""}, f"{title}: groups by {label}"


def scrape_job():
    """The job's name in compose and, by the chart's ServiceMonitor, in Kubernetes."""
    (scrape,) = document(PROMETHEUS / "prometheus.yaml")["scrape_configs"]
    assert scrape["job_name"] == document(CHART / "Chart.yaml")["name"]
    return scrape["job_name"]


@pytest.mark.parametrize(("title", "query"), QUERIES, ids=[title for title, _ in QUERIES])
def test_a_query_asks_only_for_values_that_occur(title, query):
    known = {
        "outcome": {*Outcome},
        "reason": {*ErrorCode, *CancelReason},
        "case": {case.name.lower() for case in RowCase},
        "kind": {"unmapped", "control", "truncated"},
        "job": {scrape_job()},
        "model_name": {"$model"},
    }
    for label, values in re.findall(r'(\w+)=~?"([^"]*)"', query):
        assert set(values.split("|")) <= known[label], f"{title}: {label}={values}"


def test_every_alert_is_explained_and_every_explanation_has_its_alert():
    page = OPERATORS_PAGE.read_text()
    section = page.split("\n## Alerts\n", 1)[1].split("\n## ", 1)[0]
    explained = re.findall(r"^### (\w+)$", section, re.MULTILINE)
    rules = {rule["alert"]: rule["annotations"]["runbook"] for rule in alert_rules()}
    assert explained == list(rules)
    assert rules == {alert: f"docs/operators.md#{alert.lower()}" for alert in rules}


def test_the_dashboards_panels_are_distinct_and_do_not_overlap():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    cells = [
        {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        for at in (panel["gridPos"] for panel in panels)
    ]
    assert all(x < 24 for cell in cells for x, _ in cell)
    assert not any(first & second for first, second in combinations(cells, 2))
