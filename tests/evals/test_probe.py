"""The probe's outcomes: errors that are never wrong answers, margins and impossible choices, what the hash follows.

Groups with the chat template are asked of a branch by its own, where that is declared, and paired item by item.
"""

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from lm_eval.api.instance import Instance

from q36eval.engines import Engine
from q36eval.engines.in_process import InProcessEngine
from q36eval.errors import UsageError
from q36eval.evals.encoding import Encoder
from q36eval.evals.probe import EvalsProbe, _answer, _not_finite
from q36eval.evals.suite import LoadedSuite
from q36eval.probes import Digest, ItemResults, OwnPrompts, WorkItem
from q36eval.records import Answer, ItemOutcome, ProbeName
from q36eval.references import Capture
from tests.canaries.runs import run_of
from tests.evals.small_suite import write_small_suite
from tests.raising import failing, raises

ROOT = Path(__file__).resolve().parents[2]
SUITE = ROOT / "evals/suites/sandbox.yaml"


@pytest.fixture(scope="module")
def planned(tokenizer: Any) -> tuple[EvalsProbe, list[WorkItem]]:
    probe = EvalsProbe(SUITE)
    return probe, probe.plan(tokenizer)


Planned = tuple[EvalsProbe, list[WorkItem]]


@pytest.mark.long
def test_engine_errors_nan_and_what_breaks_scoring_become_errored_answers_never_wrong_ones(
    engine: Any, planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    probe, items = planned
    assert len({request.key for item in items for request in (*item.scores, *item.generations)}) == sum(
        len(item.scores) + len(item.generations) for item in items
    )
    item = next(item for item in items if item.scores)
    (scored,) = engine.score(item.scores)
    good = probe.digest(engine, item, ItemResults({scored.request.key: scored}))
    json.dumps(good.values, allow_nan=False)

    broken = type(scored)(scored.request, None, error="out of memory")
    (outcome,) = probe.compare(engine, item, ItemResults({scored.request.key: broken}), good)
    assert outcome.branch.score is None
    assert outcome.branch.error == "out of memory"
    assert outcome.reference.score is not None
    nan = type(scored)(scored.request, torch.full_like(scored.hidden_states, math.nan))
    (outcome,) = probe.compare(engine, item, ItemResults({scored.request.key: nan}), Digest(error="no reference"))
    assert outcome.branch.score is None
    assert outcome.reference.error == "no reference"
    assert outcome.flip is None

    object.__setattr__(scored, "seconds", 0.25)
    results = ItemResults({scored.request.key: scored})
    digest = probe.digest(engine, item, results)
    (outcome,) = probe.compare(engine, item, results, digest)
    assert outcome.branch.detail["seconds"] == 0.25, "the branch says how long an item took, the digest does not"
    assert outcome.branch.detail == outcome.reference.detail | {"seconds": 0.25}
    assert "seconds" not in str(digest.values)
    monkeypatch.setattr(
        probe._encoded[item.key][0].task, "process_results", failing(RecursionError("a bracket too many"))
    )
    digest = probe.digest(engine, item, results)
    assert digest.error == "lm-eval's scoring of the answer failed: RecursionError: a bracket too many"
    (outcome,) = probe.compare(engine, item, results, good)
    assert (outcome.branch.score, outcome.flip) == (None, None)
    assert outcome.reference.score is not None


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"generation_kwargs": {"do_sample": True, "temperature": 0.7}}, "task-unsupported"),
        ({"repeats": 4}, "task-unsupported"),
        ({"generation_kwargs": {"max_gen_toks": 4095}}, "answer-budget-too-large"),
    ],
)
def test_what_would_be_asked_otherwise_than_lm_eval_asks_is_refused(
    tmp_path: Path, tokenizer: Any, changes: dict[str, Any], code: str
) -> None:
    asked = {"subsets": {"vt": {"generation_kwargs": {"max_gen_toks": 30}} | changes}}
    suite = write_small_suite(tmp_path, {"ruler/vt.jsonl": 1}, lambda _: asked)
    with raises(UsageError, code):
        EvalsProbe(suite).plan(tokenizer)


