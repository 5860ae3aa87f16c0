"""Run: one run's verdict and what it hangs on, criteria against their margins, what was not measured, and its story."""

import shlex
from collections.abc import Callable

import streamlit as st

from q36eval.app.dashboard.drawing import address
from q36eval.app.dashboard.drawing.charts import margin_figure
from q36eval.app.dashboard.drawing.head import page_head
from q36eval.app.dashboard.drawing.item_lines import read_lines
from q36eval.app.dashboard.drawing.items import draw_item
from q36eval.app.dashboard.drawing.parts import (
    chart,
    choose_run,
    reader_or_stop,
    table,
    verdict_badge,
    verdict_heading,
)
from q36eval.app.dashboard.drawing.standing import draw_standing_beside
from q36eval.app.dashboard.escape import label, line
from q36eval.app.dashboard.history_reader import Reader
from q36eval.app.dashboard.models.overview import resume_command
from q36eval.app.dashboard.models.run import (
    Deciding,
    counted_apart,
    criteria_rows,
    decided_by,
    decision_rows,
    event_rows,
    gap_lines,
    identity_rows,
    margin_bars,
    measurement_rows,
    missing_count,
    provenance_rows,
    required_words,
    signature_rows,
    stage_rows,
    summary,
    waiver_rows,
)
from q36eval.app.dashboard.verdict_style import NOT_EVALUATED, look_of
from q36eval.app.figures.deciding_answers import since_decided
from q36eval.app.figures.layer_at_fault import layer_of
from q36eval.app.reviewing.replay import replay
from q36eval.errors import Q36Error
from q36eval.gate.report import CriterionVerdict, GateReport
from q36eval.history import RunRecord, RunState
from q36eval.provenance import CHANGED
from q36eval.records import ProbeName
from q36eval.reports.deciding_answers import ANSWERS_TITLE
from q36eval.reports.document import TEMPLATE_TITLE
from q36eval.reports.next_step import next_steps
from q36eval.reports.story import decided_title, helping, not_evaluated, notes, template_lines
from q36eval.reports.ui_address import evidence_place

PROBES = {"kl": "KL", "evals": "Evals", "canaries": "Canaries"}
ICONS = {"kl": ":material/water_drop:", "evals": ":material/quiz:", "canaries": ":material/compare:"}
DIFFERENCES_SHOWN = 20


def draw() -> None:
    """The page: the verdict, the answers that decided, the margins, and the rest a click away."""
    page_head("Run")
    reader = reader_or_stop()
    run = choose_run(reader, "run_page_run")
    _draw_verdict(reader, run)
    _draw_answers(reader, run)
    _draw_gaps(reader, run)
    if run.report is not None:
        _draw_margins(run.report, run)
    _draw_rest(reader, run)


def _draw_verdict(reader: Reader, run: RunRecord) -> None:
    verdict_heading(run.verdict, " with waivers" if run.report is not None and run.report.waived else "")
    st.text(line(summary(run)))
    if run.imported is not None:
        st.text("Imported from another history, and decided here by its evidence.")
    if run.report is None:
        _draw_links(run)
        _draw_undecided(reader, run)
        return
    draw_standing_beside(reader, run)
    with st.container(horizontal=True):
        for lane in run.report.lanes:
            verdict_badge(lane.verdict, f" {lane.lane.value}{' with waivers' if lane.waived else ''}")
    _draw_links(run)
    if run.report.awaiting_sign_off:
        st.info("A reviewer's sign-off is required and missing: nothing passes before it.")
    layer = layer_of(reader.history, run)
    for words in () if layer is None else layer.lines:
        st.text(line(words))
    _draw_deciding(reader, run.report, run)


def _draw_links(run: RunRecord) -> None:
    with st.container(horizontal=True):
        for page, label in PROBES.items():
            st.page_link(f"views/{page}.py", label=label, icon=ICONS[page], query_params={"run": run.id})
        where = {"family": run.family, "branch": run.branch}
        st.page_link("views/branch.py", label="Its branch", icon=":material/show_chart:", query_params=where)
        if run.report is not None:
            review = {"run": run.id}
            st.page_link("views/review.py", label="Review it", icon=":material/rate_review:", query_params=review)


