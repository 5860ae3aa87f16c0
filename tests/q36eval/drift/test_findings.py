"""Nothing that drift says moves without a new `FINDINGS_VERSION`: what history keeps is kept by it."""

import json

from q36eval.drift.records import FINDINGS_VERSION
from tests.assets.drift_findings import RECORDED, findings

ANEW = "raise FINDINGS_VERSION with a line on what changed, then record: python -m tests.assets.drift_findings"


def test_the_same_series_are_said_to_be_the_same() -> None:
    assert RECORDED.exists(), f"nothing is recorded for version {FINDINGS_VERSION}; {ANEW}"
    before, now = json.loads(RECORDED.read_text(encoding="utf-8")), findings()
    assert set(now) == set(before), ANEW
    for name, found in now.items():
        assert found == before[name], f"{name}: {ANEW}"
    assert {each["state"] for name in before if name != "a branch" for each in before[name]} >= {
        "stable", "drifting", "incomparable", "too_few_runs",
    }  # fmt: skip
