"""Measure the repository and compare it with the limits in `.ci/budget`: `make budget`.

Product is every tracked Python file outside `tests/` and `benchmarks/`. Exit 1 where a value is above its limit, or a
limit rose since an earlier commit without a line that gives the reason.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUDGET = ".ci/budget"
LIMIT = re.compile(r"(\w[\w ]*?) +(\d+)")
RAISED = re.compile(r"raised (\w[\w ]*?): from (\d+) to (\d+), because \S.*")


def git(*arguments: str) -> str:
    """The output of a git command in this repository; empty where git refuses."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout


def limits(text: str) -> dict[str, int]:
    """The limits of a budget file by name."""
    found = (LIMIT.fullmatch(line.strip()) for line in text.splitlines())
    return {match[1]: int(match[2]) for match in found if match is not None}


def raised(before: dict[str, int], text: str) -> list[str]:
    """A sentence for each limit above an earlier one whose raise the file does not explain."""
    explained = {(m[1], int(m[2]), int(m[3])) for line in text.splitlines() if (m := RAISED.fullmatch(line.strip()))}
    return [
        f"The limit of {name} rose from {before[name]:,} to {limit:,} without a line that gives the reason."
        for name, limit in limits(text).items()
        if limit > before.get(name, limit) and (name, before[name], limit) not in explained
    ]


def python_sizes() -> dict[str, tuple[int, int]]:
    """Lines and statements of tracked Python files: of the product, the tests and the benchmarks."""
    sizes = {"product": (0, 0), "tests": (0, 0), "benchmarks": (0, 0)}
    for name in git("ls-files", "*.py").splitlines():
        path = ROOT / name
        if not path.is_file():  # deleted, and not committed yet
            continue
        text = path.read_text(encoding="utf-8")
        folder = name.partition("/")[0]
        area = folder if folder in sizes else "product"
        lines, statements = sizes[area]
        own = sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(text)))
        sizes[area] = lines + text.count("\n"), statements + own
    return sizes


def markdown_words() -> int:
    """Words of tracked Markdown files, as `wc -w` counts them."""
    names = git("ls-files", "*.md").splitlines()
    return sum(len((ROOT / name).read_text(encoding="utf-8").split()) for name in names if (ROOT / name).is_file())


def command_line() -> dict[str, int]:
    """How many commands of q36eval can be run, and how many options `gate` has besides those of every command."""
    import typer

    from q36eval.app.cli.main import app

    found = {"commands": 0, "gate options": 0}

    def visit(command: object, name: str) -> None:
        children = getattr(command, "commands", None)
        if children is None or getattr(command, "invoke_without_command", False):
            found["commands"] += 1
        for child, below in (children or {}).items():
            visit(below, f"{name} {child}")
        if name == "q36eval gate":
            params = getattr(command, "params", [])
            found["gate options"] = sum(each.param_type_name == "option" and each.name != "help" for each in params)

    group = typer.main.get_command(app)
    group.invoke_without_command = False  # type: ignore[attr-defined]
    visit(group, "q36eval")
    return found


def main() -> int:
    """Print every value next to its limit."""
    text = (ROOT / BUDGET).read_text(encoding="utf-8")
    sizes = python_sizes()
    values = {f"{area} lines": lines for area, (lines, _) in sizes.items()}
    values |= {"markdown words": markdown_words(), **command_line()}
    statements = {f"{area} lines": count for area, (_, count) in sizes.items()}
    problems = [f"{name} has no limit in {BUDGET}." for name in values if name not in limits(text)]
    for name, limit in limits(text).items():
        value = values.get(name)
        if value is None:
            problems.append(f"{BUDGET} limits {name!r}, which nothing measures.")
            continue
        also = f"  ({statements[name]:,} statements)" if name in statements else ""
        print(f"{name:18} {value:>8,} of {limit:>8,}{also}")
        if value > limit:
            problems.append(f"{name}: {value:,} is above the limit of {limit:,}. Take something away.")
    commits = git("log", "--full-history", "--format=%H", "--", BUDGET).split()
    for commit in commits:
        problems += raised(limits(git("show", f"{commit}:{BUDGET}")), text)
    for problem in dict.fromkeys(problems):
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
