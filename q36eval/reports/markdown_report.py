"""The report as Markdown, for a job summary or a pull request."""

from collections.abc import Iterable, Iterator

from q36eval.inert_text import MAX_CHARACTERS, SENTENCE, fenced, html
from q36eval.inert_text import markdown as md
from q36eval.reports.deciding_answers import ANSWERS_TITLE
from q36eval.reports.document import Document, Entry, Section
from q36eval.reports.evals_figures import GroupFigures, percent, ratio_words, recovery_words, used_words
from q36eval.reports.story import NOT_RIGHT, not_right_cell
from q36eval.reports.text import COLUMNS, number, verdict_text

EVALS_HEADER = (
    "group",
    "score",
    "reference",
    "recovery, 95 %",
    "items lost",
    "gained",
    "McNemar p",
    "answers changed",
    "scored",
    "errored",
    NOT_RIGHT,
)


def to_markdown(document: Document, *, folded: bool = False) -> str:
    """Verdict first, then lanes, what decided and how nearly, what to do, and the answers that show it; then all
    criteria, why anything is not PASS, what was not measured, where evaluation stopped, and what accuracy alone hides
    of the evals. Where it is `folded`, each of the latter is closed until a reader opens it.
    """
    rest = [("Criteria", list(_criteria(document)))]
    rest += [(section.title, [f"- {_entry(entry)}" for entry in section.entries]) for section in document.details]
    rest += list(_evals(document))
    lines = [*_verdict(document), *_answers(document)]
    for title, body in rest:
        if body:
            lines += _folded(title, body) if folded else ["", f"## {title}", "", *body]
    return "\n".join(lines) + "\n"


def _folded(title: str, body: list[str]) -> list[str]:
    return ["", f"<details><summary>{html(title)}</summary>", "", *body, "", "</details>"]


def _verdict(document: Document) -> Iterator[str]:
    report, run = document.report, document.run
    yield f"# {md(report.headline)}" + ("" if run is None else f": {md(run.family)}/{md(run.branch)}")
    yield ""
    imported = "" if run is None or run.imported is None else " Imported from another history."
    of = "Policy" if run is None else f"Run {md(run.id)}, policy"
    yield f"{of} {md(report.policy)}, exit code {report.exit_code}.{imported}"
    yield ""
    rows = (
        (md(lane.lane), f"**{md(lane.headline)}**", ", ".join(map(md, document.deciding_lane(lane)[1])))
        if lane.decisive
        else (md(lane.lane), f"**{md(lane.headline)}**", "–")
        for lane in report.lanes
    )
    yield from _table(("lane", "verdict", "decided by"), rows)
    yield from _section(document.decided)
    yield from _list("Next", (f"`{step.command}` – {md(step.why)}" for step in document.next_steps))
    yield from _list("In the review UI", (f"[{md(link.words)}](<{link.address}>)" for link in document.links))


def _answers(document: Document) -> Iterator[str]:
    if document.answers:
        yield from ("", f"## {ANSWERS_TITLE}", "")
    for place, answer in enumerate(document.answers):
        required = "required prompt " if answer.required else ""
        shown = " open" if place == 0 else ""
        yield from (f"<details{shown}><summary>{required}{html(answer.name)}</summary>", "")
        for title, text in (("Prompt", answer.prompt), ("Reference", answer.reference), ("Branch", answer.branch)):
            yield from (f"{title}:", "", *fenced(text), "")
        yield from (md(sentence, SENTENCE) for sentence in (answer.why, answer.parting) if sentence)
        yield from ("", "</details>", "")


def _criteria(document: Document) -> Iterator[str]:
    rows = ((*map(md, tuple(row.cells.values())[:-1]), f"**{md(row.cells['verdict'])}**") for row in document.criteria)
    yield from _table(COLUMNS, rows)
    if document.advisory_note:
        yield from ("", md(document.advisory_note))
    yield from _section(document.held)
    yield from _section(document.floors)


def _evals(document: Document) -> Iterator[tuple[str, list[str]]]:
    groups, perplexities = document.evals.groups(), document.evals.perplexities()
    lengths = [line for sentence in document.lengths for line in ("", md(sentence))]
    table = list(_table(EVALS_HEADER, map(_group_cells, groups))) if groups else []
    yield "Evals: the same items for branch and reference", [*table, *lengths]
    texts = ((p.name, ratio_words(p.token), ratio_words(p.word)) for p in perplexities)
    rows = (tuple(map(md, row)) for row in texts)
    table = list(_table(("text", "per token", "per word"), rows)) if perplexities else []
    yield "Perplexity, its ratio to the reference's", table


def _group_cells(group: GroupFigures) -> tuple[str, ...]:
    cells = (
        group.name,
        percent(group.accuracy.value),
        percent(group.accuracy.reference_value),
        recovery_words(group.recovery),
        number(group.lost),
        number(group.gained),
        number(group.mcnemar),
        percent(None if group.answers_changed is None else group.answers_changed.value),
        used_words(group),
        str(group.accuracy.counts.errored),
        not_right_cell(group.accuracy.causes),
    )
    return tuple(map(md, cells))


def _section(section: Section) -> Iterator[str]:
    yield from _list(section.title, map(_entry, section.entries))


def _entry(entry: Entry) -> str:
    text = md(entry.text, SENTENCE if entry.long else MAX_CHARACTERS)
    if not entry.about:
        return text
    named = ", ".join(f"**{md(name)}**" for name in entry.about)
    verdict = "" if entry.result is None else f" {md(verdict_text(entry.result))}"
    return f"{named}{verdict}: {text}"


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def _list(title: str, entries: Iterable[str]) -> Iterator[str]:
    lines = [f"- {entry}" for entry in entries]
    if lines:
        yield from ("", f"## {title}", "", *lines)
