"""The report as one HTML file to open, mail and keep: style inside, no script, nothing fetched, light and dark."""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from q36eval.gate.report import CriterionVerdict, LaneResult
from q36eval.inert_text import MAX_CHARACTERS, SENTENCE, block, html
from q36eval.records import DeploymentIdentity, Verdict
from q36eval.reports._plots import MARK, criteria_plot, flips_plot, kl_plot, recovery_plot
from q36eval.reports.deciding_answers import ANSWERS_TITLE, DecidingAnswer
from q36eval.reports.document import Document, Entry, Row, Section
from q36eval.reports.text import COLUMNS, NUMERIC, number, verdict_text

if TYPE_CHECKING:
    from q36eval.history.records import RunRecord


def to_html(document: Document) -> str:
    """Verdict first, lanes, what decided and how nearly, what to do; plots; then all criteria, gaps and provenance."""
    body = "\n".join(filter(None, (*_verdict(document), *_sections(document))))
    return page(f"{document.report.headline} {document.subject}".rstrip(), body)


def _verdict(document: Document) -> Iterator[str]:
    report, run = document.report, document.run
    named = "" if run is None else f" {html(document.subject)}"
    yield f"<h1>{_says(report.verdict, report.headline)}{named}</h1>"
    facts = [f"policy {html(report.policy)}", f"exit code {report.exit_code}"]
    if run is not None:
        facts = [f"run {html(run.id)}", f"{run.started:%Y-%m-%d %H:%M} UTC", *facts]
    yield f'<p class="soft">{", ".join(facts)}</p>'
    yield f'<div class="lanes">{"".join(_lane(document, lane) for lane in report.lanes)}</div>'


def _lane(document: Document, lane: LaneResult) -> str:
    how, names = document.deciding_lane(lane)
    by = f'<p class="soft">{how} {", ".join(map(html, names))}</p>' if names else ""
    return f'<div class="lane {lane.verdict}"><h3>{html(lane.lane)}</h3>{_says(lane.verdict, lane.headline)}{by}</div>'


def _says(verdict: Verdict | CriterionVerdict, words: str) -> str:
    return f'<span class="verdict {verdict}">{MARK[verdict]} {html(words)}</span>'


def _sections(document: Document) -> Iterator[str]:
    report, run = document.report, document.run
    yield _listed(document.decided)
    steps = (f"<code>{html(step.command)}</code> {html(step.why)}" for step in document.next_steps)
    yield section("Next", bullets(steps))
    seen = (f'<a href="{html(link.address)}">{html(link.words)}</a>' for link in document.links)
    yield section("In the review UI", bullets(seen))
    yield section(ANSWERS_TITLE, "".join(map(_answer, document.answers)))
    yield section("Criteria against their margins", criteria_plot(report))
    yield section("KL divergence by slice", kl_plot(report, document.measurements))
    lengths = "".join(f"<p>{html(sentence)}</p>" for sentence in document.lengths)
    yield section("Recovery by task", recovery_plot(report, document.measurements), lengths)
    yield section("Items lost and gained", flips_plot(document.measurements))
    advisory = f'<p class="soft">{html(document.advisory_note)}</p>' if document.advisory_note else ""
    yield section("All criteria", table(COLUMNS, map(_cells, document.criteria), NUMERIC), advisory)
    yield _listed(document.held)
    for each in document.details:
        yield _listed(each)
    yield section("What was judged", *([] if run is None else _provenance(run)))


def _answer(answer: DecidingAnswer) -> str:
    required = "required prompt " if answer.required else ""
    sides = "".join(
        f"<div><h3>{title}</h3><pre>{escape(block(text))}</pre></div>"
        for title, text in (("Reference", answer.reference), ("Branch", answer.branch))
    )
    said = "".join(f"<p>{html(words, SENTENCE)}</p>" for words in (answer.why, answer.parting) if words)
    prompt = f"<pre>{escape(block(answer.prompt))}</pre>"
    return f'<h3>{required}{html(answer.name)}</h3>{prompt}<div class="answers">{sides}</div>{said}'


def _listed(listed: Section) -> str:
    return section(listed.title, bullets(map(_entry, listed.entries)))


def _entry(entry: Entry) -> str:
    text = html(entry.text, SENTENCE if entry.long else MAX_CHARACTERS)
    if not entry.about:
        return text
    named = ", ".join(f"<b>{html(name)}</b>" for name in entry.about)
    verdict = "" if entry.result is None else f" {_says(entry.result.verdict, verdict_text(entry.result))}"
    return f"{named}{verdict}: {text}"


def _cells(row: Row) -> tuple[str, ...]:
    result = row.result
    star = "*" if result.tier == "advisory" else ""
    named = f'{html(result.heading)}{star} <span class="soft">{html(result.id)}</span>'
    return (named, *map(html, tuple(row.cells.values())[1:-1]), _says(row.result.verdict, row.cells["verdict"]))


def _provenance(run: "RunRecord") -> Iterator[str]:
    rows = [("started", f"{run.started:%Y-%m-%d %H:%M:%S} UTC")]
    if run.finished is not None:
        rows.append(("finished", f"{run.finished:%Y-%m-%d %H:%M:%S} UTC"))
    rows += [(f"seconds, {name}", number(seconds)) for name, seconds in sorted(run.timings.items())]
    for whose, identity in (("branch", run.identity), ("reference", run.reference_identity)):
        rows += [] if identity is None else _identity(whose, identity)
    rows += [(f"suite of {probe}", sha256) for probe, sha256 in sorted(run.suites.items())]
    rows += [(name.replace("_", " "), _value(value)) for name, value in sorted(run.provenance.items())]
    yield table(("what", "is"), ((html(name), html(value)) for name, value in rows))


