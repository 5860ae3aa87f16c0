"""What is read of a judged answer: a number that both deployments' answers to one question are compared by."""

from canaries.checks import WRONG_CONCLUSION
from canaries.risk import AT_RISK_NATS, least_margin
from q36eval.records import Answer


def failed(answer: Answer) -> float | None:
    """Whether it is wrong."""
    return None if answer.score is None else float(answer.score == 0.0)


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
