"""How a branch stands, as the Overview, the branch's own page and those of its runs say it."""

from datetime import UTC, datetime

import streamlit as st

from q36eval.app.dashboard.inert import label, name
from q36eval.app.dashboard.look import look_of
from q36eval.app.dashboard.models.front import LANE_NAMES, SHIPS, Front, Standing
from q36eval.app.dashboard.reading import Reader, standing
from q36eval.history import RunRecord
from q36eval.records import Lane, Verdict


def lanes_words(row: Front) -> str:
    """Each lane's verdict, by the run that says how the branch stands there."""
    said = []
    for lane in Lane:
        standing = row.lanes.get(lane)
        if standing is None:
            said.append(f"not meant for {LANE_NAMES[lane].lower()} use")
            continue
        verdict = None if standing.run is None else standing.run.lanes.get(lane)
        said.append(f"{LANE_NAMES[lane]} {look_of(verdict).label if verdict is not None else '– not judged'}")
    return " · ".join(said)


def policies_words(row: Front) -> str:
    """By which policies that is."""
    runs = [each.run for each in row.lanes.values() if each.run is not None]
    policies = dict.fromkeys(label(name(run.policy)) for run in runs if run.policy is not None)
    return f" · policy {' and '.join(policies)}" if policies else ""


def draw_standing_beside(reader: Reader, run: RunRecord) -> None:
    """Beside the verdict of a run what that is worth now, where the verdict alone would not say it.

    Another run may have come after it, its waiver may be over, or it passed what asks less than the family does.
    """
    if run.verdict is None:
        return
    now = standing(reader, (run.family, run.branch), datetime.now(UTC))
    by_it = [each for each in now.lanes.values() if each.run is not None and each.run.id == run.id]
    as_it_says = (*SHIPS, Standing.REFERENCE)
    if by_it and (run.verdict is not Verdict.PASS or all(each.standing in as_it_says for each in by_it)):
        return
    say = st.warning if run.verdict is Verdict.PASS and not now.ships else st.info
    say(label(f"{name(run.branch)} now, {'by this run' if by_it else 'by another run'}: {now.chip}. {now.why}"))
    if not by_it:
        st.page_link(
            "views/run.py", label="The run that says so", icon=":material/rule:", query_params={"run": now.run.id}
        )
