"""Run: one run's verdict and the criteria that decided it, answers, criteria against their margins, and the rest."""

import shlex

import streamlit as st

from q36eval.app.dashboard.drawing.charts import interval_figure
from q36eval.app.dashboard.drawing.items import draw_item
from q36eval.app.dashboard.drawing.parts import (
    chart,
    choose_run,
    page_head,
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
    criteria_rows,
    decision_rows,
    event_rows,
    measurement_rows,
    signature_rows,
    summary,
    waiver_rows,
)
from q36eval.app.dashboard.verdict_style import look_of
from q36eval.app.figures.deciding_answers import since_decided
from q36eval.app.figures.layer_at_fault import layer_of
from q36eval.gate.report import UNMEASURED, CriterionResult
from q36eval.history import RunRecord, RunState
from q36eval.inert_text import MAX_CHARACTERS, SENTENCE
from q36eval.provenance import CHANGED
from q36eval.reports.deciding_answers import ANSWERS_TITLE
from q36eval.reports.document import Document, Section, provenance_of
from q36eval.reports.plots import CRITERIA
from q36eval.reports.plots import criteria_rows as interval_rows
from q36eval.reports.text import verdict_text
from q36eval.reports.ui_address import evidence_place

PROBES = {"kl": "KL", "evals": "Evals", "canaries": "Canaries"}
ICONS = {"kl": ":material/water_drop:", "evals": ":material/quiz:", "canaries": ":material/compare:"}
OPEN = ("Not measured", "What would help", "Notes")  # sections that are open when the page is drawn


def draw() -> None:
    """The page: the verdict, the answers that decided, the margins, and the rest a click away."""
    page_head("Run")
    reader = reader_or_stop()
    run = choose_run(reader, "run_page_run")
    verdict_heading(run.verdict, " with waivers" if run.report is not None and run.report.waived else "")
    st.text(line(summary(run)))
    if run.imported is not None:
        st.text("Imported from another history, and decided here by its evidence.")
    if run.report is None:
        _draw_links(run)
        _draw_undecided(reader, run)
    else:
        layer, since = layer_of(reader.history, run), since_decided(reader.history, run)
        document = Document(run.report, run, reader.measurements(run), since=since, layer=layer)
        draw_standing_beside(reader, run)
        with st.container(horizontal=True):
            for lane in run.report.lanes:
                verdict_badge(lane.verdict, f" {lane.lane.value}{' with waivers' if lane.waived else ''}")
        _draw_links(run)
        _draw_decided(document, run)
        _draw_answers(reader, run)
        for section in (document.held, document.floors, *document.details):
            _draw_section(section)
        _draw_criteria(document, run)
    _draw_rest(reader, run)


def _draw_links(run: RunRecord) -> None:
    with st.container(horizontal=True):
        for page, title in PROBES.items():
            st.page_link(f"views/{page}.py", label=title, icon=ICONS[page], query_params={"run": run.id})
        where = {"family": run.family, "branch": run.branch}
        st.page_link("views/branch.py", label="Its branch", icon=":material/show_chart:", query_params=where)
        if run.report is not None:
            review = {"run": run.id}
            st.page_link("views/review.py", label="Review it", icon=":material/rate_review:", query_params=review)


def _draw_undecided(reader: Reader, run: RunRecord) -> None:
    resumable = "This continues it:"
    if CHANGED in run.provenance:
        st.info("The checkpoint changed while this run judged it, so it has no verdict and cannot be resumed.")
        st.text(line(str(run.provenance[CHANGED])))
        st.code(line(f"q36eval gate --branch {shlex.quote(run.branch)}"), language=None)
    elif run.state is RunState.INTERRUPTED:
        st.info(f"This run was interrupted and has no verdict. {resumable}")
        st.code(line(resume_command(run.branch, run.id)), language=None)
    elif run.state is RunState.RUNNING and reader.alive(run.id) is False:
        st.info(f"The process of this run has ended, and it has no verdict. {resumable}")
        st.code(line(resume_command(run.branch, run.id)), language=None)
    elif run.state is RunState.RUNNING:
        progress = reader.history.progress(run.id)
        sentence = "This run is going on, or was killed; it has no verdict yet."
        if progress is not None and progress.total:
            st.progress(min(1.0, progress.done / progress.total))
            st.text(line(f"{progress.stage}: {progress.done:,} of {progress.total:,}"))
            sentence += f" Last heard of at {progress.at:%H:%M:%S} UTC."
        st.info(sentence)
    else:
        st.info("This run only measured: no policy judged it, so it has no verdict.")
    for failure in reader.history.failures(run.id):
        st.text(line(f"{failure.probe} {failure.kind}: {failure.reason}"))


