"""How the house is built, counted from syntax trees: files, functions, helpers with one caller, late imports, cycles.

    python -m benchmarks.house             the working tree
    python -m benchmarks.house REV         that revision beside the working tree
    python -m benchmarks.house REV REV     two revisions side by side

Prints a Markdown table. Nothing is imported or guessed at: a caller is a function whose body names the helper, and an
import is an import statement. `q36eval/{app,kl,evals,canaries}` are links to the top-level folders, counted once.
"""

import argparse
import ast
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
INSTALLED = ("app", "canaries", "evals", "kl", "q36eval")
LINK = "120000"
LONG, SHORT = 400, 40
WAYS = {
    "a gate": "q36eval.app.cli.gate",
    "a canary's prompt": "q36eval.canaries.probe",
    "a stored tensor": "q36eval.checkpoints.loader",
    "a row of history": "q36eval.history",
}
"""Where each of them enters; what it can reach from there, by imports, is what a reader may have to open."""
PASSING = ("kv_cache_dtype", "InProcessEngine")
"""What passes through many files where it should through few: a setting handed down, an engine's class."""


def sources(revision: str | None) -> dict[str, str]:
    """Text of every Python file by its path in the repository; of the working tree where no revision is given."""
    if revision is None:
        names = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.py").split("\0")
        files = [ROOT / name for name in names if name]
        return {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in files if file.is_file()}
    entries = [line.split(None, 3) for line in _git("ls-tree", "-r", revision).splitlines()]
    blobs = {path: blob for mode, _, blob, path in entries if path.endswith(".py") and mode != LINK}
    return dict(zip(blobs, _contents(list(blobs.values())), strict=True))


def _git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=True).stdout


def _contents(blobs: list[str]) -> Iterator[str]:
    """What `git cat-file --batch` says of each: a header with the size, the bytes, a line feed."""
    done = subprocess.run(
        ["git", "-C", ROOT, "cat-file", "--batch"], input="\n".join(blobs).encode(), capture_output=True, check=True
    )
    place = 0
    for _ in blobs:
        header = done.stdout.index(b"\n", place)
        end = header + 1 + int(done.stdout[place:header].split()[-1])
        yield done.stdout[header + 1 : end].decode()
        place = end + 1


class Use(NamedTuple):
    """A name that a function (or the file itself) mentions."""

    name: str
    caller: str


@dataclass
class File:
    """What one file defines, mentions and imports. Imports are of other files of the repository, or of anything."""

    functions: list[str] = field(default_factory=list)
    uses: set[Use] = field(default_factory=set)
    imported_names: set[str] = field(default_factory=set)
    imports: set[str] = field(default_factory=set)
    late_imports: set[str] = field(default_factory=set)
    late_statements: int = 0


class _Reader(ast.NodeVisitor):
    """Walks a file with the functions it is inside of."""

    def __init__(self, module: str, is_package: bool) -> None:
        self.file = File()
        self.inside: list[str] = []
        self.package = module if is_package else module.rpartition(".")[0]

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for part in (*node.decorator_list, node.args, *([node.returns] if node.returns else [])):
            self.visit(part)
        self.file.functions.append(node.name)
        self.inside.append(f"{node.name}:{node.lineno}")
        for statement in node.body:
            self.visit(statement)
        self.inside.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = _function  # noqa: N815 (ast's names)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            for statement in node.orelse:
                self.visit(statement)
        else:
            self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self.file.uses.add(Use(node.id, self.inside[-1] if self.inside else ""))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.file.uses.add(Use(node.attr, self.inside[-1] if self.inside else ""))
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self._imports({alias.name for alias in node.names})

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        above = self.package.split(".")[: len(self.package.split(".")) - node.level + 1] if node.level else []
        source = ".".join([*above, *([node.module] if node.module else [])])
        self.file.imported_names |= {alias.name for alias in node.names}
        self._imports({f"{source}.{alias.name}" for alias in node.names})

    def _imports(self, targets: set[str]) -> None:
        if self.inside:
            self.file.late_statements += 1
            self.file.late_imports |= targets
        else:
            self.file.imports |= targets


def module_of(path: str) -> str:
    """The name a file is imported by: every folder of ours lies below `q36eval`."""
    parts = PurePosixPath(path).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[0] == "q36eval" else ("q36eval", *parts))


def read(texts: Mapping[str, str]) -> dict[str, File]:
    """Files by path."""
    files = {}
    for path, text in texts.items():
        reader = _Reader(module_of(path), path.endswith("__init__.py"))
        reader.visit(ast.parse(text))
        files[path] = reader.file
    return files