def _identity(whose: str, identity: DeploymentIdentity) -> Iterator[tuple[str, str]]:
    for name, value in identity.model_dump().items():
        yield f"{whose}: {name.replace('_', ' ')}", _value(value)


def _value(value: object) -> str:
    """What was recorded, in words: nested names and values, a dash for what is not there."""
    if isinstance(value, dict):
        return ", ".join(map(_named, value.items())) or "–"
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value)) or "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    return "–" if value is None else str(value)


def _named(entry: tuple[str, object]) -> str:
    name, value = entry
    words = name.replace("_", " ")
    return f"{words} ({_value(value)})" if isinstance(value, dict) else f"{words} {_value(value)}"


STYLE = """
.answers { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 0 1rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; padding: .6rem; border: 1px solid #8884; border-radius: 4px;
  max-height: 24rem; overflow: auto; }
:root { color-scheme: light dark; --back: #ffffff; --card: #f6f7f9; --line: #d5d9e0; --ink: #1c2128; --soft: #59636e;
  --pass: #1a7f37; --fail: #cf222e; --open: #9a6700; --none: #6e40c9; --blue: #0969da; --band: #1a7f3718; }
@media (prefers-color-scheme: dark) { :root { --back: #0f1318; --card: #181d24; --line: #343c47; --ink: #e3e8ee;
  --soft: #9aa5b1; --pass: #3fb950; --fail: #ff6a61; --open: #d9a520; --none: #b28cf5; --blue: #58a6ff;
  --band: #3fb95022; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", Roboto,
  "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 60px; overflow-wrap: anywhere; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 34px 0 10px; padding-bottom: 4px; border-bottom: 1px solid var(--line); }
p { margin: 6px 0; }
.soft { color: var(--soft); }
.lanes { display: flex; flex-wrap: wrap; gap: 14px; margin-top: 18px; }
.lane { flex: 1 1 300px; background: var(--card); border: 1px solid var(--line); border-left: 5px solid var(--soft);
  border-radius: 6px; padding: 12px 16px; }
.lane h3 { margin: 0; font-size: 15px; font-weight: 600; }
.lane .verdict { font-size: 20px; }
.verdict { font-weight: 700; white-space: nowrap; }
.PASS { color: var(--pass); } .FAIL { color: var(--fail); } .INCONCLUSIVE { color: var(--open); }
.NOT_MEASURED { color: var(--none); }
.lane.PASS, .lane.FAIL, .lane.INCONCLUSIVE { color: var(--ink); }
.lane.PASS { border-left-color: var(--pass); } .lane.FAIL { border-left-color: var(--fail); }
.lane.INCONCLUSIVE { border-left-color: var(--open); }
ul { margin: 6px 0; padding-left: 22px; }
li { margin: 3px 0; }
code { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; background: var(--card);
  border: 1px solid var(--line); border-radius: 4px; padding: 1px 6px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 10px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td { min-width: 50px; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td { overflow-wrap: break-word; }
td.n, th.n { text-align: right; white-space: nowrap; }
td.id { font-weight: 600; min-width: 190px; }
td.id .soft { display: block; font-weight: 400; }
.wide:focus-visible { outline: 2px solid var(--blue); }
figure { margin: 0; }
figcaption { color: var(--soft); font-size: 13px; margin: 4px 0 8px; }
svg { display: block; width: 100%; min-width: 800px; height: auto; }
svg text { font: 12px system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: var(--ink); }
svg .tick { fill: var(--soft); font-size: 11px; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .limit { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 4 3; }
svg .floor { stroke: var(--soft); stroke-width: 2; }
svg .band { fill: var(--band); }
svg .head { font-weight: 600; }
svg .part { fill: var(--soft); }
svg .bar { stroke: currentColor; stroke-width: 3; stroke-linecap: round; }
svg .dot { fill: currentColor; }
svg .arrow { fill: currentColor; }
svg .says { fill: currentColor; font-weight: 600; }
svg .blue { color: var(--blue); }
@page { margin: 14mm; }
@media print { :root { color-scheme: light; --back: #ffffff; --card: #f6f7f9; --line: #d5d9e0; --ink: #1c2128;
  --soft: #59636e; --pass: #1a7f37; --fail: #cf222e; --open: #9a6700; --none: #6e40c9; --blue: #0969da;
  --band: #1a7f3718; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  main { max-width: none; padding: 0; } h2, h3 { break-after: avoid; } figure, tr, li { break-inside: avoid; }
  table { font-size: 10px; } pre { max-height: none; } .wide { overflow: visible; } }
""".strip()


def page(title: str, body: str) -> str:
    """A whole document. `body` is HTML already."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode("utf-8")).digest()).decode("ascii")
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def section(title: str, *content: str) -> str:
    """A heading and what stands under it; nothing where there is nothing."""
    parts = [part for part in content if part]
    return "" if not parts else "\n".join((f"<section>\n<h2>{html(title)}</h2>", *parts, "</section>"))


def bullets(items: Iterable[str]) -> str:
    """A list of entries that are HTML already."""
    entries = "\n".join(f"<li>{item}</li>" for item in items)
    return f"<ul>\n{entries}\n</ul>" if entries else ""


def table(header: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[str] = ()) -> str:
    """A table whose cells are HTML already; the columns named in `numeric` are set right, the first is a row's name."""
    classes = [' class="n"' if name in numeric else "" for name in header]
    heads = "".join(f'<th scope="col"{cls}>{html(name)}</th>' for name, cls in zip(header, classes, strict=True))
    classes[0] = ' class="id"'
    body = "\n".join(
        f"<tr>{''.join(f'<td{cls}>{cell}</td>' for cell, cls in zip(row, classes, strict=True))}</tr>" for row in rows
    )
    return f'<div class="wide"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'
