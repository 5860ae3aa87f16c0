"""What is read of a judged answer: a number that both deployments' answers to one question are compared by."""

from q36eval.canaries.checks import WRONG_CONCLUSION
from q36eval.canaries.risk import AT_RISK_NATS, least_margin
from q36eval.records import Answer


def failed(answer: Answer) -> float | None:
    """Whether it is wrong."""
    return None if answer.score is None else float(answer.score == 0.0)


def cut_off(answer: Answer) -> float | None:
    """Whether it had no end within its budget; None where the engine gave no answer."""
    return None if answer.error is not None else float(answer.detail.get("finish_reason") == "length")


def at_risk(answer: Answer) -> float | None:
    """Whether its least margin is below what a right answer is safe by."""
    margin = least_margin(answer)
    return None if margin is None else float(not margin >= AT_RISK_NATS)


def right_numbers_wrong_conclusion(answer: Answer) -> float | None:
    """Whether the only fault of an answer is its final comparison."""
    codes = {failure["code"] for failure in answer.detail.get("failures", ())}
    return None if answer.score is None else float(codes == {WRONG_CONCLUSION})


def meets_schema(answer: Answer) -> float | None:
    """Whether the calls that it makes meet their tools' schemas; None where it makes none."""
    met = answer.detail.get("schema_ok")
    return None if met is None else float(met)


def called(answer: Answer) -> bool | None:
    """Whether it calls a tool at all."""
    made: bool | None = answer.detail.get("called")
    return made


def unended(answer: Answer) -> float | None:
    """Whether its reasoning, or the answer after it, never ends; None where the engine gave no answer."""
    codes = {failure["code"] for failure in answer.detail.get("failures", ())}
    ended = "no_answer" not in codes and answer.detail.get("finish_reason") != "length"
    return None if answer.error is not None else float(not ended)


def loops(answer: Answer) -> float | None:
    """Whether it goes round, in its reasoning or after; None where the engine gave no answer."""
    return None if answer.error is not None else float(bool(answer.detail.get("loops")))


def tokens(answer: Answer) -> float | None:
    """How many it took, reasoning included; None where the engine gave no answer."""
    return None if answer.error is not None else float(answer.detail["tokens"])


def budget_used(answer: Answer) -> float | None:
    """The share of its budget that it took, reasoning included; None where the engine gave no answer."""
    return None if answer.error is not None else min(1.0, answer.detail["tokens"] / answer.detail["budget"])
