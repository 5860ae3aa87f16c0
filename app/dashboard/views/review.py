"""Review: the queue for a person, and for one run the actions: waive, sign off, bless, decide again."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

import streamlit as st

from q36eval.app.dashboard.drawing.branches import draw_branches
from q36eval.app.dashboard.drawing.parts import (
    copy_box,
    name_tab,
    page_of,
    reader_or_stop,
    run_heading,
    stop_at_dead_link,
    table,
)
from q36eval.app.dashboard.drawing.standing import draw_standing_beside
from q36eval.app.dashboard.escape import line
from q36eval.app.dashboard.history_reader import Reader, explained
from q36eval.app.dashboard.models.review import (
    CANARY,
    decided_today,
    draft_of,
    effect_of,
    lanes_words,
    prospect,
    queue,
    scopes,
    state_of,
    without_effect,
)
from q36eval.app.dashboard.review_writer import archive, bless, decide_today, revoke, sign_off, today, waive
from q36eval.app.dashboard.reviewer import Permission, permission
from q36eval.app.dashboard.verdict_style import look_of
from q36eval.app.reviewing.effects import record_needed
from q36eval.app.reviewing.waiver_files import LONGEST_DAYS
from q36eval.app.standing import Standings
from q36eval.errors import UsageError
from q36eval.gate.report import CriterionVerdict, GateReport, Waiver
from q36eval.history import RunRecord
from q36eval.history.decisions import policy_of, report_sha256
from q36eval.records import ProbeName
from q36eval.reports.document import Document
from q36eval.reports.next_step import branch_option, full_record
from q36eval.reports.story import waits_for_signature
from q36eval.reports.text import why_text

ROWS_PER_PAGE = 10
OPEN_COLUMNS = ("criterion", "verdict", "lanes", "judged", "interval", "margin")


def draw() -> None:
    """The page: the queue, or the run that the address names."""
    reader = reader_or_stop("Review", titled="run" not in st.query_params)
    named = st.query_params.get("run")
    if not named:
        _draw_queue(reader)
        return
    st.page_link("views/review.py", label="All open reviews", icon=":material/arrow_back:", query_params={})
    try:
        run = reader.history.get_run(named)
    except UsageError:
        stop_at_dead_link("run", named)
    name_tab(run.branch, run.id)
    _draw_run(reader, run, permission())
    for kept in (DONE, PRESSED):  # only now: an interrupted message is shown again, and no click is lost
        st.session_state[kept].clear()


def _draw_queue(reader: Reader) -> None:
    now = datetime.now(UTC)
    known = Standings(reader.history, now)
    waiting = queue(known.all(), now)
    if waiting:
        wait = "1 branch waits" if len(waiting) == 1 else f"{len(waiting)} branches wait"
        st.caption(f"{wait} for a person, the worst of each family first.")
    else:
        st.success("No branch waits for a person: every judged branch may ship in some lane, or is the reference.")
    draw_branches(
        reader,
        known,
        page_of(waiting, ROWS_PER_PAGE, "review_page"),
        lambda row: ("review", "Review", {"run": row.shown.id}),
    )


def _draw_run(reader: Reader, run: RunRecord, allowed: Permission) -> None:
    done = st.session_state.setdefault(DONE, [])
    st.session_state.setdefault(PRESSED, set())
    for action, words in done:
        if action in REASONS:
            st.session_state[f"{action}_reason"] = ""
        st.success("Written.")
        st.text(line(words))
    run_heading(run)
    if run.report is None:
        st.text(line(f"Run {run.id} of {run.branch} (family {run.family}) is {run.state} and has no verdict."))
        st.info("Only a judged run can be waived, signed or blessed. A gate run judges:")
        copy_box(f"q36eval gate {branch_option(run)}")
        if allowed.may_write:
            _draw_name(allowed)
        _draw_archive(reader, run, None, allowed)
        return
    draw_standing_beside(reader, run)
    _draw_summary(run, run.report)
    _draw_open(run, run.report)
    if not allowed.may_write:
        st.info("Nothing can be written here.")
        st.text(line(allowed.why or ""))
    draw_forms(reader, run, run.report, allowed)


def _draw_summary(run: RunRecord, report: GateReport) -> None:
    st.page_link("views/run.py", label="The whole run", icon=":material/rule:", query_params={"run": run.id})
    for signature in report.signed_by:
        st.text(line(f"Signed by {signature.owner} on {signature.at:%Y-%m-%d %H:%M} UTC: {signature.reason}"))


def _draw_open(run: RunRecord, report: GateReport) -> None:
    rows = [
        {**{name: row.cells[name] for name in OPEN_COLUMNS}, "why": why_text(row.result)}
        for row in Document(report, run).criteria
        if row.result.verdict is not CriterionVerdict.PASS
    ]
    if rows:
        st.subheader("What did not pass", anchor=False)
        table(rows, "Criteria that did not pass", f"open {run.id}")
    else:
        st.text("Every criterion passed.")


USUAL_DAYS = 30
MOST_NAME, MOST_REASON = 80, 2000
REASONS = ("waive", "sign", "bless", "archive")
DONE, DRAWN, SEEN, PRESSED = "review_done", "review_drawn", "review_seen", "review_pressed"


def draw_forms(reader: Reader, run: RunRecord, report: GateReport, allowed: Permission) -> None:
    """Waive, sign, bless, decide again; the tab that the run waits for is open."""
    _draw_moved(reader, run, report)
    needed = record_needed(run)
    if needed is not None:
        st.warning("Waiving needs a full record first: this gate stopped before every criterion was evaluated.")
        st.text(line(needed))
        copy_box(full_record(run))
    if allowed.may_write:
        _draw_name(allowed)
    titles = {
        **({"Waive": _draw_waive} if needed is None else {}),
        "Sign off": _draw_sign,
        "Bless": _draw_bless,
        "Waivers of this branch": _draw_waivers,
        "Archive": _draw_archive,
    }
    waits = "Waive" if needed is None and report.exit_code else "Bless"
    first = "Sign off" if needed is not None or waits_for_signature(report) else waits
    for draw, tab in zip(titles.values(), st.tabs(list(titles), default=first), strict=True):
        with tab, explained(st.warning, "Not possible for this run:"):
            draw(reader, run, report, allowed)


def _draw_moved(reader: Reader, run: RunRecord, report: GateReport) -> None:
    """Report others' decisions since this page was last drawn: an intended action may no longer fit.

    `SEEN` is the state found by the session: its own decisions are not others' and update it.
    """
    now = run.id, state_of(report_sha256(report), *reader.history.waivers(run.family, run.branch))
    before = st.session_state.get(DRAWN, now)
    st.session_state[DRAWN] = now
    if before[0] != run.id or SEEN not in st.session_state:
        st.session_state[SEEN] = now
    elif before != now and not st.session_state[DONE]:
        st.session_state[SEEN] = now
        st.warning("Somebody decided since this page was drawn. Verdict or waivers are different now: read it again.")


def _draw_name(allowed: Permission) -> None:
    if allowed.name is not None:
        st.text(line(f"You write as {allowed.name}."))
        return
    st.text_input(
        "Your name", key="reviewer", max_chars=MOST_NAME, help="Shown next to everything you write.", width=360
    )


def _draw_waive(reader: Reader, run: RunRecord, report: GateReport, allowed: Permission) -> None:
    flips = reader.items(run, ProbeName.CANARIES, flips_only=True)
    lost = {item.group for item in flips if item.flip == "regression"}
    waivable = scopes(report, policy_of(run), sorted(lost))
    if not waivable:
        st.text(
            "Nothing here can be waived: no criterion that blocks and that the policy lets a reviewer waive is open."
        )
        return
    st.text("A waiver says: I accept this failure until the date below. The verdict without it stays visible.")
    kind_at, name_at, until_at = st.columns((1, 2, 1))
    named = st.query_params.get("waive")
    if named in waivable.get(CANARY, ()):  # a canary's own page leads here
        st.session_state["waive_kind"], st.session_state[f"waive_name {CANARY}"] = CANARY, named
    elif named:
        st.warning("This canary has nothing to waive: it lost nothing that blocks in this run.")
        st.text(line(named))

    def forget() -> None:
        st.query_params.pop("waive", None)

    kind = kind_at.selectbox("Excuse", list(waivable), key="waive_kind", on_change=forget)
    names = waivable[kind]
    name = name_at.selectbox("Which", names, key=f"waive_name {kind}", format_func=line, on_change=forget)
    day = today()
    until = until_at.date_input(
        "Until and including",
        day + timedelta(days=USUAL_DAYS),
        min_value=day,
        max_value=day + timedelta(days=LONGEST_DAYS),
        key="waive_until",
    )
    if kind == CANARY:
        st.caption("It covers what this canary alone caused in every criterion; the rest is judged as before.")
    draft, standing = draft_of(kind, name, until), reader.history.waivers(run.family, run.branch)
    effect = effect_of(reader.history, run, draft, day)
    _draw_change(effect.before, effect.after, "With this waiver, decided today:")
    nothing = without_effect(effect)
    if nothing is not None:
        st.warning("Nothing to write: it would change nothing.")
        st.text(line(nothing))
        return
    if effect.together and not effect.excused:
        st.info("Alone it excuses nothing; together with waivers of these canaries it does:")
        st.text(line(", ".join(effect.together)))
    for note in sorted(set(effect.after.notes) - set(effect.before.notes)):
        st.text(line(f"Note: {note.replace(' by you', '')}"))
    reason = _reason("waive", "What is known about it, and why may it ship?", allowed)
    seen = state_of(report_sha256(report), draft, lanes_words(effect.before), lanes_words(effect.after), *standing)
    _write_button(
        "Write the waiver and decide again",
        f"waive {seen}",
        allowed,
        lambda typed: waive(reader, run, draft, typed, reason),
    )


def _draw_sign(reader: Reader, run: RunRecord, report: GateReport, allowed: Permission) -> None:
    what = prospect(reader.history, run)
    st.text("A signature says: I have read this report. It changes no FAIL, and holds for this report, by its hash:")
    copy_box(what.sha256)
    if not what.stands:
        st.warning("An earlier version wrote this report. Decide the run again, then sign the new report.")
        _draw_again(reader, run, report, allowed, "sign")
        return
    st.text(lanes_words(what.found))
    for signature in reader.history.sign_offs(run.id):
        other = ", for another report of this run, or not decided with it yet"
        counts = "" if signature in report.signed_by else other
        st.text(line(f"Signed before by {signature.owner} on {signature.at:%Y-%m-%d}{counts}: {signature.reason}"))
    reason = _reason("sign", "What did you check, and what do you conclude?", allowed)
    seen = state_of(report_sha256(report), what.sha256)
    _write_button("Sign and decide again", f"sign {seen}", allowed, lambda typed: sign_off(reader, run, typed, reason))


def _draw_bless(reader: Reader, run: RunRecord, report: GateReport, allowed: Permission) -> None:
    st.text("A blessing says: this is the level to hold. Drift, and margins against the blessed run, start here.")
    blessed = reader.history.blessings(run.branch, run.family)
    if blessed:
        one = blessed[0]
        st.text(line(f"Blessed now: run {one.run_id} by {one.owner} on {one.at:%Y-%m-%d}: {one.reason}"))
    else:
        st.text("No run of this branch is blessed.")
    if report.exit_code != 0:
        look = look_of(report.verdict)
        st.warning(f"This run is {look.label}: blessed, it is the level that later runs are compared with.")
    reason = _reason("bless", "Why is this the level to hold?", allowed)
    key = f"bless {state_of(st.session_state[SEEN], *blessed)}"
    _write_button("Bless this run", key, allowed, lambda typed: bless(reader, run, typed, reason))


def _draw_waivers(reader: Reader, run: RunRecord, report: GateReport, allowed: Permission) -> None:
    standing = reader.history.waivers(run.family, run.branch)
    for number, waiver in standing.items():
        with st.container(border=True):
            words, button = st.columns((5, 1))
            words.text(line(_waiver_words(number, waiver)))
            words.text(line(waiver.reason))
            with button:
                _write_button("Revoke", f"revoke {number}", allowed, partial(revoke, reader, run, number))
    if not standing:
        st.text("This branch has no waiver.")
    _draw_again(reader, run, report, allowed, "waivers")


def _draw_archive(reader: Reader, run: RunRecord, _: GateReport | None, allowed: Permission) -> None:
    known = reader.history.archived().get((run.family, run.branch))
    if known is None:
        st.text("The overview hides the branch until its next gate. Verdicts, and what may ship, do not change.")
    else:
        st.text(line(f"Archived by {known.owner} on {known.at:%Y-%m-%d}: {known.reason}"))
    reason = _reason("archive", "Why?", allowed)
    label = "Archive the branch" if known is None else "List the branch again"
    put = partial(archive, reader, run, reason=reason, archived=known is None)
    _write_button(label, f"archive {state_of(run.family, run.branch, known)}", allowed, put)


def _waiver_words(number: int, waiver: Waiver) -> str:
    state = "expired on" if waiver.expires < today() else "until"
    return f"{number}: {waiver.scope}, {state} {waiver.expires}, by {waiver.owner}"


def _draw_again(reader: Reader, run: RunRecord, report: GateReport, allowed: Permission, tab: str) -> None:
    now = decided_today(reader.history, run, today())
    _draw_change(report, now, "Decided as of today, with today's waivers and signatures:")
    if tab == "sign" or lanes_words(now) != lanes_words(report):
        seen = state_of(report_sha256(report), report_sha256(now))
        _write_button("Decide again", f"again {tab} {seen}", allowed, lambda typed: decide_today(reader, run, typed))


def _draw_change(before: GateReport, after: GateReport, title: str) -> None:
    st.text(title)
    left, arrow, right = st.columns((4, 1, 4), vertical_alignment="center")
    for column, report in ((left, before), (right, after)):
        with column.container(border=True):
            look = look_of(report.verdict)
            st.badge(look.label, color=look.colour)
            st.text(lanes_words(report))
    arrow.text("→" if lanes_words(before) != lanes_words(after) else "= nothing changes")


def _reason(key: str, label: str, allowed: Permission) -> str:
    return st.text_area(label, key=f"{key}_reason", max_chars=MOST_REASON, height=90) if allowed.may_write else ""


def _write_button(label: str, key: str, allowed: Permission, write: Callable[[str], str]) -> None:
    """A success is reported at the top of the redrawn page; a refusal, here.

    `key` contains the state next to the button (`state_of`): a click after a change, or a second click after the first
    one took effect, finds no such button and writes nothing.
    """
    if not allowed.may_write:
        return
    pressed = st.session_state[PRESSED]
    st.button(label, key=f"write {key}", type="primary", on_click=pressed.add, args=(key,))
    if key not in pressed:
        return
    pressed.discard(key)
    with explained(st.error, "Nothing was written:"):
        with st.spinner("Writing, and deciding again …"):
            words = write(st.session_state.get("reviewer", ""))
        st.session_state[DONE].append((key.partition(" ")[0], words))
        st.rerun()


if __name__ == "__main__":
    draw()
