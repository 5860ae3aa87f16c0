"""What `q36eval policy explain` prints."""

from dataclasses import replace
from typing import TYPE_CHECKING

from q36eval.app.policies.words import UNDECIDED
from q36eval.inert_text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

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
