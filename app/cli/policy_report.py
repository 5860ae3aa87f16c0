"""What `q36eval policy explain` and `calibrate` print."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from q36eval.app.cli.tables import plain_table
from q36eval.app.policies.words import UNDECIDED
from q36eval.reports.text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from q36eval.app.policies.calibrating import Calibration, CriterionCalibration
    from q36eval.app.policies.words import PolicyWords, Rule

LONG = 2_000
"""Characters of a sentence that are shown: some list every name there is."""


def print_words(words: "PolicyWords") -> None:
    """A policy lane by lane."""
    made_of = f", made of {' > '.join(words.lineage)}" if words.lineage else ""
    print(plain(f"{words.name}{made_of}: {words.description}", LONG))
    needs = "A release needs all of this"
    if words.purpose == "pre-check":
        needs = "To have found nothing takes all of this"
        print("A pre-check: it finds damage. Where it finds nothing it says so (exit 3), and releases nothing.")
    print(f"Explained for {plain(words.explained_for)}.")
    for lane in words.lanes:
        print(f"\nLane {lane.lane}. {needs}; where it is undecided: {UNDECIDED}.")
        _print_rules(lane.blocks)
        if lane.warns:
            print(f"\nLane {lane.lane}. Shown beside it, and never blocking:")
            _print_rules([replace(rule, undecided=UNDECIDED) for rule in lane.warns])
    for name in words.not_judged:
        print(f"\nLane {name} is not judged: a PASS says nothing about it.")
    print(f"\n{words.not_measured}\n{words.false_fail}")
    if words.attempts:
        print(words.attempts)


def _print_rules(rules: "Sequence[Rule]") -> None:
    for rule in rules:
        print("  - " + plain(f"{rule.title} ({rule.id}): {rule.asks}; {rule.evidence}.", LONG))
        if rule.undecided != UNDECIDED:
            print(f"      Undecided: {rule.undecided}.")
        if not rule.waivable:
            print("      Nobody may waive it.")
        if rule.able:
            print(f"      {rule.able}.")
        print("      " + plain(f"Source: {rule.source}.", LONG))
        for sentence in rule.by_scheme:
            print("      " + plain(f"{sentence}.", LONG))
        if rule.note:
            print("      " + plain(f"Note: {rule.note}", LONG))


def print_calibration(calibration: "Calibration", text: str, out: Path | None, *, widen: bool) -> None:
    """Every criterion, now and as proposed, then the reasons, then the file."""
    from rich.console import Console

    console = Console()
    rows = [_row(each) for each in calibration.criteria if each.change != "not calibrated"]
    columns = ("criterion", "margin", "now", "proposed", "", "items show", "up to changed")
    console.print(plain_table(columns, rows, right=(2, 3, 5, 6), whole=(0, 1)))
    for each in calibration.criteria:
        if each.tighter_than_floor:
            print(plain(f"{each.id} is tighter than its floor: {each.tighter_than_floor}.", LONG))
        if each.not_shown:
            print(plain(f"{each.id} cannot be shown: {each.not_shown}.", LONG))
    for each in calibration.criteria:
        if each.change != "not calibrated":
            print(plain(f"{each.id}: {each.change}; {each.why}.", LONG))
    reasons: dict[str, list[str]] = {}
    for each in calibration.criteria:
        if each.change == "not calibrated":
            reasons.setdefault(each.why, []).append(each.id)
    for reason, names in reasons.items():
        print(plain(f"Not calibrated, {reason}: {', '.join(names)}.", LONG))
    print(plain("Runs: " + ", ".join(f"{r.run.id} ({r.run.branch}, {r.kind})" for r in calibration.runs) + ".", LONG))
    print(plain(f"Noise floor: {calibration.floor_source}.", LONG))
    if calibration.notes:
        print(plain(f"Left out: {'; '.join(calibration.notes)}.", LONG))
    wider = [each.id for each in calibration.criteria if each.change == "widen"]
    if wider and not widen:
        print(plain(f"Not written, since wider than now: {', '.join(wider)}; --widen writes them too.", LONG))
    print(f"Written to {plain(str(out))}." if out is not None else f"\n{text}")


def _row(each: "CriterionCalibration") -> tuple[str, ...]:
    new = "" if each.new is None else f"{each.new:g}"
    shown = "" if each.shown is None else f"{each.shown:.2g}"
    flips = "" if each.flips is None else f"{each.flips:.1%}"
    return (each.id, each.kind, f"{each.old:g}", new, each.change, shown, flips)
