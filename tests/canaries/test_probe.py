"""The probe on the sandbox's own tokenizer and template, with answers written by hand."""

from collections import Counter
from typing import Any

import pytest
from scipy.special import betaincinv

from q36eval.canaries.must_pass import MARGIN_FLOOR_NATS
from q36eval.canaries.probe import CanaryProbe
from q36eval.canaries.specification import load_specs
from q36eval.engines.base import Generated
from q36eval.probes import Digest, ItemResults, WorkItem
from q36eval.records import ItemOutcome, Measurement


@pytest.fixture
def probe() -> CanaryProbe:
    ids = ["discount-compare", "discount-compare-must-pass", "discount-thinking-must-pass", "tool-call", "json-flat"]
    return CanaryProbe(load_specs(only=ids, n=20, skills=None))


def _results(item: WorkItem, text: str | None, reason: str = "stop") -> ItemResults:
    (request,) = item.generations
    error = None if text is not None else "engine: out of memory"
    return ItemResults(generated={request.key: Generated(request, (), text or "", reason, error=error)})


def _outcome(
    probe: CanaryProbe, item: WorkItem, branch: ItemResults, reference: ItemResults | None = None
) -> ItemOutcome:
    engine: Any = None  # the probe judges text alone
    if reference is None:
        digest = Digest(error="the reference could not be measured on this item")
    else:
        first = probe.digest(engine, item, reference)
        repeats = [{"rows": rows} | {name: first.values[name] for name in ("text", "finish_reason")} for rows in (4, 1)]
        digest = Digest(values=first.values | {"repeats": repeats})
    (outcome,) = probe.compare(engine, item, branch, digest)
    if outcome.reference.score != 1.0:
        return outcome
    sure = {"margin": {"nats": 2 * MARGIN_FLOOR_NATS}}  # no model was asked, so none was taught
    theirs = outcome.reference.model_copy(update={"detail": outcome.reference.detail | sure})
    return outcome.model_copy(update={"reference": theirs})


def _confirmed(probe: CanaryProbe, outcomes: list[ItemOutcome], in_four: str | None, alone: str) -> list[ItemOutcome]:
    """The outcomes once the branch was asked again what it flipped; None: the engine broke."""
    confirmed = {outcome.item_key: outcome for outcome in outcomes}
    for item in probe.doubtful(outcomes):
        texts = {item.key + "/four": in_four, item.key + "/alone": alone}
        generated = {}
        for request in item.generations:
            text = texts.get(request.key, "")
            error = None if text is not None else "engine: out of memory"
            generated[request.key] = Generated(request, (), text or "", "stop", error=error, rows=4)
        confirmed[item.key] = probe.confirmed(item, ItemResults(generated=generated), confirmed[item.key])
    return list(confirmed.values())


def _answers(probe: CanaryProbe, items: list[WorkItem]) -> dict[str, str]:
    """The right answer of every item, by item key."""
    errored = [_outcome(probe, item, _results(item, None)) for item in items]
    right = {outcome.item_key: outcome.expected or "" for outcome in errored}
    thinking = {o.item_key for o in errored if o.group == "discount-thinking-must-pass"}
    return {key: f"Počítám.\n</think>\n\n{text}" if key in thinking else text for key, text in right.items()}


def _by_key(measurements: list[Measurement]) -> dict[str, Measurement]:
    return {f"{measurement.metric}[{measurement.slice}]": measurement for measurement in measurements}


def test_the_plan_is_the_same_every_time_and_asks_the_rendered_prompt(probe: CanaryProbe, tokenizer: Any) -> None:
    items = probe.plan(tokenizer)
    assert items == CanaryProbe(load_specs(only=[s.id for s in probe.specs], n=20, skills=None)).plan(tokenizer)
    # half of the comparisons, which end with a fixed line, are a canary of their own
    assert len({item.key for item in items}) == len(items) == 20 // 2 + 2 * 20 + 6 + 2
    for item in items:
        (request,) = item.generations
        prompt = tokenizer.decode(request.token_ids)
        assert prompt == _outcome(probe, item, _results(item, "")).prompt
        assert "<|im_start|>user\n" in prompt
        assert prompt.endswith(("<think>\n\n</think>\n\n", "<think>\n"))


