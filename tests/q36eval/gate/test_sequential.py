"""When a criterion needs no more items: only when the decision on that very evidence is made, and would stand."""

from evidence import accuracy, failure_rate, small_policy
from hypothesis import given, settings
from hypothesis import strategies as st

from q36eval.gate import CriterionVerdict, PolicyRule, decide
from q36eval.records import Measurement, ProbeName, Schedule

DECIDED = (CriterionVerdict.PASS, CriterionVerdict.FAIL)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 120), st.integers(0, 30), st.integers(120, 400), st.integers(0, 60))
def test_what_is_settled_is_what_the_decision_says_whatever_the_other_criteria_show(
    lost: int, gained: int, items: int, tools_broken: int
) -> None:
    """Holm's correction looks at all criteria: the rule must not call settled what another's p-value could undo."""
    policy = small_policy()
    measured = looked_at(accuracy([0] * lost + [1] * (items - lost), [1] * (items - gained) + [0] * gained))
    settled = PolicyRule(policy).settled([measured])
    report = decide(
        policy, [measured, failure_rate([1] * tools_broken + [0] * (200 - tools_broken), [0] * 200, "tools")]
    )
    verdict = next(result.verdict for result in report.criteria if result.id == "mmlu")
    if settled:
        assert settled == {measured.key}
        assert verdict in DECIDED


def looked_at(measured: Measurement) -> Measurement:
    """The same, asked in blocks of fifty."""
    assert measured.clusters is not None
    schedule = Schedule(largest=1, blocks=tuple(i // 50 for i in range(len(measured.clusters.units))))
    return measured.model_copy(update={"clusters": measured.clusters.model_copy(update={"schedule": schedule})})


def test_a_clear_loss_and_a_clear_pass_are_settled_and_a_close_one_is_not() -> None:
    rule = PolicyRule(small_policy())
    assert rule.settled([looked_at(accuracy([1] * 400, [1] * 400))])
    assert rule.settled([looked_at(accuracy([0] * 200 + [1] * 200, [1] * 400))])
    assert not rule.settled([looked_at(accuracy([0] * 18 + [1] * 182, [1] * 200))])
    assert rule.judged(ProbeName.EVALS) == {"evals.accuracy[mmlu]"}


def test_evidence_that_was_not_laid_out_beforehand_is_never_settled_early() -> None:
    assert not PolicyRule(small_policy()).settled([accuracy([1] * 400, [1] * 400)])