def _draw_undecided(reader: Reader, run: RunRecord) -> None:
    if CHANGED in run.provenance:
        st.info("The checkpoint changed while this run judged it, so it has no verdict and cannot be resumed.")
        st.text(line(str(run.provenance[CHANGED])))
        st.code(line(f"q36eval gate --branch {shlex.quote(run.branch)}"), language=None)
    elif run.state is RunState.INTERRUPTED:
        st.info("This run was interrupted and has no verdict. This goes on where it stopped:")
        st.code(line(resume_command(run.branch, run.id)), language=None)
    elif run.state is RunState.RUNNING and reader.alive(run.id) is False:
        st.info("The process of this run has ended, and it has no verdict. This goes on where it stopped:")
        st.code(line(resume_command(run.branch, run.id)), language=None)
    elif run.state is RunState.RUNNING:
        progress = reader.progress(run.id)
        sentence = "This run is going on, or was killed; it has no verdict yet."
        if progress is not None and progress.total:
            st.progress(min(1.0, progress.done / progress.total))
            st.text(line(f"{progress.stage}: {progress.done:,} of {progress.total:,}"))
            sentence += f" Last heard of at {progress.at:%H:%M:%S} UTC."
        st.info(sentence)
    else:
        st.info("This run only measured: no policy judged it, so it has no verdict.")


def _draw_deciding(reader: Reader, report: GateReport, run: RunRecord) -> None:
    deciding = decided_by(report)
    if deciding:
        st.subheader(decided_title(report), anchor=False)
        with st.container(border=True):
            for one in deciding:
                _draw_one_deciding(one, run)
    waived = [result for result in report.criteria if result.waived]
    if waived:
        st.text(line(f"Waived: {', '.join(result.heading for result in waived)}"))
    steps = next_steps(report, run, since_decided(reader.history, run))
    if steps:
        shown = address.expander("What to do next", "next", f"next {run.id}", icon=":material/arrow_forward:")
        for step in steps if shown.open else ():
            shown.text(line(step.why))
            shown.code(line(step.command), language=None)


def _draw_one_deciding(one: Deciding, run: RunRecord) -> None:
    result = one.result
    with st.container(horizontal=True, vertical_alignment="center"):
        st.badge(one.label, color=look_of(result.verdict).colour)
        of = f"{result.id}, {' and '.join(result.lanes)}"
        st.markdown(f"**{label(result.heading)}** :gray[{label(of)}]", width="content")
        place = evidence_place(result, run.id)
        if place is not None and result.verdict is not CriterionVerdict.NOT_MEASURED:
            words, query = f"Show {place.label} ({label(result.id)})", dict(place.query)
            st.page_link(f"views/{place.page}.py", label=words, icon=ICONS[place.page], query_params=query)
    st.text(line(one.words))


def _draw_answers(reader: Reader, run: RunRecord) -> None:
    """The prompts that show best why it did not pass, before any figure."""
    items = [] if run.report is None else reader.deciding(run)
    if not items:
        return
    st.subheader(ANSWERS_TITLE, anchor=False)
    if any(item.must_pass for item in items):
        flips = read_lines(reader, run, ProbeName.CANARIES, flips_only=True).items
        words = required_words(reader.canary_lanes(run), flips)
        if words is not None:
            st.text(words)
    for item in items:
        draw_item(item, run, prompt_first=True)


def _draw_gaps(reader: Reader, run: RunRecord) -> None:
    """What is missing, before any figure: a run is only as good as what it measured."""
    missing = [] if run.report is None else gap_lines(run.report)
    if missing and run.report is not None:
        badge = look_of(CriterionVerdict.NOT_MEASURED).label
        with st.container(border=True):
            st.error(
                f"{badge}: {missing_count(run.report)} of the policy's criteria. What was not measured never passes."
            )
            for sentence in missing:
                st.text(line(sentence))
    failures = reader.failures(run) if run.report is None else []
    if failures:
        with st.container(border=True):
            st.warning("Probes without figures")
            for failure in failures:
                st.text(line(f"{failure.probe} {failure.kind}: {failure.reason}"))
    helped = [] if run.report is None else helping(run.report)
    if helped:
        with st.container(border=True):
            st.caption("What would help")
            for result, text in helped:
                st.text(line(f"{result.name}: {text}"))
    template = template_lines(run)
    if template:
        with st.container(border=True):
            st.caption(TEMPLATE_TITLE)
            for words in template:
                st.text(line(words))
    for note in () if run.report is None else notes(run.report, run):
        st.text(f"Note: {line(note)}")


