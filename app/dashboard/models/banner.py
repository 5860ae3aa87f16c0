"""A family in one sentence: what may ship for which use, and what stands in the way of the rest. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from q36eval.app.dashboard.models.front import SHIPS, Declared, Front, LaneStanding, Standing, in_order, uses
from q36eval.records import Lane
from q36eval.reports.text import LONGEST_NAME, name
from q36eval.reports.text import plain as line

MOST_IN_BANNER = 24
"""So many that ship, and so many that do not; of a family with more branches the banner leaves the rest to the rows."""

_QUOTED = re.compile(r"`([^`]+)`")
SENTENCES_BEGIN = ("It", "The", "A", "No", "Drifting")
"""Words that are written small within a sentence; names of criteria stay as they are."""


@dataclass(frozen=True)
class Said:
    """A branch in the banner, what stands beside its name, and for which use that is, where it is not for all."""

    branch: str
    words: str = ""
    use: str = ""


@dataclass(frozen=True)
class Banner:
    """A family in one sentence: what may ship in each lane that a branch is meant for, the smallest first; what waits,
    is open, blocked or was not judged."""

    family: str
    lanes: Mapping[Lane, tuple[Said, ...]]
    waiting: tuple[Said, ...] = ()
    open: tuple[Said, ...] = ()
    blocked: tuple[Said, ...] = ()
    unjudged: tuple[Said, ...] = ()
    more: int = 0


_GROUPS = {
    Standing.SIGN: "waiting",
    Standing.BLOCKED: "blocked",
    Standing.INCONCLUSIVE: "open",
    Standing.DRIFTING: "open",
    Standing.STALE: "open",
    Standing.NOT_JUDGED: "unjudged",
}


def of_banner(
    rows: Sequence[Front], declared: Mapping[str, Declared], most: int = MOST_IN_BANNER
) -> tuple[list[Front], int]:
    """The rows of a family that its banner names, and how many it leaves out.

    What ships comes first, the smallest at the head: whatever else there is, it is never left out for what does not.
    """

    def size(row: Front) -> float:
        return declared.get(row.row.of.branch, Declared()).size or float("inf")

    ships = sorted((row for row in rows if row.ships), key=lambda row: (size(row), row.row.key))
    others = [row for row in in_order(rows) if not row.ships and row.standing in _GROUPS]
    return [*ships[:most], *others[:most]], max(0, len(ships) - most) + max(0, len(others) - most)


def banner(family: str, rows: Sequence[Front], declared: Mapping[str, Declared], more: int = 0) -> Banner:
    """What may ship for which use, and what may not and why; `more` branches are left out."""
    sizes = {row.row.of.branch: declared.get(row.row.of.branch, Declared()).size for row in rows if row.ships}
    lanes = {}
    for lane in (lane for lane in Lane if any(lane in row.lanes for row in rows)):
        fit = [row for row in rows if lane in row.lanes and row.lanes[lane].standing in SHIPS]
        fit.sort(key=lambda row: (sizes[row.row.of.branch] or float("inf"), row.row.of.branch))
        lanes[lane] = tuple(_ships(row, lane, sizes) for row in fit)
    groups: dict[str, list[Said]] = {name: [] for name in dict.fromkeys(_GROUPS.values())}
    for row in sorted(rows, key=lambda row: row.row.of.branch):
        for standing, named in row.parts:
            group = _GROUPS.get(standing.standing)
            if group is not None:
                use = "" if len(row.parts) == 1 else uses(named)
                groups[group].append(Said(row.row.of.branch, _words(standing), use))
    return Banner(family, lanes, **{name: tuple(said) for name, said in groups.items()}, more=more)


def _ships(row: Front, lane: Lane, sizes: Mapping[str, float | None]) -> Said:
    """It is called smaller, or smallest, of all in its family that may ship for some use, where every size is known."""
    standing, size = row.lanes[lane], sizes[row.row.of.branch]
    others = [other for name, other in sizes.items() if name != row.row.of.branch]
    is_smallest = size is not None and all(other is not None and size < other for other in others)
    smallest = "" if not (others and is_smallest) else "smaller" if len(others) == 1 else "smallest"
    waived = _waived(standing) if standing.standing is Standing.WAIVED else ""
    return Said(row.row.of.branch, ", ".join(filter(None, (smallest, waived))))


def _waived(standing: LaneStanding) -> str:
    """Until when what passes by waivers does, and by whom."""
    until, by, who = standing.detail.removeprefix("waived ").partition(" by ")
    return f"waived {until}{by}{_marked(who)}".rstrip()


def _marked(who: str) -> str:
    """What people call themselves, set apart from the sentence: nothing in it can end the mark."""
    return f"`{line(who.replace('`', chr(39)), LONGEST_NAME)}`" if who else ""


def _words(standing: LaneStanding) -> str:
    """The sentence of a row as it goes on after a name."""
    if standing.standing is Standing.SIGN:
        return f"for a signature, {_waived(standing)}" if standing.detail else "for a signature"
    if standing.standing is Standing.NOT_JUDGED and standing.run is None:
        return ""
    why = standing.why.rstrip(".")
    if standing.standing is Standing.BLOCKED:
        why = why.partition(";")[0]  # what weighs most; the row says the rest
    return f"{why[0].lower()}{why[1:]}" if why.split()[0] in SENTENCES_BEGIN else why


def plain_text(text: str) -> str:
    """As it is."""
    return text


def sentence(
    told: Banner,
    text: Callable[[str], str] = plain_text,
    bold: Callable[[str], str] = plain_text,
    code: Callable[[str], str] = plain_text,
) -> str:
    """The banner in one line: `text` makes words safe to show, `bold` and `code` mark what is safe already.

    Names are one word each: none can be taken for a part of the sentence.
    """

    def named(each: Said, before: str, after: str = "") -> str:
        parts = _QUOTED.split(line(each.words))  # every other one is a policy's name
        words = "".join(code(text(part)) if place % 2 else text(part) for place, part in enumerate(parts))
        use = f" for {each.use} use" if each.use else ""
        branch = name(each.branch).replace("`", "'")  # nothing in it can end the mark
        return f"{code(text(branch))}{use}{f'{before}{words}{after}' if words else ''}"

    by_ships: dict[tuple[Said, ...], list[Lane]] = {}
    for lane, ships in told.lanes.items():
        by_ships.setdefault(ships, []).append(lane)
    parts = []
    for ships, lanes in by_ships.items():
        may = f"{', '.join(named(each, ' (', ')') for each in ships)} may ship" if ships else "nothing may ship"
        parts.append(f"{bold(f'{uses(lanes).capitalize()}:')} {may}.")
    for title, said in (
        ("Waiting", told.waiting),
        ("Open", told.open),
        ("Blocked", told.blocked),
        ("Not judged", told.unjudged),
    ):
        if said:
            parts.append(f"{bold(f'{title}:')} {'; '.join(named(each, ', ') for each in said)}.")
    if told.more:
        parts.append(f"{told.more} more below.")
    return f"{bold(text(name(told.family)))} – {' '.join(parts)}"