def _draw_decided(document: Document, run: RunRecord) -> None:
    section = document.decided
    if section.entries:
        st.subheader(section.title, anchor=False)
        with st.container(border=True):
            for entry in section.entries:
                if entry.result is not None:
                    _draw_criterion(entry.result, run)
                st.text(line(entry.text))
    steps = document.next_steps
    if steps:
        with st.expander("What to do next", icon=":material/arrow_forward:"):
            for step in steps:
                st.text(line(step.why))
                st.code(line(step.command), language=None)


def _draw_criterion(result: CriterionResult, run: RunRecord) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        look = look_of(result.verdict)
        st.badge(f"{look.symbol} {verdict_text(result)}", color=look.colour)
        of = f"{result.id}, {' and '.join(result.lanes)}"
        st.markdown(f"**{label(result.heading)}** :gray[{label(of)}]", width="content")
        place = evidence_place(result, run.id)
        if place is not None and result.verdict not in UNMEASURED:
            words, query = f"Show {place.label} ({label(result.id)})", dict(place.query)
            st.page_link(f"views/{place.page}.py", label=words, icon=ICONS[place.page], query_params=query)


def _draw_answers(reader: Reader, run: RunRecord) -> None:
    """The prompts that show best why it did not pass, before any figure."""
    items = reader.deciding(run)
    if items:
        st.subheader(ANSWERS_TITLE, anchor=False)
    for item in items:
        draw_item(item, run, prompt_first=True)


def _draw_section(section: Section) -> None:
    if section.entries:
        with st.expander(f"{section.title} ({len(section.entries)})", expanded=section.title in OPEN):
            for entry in section.entries:
                words = ": ".join(filter(None, (", ".join(entry.about), entry.text)))
                st.text(line(words, SENTENCE if entry.long else MAX_CHARACTERS))


def _draw_criteria(document: Document, run: RunRecord) -> None:
    st.subheader("Criteria against their margins, worst first", anchor=False)
    rows = interval_rows(document.report)
    if rows:
        alt = "How much of its margin each criterion uses up, with its interval, worst first"
        chart(interval_figure(rows, CRITERIA, margin=1.0), alt, f"margins {run.id}")
    left = len(document.criteria) - len(rows)
    st.caption(f"{left} criteria count faults or have no interval; the table has all.")
    with st.expander(f"All {len(document.criteria)} criteria", icon=":material/table:"):
        table(criteria_rows(document), "Criteria of the policy", f"criteria {run.id}")


def _draw_rest(reader: Reader, run: RunRecord) -> None:
    history = reader.history
    measured = measurement_rows(reader.measurements(run))
    with st.expander(f"All measurements ({len(measured)})"):
        _table_or(measured, "All measurements", run, "Nothing was measured.")
    if run.report is not None:
        with st.expander("Waivers, signatures and earlier decisions"):
            rows = waiver_rows(run.report)
            _table_or(rows, "Waivers that made a difference", run, "No waiver made a difference.")
            rows = signature_rows(history.sign_offs(run.id), run.report)
            _table_or(rows, "Signatures", run, "Nobody has signed this run.")
            rows = decision_rows(history.earlier_decisions(run.id))
            _table_or(rows, "Earlier decisions", run, "The run was decided once.")
    with st.expander("What happened"):
        _table_or(event_rows(history.events(run.id)), "Events", run, "No event was recorded.")
    with st.expander("Identity and provenance"):
        facts = [{"what": name, "is": value} for name, value in provenance_of(run)]
        table(facts, "Identities and provenance", f"provenance {run.id}")


def _table_or(rows: list[dict[str, str]], alt: str, run: RunRecord, otherwise: str) -> None:
    if rows:
        table(rows, alt, f"{alt} {run.id}")
    else:
        st.text(otherwise)


if __name__ == "__main__":
    draw()
