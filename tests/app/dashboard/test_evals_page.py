"""The evals page: choices side by side, scores by task, links to one flip."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from driving import answers_of, markup_of
from written_history import HOSTILE, record

from q36eval.app.figures.evals import answer_choices, flips_of
from q36eval.records import Answer, ItemOutcome, ProbeName
from tests.outcomes import outcome
from tests.q36eval.gate.evidence import accuracy


def answer(score: float, text: str, *log_likelihoods: float) -> Answer:
    choices = dict(zip("ABCD", log_likelihoods, strict=False))
    return Answer(score=score, text=text, detail={"log_likelihoods": choices} if choices else {})


def item(number: int, reference: Answer, branch: Answer) -> ItemOutcome:
    key, prompt = f"{number:02d}".ljust(64, "f"), f"Question {number} {HOSTILE}"
    of_law = {"group": "mmlu", "item_key": key, "stratum": "law", "prompt": prompt, "expected": "A"}
    return outcome(ProbeName.EVALS, str(number), branch, reference, **of_law)


ITEMS = [
    item(1, answer(1.0, "A", -0.1, -3.0), answer(0.0, "B", -2.0, -0.2)),
    item(2, answer(0.0, "B", -2.0, -0.2), answer(1.0, "A", -0.1, -3.0)),
    item(3, answer(1.0, "A"), answer(0.0, HOSTILE)),
    item(4, answer(1.0, "A", -0.1, -3.0), answer(1.0, "A", -0.1, -3.0)),
]


@pytest.mark.long
def test_flips_show_both_answers_and_their_choices(tmp_path: Path, visit: Callable[..., Any]) -> None:
    path = tmp_path / "history.sqlite"
    found = [accuracy([0, 1, 0, 1], [1, 0, 1, 1], name) for name in ("mmlu", "mmlu/law")]
    run = record(path, ITEMS, found).id
    app = visit(path, "evals", run=run, group="mmlu", direction="lost")
    shown = answers_of(app)
    assert len(shown) == 2
    assert any("2 of 3 flips" in caption.value for caption in app.caption)
    choices = {choice["token"]: choice for side in shown for choice in side["choices"]}
    assert choices["A"]["reference"]["said"]
    assert choices["B"]["branch"]["said"]
    assert choices["A"]["branch"]["share"] + choices["B"]["branch"]["share"] == pytest.approx(1.0, abs=0.01)
    app = app.selectbox(key="direction").set_value("gained").run()
    assert len(answers_of(app)) == 1
    app = visit(path, "evals", run=run, item=ITEMS[2].item_key[:16])
    (side,) = answers_of(app)
    assert side["sides"][1]["pieces"][0][0].startswith("<script>")
    assert side["choices"] == []
    assert not any("script" in text for text in markup_of(app))


def test_odd_likelihoods_are_no_choices() -> None:
    (flip,) = flips_of([ITEMS[0]])
    odd = {"log_likelihoods": {"A": "-Infinity", "B": 0.0}}
    known = flip.model_copy(update={"branch": Answer(score=0.0, text="B", detail=odd)})
    assert [choice.branch.share for choice in answer_choices(known)] == [0.0, 1.0]
    for detail in ({"log_likelihoods": {}}, {"log_likelihoods": {"A": "NaN"}}, {"log_likelihoods": 3}, {}):
        bare = Answer(score=0.0, text="B", detail=detail)
        assert all(choice.branch is None for choice in answer_choices(flip.model_copy(update={"branch": bare})))
