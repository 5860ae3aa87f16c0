"""Intervals and margin tests on clustered, paired evidence. Pure: imports only `q36eval.records`, numpy and scipy.

`margin_test` and `summarize` choose by estimator among the families of tests, each in a separate module: `_betting`
(bounded means), `_scheduled` (the same in blocks, with a planned end), `_bootstrap` (unbounded means), `_ratio`,
`_quantile`, `_pairs` (exact, for two rates), `_proportion` (exact, for counts). Evidence enters as `records.Clusters`
and becomes a `_contrast`. To add an estimator: add it to `records.Estimator`, add a module with its tests and interval,
and add its branch to `_summary` and `_margin` (`ESTIMATORS_OF_KIND`).
"""

from q36eval.stats._bootstrap import why_untrusted
from q36eval.stats._contrast import planned_clusters, planned_largest
from q36eval.stats._decision import holm, resolved_early
from q36eval.stats._margin import (
    ESTIMATORS_OF_KIND,
    MAX_ERRORED_SHARE,
    MAX_UNREADABLE_SHARE,
    Limit,
    MarginKind,
    MarginTest,
    as_expected,
    can_show,
    loss_limit,
    margin_test,
    why_missing,
    why_not_measured,
)
from q36eval.stats._proportion import (
    ShareBeyond,
    least_clusters,
    proportion_interval,
    unseen_share,
)
from q36eval.stats._quantile import quantile_clusters
from q36eval.stats._scheduled import LookShares
from q36eval.stats._summary import DEFAULT_LEVEL, point_figures, summarize

__all__ = [
    "DEFAULT_LEVEL",
    "ESTIMATORS_OF_KIND",
    "MAX_ERRORED_SHARE",
    "MAX_UNREADABLE_SHARE",
    "Limit",
    "LookShares",
    "MarginKind",
    "MarginTest",
    "ShareBeyond",
    "as_expected",
    "can_show",
    "holm",
    "least_clusters",
    "loss_limit",
    "margin_test",
    "planned_clusters",
    "planned_largest",
    "point_figures",
    "proportion_interval",
    "quantile_clusters",
    "resolved_early",
    "summarize",
    "unseen_share",
    "why_missing",
    "why_not_measured",
    "why_untrusted",
]
