"""Every sentence that a user can see, in one table: commands, options, metrics, criteria, errors, pages, reports.

    python -m benchmarks.words TABLE            write the table; what it held as "before" stays
    python -m benchmarks.words TABLE --restart  take today's sentences as the ones before

The table (`docs/words.tsv`) has a row for each kind and text: whether it stood before, stands now or both, and the
modules or commands it stands in. Commands and options are asked of the program; everything else is read off syntax
trees, where an f-string's values appear as `{name}`. Lines are left out, so that moving code changes no text.
"""

import argparse
import ast
import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import click

from benchmarks.house import INSTALLED, module_of, sources

STATES = ("before", "both", "now")
PAGE_KEYWORDS = {"label", "help", "placeholder", "body", "title", "value", "text", "caption", "options", "page_title"}
"""Streamlit's arguments that are drawn; the others are keys, icons, colours and sizes."""

SPOKEN = {"say": "message", "print": "message", "print_plain": "message", "stage": "stage"}
"""Calls whose first argument is read by a person, and the kind of text it is."""

SPOKEN_PACKAGES = ("q36eval.app", "q36eval.reports", "q36eval.gate", "q36eval.drift", "q36eval.run", "q36eval.metrics")
"""Where any string of several words may be shown: reports, reasons, pages and what the command line prints."""

SILENT_PACKAGES = ("q36eval.app.sandbox",)
"""How the sandbox was trained, which no user runs."""


class Sentence(NamedTuple):
    """A text with its kind, and the module or command that shows it."""

    kind: str
    text: str
    where: str


