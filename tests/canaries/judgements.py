"""What the checks make of every labelled answer, as recorded for `CHECKS_VERSION`.

`python -m tests.canaries.judgements` records it anew, after the version was raised. Messages are left out: a sentence
may be reworded under the same version.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from q36eval.canaries.checks import CHECKS_VERSION, Decision, Failure, decisions, outcome_of, run_checks
from tests.canaries.hand_labelled import PARTS, hand_labelled, labelled_answers

RECORDED = Path(__file__).parent / "judgements.txt"


def judgement(failures: Sequence[Failure], decided: Sequence[Decision] = ()) -> str:
    """The outcome, the codes in order, and a short hash of the places and decisions."""
    codes = ",".join(f"{failure.check}:{failure.code}" for failure in failures[:4]) or "-"
    details = [(failure.check, failure.code, failure.place, failure.unreadable) for failure in failures]
    places = repr((details, [(one.kind, one.start, one.end, one.wrong) for one in decided]))
    return f"{outcome_of(failures)} {codes} {hashlib.sha256(places.encode()).hexdigest()[:8]}"


def of_labelled() -> Iterator[tuple[str, str]]:
    """Name and judgement of every answer in `labelled/`, with the decisions of those that are right."""
    for number, answer in enumerate(labelled_answers(), 1):
        failures = run_checks(answer.text, answer.checks, answer.expected, answer.tools)
        decided = [] if failures else decisions(answer.text, answer.checks, answer.expected, answer.tools)
        yield f"labelled/{number}", judgement(failures, decided)


def of_hand_labelled(part: str) -> Iterator[tuple[str, str]]:
    """Name and judgement of every answer of a part."""
    for number, answer in enumerate(hand_labelled((part,)), 1):
        yield f"{part}/{number}", judgement(answer.failures())


def recorded() -> tuple[int, dict[str, str]]:
    """The version that was recorded, and every answer's judgement by name."""
    first, *lines = RECORDED.read_text(encoding="utf-8").splitlines()
    return int(first.removeprefix("CHECKS_VERSION ")), dict(line.split(" ", 1) for line in lines)


if __name__ == "__main__":
    judged = [*of_labelled(), *(pair for part in PARTS for pair in of_hand_labelled(part))]
    lines = [f"CHECKS_VERSION {CHECKS_VERSION}", *(f"{name} {said}" for name, said in judged)]
    RECORDED.write_text("\n".join(lines) + "\n", encoding="utf-8")
