"""The forms of the review page. Each shows what it would change before it writes anything."""

from collections.abc import Callable
from datetime import timedelta

import streamlit as st

from q36eval.app.dashboard.drawing.addressed import forget as forget_asked
from q36eval.app.dashboard.inert import line
from q36eval.app.dashboard.look import look_of
from q36eval.app.dashboard.models.review import (
    CANARY,
    decided_today,
    effect_of,
    lanes_words,
    prospect,
    scopes,
    state_of,
    waiver_of,
)
from q36eval.app.dashboard.reading import Reader
from q36eval.app.dashboard.reviewer import Permission
from q36eval.app.dashboard.writing import bless, decide_today, revoke, sign_off, today, waive
from q36eval.app.reviewing.waiver_files import LONGEST_DAYS
from q36eval.errors import Q36Error
from q36eval.gate.report import GateReport, Waiver
from q36eval.history import RunRecord
from q36eval.history.deciding import policy_of, report_sha256
from q36eval.records import ProbeName
from q36eval.reports.story import waits_for_signature

USUAL_DAYS = 30
REASONS = ("waive_reason", "sign_reason", "bless_reason")
DRAWN = "review_drawn"


def draw_forms(reader: Reader, run: RunRecord, report: GateReport, allowed: Permission) -> None:
    """Waive, sign, bless, decide again; the tab that the run waits for is open."""
    _draw_moved(reader, run, report)
    if allowed.may_write:
        _draw_name(allowed)
    titles = {
        "Waive": _draw_waive,
        "Sign off": _draw_sign,
        "Bless": _draw_bless,
        "Waivers of this branch": _draw_waivers,
    }
    first = "Sign off" if waits_for_signature(report) else ("Bless" if report.exit_code == 0 else "Waive")
    for draw, tab in zip(titles.values(), st.tabs(list(titles), default=first, key=f"tabs {run.id}"), strict=True):
        with tab:
            try:
                draw(reader, run, report, allowed)
            except Q36Error as error:
                st.warning("Not possible for this run:")
                st.text(line(str(error)))


def start_anew() -> None:
    """Empty the reasons: what was just written had its own. To be called before the forms are drawn."""
    for key in REASONS:
        st.session_state[key] = ""
    st.session_state.pop(DRAWN, None)


def _draw_moved(reader: Reader, run: RunRecord, report: GateReport) -> None:
    """Say that others decided since this page was drawn last: what somebody meant to write may not fit any more."""
    now = run.id, state_of(report_sha256(report), *reader.waivers(run.family, run.branch))
    before = st.session_state.get(DRAWN, now)
    st.session_state[DRAWN] = now
    if before != now and before[0] == run.id:
        st.warning("Somebody decided since this page was drawn: its verdict or waivers are others now. Read it again.")


def _draw_name(allowed: Permission) -> None:
    if allowed.name is not None:
        st.text(line(f"You write as {allowed.name}."))
        return
    st.text_input("Your name", key="reviewer", max_chars=80, help="It stands beside everything you write.", width=360)


def _draw_waive(reader: Reader, run: RunRecord, report: GateReport, allowed: Permission) -> None:
    found = scopes(report, policy_of(run), reader.groups(run, ProbeName.CANARIES))
    if not found.kinds:
        st.text("Nothing here can be waived: no criterion that the policy lets a reviewer waive fails or is open.")
        return
    st.text("Who waives says: I know that this is so, and it may go out until that day. The verdict found stays shown.")
    kind_at, name_at, until_at = st.columns((1, 2, 1))
    asked = st.query_params.get("canary")
    if asked in found.names.get(CANARY, ()):  # a canary's own page leads here
        st.session_state["waive_kind"], st.session_state[f"waive_name {CANARY}"] = CANARY, asked
    chosen = {"on_change": forget_asked, "args": ("canary",)}
    kind = kind_at.selectbox("Excuse", found.kinds, key="waive_kind", **chosen)
    name = name_at.selectbox("Which", found.names[kind], key=f"waive_name {kind}", format_func=line, **chosen)
    day = today()
    until = until_at.date_input(
        "Until and including",
        day + timedelta(days=USUAL_DAYS),
        min_value=day,
        max_value=day + timedelta(days=LONGEST_DAYS),
        key="waive_until",
    )
    if kind == CANARY:
        st.caption("Of every criterion over it, what this canary alone caused; the rest is judged as before.")
    draft, standing = waiver_of(kind, name, "", "", until), reader.waivers(run.family, run.branch)
    effect = effect_of(reader.history, run, draft, day)
    _draw_change(effect.before, effect.after, "With this waiver, decided today:")
    for note in sorted(set(effect.after.notes) - set(effect.before.notes)):
        st.text(line(f"Note: {note.replace(' by you', '')}"))
    reason = _reason("waive", "What is known about it, and why may it go out?", allowed)
    seen = state_of(report_sha256(report), draft, lanes_words(effect.before), lanes_words(effect.after), *standing)
    _write_button(
        "Write the waiver and decide again",
        f"waive {seen}",
        allowed,
        lambda typed: waive(reader, run, draft, typed, reason),
    )


