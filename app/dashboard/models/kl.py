"""What the KL page shows beyond `app.kl_model`: margins beside the groups, and filtered tokens. Pure."""

from collections.abc import Sequence

from q36eval.app.kl_model import grouping_of
from q36eval.gate.report import GateReport
from q36eval.records import ProbeName
from q36eval.token_files import WorstToken

ALL = "all"


def margins_by_group(report: GateReport | None, grouping: str) -> dict[str, float]:
    """The greatest mean KL that the policy allows each group of a grouping, by the group's name."""
    found = {}
    for result in () if report is None else report.criteria:
        judged = result.probe is ProbeName.KL and result.metric == "kl_divergence" and result.margin.kind == "max_value"
        kind, name = grouping_of(result.slice)
        if judged and kind == grouping:
            found[name] = result.margin.value
    return found


def select_worst(worst: Sequence[WorstToken], of: str = ALL, kind: str = ALL) -> list[WorstToken]:
    """The tokens of one slice and of one kind, or of `ALL`."""
    return [token for token in worst if of in (ALL, token.slice) and kind in (ALL, token.kind)]


def worst_rows(worst: Sequence[WorstToken]) -> list[dict[str, str]]:
    """Tokens with their context and all their figures."""
    return [{name: str(value) for name, value in token.model_dump().items()} for token in worst]
