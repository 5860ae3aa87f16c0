"""A family in one sentence: what may ship for which use, and what stands in the way of the rest. Pure."""

from collections.abc import Callable, Sequence

from q36eval.app.standing import SHIPS, BranchStanding, LaneStanding, Standing, uses
from q36eval.inert_text import name
from q36eval.inert_text import plain as line
from q36eval.records import Lane

MOST_IN_BANNER = 24
"""Branches that a part of the sentence names; it counts the others."""

_GROUPS = {
    "Waiting": (Standing.SIGN,),
    "Open": (Standing.INCONCLUSIVE, Standing.STALE),
    "Blocked": (Standing.BLOCKED,),
    "Not judged": (Standing.NOT_JUDGED,),
}


def plain_text(text: str) -> str:
    """As it is."""
    return text


def sentence(
    family: str,
    rows: Sequence[BranchStanding],
    text: Callable[[str], str] = plain_text,
    bold: Callable[[str], str] = plain_text,
    code: Callable[[str], str] = plain_text,
) -> str:
    """The banner in one line: `text` makes words safe to show, `bold` and `code` mark what is safe already.

    Names are one word each: none can be taken for a part of the sentence.
    """

    def named(row: BranchStanding) -> str:
        branch = name(row.of.branch).replace("`", "'")  # nothing in it can end the mark
        return code(text(branch))

    def listed(entries: Sequence[str], between: str) -> str:
        more = f"{between}{len(entries) - MOST_IN_BANNER} more" if len(entries) > MOST_IN_BANNER else ""
        return f"{between.join(entries[:MOST_IN_BANNER])}{more}"

    rows = sorted(rows, key=lambda row: row.of.branch)
    by_ships: dict[tuple[str, ...], list[Lane]] = {}
    for lane in (lane for lane in Lane if any(lane in row.lanes for row in rows)):
        ships = tuple(
            f"{named(row)} (by waivers)" if row.lanes[lane].standing is Standing.WAIVED else named(row)
            for row in rows
            if lane in row.lanes and row.lanes[lane].standing in SHIPS
        )
        by_ships.setdefault(ships, []).append(lane)
    parts = []
    for ships, lanes in by_ships.items():
        may = f"{listed(ships, ', ')} may ship" if ships else "nothing may ship"
        parts.append(f"{bold(f'{uses(lanes).capitalize()}:')} {may}.")
    for title, standings in _GROUPS.items():
        said = [
            f"{named(row)}{f' for {uses(lanes)} use' if len(row.parts) > 1 else ''}: {text(_why(each))}"
            for row in rows
            for each, lanes in row.parts
            if each.standing in standings
        ]
        if said:
            parts.append(f"{bold(f'{title}:')} {listed(said, '; ')}.")
    return f"{bold(text(name(family)))} – {' '.join(parts)}"


def _why(standing: LaneStanding) -> str:
    return line(standing.why.replace("`", "'").rstrip("."))
