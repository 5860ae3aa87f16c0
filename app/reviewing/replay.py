"""A run decided again from history: whether its report is identical to the byte, and another policy's decision."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from q36eval.app.figures.layer_at_fault import layer_of
from q36eval.gate import CriterionResult, GateReport, Policy
from q36eval.history import History, RunRecord
from q36eval.history.decisions import replayed, under
from q36eval.records import Record
from q36eval.reports import Document, to_json
from q36eval.reports.text import margin_text


@dataclass(frozen=True)
class Replay:
    """The stored JSON report, and the one of the repeated decision."""

    run: RunRecord
    kept: str
    again: str

    @property
    def identical(self) -> bool:
        """Whether the two are identical to the byte."""
        return self.kept == self.again

    @property
    def sha256(self) -> str:
        """Hash of the repeated report, as `gate --out` writes it."""
        return hashlib.sha256(self.again.encode()).hexdigest()

    @cached_property
    def differences(self) -> list[str]:
        """The differences: the path of each value, the stored and the new value."""
        return list(differences(json.loads(self.kept), json.loads(self.again)))

    @cached_property
    def same_verdicts(self) -> bool:
        """Whether both give the same exit code, and the whole, every lane and every criterion the same verdict."""
        return _verdicts(json.loads(self.kept)) == _verdicts(json.loads(self.again))


def replay(history: History, run: RunRecord) -> Replay:
    """Decide a run again from history, and compare the report with the stored one.

    Raises:
        UsageError: the run has no verdict.
    """
    report = replayed(history, run)
    assert run.report is not None, "what was decided has a report"
    measurements = history.measurements(run.id)
    decided = run.model_copy(update={"report": report, "verdict": report.verdict})
    layer = layer_of(history, run)
    kept, again = (
        Document(run.report, run, measurements, layer=layer),
        Document(report, decided, measurements, layer=layer),
    )
    return Replay(run, to_json(kept), to_json(again))


def differences(kept: Any, again: Any, path: str = "") -> Iterator[str]:
    """Every value in which two JSON documents differ, by its path; entries with an `id` or a `lane` go by it."""
    if isinstance(kept, dict) and isinstance(again, dict):
        for key in sorted({*kept, *again}):
            below = f"{path}.{key}" if path else str(key)
            yield from differences(kept.get(key), again.get(key), below)
    elif isinstance(kept, list) and isinstance(again, list):
        mine, theirs = _by_name(kept), _by_name(again)
        for name in dict.fromkeys((*mine, *theirs)):
            yield from differences(mine.get(name), theirs.get(name), f"{path}[{name}]")
    elif kept != again or type(kept) is not type(again):
        yield f"{path}: {_short(kept)} -> {_short(again)}"


def _verdicts(document: dict[str, Any]) -> tuple[object, ...]:
    """The deciding parts of a JSON report, by name."""
    report = document.get("report") or {}
    named = {
        (kind, entry.get("id") or entry.get("lane")): (entry["verdict"], entry.get("waived_by"), entry.get("waived"))
        for kind in ("lanes", "criteria")
        for entry in report.get(kind, ())
    }
    run = document.get("run") or {}
    return run.get("verdict"), report.get("verdict"), report.get("exit_code"), named


def _by_name(entries: list[Any]) -> dict[str, Any]:
    names = [entry.get("id") or entry.get("lane") if isinstance(entry, dict) else None for entry in entries]
    if len(set(names)) < len(names) or None in names:
        return {str(place): entry for place, entry in enumerate(entries)}
    return dict(zip(map(str, names), entries, strict=True))


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 80 else text[:79] + "…"


class Change(Record):
    """The change of one criterion under another policy; None if one of the two does not have it."""

    id: str
    was: str | None
    now: str | None
    margin_was: str | None
    margin_now: str | None
    reason: str
    code: str = ""


class Retrial(Record):
    """One run under another policy: the same evidence, in the original circumstances."""

    run_id: str
    branch: str
    policy_was: str | None
    headline_was: str | None
    report: GateReport
    changes: tuple[Change, ...]
    unchanged: int
    asked_short: bool
    """The run stopped once its own policy was decided, so another policy may lack evidence."""


def retry(history: History, run: RunRecord, policy: Policy) -> Retrial:
    """The decision of `policy` on a run, criterion by criterion next to the reported one."""
    report = under(history, run, policy)
    before = {} if run.report is None else {result.id: result for result in run.report.criteria}
    after = {result.id: result for result in report.criteria}
    compared = [_change(name, before.get(name), after.get(name)) for name in dict.fromkeys((*after, *before))]
    changes = tuple(change for change in compared if (change.was, change.margin_was) != (change.now, change.margin_now))
    return Retrial(
        run_id=run.id,
        branch=run.branch,
        policy_was=None if run.report is None else run.report.policy,
        headline_was=None if run.report is None else run.report.headline,
        report=report,
        changes=changes,
        unchanged=len(compared) - len(changes),
        asked_short=not run.provenance.get("exhaustive", True),
    )


def _change(name: str, was: CriterionResult | None, now: CriterionResult | None) -> Change:
    return Change(
        id=name,
        was=_verdict(was),
        now=_verdict(now),
        margin_was=_margin(was),
        margin_now=_margin(now),
        reason="that policy does not judge it" if now is None else now.reason,
        code="not-judged" if now is None else now.code,
    )


def _verdict(result: CriterionResult | None) -> str | None:
    if result is None:
        return None
    tier = "" if result.tier == "blocking" else ", advisory"
    return f"{result.verdict.value.replace('_', ' ')}{' (waived)' if result.waived else ''}{tier}"


def _margin(result: CriterionResult | None) -> str | None:
    return None if result is None else margin_text(result.margin, result.unit)
