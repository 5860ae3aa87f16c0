"""What one model answered is never given out as another's."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from q36eval.engines import Engine
from q36eval.engines.in_process import InProcessEngine
from q36eval.evals.probe import EvalsProbe
from q36eval.probes import Progress, Sink
from q36eval.records import ItemOutcome, ProbeFailure
from q36eval.run.rounds import run_probes
from tests.evals.small_suite import captures_in, write_small_suite

COUNTS = {"mmlu/law.jsonl": 8, "mmlu_dev/law.jsonl": 1, "short_answers/law.jsonl": 4, "short_answers_dev/law.jsonl": 2}


class Kept(Sink):
    def __init__(self) -> None:
        self.items: list[ItemOutcome] = []

    def add_items(self, outcomes: Sequence[ItemOutcome]) -> None:
        self.items += outcomes

    def add_failure(self, failure: ProbeFailure) -> None:
        raise AssertionError(failure.reason)

    def known_items(self) -> list[ItemOutcome]:
        return self.items


@pytest.fixture(scope="module")
def another(tiny_model: Any, tokenizer: Any, engine: Engine) -> Engine:
    """The same architecture with other weights, under an identity of its own."""
    model = copy.deepcopy(tiny_model)
    torch.manual_seed(17)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, float(parameter.std()))
    return InProcessEngine(model, tokenizer, engine.identity.model_copy(update={"checkpoint_sha256": "another"}))


def answers(place: Path, suite: Path, branch: Engine, reference: Engine) -> list[tuple[Any, Any]]:
    """Branch's and reference's answers by item, with everything kept in one place."""

    sink = Kept()
    probe = EvalsProbe(suite)
    run_probes(branch, branch.tokenizer, captures_in(place, reference), [probe], sink, Progress())
    ordered = sorted(sink.items, key=lambda outcome: outcome.item_key)
    return [(_plain(outcome.branch), _plain(outcome.reference)) for outcome in ordered]


def _plain(answer: Any) -> Any:
    return answer.text, {name: value for name, value in answer.detail.items() if name != "seconds"}


@pytest.mark.long
def test_a_second_branch_and_a_second_reference_never_receive_the_first_ones_answers(
    tmp_path: Path, engine: Engine, another: Engine
) -> None:
    suite = write_small_suite(tmp_path / "suite", COUNTS)
    first = answers(tmp_path / "kept", suite, branch=engine, reference=another)
    second = answers(tmp_path / "kept", suite, branch=another, reference=engine)
    assert len(first) == 12
    assert sum(branch != reference for branch, reference in first) >= 10, (
        "two models that answer alike would show nothing"
    )
    assert [(reference, branch) for branch, reference in second] == first
