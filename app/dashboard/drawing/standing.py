"""A branch's state, as shown on the overview, the branch's page and its runs' pages."""

from datetime import UTC, datetime

import streamlit as st

from q36eval.app.dashboard.escape import label, name
from q36eval.app.dashboard.history_reader import Reader
from q36eval.app.dashboard.models.overview import LiveRun, live_runs
from q36eval.app.standing import BranchStanding, Standings, since_words
from q36eval.history import RunFilter, RunRecord, RunState
from q36eval.records import Verdict

LIVE_EVERY_S = 2.0
MOST_LIVE = 20


def policies_words(row: BranchStanding) -> str:
    """The policies behind it."""
    runs = [each.run for each in row.lanes.values() if each.run is not None]
    policies = dict.fromkeys(label(name(run.policy)) for run in runs if run.policy is not None)
    return f"policy {' and '.join(policies)}" if policies else ""


def running(reader: Reader, run_id: str | None = None) -> list[LiveRun]:
    """The runs in state `running`, optionally a single one, with their stored progress."""
    of = reader.history.summaries(RunFilter(state=RunState.RUNNING), limit=None if run_id else MOST_LIVE)
    known = [(run, reader.history.progress(run.id)) for run in of if run_id in (None, run.id)]
    return live_runs(known, datetime.now(UTC), reader.alive)


def draw_live(live: LiveRun) -> None:
    """A run in state `running`: its progress, the terminal's estimate of the rest, and whether it is alive."""
    strip, link = st.columns((1, 5), vertical_alignment="center")
    strip.progress(live.share or 0.0)
    words = f"{name(live.run.branch)}: {live.words} · {live.pulse}"
    link.page_link("views/run.py", label=label(words), query_params={"run": live.run.id})


def draw_standing_beside(reader: Reader, run: RunRecord) -> None:
    """The branch's present state next to a run's verdict, if they differ."""
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
