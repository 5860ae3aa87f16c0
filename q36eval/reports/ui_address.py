"""The places of a run, or of a criterion's evidence, in the review UI: addresses shared by reports and pages."""

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from q36eval.gate.report import UNMEASURED, CriterionResult, GateReport
from q36eval.records import Lane, ProbeName
from q36eval.reports.story import decided_by

if TYPE_CHECKING:
    from q36eval.history.records import RunRecord

UI_URL = "Q36EVAL_UI_URL"
"""Environment variable: the address of `q36eval ui`, as `https://review.example/q36eval`. Unset: no addresses."""

_PLAIN_ADDRESS = re.compile(r"https?://[\w.:\[\]-]+(/[\w./~%-]*)?", re.ASCII)
_LANES = {lane.value for lane in Lane}
_TOTALS = _LANES | {"all"}


@dataclass(frozen=True)
class Place:
    """A page of the UI with its query parameters; `label` describes its content."""

    page: str
    label: str
    query: tuple[tuple[str, str], ...] = ()

    def address(self, root: str) -> str:
        """The whole address under the UI's own."""
        return f"{root.rstrip('/')}/{self.page}?{urlencode(self.query)}"


def run_place(run_id: str) -> Place:
    """A run's own page."""
    return Place("run", "the run", (("run", run_id),))


def evidence_place(result: CriterionResult, run_id: str) -> Place | None:
    """The page with a criterion's evidence; None if no page shows it (static checks of the weights)."""
    query = {"run": run_id}
    match result.probe:
        case ProbeName.KL:
            return Place("kl", "its tokens", tuple(query.items()))
        case ProbeName.EVALS:
            group = {} if result.slice in _TOTALS else {"group": result.slice.split("/")[0]}
            query = query | group | {"direction": "lost"}
            return Place("evals", "what it lost", tuple(query.items()))
        case ProbeName.CANARIES:
            label, query = _canaries(result, query)
            return Place("canaries", label, tuple(query.items()))
        case _:
            return None


def _canaries(result: CriterionResult, query: dict[str, str]) -> tuple[str, dict[str, str]]:
    query = query | ({} if result.slice in _TOTALS else {"canary": result.slice})
    lane = {"lane": result.slice} if result.slice in _LANES else {}
    if result.metric == "must_pass_unstable":
        return "the unstable prompts", query | {"outcome": "unstable"} | lane
    if result.metric.startswith("must_pass"):
        confirmed = {"outcome": "regression"} | lane | {"standing": "confirmed"}
        return "the prompts it lost", query | confirmed
    if result.metric == "decisive_margin_ratio":
        return "its answers at risk", query | {"outcome": "at risk"} | lane
    return "the answers it lost", query | {"outcome": "regression"} | lane


def ui_root() -> str | None:
    """The UI's own address from `Q36EVAL_UI_URL`; None if it is not set, or is not a plain web address.

    Without user, query or fragment: it appears in Markdown and HTML unescaped, and is read by many.
    """
    root = os.environ.get(UI_URL, "").strip()
    return root if _PLAIN_ADDRESS.fullmatch(root) else None


@dataclass(frozen=True)
class Link:
    """An address, and its content."""

    words: str
    address: str


def links(report: GateReport, run: "RunRecord | None") -> tuple[Link, ...]:
    """The run, then its deciding criteria, in the UI of `Q36EVAL_UI_URL`; none if it is not set."""
    root = ui_root()
    if root is None or run is None:
        return ()
    places = {run_place(run.id): "the run"}
    for result in decided_by(report):
        place = evidence_place(result, run.id)
        if place is not None and result.verdict not in UNMEASURED:
            places.setdefault(place, f"{result.name}: {place.label}")
    return tuple(Link(words, place.address(root)) for place, words in places.items())
