"""How a branch stands, as the overview, the branch's own page and those of its runs say it."""

from datetime import UTC, datetime

import streamlit as st

from q36eval.app.dashboard.escape import label, line, name
from q36eval.app.dashboard.history_reader import Reader
from q36eval.app.dashboard.models.overview import needs_of
from q36eval.app.dashboard.verdict_style import look_of
from q36eval.app.standing import LANE_NAMES, BranchStanding, Standings, since_words
from q36eval.history import RunRecord
from q36eval.records import Lane, Verdict


def lanes_words(row: BranchStanding) -> str:
    """Each lane's verdict, by the run that says how the branch stands there."""
    said = []
    for lane in Lane:
        standing = row.lanes.get(lane)
        if standing is None:
            said.append(f"not meant for {LANE_NAMES[lane]} use")
            continue
        verdict = None if standing.run is None else standing.run.lanes.get(lane)
        said.append(
            f"{LANE_NAMES[lane].capitalize()} {look_of(verdict).label if verdict is not None else '– not judged'}"
        )
    return " · ".join(said)


def policies_words(row: BranchStanding) -> str:
    """By which policies that is."""
    runs = [each.run for each in row.lanes.values() if each.run is not None]
    policies = dict.fromkeys(label(name(run.policy)) for run in runs if run.policy is not None)
    return f" · policy {' and '.join(policies)}" if policies else ""


def draw_needs(row: BranchStanding, now: datetime, *, commands_only: bool = False) -> None:
    """What a branch needs of a person, with the command that settles it; on request what has such a command alone."""
    for need in needs_of(row, now):
        if need.command is not None or not commands_only:
            st.text(f"→ {line(need.words)}")
        if need.command is not None:
            st.code(line(need.command), language=None, wrap_lines=True)


def draw_standing_beside(reader: Reader, run: RunRecord) -> None:
    """Beside the verdict of a run how its branch stands now, if that differs."""
    if run.verdict is None:
        return
    now = Standings(reader.history, datetime.now(UTC)).of((run.family, run.branch))
    words = since_words(run, now)
    if words is None:
        return
    passes = run.verdict is Verdict.PASS or (run.report is not None and run.report.awaiting_sign_off)
    say = st.warning if passes and not now.ships else st.info
    say(label(words))
    if now.run.id != run.id:
        where = {"run": now.run.id}
        st.page_link("views/run.py", label="The run that decides", icon=":material/rule:", query_params=where)
