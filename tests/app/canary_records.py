"""Hand-made canary outcomes, with everything that a run keeps of them, as tests of reports and pages need them."""

from typing import Any

from q36eval.records import Answer, ItemOutcome, ProbeName
from tests.outcomes import outcome

HOSTILE = "<script>alert(1)</script> [bold red]x[/] \x1b[31m\x07\u202e"
DIVERGENCE = {"position": 1, "said": " B", "top": [[" B", -0.1], [" A", -2.4]]}


def answer(
    score: float | None,
    text: str = "levnější je B",
    *,
    nats: float | None = None,
    again: tuple[float | None, ...] = (),
    **detail: Any,
) -> Answer:
    """An answer with its least margin and its scores in other batches."""
    if score is None:
        return Answer(score=None, error="the engine gave up")
    failures = [{"check": "discount", "code": "wrong_conclusion", "place": "end", "message": f"decides {text}"}]
    found: dict[str, Any] = {"failures": [] if score else failures} | detail
    if nats is not None:
        found["margin"] = {"nats": nats, "decision": "conclusion", "right": " B", "wrong": " A", "position": 1}
    if again:
        found["repeats"] = [{"rows": 4, "score": one} for one in again]
    return Answer(score=score, text=text, detail=found)


def item(
    name: str, reference: Answer, branch: Answer, *, must_pass: bool = False, group: str | None = None
) -> ItemOutcome:
    """One question asked of both."""
    asked = {"prompt": f"Kde je to levnější, {name}?", "expected": "levnější je B", "must_pass": must_pass}
    key = {"item_key": name.rjust(64, "0"), "group": group or name.split("/")[0]}
    return outcome(ProbeName.CANARIES, name, branch, reference, **key, **asked)


def outcomes() -> list[ItemOutcome]:
    """A must-pass prompt of every standing; a family with a flip each way, one at risk and one that errored."""
    steady = (1.0, 1.0)
    hostile = {"divergence": DIVERGENCE | {"said": HOSTILE, "top": [[HOSTILE, -0.2], [" B", -1.9]]}}
    flipped = answer(0.0, HOSTILE, nats=-1.5, again=(0.0, 0.0), **hostile)
    return [
        item("fixed/passed", answer(1.0, again=steady), answer(1.0), must_pass=True),
        item("fixed/flip", answer(1.0, nats=4.0, again=steady, divergence=DIVERGENCE), flipped, must_pass=True),
        item("fixed/unstable", answer(1.0, again=steady), answer(0.0, "A", again=(1.0, 0.0)), must_pass=True),
        item("fixed/none", answer(0.0, "A", again=(0.0, 0.0)), answer(0.0, "A"), must_pass=True),
        item("fixed/errored", answer(1.0, again=steady), answer(None), must_pass=True),
        item("discount/1", answer(1.0, nats=5.0), answer(1.0, nats=4.5)),
        item("discount/2", answer(1.0, nats=3.0), answer(1.0, nats=0.25)),
        item("discount/3", answer(1.0, nats=2.0), answer(0.0, "A", nats=-0.5)),
        item("discount/4", answer(0.0, "A"), answer(1.0)),
        item("discount/5", answer(1.0), answer(None)),
    ]