def test_token_ids_are_those_of_the_chat_template(probe: CanaryProbe, tokenizer: Any) -> None:
    from q36eval.canaries.cases import cases_of

    case = cases_of(next(spec for spec in probe.specs if spec.id == "tool-call"))[0]
    settings = {"add_generation_prompt": True, "enable_thinking": False, "tokenize": True, "return_dict": False}
    direct = tokenizer.apply_chat_template(list(case.messages), tools=list(case.tools), **settings)
    assert tuple(direct) in {item.generations[0].token_ids for item in probe.plan(tokenizer)}


@pytest.mark.long
def test_right_answers_on_both_sides_give_zero_everywhere(probe: CanaryProbe, tokenizer: Any) -> None:
    items = probe.plan(tokenizer)
    right = _answers(probe, items)
    outcomes = [_outcome(probe, i, _results(i, right[i.key]), _results(i, right[i.key])) for i in items]
    assert {outcome.branch.score for outcome in outcomes} == {1.0}
    figures = _by_key(list(probe.summarize(outcomes)))
    right_is_one = {f"schema_accuracy[{part}]" for part in ("tool-call", "all")}
    assert {name for name, measurement in figures.items() if measurement.value != 0.0} == right_is_one
    rate = figures["failure_rate[json-flat]"]
    assert rate.value_interval is not None
    assert rate.value_interval.upper == pytest.approx(1 - 0.025 ** (1 / 20))  # Clopper-Pearson: none of 20 is not none
    assert figures["failure_rate[structured]"].counts.scored == 40
    assert figures["must_pass_flips[all]"].counts.total == 6
    assert figures["must_pass_flips[discount-compare-must-pass]"].counts.total == 6
    assert figures["must_pass_unstable[all]"].counts.total == 8
    assert figures["fixed_prompt_failure_rate[freeform]"].counts.total == 2  # discount-thinking, which is off the list


@pytest.mark.long
def test_a_flipped_conclusion_is_an_outcome_of_its_own(probe: CanaryProbe, tokenizer: Any) -> None:
    items = probe.plan(tokenizer)
    right = _answers(probe, items)
    outcomes = []
    for item in items:
        text = right[item.key]
        branch = text.replace("je obchod A.", "je obchod X.").replace("je obchod B.", "je obchod A.")
        branch = branch.replace("je obchod X.", "je obchod B.")
        outcomes.append(_outcome(probe, item, _results(item, branch), _results(item, text)))
    figures = _by_key(list(probe.summarize(outcomes)))
    flipped = figures["right_numbers_wrong_conclusion[all]"]
    compared, freeform = figures["failure_rate[discount-compare]"], figures["failure_rate[freeform]"]
    assert flipped.value == compared.value == freeform.value > 0.8
    assert flipped.reference_value == 0.0
    assert flipped.effect_interval.lower > 0.3
    assert figures["failure_rate[structured]"].value == 0.0
    unconfirmed = figures["must_pass_flips[all]"]
    assert (unconfirmed.value, unconfirmed.counts.errored) == (0.0, 5)  # nothing passes before it was asked again
    assert figures["fixed_prompt_failure_rate[all]"].value == 1.0  # of the two off the list the first answer counts
    again = _by_key(list(probe.summarize(_confirmed(probe, outcomes, "nevím", "nevím"))))
    flips = again["must_pass_flips[all]"]
    assert (flips.value, flips.counts.errored) == (5, 0)  # the tie stays a tie
    assert "discount-compare-must-pass/near-a" in flips.note
    assert "discount-compare-must-pass/tie" not in flips.note


