"""Review: what waits for a person, and for one run what to do about it: waive, sign off, bless, decide again."""

import shlex
from datetime import UTC, datetime

import streamlit as st

from q36eval.app.dashboard.drawing.exporting import table
from q36eval.app.dashboard.drawing.parts import page_of, reader_or_stop, verdict_badge, verdict_heading
from q36eval.app.dashboard.drawing.reviewing_forms import draw_forms, start_anew
from q36eval.app.dashboard.inert import line
from q36eval.app.dashboard.look import criterion_label, look_of
from q36eval.app.dashboard.models.overview import BranchRow
from q36eval.app.dashboard.models.review import queue
from q36eval.app.dashboard.reading import Reader
from q36eval.app.dashboard.reviewer import Permission, permission
from q36eval.app.dashboard.rows import branch_rows, detailed
from q36eval.errors import UsageError
from q36eval.gate.report import CriterionVerdict, GateReport
from q36eval.history import RunRecord
from q36eval.reports._text import figure_text, margin_text, why_text

ROWS_PER_PAGE = 10


def draw() -> None:
    """The page: the queue, or the run that the address names."""
    st.title("Review", anchor=False)
    reader = reader_or_stop()
    asked = st.query_params.get("run")
    if not asked:
        _draw_queue(reader)
        return
    st.page_link("views/review.py", label="All that waits for a person", icon=":material/arrow_back:", query_params={})
    try:
        run = reader.run(asked)
    except UsageError as error:
        st.warning("The address names no run of this history.")
        st.text(line(str(error)))
        return
    _draw_run(reader, run, permission())


def _draw_queue(reader: Reader) -> None:
    now = datetime.now(UTC)
    waiting = queue(branch_rows(reader, now))
    if not waiting:
        st.success("Nothing waits for a person: every branch's newest verdict is a PASS that somebody blessed.")
        return
    st.caption(f"{len(waiting)} branches wait for a person, what is worst first. Their newest verdicts:")
    for row in detailed(reader, page_of(waiting, ROWS_PER_PAGE, "review_page"), now):
        _draw_waiting(row)


def _draw_waiting(row: BranchRow) -> None:
    with st.container(border=True):
        name, verdict, needs, link = st.columns((2, 1.6, 5, 1.2))
        name.text(f"{line(row.of.branch)}\nfamily {line(row.of.family)}")
        look = look_of(row.verdict)
        verdict.badge(look.label, color=look.colour)
        verdict.text(row.freshness)
        for need in row.needs:
            needs.text(f"→ {line(need.words)}")
        link.page_link(
            "views/review.py", label="Review", icon=":material/rate_review:", query_params={"run": row.shown.id}
        )


def _draw_run(reader: Reader, run: RunRecord, allowed: Permission) -> None:
    done = st.session_state.pop("review_done", None)
    if done is not None:
        start_anew()
        st.success("Written.")
        st.text(line(done))
    waived = run.report is not None and bool(run.report.waived)
    verdict_heading(run.verdict, " with waivers" if waived else "")
    if run.report is None:
        st.text(line(f"Run {run.id} of {run.branch} (family {run.family}) is {run.state} and has no verdict."))
        st.info("Only a judged run can be waived, signed or blessed. A gate run judges:")
        st.code(line(f"q36eval gate --branch {shlex.quote(run.branch)}"), language=None)
        return
    _draw_summary(run, run.report)
    _draw_open(run, run.report)
    _draw_decisions(reader, run)
    if not allowed.may_write:
        st.info("Nothing can be written here.")
        st.text(line(allowed.why or ""))
    draw_forms(reader, run, run.report, allowed)


def _draw_summary(run: RunRecord, report: GateReport) -> None:
    when = f"{run.started:%Y-%m-%d %H:%M} UTC"
    st.text(line(f"{report.headline}: {run.branch} of family {run.family}, run {run.id} of {when}, {report.policy}"))
    with st.container(horizontal=True):
        for lane in report.lanes:
            verdict_badge(lane.verdict, f" {lane.lane.value}{' with waivers' if lane.waived else ''}")
    with st.container(horizontal=True):
        for page, label, icon in (
            ("run", "The whole run", "rule"),
            ("canaries", "Its canaries", "compare"),
            ("evals", "Its evals", "quiz"),
            ("kl", "Its KL", "water_drop"),
        ):
            st.page_link(
                f"views/{page}.py",
                label=label,
                icon=f":material/{icon}:",
                query_params={"run": run.id},
                width="content",
            )
    for signature in report.signed_by:
        st.text(line(f"Signed by {signature.owner} on {signature.at:%Y-%m-%d %H:%M} UTC: {signature.reason}"))


def _draw_open(run: RunRecord, report: GateReport) -> None:
    left = [one for one in report.criteria if one.verdict is not CriterionVerdict.PASS]
    if not left:
        st.text("Every criterion passed.")
        return
    rows = [
        {
            "criterion": one.id,
            "verdict": criterion_label(one),
            "judged": figure_text(one),
            "margin": margin_text(one.margin, one.unit),
            "tier": one.tier,
            "lanes": ", ".join(one.lanes),
            "why": why_text(one),
        }
        for one in sorted(left, key=lambda one: (one.verdict is CriterionVerdict.NOT_MEASURED, one.id))
    ]
    st.subheader("What did not pass", anchor=False)
    table(rows, "Criteria that did not pass", f"open {run.id}")


def _draw_decisions(reader: Reader, run: RunRecord) -> None:
    earlier = reader.earlier_decisions(run.id)
    if not earlier or run.report is None:
        return
    with st.expander(f"Decided {len(earlier) + 1} times; what was said before is kept"):
        for one in earlier:
            st.text(line(f"until {one.replaced:%Y-%m-%d %H:%M} UTC  {one.report.headline}"))
        st.text(line(f"now  {run.report.headline}"))


if __name__ == "__main__":
    draw()
