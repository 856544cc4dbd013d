"""Reads the text that `/metrics` answers, with the reference parser of prometheus_client."""

from __future__ import annotations

import re
from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


def samples(text: str) -> Iterator[Sample]:
    """All samples of a scrape."""
    for family in text_string_to_metric_families(text):
        yield from family.samples


def sum_of_series(text: str, series: str) -> float:
    """Sum of the samples that `name{label="value",…}` selects; labels that are left out may be anything."""
    name, _, matchers = series.partition("{")
    wanted = set(re.findall(r'(\w+)="([^"]*)"', matchers))
    return sum(sample.value for sample in samples(text) if sample.name == name and wanted <= set(sample.labels.items()))
