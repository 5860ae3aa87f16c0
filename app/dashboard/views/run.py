"""Run: one run's verdict and the criteria that decided it, answers, criteria against their margins, and the rest."""

import streamlit as st

from q36eval.app.dashboard.drawing.items import draw_item
from q36eval.app.dashboard.drawing.parts import choose_run, copy_box, reader_or_stop, run_heading, table
from q36eval.app.dashboard.drawing.standing import LIVE_EVERY_S, draw_standing_beside, running
from q36eval.app.dashboard.drawing.tables import Plot
from q36eval.app.dashboard.escape import label, line
from q36eval.app.dashboard.history_reader import Reader, explained
from q36eval.app.dashboard.models.run import (
    criteria_rows,
    decision_rows,
    event_rows,
    evidence_rows,
    margin_rows,
    measurement_rows,
    signature_rows,
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
from q36eval.reports.next_step import PAGES, branch_option
from q36eval.reports.plots import CRITERIA
from q36eval.reports.text import verdict_text
from q36eval.reports.ui_address import evidence_place

ICONS = {"kl": ":material/water_drop:", "evals": ":material/quiz:", "canaries": ":material/compare:"}


def draw() -> None:
    """The page: the verdict, the answers that decided, what to do, the margins, and the rest a click away."""
    reader = reader_or_stop("Run", titled=False)
    run = choose_run(reader, "run_page_run")
    run_heading(run)
    if run.imported is not None:
        st.text("Imported from another history, and decided here by its evidence.")
    if run.report is None:
        _draw_undecided(reader, run)
        _draw_links(run)
    else:
        layer, since = layer_of(reader.history, run), since_decided(reader.history, run)
        document = Document(run.report, run, reader.measurements(run), since=since, layer=layer)
        draw_standing_beside(reader, run)
        _draw_section(document.findings, expanded=True)
        _draw_decided(document, run)
        _draw_answers(reader, run)
        _draw_next(document)
        _draw_links(run)
        _draw_criteria(document, run)
        for section in (document.held, document.floors, *document.details):
            _draw_section(section)
    _draw_rest(reader, run)


def _draw_links(run: RunRecord) -> None:
    with st.container(horizontal=True):
        where = {"family": run.family, "branch": run.branch}
        st.page_link("views/branch.py", label="Its branch", icon=":material/show_chart:", query_params=where)
        if run.report is not None:
            review = {"run": run.id}
            st.page_link("views/review.py", label="Review it", icon=":material/rate_review:", query_params=review)


def _draw_undecided(reader: Reader, run: RunRecord) -> None:
    if CHANGED in run.provenance:
        st.info("The checkpoint changed while this run judged it, so it has no verdict and cannot be resumed.")
        st.text(line(str(run.provenance[CHANGED])))
        copy_box(f"q36eval gate {branch_option(run)}")
    elif run.state is RunState.INTERRUPTED:
        st.info("This run was interrupted; it has no verdict. This continues it:")
        copy_box(f"q36eval gate --resume {run.id}")
    elif run.state is RunState.RUNNING:
        st.fragment(_draw_running, run_every=LIVE_EVERY_S)(reader, run)
    else:
        st.info("This run only measured: no policy judged it, so it has no verdict.")
    for failure in reader.history.failures(run.id):
        st.text(line(failure.sentence))


@explained()
def _draw_running(reader: Reader, run: RunRecord) -> None:
    """Whether it is alive, its stage and its remaining time, as in the terminal."""
    found = running(reader, run.id)
    if not found:
        st.rerun()  # it ended meanwhile
    for live in found:
        st.info(label(f"This run has no verdict yet; {live.pulse}."))
        if live.share is not None:
            st.progress(live.share)
        st.text(line(live.words))
        if live.silent:
            st.text("If the process is dead, this continues it:")
            copy_box(f"q36eval gate --resume {run.id}")


def _draw_decided(document: Document, run: RunRecord) -> None:
    if document.decided.entries:
        st.subheader(document.decided.title, anchor=False)
    for entry in document.decided.entries:
        if entry.result is not None:
            _draw_criterion(entry.result, entry.text, run)


def _draw_next(document: Document) -> None:
    """The next commands, without the one that opens these pages."""
    steps = [step for step in document.next_steps if step.command != PAGES]
    if steps:
        st.subheader("What to do next", anchor=False)
    for step in steps:
        st.text(line(step.why))
        copy_box(step.command)


def _draw_criterion(result: CriterionResult, text: str, run: RunRecord) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        look = look_of(result.verdict)
        st.badge(f"{look.symbol} {verdict_text(result)}", color=look.colour)
        st.markdown(f"**{label(result.heading)}**", width="content")
        place = evidence_place(result, run.id)
        if place is not None and result.verdict not in UNMEASURED:
            words, query = f"Show {place.label}", dict(place.query)
            st.page_link(f"views/{place.page}.py", label=words, icon=ICONS[place.page], query_params=query)
    st.text(line(f"{text} · {result.id}"))


def _draw_answers(reader: Reader, run: RunRecord) -> None:
    """The prompts that best show why it did not pass, before any figure."""
    items, loss = reader.deciding(run)
    if items:
        st.subheader(ANSWERS_TITLE, anchor=False)
        st.text(line(loss))
    for item in items:
        draw_item(item, run, required=reader.canary_lanes(run).requires(item))


def _draw_section(section: Section, *, expanded: bool = False) -> None:
    if section.entries:
        with st.expander(f"{section.title} ({len(section.entries)})", expanded=expanded):
            for entry in section.entries:
                words = ": ".join(filter(None, (", ".join(entry.about), entry.text)))
                st.text(line(words, SENTENCE if entry.long else MAX_CHARACTERS))


def _draw_criteria(document: Document, run: RunRecord) -> None:
    rows, points = margin_rows(document)
    if rows:
        st.subheader("Share of its margin that each criterion uses up, worst first", anchor=False)
        table(rows, "Criteria against their margins", f"margins {run.id}", Plot(points, CRITERIA, margin=1.0))
    st.subheader(f"All {len(document.criteria)} criteria", anchor=False)
    table(criteria_rows(document), "Criteria of the policy", f"criteria {run.id}")
    if document.advisory_note:
        st.caption(label(document.advisory_note))
    with st.expander("Reason, counts and source of every criterion"):
        table(evidence_rows(document), "What each criterion rests on", f"evidence {run.id}")


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