def test_a_flip_counts_when_it_shows_in_every_batch(probe: CanaryProbe, tokenizer: Any) -> None:
    items = [item for item in probe.plan(tokenizer) if item.stage == "must-pass"]
    right = _answers(probe, items)
    key = next(item.key for item in items if "</think>" not in right[item.key])  # of discount-compare, on the list
    branch = right | {key: "nevím"}
    outcomes = [_outcome(probe, i, _results(i, branch[i.key]), _results(i, right[i.key])) for i in items]
    (repeated,) = probe.doubtful(outcomes)
    assert repeated.key == key
    groups = [request.group for request in repeated.generations]
    assert sorted(groups.count(group) for group in set(groups)) == [1, 4]
    assert len({request.key for request in repeated.generations}) == 5
    first = next(outcome for outcome in outcomes if outcome.item_key == key)
    results = {
        "flipped": _confirmed(probe, outcomes, "nevím", "nevím"),
        "unstable": _confirmed(probe, outcomes, right[key], "nevím"),
        "errored": _confirmed(probe, outcomes, None, "nevím"),
    }
    figures = {name: _by_key(list(probe.summarize(each))) for name, each in results.items()}
    flips = {name: each["must_pass_flips[all]"] for name, each in figures.items()}
    assert [(flips[name].value, flips[name].counts.errored) for name in results] == [(1.0, 0), (0.0, 0), (0.0, 1)]
    assert figures["unstable"]["must_pass_unstable[all]"].value == 1.0
    assert first.cluster in flips["unstable"].note
    assert not probe.doubtful(results["flipped"])
    assert not probe.doubtful(results["unstable"])


def test_both_raw_texts_and_the_failures_are_kept(probe: CanaryProbe, tokenizer: Any) -> None:
    item = probe.plan(tokenizer)[0]
    outcome = _outcome(probe, item, _results(item, "nevím"), _results(item, "\ud83d <b>"))
    assert (outcome.branch.text, outcome.reference.text) == ("nevím", "\ufffd <b>")
    assert ItemOutcome.model_validate_json(outcome.model_dump_json()) == outcome
    codes = {failure["code"] for failure in outcome.branch.detail["failures"]}
    assert codes == {"wrong_amount", "no_conclusion", "too_short"}


@pytest.mark.long
def test_errors_are_never_wrong_answers(probe: CanaryProbe, tokenizer: Any) -> None:
    items = probe.plan(tokenizer)
    right = _answers(probe, items)
    outcomes = []
    for number, item in enumerate(items):
        text = None if number % 10 == 0 else right[item.key]
        reference = None if number % 10 == 1 else _results(item, right[item.key])
        outcomes.append(_outcome(probe, item, _results(item, text), reference))
    assert {outcome.branch.score for outcome in outcomes[::10]} == {None}
    for measurement in probe.summarize(outcomes):
        right_is_one = measurement.metric == "schema_accuracy"
        assert measurement.value == (1.0 if right_is_one else 0.0)
    rate = _by_key(list(probe.summarize(outcomes)))["failure_rate[structured]"]
    assert rate.counts.errored == 8
    assert rate.counts.scored == 32
    assert rate.clusters is not None
    assert (sum(rate.clusters.units), sum(rate.clusters.errored)) == (32, 8)
    assert rate.value_interval is not None
    assert rate.value_interval.upper == pytest.approx(betaincinv(9, 32, 0.975))  # all 8 may have failed, 8 of 40


def test_a_reference_that_was_not_scored_on_its_answer_is_errored_and_not_silent(
    probe: CanaryProbe, tokenizer: Any
) -> None:
    item = next(item for item in probe.plan(tokenizer) if item.stage != "must-pass")
    first = Digest(values={"text": "nevím", "finish_reason": "stop", "token_ids": [5], "end_id": 2, "rows": 1})
    engine: Any = None
    (outcome,) = probe.compare(engine, item, _results(item, "nevím"), first)
    assert outcome.reference.score is None
    assert "could not be scored on its own answer" in (outcome.reference.error or "")
    rate = _by_key(list(probe.summarize([outcome])))["failure_rate[all]"]
    assert (rate.counts.scored, rate.counts.errored) == (0, 1)


