"""Intervals and margin tests on clustered, paired evidence. Pure; numpy only."""

from q36eval.stats._holm import holm
from q36eval.stats._inference import MeanInference
from q36eval.stats._margin import (
    ESTIMATOR_OF_KIND,
    MAX_ERRORED_SHARE,
    MarginKind,
    MarginLike,
    MarginTest,
    loss_limit,
    margin_test,
    why_not_measured,
)
from q36eval.stats._summary import DEFAULT_LEVEL, summarize

__all__ = [
    "DEFAULT_LEVEL",
    "ESTIMATOR_OF_KIND",
    "MAX_ERRORED_SHARE",
    "MarginKind",
    "MarginLike",
    "MarginTest",
    "MeanInference",
    "holm",
    "loss_limit",
    "margin_test",
    "summarize",
    "why_not_measured",
]
