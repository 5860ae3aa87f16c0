"""Two deployments that fail alike: real probes ask both, and no shipped policy passes what neither can do."""

import random
from pathlib import Path
from typing import Any

import pytest

from q36eval.canaries.probe import CanaryProbe
from q36eval.canaries.specification import load_specs
from q36eval.evals.probe import EvalsProbe
from q36eval.gate import CriterionVerdict, decide
from q36eval.gate.policy_file import read_policy
from q36eval.records import ProbeName, Verdict
from tests.app.satisfiable.stub_deployment import Abridging, RightAnswers, ask, right_answers
from tests.evals.small_suite import FROZEN, write_small_suite
from tests.q36eval.gate.evidence import without_competence

POLICIES = Path(__file__).parents[3] / "data" / "policies"
SHIPPED = {path.stem: read_policy(path) for path in sorted(POLICIES.glob("*.yaml"))}
DRAWS = 25
NOTHING = "???"


def knowing(probe: Any, share: float) -> RightAnswers:
    """Right answers to a seeded share of all items, and the same wrong ones to the rest."""
    right = right_answers([probe])
    known = set(random.Random(5).sample(sorted(right.texts), round(share * len(right.texts))))
    return RightAnswers({key: text if key in known else NOTHING for key, text in right.texts.items()}, {})


@pytest.mark.long
@pytest.mark.parametrize("share", [0.0, 0.015, 0.2])
def test_what_neither_can_do_passes_no_shipped_policy(tokenizer: Any, tmp_path: Path, share: float) -> None:
    counts = {f"ruler/{file.name}": 6 for file in (FROZEN / "ruler").glob("*.jsonl")}
    counts |= {
        "mmlu/law.jsonl": 15,
        "mmlu_dev/law.jsonl": 5,
        "short_answers/law.jsonl": 15,
        "short_answers_dev/law.jsonl": 5,
    }
    probes = [CanaryProbe(load_specs(n=DRAWS)), EvalsProbe(write_small_suite(tmp_path, counts))]
    asked = [
        ask(probe, Abridging(tokenizer), tmp_path / probe.name, lambda probe: knowing(probe, share)) for probe in probes
    ]
    found = [measurement for each in asked for measurement in each.measurements]
    keys = {measurement.key for measurement in found}
    for name, policy in SHIPPED.items():
        report = decide(policy, found)
        assert report.verdict is not Verdict.PASS, name
        compared = {c.id for c in policy.criteria if c.informative is not None and c.key in keys}
        where_able = {c.id for c in policy.criteria if c.where_able}
        others = ("decisive_margin_ratio",)  # has no right and wrong; and there is no blessed run to compare with
        compared -= {c.id for c in policy.criteria if c.metric in others or c.margin.against == "blessed"}
        assert compared >= {"failures-structured", "failures-freeform"} & {c.id for c in policy.criteria}
        for result in report.criteria:
            if result.id in compared:
                unable = CriterionVerdict.NOT_JUDGED if result.id in where_able else CriterionVerdict.NOT_MEASURED
                assert result.verdict is unable, (name, result.id, result.verdict)
                assert "the reference solves" in result.reason
    # the same evidence where nothing is asked of the reference
    unasked = {result.id: result.verdict for result in decide(without_competence(SHIPPED["sandbox"]), found).criteria}
    assert unasked["failures-structured"] is CriterionVerdict.PASS
    assert {m.probe for m in found} == {ProbeName.CANARIES, ProbeName.EVALS}
