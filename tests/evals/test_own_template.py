"""Groups with the chat template are asked of a branch by its own, where that is declared, and paired item by item."""

import copy
from pathlib import Path
from typing import Any

import pytest

from q36eval.engines import Engine
from q36eval.engines.in_process import InProcessEngine
from q36eval.evals.probe import EvalsProbe
from q36eval.probes import OwnPrompts
from q36eval.records import ItemOutcome, ProbeName
from tests.canaries.runs import run_of
from tests.evals.small_suite import write_small_suite

pytestmark = pytest.mark.long

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
