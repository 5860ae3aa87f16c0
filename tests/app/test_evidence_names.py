"""Every probe names what it asked, alike in every run that asks the same: runs pair, and waivers find canaries."""

import random
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from types import SimpleNamespace

import pytest

from q36eval.canaries.outcomes import PlannedItem, cause_of
from q36eval.canaries.specification import CanarySpec, GenerationSettings
from q36eval.canaries.summary import summarize_outcomes
from q36eval.evals.figures import accuracy, perplexities
from q36eval.gate import Policy, Waiver, decide
from q36eval.gate.blessed_run import ESTIMATORS
from q36eval.kl.measurements import document_measurements
from q36eval.records import Answer, ItemOutcome, Lane, Measurement, ProbeName, Verdict
from tests.outcomes import outcome
from tests.q36eval.gate.evidence import criterion

REPEATS = {"repeats": [{"score": 0.0}, {"score": 0.0}]}


GREEDY = GenerationSettings(max_new_tokens=8)


def spec(name: str, **asked: object) -> CanarySpec:
    return CanarySpec.model_construct(
        id=name, skill="x", lanes=[Lane.STRUCTURED], checks=[], generation=GREEDY, **asked
    )


SURE = {"margin": {"nats": 9.0}}
FAMILIES = [spec(name, family=SimpleNamespace(n=30), must_pass=None) for name in ("invoice", "discount")]
FIXED = [
    spec(f"{name}-must-pass", family=None, must_pass=[object()], absolute=True) for name in ("invoice", "discount")
]


def canary_outcomes(broken: Sequence[str] = ()) -> list[ItemOutcome]:
    """Thirty questions of each family and five fixed prompts, all wrong under the branch where they are broken."""
    return [
        outcome(
            ProbeName.CANARIES,
            f"{each.id}/{number:02}",
            Answer(score=float(each.id not in broken), detail=REPEATS if each.id in broken else {}),
            Answer(score=1.0, detail=SURE if each.must_pass else {}),
            item_key=f"{number:02}{each.id}".ljust(64, "0"),
            must_pass=each.must_pass is not None,
        )
        for each in (*FAMILIES, *FIXED)
        for number in range(30 if each.family else 5)
    ]


def eval_outcomes() -> list[ItemOutcome]:
    details = {"margin_nats": 1.0, "nll_nats": 20.0, "tokens": 10, "words": 7}
    sides = [(Answer(score=float(n % 3 > 0), detail=details), Answer(score=1.0, detail=details)) for n in range(20)]
    return [
        outcome(ProbeName.EVALS, f"fact {n // 2}", *each, group="mmlu", item_key=f"{n:064}")
        for n, each in enumerate(sides)
    ]


def documents() -> list[ItemOutcome]:
    columns = ("forward_kl", "reverse_kl", "top1_agrees", "branch_nll", "reference_nll")
    sums = dict.fromkeys(columns, 1.0) | {"tokens": 9, "finite_tokens": 9}
    sides = Answer(score=0.1, detail=sums), Answer(score=None)
    return [
        outcome(
            ProbeName.KL,
            f"czech-{number:03}",
            *sides,
            group="corpus",
            item_key=f"{number:064}"[::-1],
            stratum=("czech", "json")[number % 2],
        )
        for number in range(12)
    ]


def of_canaries(outcomes: Sequence[ItemOutcome]) -> list[Measurement]:
    planned = [PlannedItem(o.group, cause_of(o.reference), absolute=o.must_pass) for o in outcomes]
    return list(summarize_outcomes([*FAMILIES, *FIXED], outcomes, planned))


@pytest.mark.parametrize(
    ("measured", "outcomes"),
    [
        (of_canaries, canary_outcomes()),
        (lambda of: [*accuracy("mmlu", of), *perplexities("mmlu", of)], eval_outcomes()),
        (document_measurements, documents()),
    ],
    ids=["canaries", "evals", "kl"],
)
def test_whatever_can_be_paired_is_named_by_what_was_asked(
    measured: Callable[[Sequence[ItemOutcome]], Iterable[Measurement]], outcomes: list[ItemOutcome]
) -> None:
    """In whatever order; and of all the figures that an item enters, one name changes where it is reworded."""
    first, shuffled, reworded = (
        {found.key: names(found) for found in measured(asked) if found.estimator in ESTIMATORS}
        for asked in (
            outcomes,
            random.Random(1).sample(outcomes, len(outcomes)),
            [outcomes[0].model_copy(update={"item_key": "f" * 64}), *outcomes[1:]],
        )
    )
    assert first == shuffled
    changed = {key: len(first[key] - reworded[key]) for key in first}
    assert set(changed.values()) <= {0, 1}
    assert all(changed[key] for key in changed if "[all]" in key or "[mmlu]" in key)


def names(found: Measurement) -> set[str]:
    assert len(set(found.clusters.names)) == len(found.clusters.units)
    return set(found.clusters.names)


def test_a_waiver_of_a_canary_finds_it_in_what_the_probe_measured() -> None:
    lane = {"lanes": ["structured"], "probe": "canaries", "slice": "structured"}
    criteria = (
        criterion("max_increase", 0.2, id="failures", metric="failure_rate", **lane),
        criterion("max_count", 0, id="must-pass", metric="must_pass_flips", min_scored=10, **lane),
        criterion("max_count", 0, id="unstable", metric="must_pass_unstable", **lane),
    )
    policy = Policy(name="p", criteria=criteria)
    broken = ("discount", "discount-must-pass")
    measured = of_canaries(canary_outcomes(broken))
    day = date(2026, 5, 1)
    waivers = [Waiver(owner="eva", reason="x", canary=name, expires=day) for name in broken]
    report = decide(policy, measured, waivers, on=day)
    of_both = {"failures": (waivers[0],), "must-pass": (waivers[0],)}  # a family's names its fixed twin too
    of_the_twin = {"must-pass": (waivers[1],)}
    assert report.verdict is Verdict.PASS
    for given, by in ((waivers, of_both), (waivers[:1], of_both), (waivers[1:], of_the_twin)):
        criteria = decide(policy, measured, given, on=day).criteria
        assert {result.id: result.waived_by for result in criteria if result.waived} == by
    both = of_canaries(canary_outcomes((*broken, "invoice-must-pass")))
    assert decide(policy, both, waivers, on=day).decisive == ("must-pass",)
