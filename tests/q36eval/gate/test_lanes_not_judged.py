"""A lane that the reference cannot do is NOT JUDGED: it decides nothing, unless it is required."""

import pytest
from pydantic import ValidationError

from q36eval.errors import ExitCode
from q36eval.gate import CriterionVerdict, GateReport, Policy, decide
from q36eval.records import Lane, Measurement, ProbeFailure, ProbeName, Verdict
from tests.q36eval.gate.evidence import FINITE, criterion, divergence, failure_rate, flips, measurement, perplexity
from tests.q36eval.stats.evidence import items

BOTH, STRUCTURED, FREEFORM = tuple(Lane), (Lane.STRUCTURED,), (Lane.FREEFORM,)
ABLE = {"where_able": True, "informative": {"min_weight": 0.01}}
IN_JSON = {"probe": "canaries", "slice": "structured", "lanes": STRUCTURED}
POLICY = Policy(
    name="p",
    required=FREEFORM,
    criteria=(
        criterion("max_value", 0.1, id="kl", lanes=BOTH),
        criterion("max_increase", 0.1, id="chat", probe="canaries", metric="failure_rate", slice="freeform", **ABLE),
        criterion("max_increase", 0.1, id="json", metric="failure_rate", **IN_JSON, **ABLE),
        criterion("max_count", 0, id="fixed", metric="must_pass_flips", min_scored=5, where_able=True, **IN_JSON),
    ),
)


def answers(lane: str, failing: int, lost: int = 0, of: int = 60) -> Measurement:
    """The reference fails the first answers, the branch those and the next ones."""
    reference = [1] * failing + [0] * (of - failing)
    return failure_rate([1] * (failing + lost) + [0] * (of - failing - lost), reference, lane)


def judged(*measurements: Measurement, policy: Policy = POLICY, kl: float = 0.01) -> GateReport:
    texts = divergence([kl * (1 + row / 50) for row in range(50)])
    return decide(policy, [FINITE, texts, answers("freeform", 0), *measurements])


def lanes(report: GateReport) -> dict[Lane, Verdict]:
    return {lane.lane: lane.verdict for lane in report.lanes}


def test_a_lane_that_the_reference_cannot_do_decides_nothing() -> None:
    report = judged(answers("structured", 50), flips({"json": (2, 0)}))
    assert report.verdict is Verdict.PASS
    assert report.exit_code == ExitCode.PASS
    assert lanes(report) == {Lane.STRUCTURED: Verdict.NOT_JUDGED, Lane.FREEFORM: Verdict.PASS}
    assert "structured" in report.headline
    named = {result.id: (result.verdict, result.code) for result in report.criteria}
    assert named["json"] == (CriterionVerdict.NOT_JUDGED, "reference-fails")
    assert named["fixed"] == (CriterionVerdict.NOT_JUDGED, "too-few-scored")


@pytest.mark.parametrize("kl", [0.01, 0.5])
def test_a_required_lane_that_is_not_judged_never_passes(kl: float) -> None:
    """Exit 4, unless another criterion proves damage."""
    for policy in (POLICY.model_copy(update={"required": BOTH}), POLICY.for_lanes(STRUCTURED), POLICY.for_lanes(BOTH)):
        report = judged(answers("structured", 50), flips({"json": (2, 0)}), policy=policy, kl=kl)
        expected = (Verdict.INCONCLUSIVE, ExitCode.NOT_MEASURED) if kl < 0.1 else (Verdict.FAIL, ExitCode.FAIL)
        assert (report.verdict, report.exit_code) == expected
        assert lanes(report)[Lane.STRUCTURED] is (Verdict.NOT_JUDGED if kl < 0.1 else Verdict.FAIL)
    assert set(report.decisive) & {"json", "fixed", "kl"}


def test_one_criterion_that_is_judged_makes_the_lane_judged() -> None:
    """So a branch that lost its JSON fails, although the reference can do hardly a fixed prompt, and the reverse."""
    lost = judged(answers("structured", 5, lost=40), flips({"json": (2, 0)}))
    assert (lost.verdict, lanes(lost)[Lane.STRUCTURED]) == (Verdict.FAIL, Verdict.FAIL)
    flipped = judged(answers("structured", 50), flips({"json": (6, 1)}))
    assert (flipped.verdict, lanes(flipped)[Lane.STRUCTURED]) == (Verdict.FAIL, Verdict.FAIL)


def test_too_few_answers_are_no_inability() -> None:
    """A policy that asks for more items than there are passes nothing by it."""
    more = {"json": {"min_scored": 100}}
    strict = POLICY.model_copy(
        update={"criteria": tuple(c.model_copy(update=more.get(c.id, {})) for c in POLICY.criteria)}
    )
    report = judged(answers("structured", 5, lost=50), flips({"json": (2, 0)}), policy=strict)
    assert (report.verdict, lanes(report)[Lane.STRUCTURED]) == (Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE)


def test_a_lane_that_no_criterion_judges_cannot_be_required() -> None:
    with pytest.raises(ValidationError):
        Policy(name="p", required=STRUCTURED, criteria=(criterion("max_value", 0.1),))


