"""Where in the review UI a run, or what a criterion judged, is to be seen: addresses that reports and pages share."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit

from q36eval.gate.report import CriterionResult
from q36eval.records import Lane, ProbeName

UI_URL = "Q36EVAL_UI_URL"
"""Environment variable: where people reach `q36eval ui`, as `https://review.example/q36eval`. Unset: no addresses."""

_TOTALS = {lane.value for lane in Lane} | {"all"}


@dataclass(frozen=True)
class Place:
    """A page of the UI and what its address asks for; `label` says what one sees there."""

    page: str
    label: str
    query: Mapping[str, str] = field(default_factory=dict)

    def address(self, root: str) -> str:
        """The whole address under the UI's own."""
        return f"{root.rstrip('/')}/{self.page}?{urlencode(self.query)}"


def run_place(run_id: str) -> Place:
    """A run's own page."""
    return Place("run", "the run", {"run": run_id})


def evidence_place(result: CriterionResult, run_id: str) -> Place | None:
    """Where one sees what a criterion judged; None where no page shows it (static checks of the weights)."""
    query = {"run": run_id}
    match result.probe:
        case ProbeName.KL:
            return Place("kl", "its tokens", query)
        case ProbeName.EVALS:
            group = {} if result.slice in _TOTALS else {"group": result.slice.split("/")[0]}
            return Place("evals", "what it lost", query | group | {"direction": "lost"})
        case ProbeName.CANARIES:
            return Place("canaries", *_canaries(result, query))
        case _:
            return None


def _canaries(result: CriterionResult, query: dict[str, str]) -> tuple[str, dict[str, str]]:
    query = query | ({} if result.slice in _TOTALS else {"canary": result.slice})
    if result.metric == "must_pass_unstable":
        return "the unstable prompts", query | {"outcome": "unstable"}
    if result.metric.startswith("must_pass"):
        return "the prompts it lost", query | {"outcome": "regression", "must": "yes"}
    if result.metric.startswith("decisive_margin") or result.metric == "at_risk":
        return "its answers at risk", query | {"outcome": "at risk"}
    return "the answers it lost", query | {"outcome": "regression"}


def ui_root() -> str | None:
    """The UI's own address as `Q36EVAL_UI_URL` gives it; None where it is not set or no web address."""
    found = os.environ.get(UI_URL, "").strip()
    parts = urlsplit(found)
    return found if parts.scheme in ("http", "https") and parts.netloc and "@" not in parts.netloc else None
