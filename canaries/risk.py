"""When an answer may turn next. Of its own, since what shows it must not lead to torch."""

from typing import Any

from q36eval.records import Answer

AT_RISK_NATS = 0.5
"""An answer that the reference gets right and whose least margin is below this (odds of 1.65 to 1) may turn next."""


def least_margin(answer: Answer) -> float | None:
    """The least decisive margin in nats; None where nothing decides or nothing was scored."""
    margin: dict[str, Any] | None = answer.detail.get("margin")
    return None if margin is None else float(margin["nats"])