def command_tree() -> Iterator[tuple[str, click.Command]]:
    """Every command and group of the program by what a user types; the program itself first."""
    from q36eval.app.cli.main import program

    def walk(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        yield name, command
        for each, child in getattr(command, "commands", {}).items():
            yield from walk(f"{name} {each}", child)

    yield from walk("q36eval", program())


def options_of(command: click.Command) -> Iterator[tuple[str, str]]:
    """Options as they are typed and arguments as they are shown, with their help; `--help` itself aside."""
    for parameter in command.params:
        typed = [name for name in parameter.opts if name.startswith("--")]
        name = typed[0] if typed else (parameter.metavar or parameter.name or "").upper()
        if name != "--help":
            yield name, getattr(parameter, "help", None) or ""


def help_sentences() -> Iterator[Sentence]:
    """What `--help` says, of every command."""
    for name, command in command_tree():
        yield Sentence("command", _joined(command.help or ""), name)
        for option, text in options_of(command):
            yield Sentence("option", f"{option}: {_joined(text)}", name)


def _joined(text: str) -> str:
    return " ".join(text.split())


def error_classes(trees: Mapping[str, ast.Module]) -> set[str]:
    """Names of the classes that derive from `Q36Error`."""
    bases: dict[str, set[str]] = {}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = {
                    base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases
                }
    known = {"Q36Error"}
    while more := {name for name, above in bases.items() if above & known} - known:
        known |= more
    return known


def texts_in(node: ast.AST) -> Iterator[str]:
    """The outermost strings of an expression; an f-string's values by their names, parts that are added joined."""
    whole = _text(node)
    if whole is not None:
        yield whole
        return
    for child in ast.iter_child_nodes(node):
        yield from texts_in(child)


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or f"{{{_name(part)}}}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        if left is not None or right is not None:
            return (left or f"{{{_name(node.left)}}}") + (right or f"{{{_name(node.right)}}}")
    return None


def _name(node: ast.AST) -> str:
    """What an expression is called: its last name, the function it calls, or nothing."""
    match node:
        case ast.FormattedValue(value=inner) | ast.Call(func=inner) | ast.Subscript(value=inner):
            return _name(inner)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return "…"


class _Sentences(ast.NodeVisitor):
    """Collects the sentences of one module; a string belongs to the first kind that claims it."""

    def __init__(self, module: str, errors: set[str]) -> None:
        self.module, self.errors = module, errors
        self.sentences: list[Sentence] = []
        self.spoken = module.startswith(SPOKEN_PACKAGES) and not module.startswith(SILENT_PACKAGES)
        self.on_page = module.startswith("q36eval.app.dashboard")

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = getattr(getattr(node.func, "value", None), "id", "")
        kind, claimed = None, node.args[:1]
        if function in self.errors:
            kind, claimed = "error", node.args
        elif self.on_page and owner == "st":
            kind, claimed = "page", [*node.args, *(k.value for k in node.keywords if k.arg in PAGE_KEYWORDS)]
        elif self.spoken and function in {"Table", "add_column"}:
            kind, claimed = "heading", node.args
        elif function in SPOKEN:
            kind = SPOKEN[function]
        elif owner == "typer" or function in {"getattr", "import_module"}:
            return
        if kind is None:
            self.generic_visit(node)
            return
        for argument in claimed:
            for text in texts_in(argument):
                self._keep(kind, text)
        for child in (node.func, *node.args, *(keyword.value for keyword in node.keywords)):
            if child not in claimed:
                self.visit(child)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        self._text(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self._text(node)
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.visit(part.value)

    def _text(self, node: ast.Constant | ast.JoinedStr) -> None:
        text = _text(node)
        if self.spoken and text is not None and reads_like_text(text):
            self._keep("text", text)

    def _keep(self, kind: str, text: str) -> None:
        if any(map(str.isalpha, re.sub(r"\{\w*…?\}", "", text))) and not text.endswith((".py", ":")):
            self.sentences.append(Sentence(kind, _joined(text), self.module))


def reads_like_text(text: str) -> bool:
    """Several words, and neither markup nor a style sheet."""
    return bool(re.search(r"[A-Za-z]{2,}[,.:;]? [A-Za-z{(]", text)) and not re.search(
        r"</?\w+[ >]|[;{]\n|\(\?P?[:<]|: ?#|px", text
    )


def source_sentences(texts: Mapping[str, str]) -> Iterator[Sentence]:
    """What the installed code shows, by its syntax trees."""
    trees = {path: ast.parse(text) for path, text in texts.items() if path.split("/")[0] in INSTALLED}
    errors = error_classes(trees)
    for path, tree in sorted(trees.items()):
        collector = _Sentences(module_of(path), errors)
        collector.visit(tree)
        yield from collector.sentences


def rows(sentences: Iterator[Sentence]) -> dict[tuple[str, str], str]:
    """Where each kind and text stands."""
    places: dict[tuple[str, str], set[str]] = defaultdict(set)
    for kind, text, where in sentences:
        places[kind, text].add(where)
    return {key: ", ".join(sorted(where)) for key, where in places.items()}


def judged_sentences() -> Iterator[Sentence]:
    """What every metric is, and what every criterion of the shipped policies is called."""
    from q36eval.app.cli.options import load_policy
    from q36eval.app.policies.files import shipped_policies
    from q36eval.app.targets import load_family
    from q36eval.config.paths import Paths
    from q36eval.metrics import METRICS

    for (probe, name), metric in METRICS.items():
        yield Sentence("metric", f"{metric.title}: {metric.meaning}", f"{probe}.{name}")
    paths = Paths.default()
    for name in shipped_policies(paths):
        for criterion in load_policy(name, load_family(None, paths), paths).criteria:
            yield Sentence("criterion", criterion.title, f"{name} {criterion.id}")


def all_sentences() -> Iterator[Sentence]:
    """Everything, of the working tree."""
    yield from help_sentences()
    yield from judged_sentences()
    yield from source_sentences(sources(None))


def write(table: Path, *, restart: bool) -> None:
    """Write the table, with the texts that stood before beside those of now."""
    now = rows(all_sentences())
    before = now if restart else _before(table)
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(["state", "kind", "where", "text"])
        for kind, text in sorted(
            now.keys() | before.keys(), key=lambda key: (key[0], (now.get(key) or before[key]), key)
        ):
            key = kind, text
            state = "both" if key in now and key in before else "now" if key in now else "before"
            writer.writerow([state, kind, now.get(key) or before[key], text])


def _before(table: Path) -> dict[tuple[str, str], str]:
    with table.open(encoding="utf-8", newline="") as file:
        kept = [row for row in csv.DictReader(file, delimiter="\t") if row["state"] != "now"]
    return {(row["kind"], row["text"]): row["where"] for row in kept}


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description="Every sentence that a user can see.")
    parser.add_argument("table", type=Path)
    parser.add_argument("--restart", action="store_true", help="take today's sentences as the ones before")
    arguments = parser.parse_args()
    write(arguments.table, restart=arguments.restart)


if __name__ == "__main__":
    main()