def _draw_margins(report: GateReport, run: RunRecord) -> None:
    st.subheader("Criteria against their margins, worst first", anchor=False)
    bars = margin_bars(report.criteria)
    if bars:
        alt = "Loss of each criterion, with its interval, in multiples of its margin, worst first"
        chart(margin_figure(bars), alt, f"margins {run.id}")
    else:
        st.text("No criterion has a loss that could be drawn against its margin; the table has them all.")
    certain = not_evaluated(report)
    if certain:
        st.badge(
            f"{NOT_EVALUATED.label}: {len(certain)} of {len(report.criteria)} criteria", color=NOT_EVALUATED.colour
        )
        st.caption(
            "The verdict was certain without them, so the gate stopped. They are no faults, and nothing is known."
        )
    for words, count in counted_apart(report):
        st.text(line(f"{count} {words}"))
    title = f"All {len(report.criteria)} criteria"
    shown = address.expander(title, "criteria", f"all criteria {run.id}", icon=":material/table:")
    if shown.open:
        with shown:
            table(criteria_rows(report), "Criteria of the policy", f"criteria {run.id}")


def _draw_rest(reader: Reader, run: RunRecord) -> None:
    measured = measurement_rows(reader.measurements(run))
    rest: dict[str, tuple[str, Callable[[], None]]] = {
        "measurements": (
            f"All measurements ({len(measured)})",
            lambda: _table_or(measured, "All measurements", run, "Nothing was measured."),
        ),
        "signatures": ("Waivers and signatures", lambda: _draw_review(reader, run)),
        "events": ("What happened", lambda: _draw_story(reader, run)),
        "replay": ("Replay", lambda: _draw_replay(reader, run)),
        "identity": ("Identity and provenance", lambda: _draw_identity(run)),
    }
    for name, (title, draw_it) in rest.items():
        shown = address.expander(title, name, f"{name} {run.id}")
        if shown.open:
            with shown:
                draw_it()


def _draw_identity(run: RunRecord) -> None:
    table(identity_rows(run), "Identity of branch and reference", f"identity {run.id}")
    table(provenance_rows(run), "Provenance of the run", f"provenance {run.id}")


def _table_or(rows: list[dict[str, str]], alt: str, run: RunRecord, otherwise: str) -> None:
    if rows:
        table(rows, alt, f"{alt} {run.id}")
    else:
        st.text(otherwise)


def _draw_review(reader: Reader, run: RunRecord) -> None:
    if run.report is None:
        st.text("What was not decided cannot be waived or signed.")
        return
    _table_or(waiver_rows(run.report), "Waivers that made a difference", run, "No waiver made a difference.")
    _table_or(signature_rows(reader.signatures(run.id), run.report), "Signatures", run, "Nobody has signed this run.")
    earlier = decision_rows(reader.earlier_decisions(run.id))
    if earlier:
        st.caption("Earlier decisions over the same evidence, each replaced by the next")
        table(earlier, "Earlier decisions", f"decisions {run.id}")


def _draw_story(reader: Reader, run: RunRecord) -> None:
    stages = [] if run.report is None else stage_rows(run.report, run.timings)
    _table_or(stages, "Stages in the order of evaluation", run, "Its stages were not kept.")
    _table_or(event_rows(reader.events(run.id)), "Events", run, "Nothing was written down while it ran.")


def _draw_replay(reader: Reader, run: RunRecord) -> None:
    st.text("A verdict hangs on kept evidence alone. This decides it again and holds the report against the kept one.")
    if run.report is None:
        st.text("This run has no verdict to decide again.")
        return
    if not st.button("Decide it again", key="replay", icon=":material/replay:"):
        return
    try:
        replayed = replay(reader.history, run)
    except Q36Error as error:
        st.error("It cannot be decided again.")
        st.text(line(str(error)))
        return
    if replayed.identical:
        st.success("✓ The report is the same to the byte.")
        st.text(f"{len(replayed.again.encode())} bytes, SHA-256 {replayed.sha256}")
        return
    same = "every verdict is the same" if replayed.same_verdicts else "a verdict differs"
    st.warning(f"≠ The report is another: {same}, {len(replayed.differences)} values differ.")
    for difference in replayed.differences[:DIFFERENCES_SHOWN]:
        st.text(line(difference))
    if len(replayed.differences) > DIFFERENCES_SHOWN:
        st.text(f"and {len(replayed.differences) - DIFFERENCES_SHOWN} more")


if __name__ == "__main__":
    draw()