def test_what_broke_or_was_skipped_is_not_measured_and_never_not_judged() -> None:
    """Only what the reference cannot do drops out: a lost measurement, a crash and a skipped probe do not."""
    kinds = {"crashed": ExitCode.NOT_MEASURED, "skipped": ExitCode.INCONCLUSIVE, None: ExitCode.INCONCLUSIVE}
    for kind, code in kinds.items():
        failures = [] if kind is None else [ProbeFailure(probe=ProbeName.CANARIES, reason="test", kind=kind)]
        report = decide(POLICY, [FINITE, divergence([0.01] * 50)], failures=failures)
        assert (report.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, code)
        assert lanes(report)[Lane.STRUCTURED] is Verdict.INCONCLUSIVE
        assert kind != "skipped" or "test" in {result.reason for result in report.criteria}, "said once"
    prompts = flips({"json": (6, 0)})
    errored = prompts.clusters.model_copy(update={"units": (1, 0, 0, 0, 0, 0), "errored": (0, 1, 1, 1, 1, 1)})
    counts = prompts.counts.model_copy(update={"scored": 1, "errored": 5})
    lost = judged(answers("structured", 50), prompts.model_copy(update={"clusters": errored, "counts": counts}))
    assert (lost.verdict, lost.exit_code) == (Verdict.INCONCLUSIVE, ExitCode.NOT_MEASURED)


@pytest.mark.parametrize(("kinds", "code"), [(("no-tools", "skipped"), 0), (("no-reasoning",), 3), (("skipped",), 3)])
def test_only_the_figures_that_the_models_cannot_have_drop_out(kinds: tuple[str, ...], code: int) -> None:
    of_tools = {"probe": "served", "metric": "parser_faults", "slice": "calls", "lanes": STRUCTURED}
    calls = criterion("max_count", 0, id="calls", **of_tools)
    policy = Policy(name="p", criteria=(criterion("max_value", 0.1, lanes=BOTH), calls))
    failures = [ProbeFailure(probe=ProbeName.SERVED, reason="test", kind=kind) for kind in kinds]
    report = decide(policy, [FINITE, divergence([0.01 + row / 10_000 for row in range(50)])], failures=failures)
    assert (report.exit_code, lanes(report)[Lane.FREEFORM]) == (code, Verdict.PASS)
    assert bool(report.notes) == (code == 0)


def test_a_model_without_a_chat_template_is_judged_by_texts_alone() -> None:
    """The canaries do not suit it; a criterion over texts keeps its lane judged."""
    texts = criterion("max_value", 0.1, id="texts", where_able=True)
    policy = Policy(name="p", required=FREEFORM, criteria=(*POLICY.criteria, texts))
    failure = ProbeFailure(probe=ProbeName.CANARIES, reason="no chat template", kind="unsuited")
    report = decide(policy, [FINITE, divergence([0.01 + row / 10_000 for row in range(50)])], failures=[failure])
    assert (report.verdict, report.exit_code) == (Verdict.PASS, ExitCode.PASS)
    assert lanes(report) == {Lane.STRUCTURED: Verdict.NOT_JUDGED, Lane.FREEFORM: Verdict.PASS}


def test_texts_alone_judge_a_lane_only_of_models_without_a_chat_template() -> None:
    able = criterion("min_retention", 0.95, id="ppl", probe="evals", metric="perplexity", where_able=True)
    policy = POLICY.model_copy(update={"criteria": (*POLICY.criteria, able)})
    texts = [FINITE, divergence([0.01 * (1 + row / 50) for row in range(50)]), perplexity([2.01] * 50, [2.0] * 50)]
    in_vain = [answers("freeform", 55), answers("structured", 55), flips({"json": (2, 0)})]
    report = decide(policy, [*texts, *in_vain])
    assert (report.exit_code, lanes(report)[Lane.FREEFORM]) == (ExitCode.NOT_MEASURED, Verdict.NOT_JUDGED)
    unasked = ProbeFailure(probe=ProbeName.CANARIES, reason="no chat template", kind="unsuited")
    report = decide(policy, texts, failures=[unasked])
    assert (report.exit_code, lanes(report)[Lane.FREEFORM]) == (ExitCode.PASS, Verdict.PASS)


@pytest.mark.parametrize(("lost", "verdict"), [(0, "PASS"), (10, "PASS"), (20, "FAIL")])
def test_a_family_that_is_lost_fails_although_all_together_pass(lost: int, verdict: str) -> None:
    """Of 20 families of 20 answers one loses some, which all together show within their margin."""
    reference = [0] * 400
    families = tuple(f"family-{row // 20}" for row in range(400))
    clusters = items([1] * lost + [0] * (400 - lost), reference, families=families)
    found = measurement(ProbeName.CANARIES, "failure_rate", clusters, "paired_mean", slice="structured")
    apart = POLICY.criteria[2].model_copy(update={"each_family": True})
    together = decide(Policy(name="p", criteria=(POLICY.criteria[2],)), [found])
    report = decide(Policy(name="p", criteria=(apart,)), [found])
    assert together.verdict is Verdict.PASS
    assert report.verdict == verdict
    assert report.criteria[-1].lost_family == ("family-0" if lost == 20 else "")
    assert report.criteria[-1].code == ("family-beyond-margin" if lost == 20 else "inside-margin")


def test_a_family_that_holms_correction_takes_back_is_named_without_a_distance_of_the_whole() -> None:
    lost = [row < 17 or (row >= 20 and row % 20 == 0) for row in range(400)]
    families = tuple(f"family-{row // 20}" for row in range(400))
    clusters = items(lost, [0] * 400, families=families)
    found = measurement(ProbeName.CANARIES, "failure_rate", clusters, "paired_mean", slice="structured")
    apart = POLICY.criteria[2].model_copy(update={"each_family": True})
    others = tuple(apart.model_copy(update={"id": f"a{n}", "slice": "freeform"}) for n in range(5))
    report = decide(Policy(name="p", criteria=(*others, apart)), [found])
    (left_open,) = (each for each in report.criteria if each.id == apart.id)
    assert (left_open.code, left_open.to_turn) == ("beyond-margin-alone", None)
    assert left_open.reason.startswith("family-0 alone")
