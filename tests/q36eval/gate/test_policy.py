"""Policies as people write them: what loads, and the one sentence each mistake gets."""

from pathlib import Path

import numpy as np
import pytest
from evidence import shipped_evidence

from q36eval.errors import UsageError
from q36eval.gate import decide
from q36eval.gate.policy_file import read_policy
from q36eval.records import Verdict
from q36eval.stats import _bootstrap
from tests.raising import raises

SHIPPED = Path(__file__).parents[3] / "data" / "policies" / "sandbox.yaml"


def test_files_that_are_no_policy(tmp_path: Path) -> None:
    (tmp_path / "strict.yaml").write_text("name: a\nname: b\n", encoding="utf-8")
    with raises(UsageError, "policy-invalid", "line 2", "'name'"):
        read_policy(tmp_path / "strict.yaml")
    with raises(UsageError, "policy-invalid", "stricter.yaml", "strict.yaml"):
        read_policy(tmp_path / "stricter.yaml")
    (tmp_path / "strict.yaml").write_text("[1, 2", encoding="utf-8")
    with raises(UsageError, "policy-invalid", "YAML", "line"):
        read_policy(tmp_path / "strict.yaml")
    (tmp_path / "strict.yaml").write_text("just words", encoding="utf-8")
    with raises(UsageError, "policy-invalid", "name"):
        read_policy(tmp_path / "strict.yaml")


def test_the_shipped_policy_passes_an_identical_branch() -> None:
    report = decide(read_policy(SHIPPED), shipped_evidence(np.random.default_rng(1), 0.0))
    assert report.verdict is Verdict.PASS, report.decisive
    assert all(result.verdict == "PASS" for result in report.criteria if result.tier == "blocking")


@pytest.mark.long
def test_the_shipped_policy_fails_three_margins_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bootstrap, "RESAMPLES", 999)  # coarser p-values, the same test, ten times as fast
    policy, rng = read_policy(SHIPPED), np.random.default_rng(2)
    reports = [decide(policy, shipped_evidence(rng, 3.0)) for _ in range(20)]
    # 20 of 20: at a true rate of 95 % this would be seen in a third of all seeds, so the rate is well above it
    assert all(report.verdict is Verdict.FAIL for report in reports)
    assert all(lane.verdict is Verdict.FAIL for report in reports for lane in report.lanes)
    blocking = [r.id for r in policy.criteria if r.tier == "blocking" and r.margin.kind != "max_count"]
    shares = {
        i: np.mean([any(c.id == i and c.verdict == "FAIL" for c in r.criteria) for r in reports]) for i in blocking
    }
    assert min(shares.values()) >= 0.9, shares
