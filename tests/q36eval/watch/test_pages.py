"""The pages say what docs/watch.md promises, in a text that Prometheus' own reader takes."""

import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from q36eval.watch.pages import Pages
from q36eval.watch.service import Setting, Watch
from tests.q36eval.watch.conftest import Clock, Place

PAGE = Path(__file__).parents[3] / "docs" / "watch.md"
parser = pytest.importorskip("prometheus_client.openmetrics.parser", reason="the extra watch is not installed")


def documented() -> dict[str, tuple[str, set[str]]]:
    """Type of every series, and the words that its column of labels names."""
    rows = re.findall(r"^\| `(q36eval_\w+)` \| (\w+) \|([^|]*)\|", PAGE.read_text(encoding="utf-8"), re.M)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


@pytest.mark.long
def test_every_series_is_documented_with_its_type_and_labels(
    place: Place, clock: Clock, setting: Callable[..., Setting]
) -> None:
    with Watch(setting(place.deployment()), lambda _: None, clock.now) as watch:
        pages = Pages(watch, "127.0.0.1", 0, "0.1")
        try:
            assert httpx.get(f"{pages.address}/readyz").status_code == 503  # nothing has answered yet
            for _ in range(4):
                watch.once()
                clock.later(minutes=15)
            assert httpx.get(f"{pages.address}/readyz").status_code == 200
            assert httpx.get(f"{pages.address}/healthz").text == "ok\n"
            openmetrics = {"Accept": "application/openmetrics-text; version=1.0.0"}
            text = httpx.get(f"{pages.address}/metrics", headers=openmetrics).text
            plain = httpx.get(
                f"{pages.address}/metrics",
            )
            watch.rounded -= 86_400
            assert httpx.get(f"{pages.address}/healthz").status_code == 503
        finally:
            pages.close()
    assert plain.headers["content-type"].startswith("text/plain; version=")
    shown: dict[str, tuple[str, set[str]]] = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels["deployment"] == "prod"
            kind, labels = shown.setdefault(sample.name, (family.type, set()))
            labels |= sample.labels.keys() - {"deployment"}
    expected = documented()
    assert len(expected) > 20
    assert set(shown) == set(expected)
    for name, (kind, words) in expected.items():
        assert shown[name][0] == kind, name
        assert shown[name][1] <= words, name
