"""Intervals and margin tests on clustered, paired evidence. Pure; numpy only."""

from q36eval.stats._holm import holm
from q36eval.stats._inference import MeanInference
from q36eval.stats._margin import (
    ESTIMATORS_OF_KIND,
    MAX_ERRORED_SHARE,
    MarginKind,
    MarginLike,
    MarginTest,
    loss_limit,
    margin_test,
    why_not_measured,
)
from q36eval.stats._quantile import QuantileInference, quantile_clusters
from q36eval.stats._stratified import StratifiedMean
from q36eval.stats._summary import DEFAULT_LEVEL, summarize

__all__ = [
    "DEFAULT_LEVEL",
    "ESTIMATORS_OF_KIND",
    "MAX_ERRORED_SHARE",
    "MarginKind",
    "MarginLike",
    "MarginTest",
    "MeanInference",
    "QuantileInference",
    "StratifiedMean",
    "holm",
    "loss_limit",
    "margin_test",
    "quantile_clusters",
    "summarize",
    "why_not_measured",
]