def test_a_prompt_longer_than_the_context_is_an_errored_item_that_says_so(tmp_path: Path, engine: Any) -> None:
    """On both sides, in whatever kind of task; nothing is cut, and the capture of the reference is complete."""
    files = {
        "mmlu/czech_rivers.jsonl": 2,
        "mmlu_dev/czech_rivers.jsonl": 1,
        "ruler/vt.jsonl": 2,
        "perplexity/czech.jsonl": 1,
    }
    suite = write_small_suite(tmp_path, files, max_length=60)
    probe = EvalsProbe(suite)

    told = run_of(probe, engine, tmp_path / "kept", engine)
    capture = Capture(tmp_path / "kept", engine.identity, probe.name, probe.suite_sha256)
    assert capture.manifest is not None, "what can never be asked does not ask for the reference each time"
    by_group = {name: [o for o in told.items.values() if o.group == name] for name in ("mmlu", "ruler", "perplexity")}
    assert [len(outcomes) for outcomes in by_group.values()] == [2, 2, 1]
    for outcome in by_group["mmlu"] + by_group["ruler"]:
        for answer in (outcome.branch, outcome.reference):
            assert answer.score is None
            assert re.search(r"have \d+ tokens|has \d+ tokens, and its answer may take \d+ more", answer.error or "")
            assert "the suite's max_length is 60" in (answer.error or "")
    assert by_group["perplexity"][0].branch.score is not None, "a text is read in windows"
    counts = [each.counts for key, each in told.measurements.items() if "[ruler]" in key]
    assert {(count.total, count.scored, count.errored) for count in counts} == {(2, 0, 2)}


def test_a_prompt_that_just_fits_is_asked_whole(tokenizer: Any) -> None:
    """The last token of a choice is only predicted; the budget of an answer counts in full."""
    ids = len(tokenizer.encode("Na které řece leží Cheb?")) + len(tokenizer.encode(" Ohře"))
    choice = Instance("loglikelihood", {}, ("Na které řece leží Cheb?", " Ohře"), 0)
    assert Encoder(tokenizer, ids - 1).encode("k", [choice]).scores[0].first == ids - len(tokenizer.encode(" Ohře"))
    assert f"have {ids} tokens" in str(Encoder(tokenizer, ids - 2).encode("k", [choice]).problem)
    asked = Instance("generate_until", {}, ("Na které řece leží Cheb?", {"until": [], "max_gen_toks": 5}), 0)
    length = len(tokenizer.encode("Na které řece leží Cheb?"))
    (request,) = Encoder(tokenizer, length + 5).encode("k", [asked]).generations
    assert len(request.token_ids) == length
    assert Encoder(tokenizer, length + 4).encode("k", [asked]).generations == ()


def answered(planned: Planned, log_likelihoods: list[float]) -> Answer:
    """What the probe makes of these log-likelihoods of the first multiple-choice document, whose answer is read too."""
    probe, items = planned
    item = next(item for item in items if item.scores and len(probe._encoded[item.key][0].choices) == 4)
    document, encoded = probe._encoded[item.key]
    right = document.target
    rest = iter(log_likelihoods[1:])
    found = [(log_likelihoods[0] if place == right else next(rest), False) for place in range(4)]
    digest = Digest(values={"responses": found, "metrics": document.metrics(found)})
    return _answer(document, encoded, digest)


@pytest.mark.long
def test_what_a_deployment_holds_impossible_is_an_answer(planned: Planned) -> None:
    assert answered(planned, [-1.0, -2.0, -math.inf, -5.0]).detail["margin_nats"] == 1.0
    never = answered(planned, [-math.inf, -2.0, -3.0, -math.inf])
    assert (never.score, never.detail["margin_nats"]) == (0.0, -math.inf)
    only = answered(planned, [-1.0, -math.inf, -math.inf, -math.inf])
    assert (only.score, only.detail["margin_nats"]) == (1.0, math.inf)
    assert "margin_nats" not in answered(planned, [-math.inf] * 4).detail
    assert Answer.model_validate_json(never.model_dump_json()).detail["margin_nats"] == "-Infinity"
    for log_likelihood, error in ((-math.inf, False), (math.nan, True), (math.inf, True)):
        assert _not_finite([(-1.0, True), (log_likelihood, False)]) is error


@pytest.mark.long
def test_every_prompt_of_the_shipped_suite_fits_and_a_document_without_a_figure_has_its_words(planned: Planned) -> None:
    probe, items = planned
    assert all(encoded.problem is None for _, encoded in probe._encoded.values())
    assert all(item.scores or item.generations for item in items)
    item = next(item for item in items if probe._encoded[item.key][0].group.measure == "perplexity")
    document, encoded = probe._encoded[item.key]
    text = str(document.doc["text"])
    answer = _answer(document, encoded, Digest(error="gone"))
    assert (answer.score, answer.error) == (None, "gone")
    assert answer.detail["words"] == len(re.split(r"\s+", text))
    assert "nll_nats" not in answer.detail


def test_the_suite_hash_follows_what_is_asked(tmp_path: Path) -> None:
    suite = yaml.safe_load(SUITE.read_text(encoding="utf-8"))
    for group in suite["groups"]:
        group["task"] = str(ROOT / "evals/tasks" / Path(group["task"]).name)
    path = tmp_path / "suite.yaml"
    suite["max_length"] -= 1
    path.write_text(yaml.safe_dump(suite), encoding="utf-8")
    assert LoadedSuite(path, ROOT / "data/tasks/sandbox").sha256 != LoadedSuite(SUITE).sha256