def one_caller(files: Mapping[str, File]) -> int:
    """Private functions that exactly one function names: in their own file, or in one that imports the name.

    Functions of one name in one file count as one; a mention outside any function is a caller too (a table of them).
    """
    count = 0
    for path, file in files.items():
        for name in {name for name in file.functions if name.startswith("_") and not name.endswith("__")}:
            callers = {(path, use.caller) for use in file.uses if use.name == name}
            callers = {caller for caller in callers if caller[1].partition(":")[0] != name}  # it may call itself
            for other, there in files.items():
                if other != path and name in there.imported_names:
                    callers |= {(other, use.caller) for use in there.uses if use.name == name}
            count += len(callers) == 1
    return count


def graph_of(files: Mapping[str, File], *, late: bool) -> dict[str, set[str]]:
    """What each module imports of ours; `late` counts imports inside functions too."""
    modules = {module_of(path): file for path, file in files.items()}
    graph = {}
    for module, file in modules.items():
        targets = file.imports | (file.late_imports if late else set())
        graph[module] = {known for name in targets if (known := _known(name, modules))} - {module}
    return graph


def cycles(files: Mapping[str, File], *, late: bool) -> list[list[str]]:
    """Groups of modules that import each other (strongly connected)."""
    return _components(graph_of(files, late=late))


def reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """The modules that may run once `start` does: what it imports, anywhere, and what that imports."""
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        module = ahead.pop()
        if module in graph and module not in seen:
            seen.add(module)
            ahead += graph[module]
    return seen


def _known(name: str, modules: Mapping[str, File]) -> str | None:
    """The module that a name of an import statement is, or lies in."""
    if name in modules:
        return name
    parent = name.rpartition(".")[0]
    return parent if parent in modules else None


def _components(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module (Tarjan, SIAM J. Comput. 1, 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components = []

    def connect(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for following in graph[node]:
            if following not in index:
                connect(following)
                low[node] = min(low[node], low[following])
            elif following in stack:
                low[node] = min(low[node], index[following])
        if low[node] == index[node]:
            component = [stack.pop()]
            while component[-1] != node:
                component.append(stack.pop())
            if len(component) > 1:
                components.append(sorted(component))

    for node in sorted(graph):
        if node not in index:
            connect(node)
    return components


def counts(texts: Mapping[str, str]) -> dict[str, str]:
    """The table's figures of one state of the repository."""
    parts: dict[str, list[str]] = defaultdict(list)
    for path in texts:
        top = path.split("/")[0]
        parts["installed" if top in INSTALLED else top].append(path)
    rows = {}
    for part in ("installed", "tests", "benchmarks"):
        lines = [texts[path].count("\n") for path in parts[part]]
        rows[f"{part}: files"] = f"{len(lines):,}"
        rows[f"{part}: lines"] = f"{sum(lines):,}"
    rows["all: files"] = f"{len(texts):,}"
    rows["all: lines"] = f"{sum(text.count(chr(10)) for text in texts.values()):,}"

    files = read({path: texts[path] for path in parts["installed"]})
    lines = [texts[path].count("\n") for path in files]
    rows |= {
        "median lines a file": f"{median(lines):g}",
        f"files above {LONG} lines": f"{sum(n > LONG for n in lines)}",
        f"files below {SHORT} lines": f"{sum(n < SHORT for n in lines)}",
        "functions": f"{sum(len(file.functions) for file in files.values()):,}",
        "private functions with one caller": f"{one_caller(files):,}",
        "imports inside functions": f"{sum(file.late_statements for file in files.values())}",
        "cycles, imports at the top": _sizes(cycles(files, late=False)),
        "cycles, imports inside functions too": _sizes(cycles(files, late=True)),
    }
    graph = graph_of(files, late=True)
    rows |= {f"files that {what} may reach": f"{len(reached(graph, start))}" for what, start in WAYS.items()}
    rows |= {f"files that name `{name}`": f"{sum(name in texts[path] for path in files)}" for name in PASSING}
    return rows


def _sizes(components: list[list[str]]) -> str:
    sizes = sorted((len(component) for component in components), reverse=True)
    return f"{len(sizes)} (modules: {', '.join(map(str, sizes))})" if sizes else "0"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Counts of the house, from its syntax trees.")
    parser.add_argument("revisions", nargs="*", metavar="REV", help="two at most; beside one stands the working tree")
    parser.add_argument("--cycles", action="store_true", help="name the modules of every cycle of the last column")
    arguments = parser.parse_args()
    columns: list[str | None] = list(arguments.revisions)
    if len(columns) > 2:
        parser.error("name two revisions at most")
    columns += [None] if len(columns) < 2 else []
    texts = [sources(revision) for revision in columns]
    figures = [counts(each) for each in texts]
    heads = ["working tree" if revision is None else revision for revision in columns]
    print("| count | " + " | ".join(heads) + " |")
    print("|---|" + "---|" * len(heads))
    for row in figures[0]:
        print(f"| {row} | " + " | ".join(each[row] for each in figures) + " |")
    if arguments.cycles:
        files = read({path: text for path, text in texts[-1].items() if path.split("/")[0] in INSTALLED})
        for component in cycles(files, late=True):
            print("\n- " + ", ".join(component))


if __name__ == "__main__":
    main()
