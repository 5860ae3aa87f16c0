"""The probe on the sandbox's own tokenizer and template, with answers written by hand."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scipy.special import betaincinv

from q36eval.canaries.answers import judged_answer, reference_answer
from q36eval.canaries.cases import Case, cases_of
from q36eval.canaries.paired import margin
from q36eval.canaries.probe import TAUGHT, CanaryProbe, rendered
from q36eval.canaries.specification import load_specs
from q36eval.config.family import Family
from q36eval.engines.base import Generated
from q36eval.files import read_yaml
from q36eval.inert_text import storable
from q36eval.metrics import METRICS
from q36eval.probes import Digest, ItemResults
from q36eval.records import Answer, FailureCauses, FamilyCompetence, ItemOutcome, Lane, ProbeName
from tests.canaries.runs import Said, Scripted, gated, outcome, right, run_of
from tests.declared import assert_declared

IDS = ["discount-compare", "discount-compare-must-pass", "discount-thinking-must-pass", "tool-call", "json-flat"]
SPECS = load_specs(only=IDS, n=20, skills=None)
CASES = {case.name: case for spec in SPECS for case in cases_of(spec)}
NEAR = "discount-compare-must-pass/near-a"
"""Required."""


def flipped(case: Case) -> tuple[str, str]:
    """The right numbers and the other shop."""
    text = right(case)[0].replace("je obchod A.", "je obchod X.").replace("je obchod B.", "je obchod A.")
    return text.replace("je obchod X.", "je obchod B."), "stop"


def but(said: Said, *names: str) -> Said:
    """Right answers, but for the named questions."""
    return lambda case: said(case) if case.name in names else right(case)


def saying(text: str, reason: str = "stop") -> Said:
    return lambda case: (text, reason)


def test_the_plan_is_the_same_every_time_and_asks_the_rendered_prompt(tokenizer: Any) -> None:
    items = CanaryProbe(SPECS).plan(tokenizer)
    assert items == CanaryProbe(SPECS).plan(tokenizer)
    more = CanaryProbe(load_specs(only=IDS, n=21, skills=None))
    assert CanaryProbe(SPECS).suite_sha256 == CanaryProbe(SPECS).suite_sha256 != more.suite_sha256
    # half of the comparisons, which end with a fixed line, are a canary of their own
    assert len({item.key for item in items}) == len(items) == 20 // 2 + 2 * 20 + 6 + 2
    prompts = {tokenizer.decode(request.token_ids) for item in items for request in item.generations}
    assert prompts == {rendered(case, tokenizer) for case in CASES.values()}
    assert all(prompt.endswith(("<think>\n\n</think>\n\n", "<think>\n")) for prompt in prompts)


@pytest.mark.long
def test_right_answers_on_both_sides_give_zero_everywhere(tokenizer: Any, tmp_path: Path) -> None:
    told = gated(SPECS, tokenizer, tmp_path)
    assert {each.branch.score for each in told.items.values()} == {1.0}
    figures = told.measurements
    assert {one.metric for one in figures.values() if one.value} == {"schema_accuracy", "decisive_margin_ratio"}
    rate = figures["failure_rate[json-flat]"]
    assert rate.value_interval.upper == pytest.approx(1 - 0.025 ** (1 / 20))  # Clopper-Pearson: none of 20 is not none
    assert figures["failure_rate[structured]"].counts.scored == 40
    assert figures["must_pass_flips[all]"].counts.total == 6
    assert figures["must_pass_flips[discount-compare-must-pass]"].counts.total == 6
    assert figures["must_pass_unstable[all]"].counts.total == 8
    assert figures["fixed_prompt_failure_rate[freeform]"].counts.total == 2  # discount-thinking, which is off the list


@pytest.mark.long
def test_a_flipped_conclusion_is_an_outcome_of_its_own(tokenizer: Any, tmp_path: Path) -> None:
    figures = gated(SPECS, tokenizer, tmp_path, branch=flipped).measurements
    conclusions, rate = figures["right_numbers_wrong_conclusion[all]"], figures["failure_rate[freeform]"]
    assert conclusions.value == figures["failure_rate[discount-compare]"].value == rate.value > 0.8
    assert conclusions.reference_value == 0.0
    assert conclusions.effect_interval.lower > 0.3
    assert figures["failure_rate[structured]"].value == 0.0
    assert figures["fixed_prompt_failure_rate[all]"].value == 1.0  # of the two off the list the first answer counts
    flips = figures["must_pass_flips[all]"]
    assert (flips.value, flips.counts.errored) == (5, 0)  # the tie stays a tie
    assert NEAR in flips.note
    assert "discount-compare-must-pass/tie" not in flips.note


@pytest.mark.parametrize(
    ("in_four", "flips", "errored", "unstable"),
    [(saying("nevím"), 1.0, 0, 0.0), (right, 0.0, 0, 1.0), (saying("", "error"), 0.0, 1, 0.0)],
    ids=["flipped", "unstable", "errored"],
)
def test_a_flip_counts_when_it_shows_in_every_batch(
    in_four: Said, flips: float, errored: int, unstable: float, tokenizer: Any, tmp_path: Path
) -> None:
    branch = but(saying("nevím"), NEAR)
    specs = load_specs(only=["discount-compare-must-pass"])
    told = gated(specs, tokenizer, tmp_path, branch=branch, endings={"/four": but(in_four, NEAR)})
    (key,) = (each.item_key for each in told.items.values() if each.cluster == NEAR)
    again = {request.key: request.group for request in told.asked if request.key.startswith(f"{key}/")}
    assert sorted(Counter(again.values()).values()) == [1, 4]
    measured = told.measurements["must_pass_flips[all]"]
    assert (measured.value, measured.counts.errored) == (flips, errored)
    assert told.measurements["must_pass_unstable[all]"].value == unstable
    assert NEAR in measured.note


def test_both_texts_and_the_failures_are_kept(tokenizer: Any, tmp_path: Path) -> None:
    wrong = gated(SPECS[:1], tokenizer, tmp_path, saying("<b>"), saying("nevím"))
    for each in wrong.items.values():
        assert (each.branch.text, each.reference.text) == ("nevím", "<b>")
        assert ItemOutcome.model_validate_json(each.model_dump_json()) == each
        codes = {failure["code"] for failure in each.branch.detail["failures"]}
        assert codes == {"wrong_amount", "no_conclusion", "too_short"}
    assert storable("\ud83d <b>") == "\ufffd <b>"


@pytest.mark.long
def test_errors_are_never_wrong_answers(tokenizer: Any, tmp_path: Path) -> None:
    theirs = but(saying("", "error"), "tool-call/01", "tool-call/11", "json-flat/01", "json-flat/11")
    ours = but(saying("", "error"), "tool-call/02", "tool-call/12", "json-flat/02", "json-flat/12")
    told = gated(SPECS, tokenizer, tmp_path, theirs, ours)
    for measurement in told.measurements.values():
        assert bool(measurement.value) == (measurement.metric in ("schema_accuracy", "decisive_margin_ratio"))
    rate = told.measurements["failure_rate[structured]"]
    assert (rate.counts.errored, rate.counts.scored) == (8, 32)
    assert (sum(rate.clusters.units), sum(rate.clusters.errored)) == (32, 8)
    assert rate.value_interval.upper == pytest.approx(betaincinv(9, 32, 0.975))  # all 8 may have failed, 8 of 40


def test_a_reference_that_was_not_scored_on_its_answer_is_errored_and_not_silent(tokenizer: Any) -> None:
    probe = CanaryProbe(SPECS)
    item = next(item for item in probe.plan(tokenizer) if item.stage != "fixed-prompts")
    first = Digest(values={"text": "nevím", "finish_reason": "stop", "token_ids": [5], "end_id": 2, "rows": 1})
    generated = {item.key: Generated(item.generations[0], (), "nevím", "stop")}
    engine: Any = None  # nothing was scored
    (compared,) = probe.compare(engine, item, ItemResults(generated=generated), first)
    assert compared.reference.score is None
    assert "could not be scored on its own answer" in (compared.reference.error or "")
    (rate,) = (each for each in probe.summarize([compared]) if str(each.key) == "canaries.failure_rate[all]")
    assert (rate.counts.scored, rate.counts.errored) == (0, 1)


def test_margins_that_are_no_numbers_give_no_figure() -> None:
    branch, reference = (Answer(score=1.0, detail={"margin": {"nats": nats}}) for nats in (float("nan"), 3.0))
    declared = METRICS[ProbeName.CANARIES, "decisive_margin_ratio"].declared()
    assert margin(declared, [outcome("c/1", branch, reference)]) is None


@pytest.mark.parametrize("repeats", [None, []])
def test_a_must_pass_prompt_of_which_no_repeat_is_known_is_errored(repeats: list[Any] | None) -> None:
    values = {"text": CASES[NEAR].answer, "finish_reason": "stop", "token_ids": [5], "repeats": repeats}
    assert reference_answer(CASES[NEAR], Digest(values=values)).error is not None
    wrong = reference_answer(CASES[NEAR], Digest(values=values | {"text": "nevím"}))
    assert (wrong.error, wrong.score) == (None, 0.0), "only a right one is asked again"


def test_a_must_pass_prompt_is_asked_of_the_reference_among_four_and_alone(tokenizer: Any) -> None:
    specs = load_specs(only=["discount-compare-must-pass"])  # of six prompts
    (first, *_) = specs[0].must_pass or ()
    own = specs[0].model_copy(update={"id": "own-one", "must_pass": [first]})
    probe = CanaryProbe(specs, own=[own])
    items = probe.plan(tokenizer)
    requests = [request for item in items for request in probe._repeats(item.key)]
    assert len({request.key for request in requests}) == len(requests)
    rows = Counter(request.group for request in requests)
    assert sorted(rows.values()) == [1] * 7 + [4] * 3
    wrong = Digest(values={"text": "nevím", "finish_reason": "stop", "token_ids": [5], "end_id": None})
    assert not any(probe.follow_up(item, wrong).repeats for item in items)
    assert {item.key + ending for item in items for ending in ("/four", "/alone")} <= {r.key for r in requests}


def test_canaries_of_ones_own_change_nothing_that_the_shipped_ones_are_asked(tokenizer: Any) -> None:
    """Also where they begin as those do: not what is computed once for several, nor who is asked again with whom."""
    specs = load_specs(only=["tool-call", "tool-call-must-pass"], n=12)
    own = [spec.model_copy(update={"id": f"own-{spec.id}"}) for spec in specs]
    alone, beside = CanaryProbe(specs), CanaryProbe(specs, own=own)
    items = alone.plan(tokenizer)
    assert [item for item in beside.plan(tokenizer) if beside.part_of(item.key) == "canaries"] == items
    for key in (item.key for item in items if item.stage == "fixed-prompts"):
        assert beside._again(key) == alone._again(key)
        assert beside._repeats(key) == alone._repeats(key)


def test_with_reasoning_only_what_follows_it_counts() -> None:
    case = next(case for case in CASES.values() if case.generation.enable_thinking)
    assert judged_answer(case, f"Levnější je obchod C.\n</think>{case.answer}", "stop", 9).score == 1.0
    unfinished = judged_answer(case, case.answer, "stop", 9)
    assert [failure["code"] for failure in unfinished.detail["failures"]] == ["no_answer"]


@pytest.mark.parametrize("where_able", [True, False])
def test_the_branch_is_asked_what_the_reference_can_do(tokenizer: Any, tmp_path: Path, where_able: bool) -> None:
    """A family that it solves by less than half, errors aside, is left out; of a lane one canary at least is asked."""
    names = ("enum-select", "json-flat", "copy-exact", "enum-order-must-pass")
    specs = load_specs(only=names, n=6, skills=None)
    cases = [case for spec in specs for case in cases_of(spec)]
    solved = {"enum-select": 3, "json-flat": 2, "copy-exact": 2, "enum-order-must-pass": 0}
    answered: dict[str, int] = {}

    def reference(case: Case) -> tuple[str, str]:
        before = sum(name.startswith(f"{case.canary}/") for name in answered)
        number = answered.setdefault(case.question, before)
        if number < solved[case.canary]:
            return right(case)
        return ("", "error") if case.canary == "copy-exact" and number == 2 else ("no idea", "stop")

    of = {spec.id: spec.lanes for spec in specs}
    probe = CanaryProbe(specs)
    probe.where_able = where_able
    branch = Scripted(tokenizer, cases)
    told = run_of(probe, branch, tmp_path, Scripted(tokenizer, cases, reference))
    asked = {outcome.group for outcome in told.items.values()}
    assert asked == ({"enum-select", "copy-exact", "enum-order-must-pass"} if where_able else set(names))
    failures = told.measurements["failure_rate[structured]"]
    known = {family.name: (family.items, family.informative) for family in failures.competence or ()}
    assert known["json-flat"] == (6, 2), "what is left out is counted all the same"
    drawn = {key + TAUGHT for key, outcome in told.items.items() if not outcome.must_pass}
    assert drawn.isdisjoint(request.key for request in branch.scored) == where_able
    solved.update(dict.fromkeys(solved, 0))
    answered.clear()
    again = CanaryProbe(specs)
    again.where_able = where_able
    told = run_of(again, Scripted(tokenizer, cases), tmp_path / "nothing", Scripted(tokenizer, cases, reference))
    lanes = {lane: {o.group for o in told.items.values() if lane in of[o.group] and not o.must_pass} for lane in Lane}
    assert all(len(groups) == 1 for groups in lanes.values()) or not where_able
    assert {f"failure_rate[{lane}]" for lane in Lane} <= told.measurements.keys(), "it shows that the reference fails"


# -- what is declared is measured


FAMILIES = Path(__file__).parents[2] / "data" / "families"


@pytest.mark.long
@pytest.mark.parametrize("family", ["sandbox", "qwen3.6-35b-a3b"])
def test_exactly_what_is_declared_is_measured(family: str, tokenizer: Any, tmp_path: Path) -> None:
    skills = read_yaml(FAMILIES / f"{family}.yaml", Family, "family").skills
    specs = load_specs(n=1, skills=skills)
    declared = {figure.key.removeprefix("canaries."): figure for figure in CanaryProbe(specs).declared()}
    measurements = gated(specs, tokenizer, tmp_path).measurements
    del measurements["engine_drift[all]"]  # the run's, of every probe's engine
    assert_declared(declared, measurements)
    assert "must_pass_flips[discount-compare-must-pass]" in measurements
    for key, measured in measurements.items():
        figure = declared[key]
        if measured.metric != "schema_accuracy":  # of calls that are made, which only answers tell
            clusters = measured.clusters
            assert (figure.items, figure.clusters) == (measured.counts.total, len(clusters.units)), key
            assert measured.counts.scored == measured.counts.total, key
        assert (measured.competence is None) == (measured.estimator in ("census", "mean")), key


@pytest.mark.long
def test_each_rate_says_what_the_reference_solves_and_why_answers_are_not_right(tokenizer: Any, tmp_path: Path) -> None:
    specs = load_specs(only=["json-flat", "tool-call", "enum-select-must-pass", "stability"], n=6, skills=None)
    faults = {
        "json-flat/1": ("{", "length"),
        "json-flat/2": ("nevím", "stop"),
        "json-flat/3": ("", "error"),
        "stability/1": ("dokola a dokola " * 200, "length"),
    }

    def reference(case: Case) -> tuple[str, str]:
        return faults.get(case.name) or right(case)

    def branch(case: Case) -> tuple[str, str]:
        return ("nevím", "stop") if case.name == "json-flat/6" else reference(case)

    sink = gated(specs, tokenizer, tmp_path, reference, branch)
    rate = sink.measurements["failure_rate[all]"]
    causes = {"cut_off": 1, "errored": 1, "wrong": 1}
    assert rate.competence == (
        FamilyCompetence(name="json-flat", items=6, informative=3, causes=causes),
        FamilyCompetence(name="stability", items=6, informative=5, causes={"loop": 1}),
        FamilyCompetence(name="tool-call", items=6, informative=6),
    )
    assert rate.causes == FailureCauses(
        branch={"cut_off": 1, "errored": 1, "loop": 1, "wrong": 2}, reference=causes | {"loop": 1}
    )
    assert {name.partition("/")[0] for name in rate.clusters.names or ()} == set(rate.clusters.families)
    assert sink.measurements["decisive_margin_ratio[json-flat]"].competence == rate.competence[:1]

    half = [outcome for number, outcome in enumerate(sink.items.values()) if number % 2]
    resumed = gated(specs, tokenizer, tmp_path, reference, branch, items=half)
    theirs = {key: m.model_copy(update={"clusters": None}) for key, m in resumed.measurements.items()}
    assert theirs == {key: m.model_copy(update={"clusters": None}) for key, m in sink.measurements.items()}