def test_of_a_gated_dataset_no_text_is_kept(tmp_path: Path, engine: Any) -> None:
    files = {"mmlu/czech_rivers.jsonl": 2, "mmlu_dev/czech_rivers.jsonl": 1, "ruler/vt.jsonl": 1}
    gated = {"sources": {"a/b": {"gated": True}, "c/d": {}}}
    suite = write_small_suite(tmp_path, files, lambda group: {"dataset": "a/b" if group == "mmlu" else "c/d"}, **gated)
    items = run_of(EvalsProbe(suite), engine, tmp_path / "kept", engine).items.values()
    assert {item.group for item in items} == {"mmlu", "ruler"}
    for item in items:
        texts = (item.prompt, item.expected, item.branch.text, item.branch.detail.get("log_likelihoods"))
        assert any(texts) == (item.group == "ruler")
        assert item.branch.score is not None


# -- groups with the chat template, by the branch's own

COUNTS = {"mmlu/law.jsonl": 4, "mmlu_dev/law.jsonl": 1, "short_answers/law.jsonl": 6, "short_answers_dev/law.jsonl": 2}
REPAIR = "<|im_start|>system\nBe exact.<|im_end|>"
RAISES = "{%- if messages[-1].content | length is odd -%}{{ raise_exception('Not this one.') }}{%- endif -%}"


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short answers by the chat template, choices without."""
    of_group = lambda name: {"chat_template": name == "short_answers"}  # noqa: E731
    return write_small_suite(tmp_path_factory.mktemp("suite"), COUNTS, of_group)


def with_template(engine: Engine, tiny_model: Any, before: str) -> Engine:
    tokenizer = copy.copy(engine.tokenizer)
    tokenizer.chat_template = before + tokenizer.chat_template
    return InProcessEngine(tiny_model, tokenizer, engine.identity)


def evaluated(
    place: Path, suite: Path, branch: Engine, reference: Engine, *, declared: bool
) -> tuple[list[ItemOutcome], OwnPrompts | None]:
    """The outcomes in the order of evaluation, and what the branch's own template changed."""
    kept = dict[ProbeName, OwnPrompts]()
    sink = run_of(EvalsProbe(suite), branch, place, reference, own_template=kept.update if declared else None)
    return list(sink.items.values()), kept.get(ProbeName.EVALS)


@pytest.mark.long
def test_answers_are_those_to_its_own_prompts_paired_with_the_references(
    tmp_path: Path, suite: Path, engine: Engine, tiny_model: Any
) -> None:
    own = with_template(engine, tiny_model, REPAIR)
    outcomes, of = evaluated(tmp_path / "a", suite, own, engine, declared=True)
    plain, _ = evaluated(tmp_path / "b", suite, engine, engine, declared=False)
    alone, _ = evaluated(tmp_path / "c", suite, own, own, declared=False)
    assert (of.prompts, of.differing, of.unwritten) == (6, 6, 0)
    assert of.first[2] == REPAIR + of.first[1]
    assert [outcome.item_key for outcome in outcomes] == [outcome.item_key for outcome in plain]
    assert [outcome.reference for outcome in outcomes] == [outcome.reference for outcome in plain]
    by_doc = {(outcome.group, outcome.expected): outcome.branch.text for outcome in alone}
    answered = {(outcome.group, outcome.expected): outcome.branch.text for outcome in outcomes}
    assert answered == by_doc
    changed = [each for each in outcomes if each.branch.text != each.reference.text]
    assert changed, "a prompt that changes nothing would show nothing"
    assert {each.group for each in changed} == {"short_answers"}


@pytest.mark.long
@pytest.mark.parametrize("whose", ["branch", "reference", "both"])
def test_what_a_template_does_not_write_is_errored_and_kept(
    tmp_path: Path, suite: Path, engine: Engine, tiny_model: Any, whose: str
) -> None:
    raising = with_template(engine, tiny_model, RAISES)
    branch, reference = (engine if whose == other else raising for other in ("reference", "branch"))
    outcomes, of = evaluated(tmp_path, suite, branch, reference, declared=whose != "both")
    errored = [each for each in outcomes if each.branch.error is not None]
    assert len(outcomes) == 10
    assert 0 < len(errored) < 6
    assert all("does not write this conversation: Not this one." in (each.branch.error or "") for each in errored)
    assert {each.branch.score for each in errored} == {None}
    assert {each.reference.score is None for each in errored} == {whose != "branch"}
    assert of is None or of.unwritten == len(errored)
