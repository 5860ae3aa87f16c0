"""One HTML page that stands alone: its style inside, no script, nothing fetched, and a policy that allows neither."""

import base64
import hashlib
from collections.abc import Iterable, Sequence

from q36eval.reports._text import html

STYLE = """
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
td.n, th.n { text-align: right; }
td.id { font-weight: 600; min-width: 150px; }
figure { margin: 0; }
figcaption { color: var(--soft); font-size: 13px; margin: 4px 0 8px; }
svg { display: block; width: 100%; min-width: 760px; height: auto; }
svg text { font: 12px system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: var(--ink); }
svg .tick { fill: var(--soft); font-size: 11px; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .limit { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 4 3; }
svg .floor { stroke: var(--soft); stroke-width: 2; }
svg .band { fill: var(--band); }
svg .head { font-weight: 600; }
svg .bar { stroke: currentColor; stroke-width: 3; stroke-linecap: round; }
svg .dot { fill: currentColor; }
svg .arrow { fill: currentColor; }
svg .says { fill: currentColor; font-weight: 600; }
svg .blue { color: var(--blue); }
@media print { main { max-width: none; } section { break-inside: avoid; } }
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
    found = [part for part in content if part]
    return "" if not found else "\n".join((f"<section>\n<h2>{html(title)}</h2>", *found, "</section>"))


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