def test_margins_that_are_no_numbers_give_no_figure(probe: CanaryProbe, tokenizer: Any) -> None:
    items = [item for item in probe.plan(tokenizer) if item.stage != "must-pass"]
    right = _answers(probe, items)
    outcomes = []
    for item in items:
        outcome = _outcome(probe, item, _results(item, right[item.key]), _results(item, right[item.key]))
        sides = {
            side: answer.model_copy(update={"detail": {"margin": {"nats": nats}}})
            for side, answer, nats in (("branch", outcome.branch, float("nan")), ("reference", outcome.reference, 3.0))
        }
        outcomes.append(outcome.model_copy(update=sides))
    assert "decisive_margin_ratio[all]" not in _by_key(list(probe.summarize(outcomes)))


@pytest.mark.parametrize("repeats", [None, []])
def test_a_must_pass_prompt_of_which_no_repeat_is_known_is_errored(
    probe: CanaryProbe, tokenizer: Any, repeats: list[Any] | None
) -> None:
    item = next(item for item in probe.plan(tokenizer) if item.stage == "must-pass")
    values = probe.digest(None, item, _results(item, "nevím")).values | {"repeats": repeats}  # type: ignore[arg-type]
    (outcome,) = probe.compare(None, item, _results(item, "nevím"), Digest(values))  # type: ignore[arg-type]
    assert outcome.reference.score is None


def test_a_must_pass_prompt_is_asked_of_the_reference_among_four_and_alone(tokenizer: Any) -> None:
    specs = load_specs(only=["discount-compare-must-pass"])  # of six prompts
    (first, *_) = specs[0].must_pass or ()
    own = specs[0].model_copy(update={"id": "own-one", "must_pass": [first]})
    probe = CanaryProbe(specs, own=[own])
    items = probe.plan(tokenizer)
    requests = [request for item in items for request in probe.follow_up(item, Digest()).repeats]
    assert len({request.key for request in requests}) == len(requests)
    rows = Counter(request.group for request in requests)
    assert sorted(rows.values()) == [1] * 7 + [4] * 3
    assert {item.key + ending for item in items for ending in ("/four", "/alone")} <= {r.key for r in requests}


def test_canaries_of_ones_own_change_nothing_that_the_shipped_ones_are_asked(tokenizer: Any) -> None:
    """Also where they begin as those do: not what is computed once for several, nor who is asked again with whom."""
    specs = load_specs(only=["tool-call", "tool-call-must-pass"], n=12)
    own = [spec.model_copy(update={"id": f"own-{spec.id}"}) for spec in specs]
    alone, beside = CanaryProbe(specs), CanaryProbe(specs, own=own)
    items = alone.plan(tokenizer)
    assert [item for item in beside.plan(tokenizer) if beside.part_of(item.key) == "canaries"] == items
    for key in (item.key for item in items if item.stage == "must-pass"):
        assert beside._again(key) == alone._again(key)
        assert beside._repeats(key) == alone._repeats(key)


def test_with_reasoning_only_what_follows_it_counts(probe: CanaryProbe, tokenizer: Any) -> None:
    items = probe.plan(tokenizer)
    right = _answers(probe, items)
    item = next(item for item in items if "</think>" in right[item.key])
    answer = right[item.key].split("</think>")[1]
    misled = f"Levnější je obchod C.\n</think>{answer}"
    assert _outcome(probe, item, _results(item, misled)).branch.score == 1.0
    unfinished = _outcome(probe, item, _results(item, answer))
    assert [failure["code"] for failure in unfinished.branch.detail["failures"]] == ["no_answer"]


def test_the_suite_hash_follows_what_is_asked() -> None:
    def suite(n: int) -> str:
        return CanaryProbe(load_specs(only=["json-flat"], n=n)).suite_sha256

    assert suite(5) == suite(5) != suite(6)
