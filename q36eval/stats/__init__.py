"""Intervals and margin tests on clustered, paired evidence. Pure; numpy only."""

from q36eval.stats._contrast import planned_clusters, planned_largest
from q36eval.stats._gates import Kinds, Looker, margin_looks
from q36eval.stats._heavy_tail import why_untrusted
from q36eval.stats._holm import holm
from q36eval.stats._inference import MeanInference
from q36eval.stats._likelihood import LEAST_EXPECTED, effective_clusters
from q36eval.stats._margin import (
    ESTIMATORS_OF_KIND,
    MAX_ERRORED_SHARE,
    MAX_UNREADABLE_SHARE,
    MarginKind,
    MarginLike,
    MarginTest,
    loss_limit,
    margin_test,
    why_not_measured,
)
from q36eval.stats._power import GREATEST_LIMIT, Power, as_expected, can_show, power, tightest_limit
from q36eval.stats._proportion import proportion_interval
from q36eval.stats._quantile import QuantileInference, quantile_clusters
from q36eval.stats._scheduled import DEFAULT_SHARES, LookShares
from q36eval.stats._sequential import Settled, mcnemar, settled
from q36eval.stats._share import ShareBeyond, least_clusters, most_beyond, unseen_share
from q36eval.stats._stratified import StratifiedMean
from q36eval.stats._summary import DEFAULT_LEVEL, summarize

__all__ = [
    "DEFAULT_LEVEL",
    "DEFAULT_SHARES",
    "ESTIMATORS_OF_KIND",
    "GREATEST_LIMIT",
    "LEAST_EXPECTED",
    "MAX_ERRORED_SHARE",
    "MAX_UNREADABLE_SHARE",
    "Kinds",
    "LookShares",
    "Looker",
    "MarginKind",
    "MarginLike",
    "MarginTest",
    "MeanInference",
    "Power",
    "QuantileInference",
    "Settled",
    "ShareBeyond",
    "StratifiedMean",
    "as_expected",
    "can_show",
    "effective_clusters",
    "holm",
    "least_clusters",
    "loss_limit",
    "margin_looks",
    "margin_test",
    "mcnemar",
    "most_beyond",
    "planned_clusters",
    "planned_largest",
    "power",
    "proportion_interval",
    "quantile_clusters",
    "settled",
    "summarize",
    "tightest_limit",
    "unseen_share",
    "why_not_measured",
    "why_untrusted",
]