def _draw_sign(reader: Reader, run: RunRecord, report: GateReport, allowed: Permission) -> None:
    what = prospect(reader.history, run)
    st.text("Who signs says: I have read this report. A signature turns no FAIL, and is of this very report only:")
    st.code(what.sha256, language=None)
    if not what.stands:
        st.warning("This version decides the run otherwise than was reported; decide it again, then sign that.")
        _draw_again(reader, run, report, allowed, "sign")
        return
    st.text(lanes_words(what.found))
    for signature in reader.sign_offs(run.id):
        counts = (
            "" if signature in report.signed_by else ", under a report that is no longer this one or not decided yet"
        )
        st.text(line(f"Signed before by {signature.owner} on {signature.at:%Y-%m-%d}{counts}: {signature.reason}"))
    reason = _reason("sign", "What did you look at, and why may it go?", allowed)
    seen = state_of(report_sha256(report), what.sha256)
    _write_button("Sign and decide again", f"sign {seen}", allowed, lambda typed: sign_off(reader, run, typed, reason))


def _draw_bless(reader: Reader, run: RunRecord, report: GateReport, allowed: Permission) -> None:
    st.text(
        "Who blesses says: this is how the branch shall be. Drift, and margins against the blessed run, start here."
    )
    blessed = reader.blessings(run.family, run.branch)
    if blessed:
        one = blessed[0]
        st.text(line(f"Blessed now: run {one.run_id} by {one.owner} on {one.at:%Y-%m-%d}: {one.reason}"))
    else:
        st.text("No run of this branch is blessed.")
    if report.exit_code != 0:
        look = look_of(report.verdict)
        st.warning(f"This run is {look.label}: blessing it makes that the level that later runs are held against.")
    reason = _reason("bless", "Why is this the level to hold?", allowed)
    seen = state_of(report_sha256(report), *blessed)
    _write_button("Bless this run", f"bless {seen}", allowed, lambda typed: bless(reader, run, typed, reason))


def _draw_waivers(reader: Reader, run: RunRecord, report: GateReport, allowed: Permission) -> None:
    standing = reader.waivers(run.family, run.branch)
    for number, waiver in standing.items():
        with st.container(border=True):
            words, button = st.columns((5, 1))
            words.text(line(_waiver_words(number, waiver)))
            words.text(line(waiver.reason))
            with button:
                _write_button("Revoke", f"revoke {number}", allowed, _revoking(reader, run, number))
    if not standing:
        st.text("No waiver of this branch stands.")
    _draw_again(reader, run, report, allowed, "waivers")


def _revoking(reader: Reader, run: RunRecord, number: int) -> Callable[[str], str]:
    return lambda typed: revoke(reader, run, number, typed)


def _waiver_words(number: int, waiver: Waiver) -> str:
    state = "expired on" if waiver.expires < today() else "until"
    return f"{number}: {waiver.scope}, {state} {waiver.expires}, by {waiver.owner}"


def _draw_again(reader: Reader, run: RunRecord, report: GateReport, allowed: Permission, tab: str) -> None:
    now = decided_today(reader.history, run, today())
    _draw_change(report, now, "Decided as of today, with today's waivers and signatures:")
    if lanes_words(now) != lanes_words(report):
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
    return st.text_area(label, key=f"{key}_reason", max_chars=2000, height=90) if allowed.may_write else ""


def _write_button(label: str, key: str, allowed: Permission, write: Callable[[str], str]) -> None:
    """What is written is said at the top of the page, drawn anew; what is refused, here.

    `key` holds what the button stands beside (`state_of`): a click on what has changed meanwhile, or a second one on
    what the first has settled, finds no such button and writes nothing.
    """
    if not allowed.may_write or not st.button(label, key=f"write {key}", type="primary"):
        return
    try:
        st.session_state["review_done"] = write(st.session_state.get("reviewer", ""))
    except Q36Error as error:
        st.error("Nothing was written:")
        st.text(line(str(error)))
        return
    st.rerun()
