"""The pages for people hold: the files, packages, commands, options and targets that they name exist."""

import re
from pathlib import Path

import pytest

from tests.commands import command_tree

ROOT = Path(__file__).parents[1]
FOLDERS_OF_PAGES = (ROOT / "docs", ROOT / "docs" / "deploy", ROOT / "benchmarks")
PAGES = sorted(page for place in (ROOT, *FOLDERS_OF_PAGES) for page in place.glob("*.md"))
NAMES = [str(page.relative_to(ROOT)) for page in PAGES if page.name != "CHANGELOG.md"]
COMMANDS = command_tree()
FOLDERS = ("app", "benchmarks", "canaries", "data", "docs", "evals", "kl", "q36eval", "tests")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/architecture.md", "README.md"])
def test_every_path_it_names_exists(name: str) -> None:
    """Code in back quotes that begins with a folder of ours is a path; one with a word in capitals is a pattern."""
    named = re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)`", text_of(name))
    paths = [path for path in named if not re.search(r"[A-Z]{2,}", path)]
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_somewhere(name: str) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text_of(name))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not ((ROOT / name).parent / target).exists()] == []


def test_the_figure_names_the_packages_there_are() -> None:
    figure = text_of("docs/architecture.md").split("```")[1]
    plain = re.sub(r"\(.*?\)", "", figure)
    packages = {path.parent.name for folder in FOLDERS for path in (ROOT / folder).glob("**/__init__.py")}
    top = {path.parent.name for path in (ROOT / "q36eval").glob("*/__init__.py")}  # the links are followed
    assert top <= set(re.findall(r"[\w]+", plain)), "a package of q36eval is not in the figure"
    steps = next(line for line in figure.splitlines() if "one gate:" in line).partition("one gate:")[2].split("→")
    assert all((ROOT / "q36eval" / "run" / f"{step.strip()}.py").exists() for step in steps)
    left_column = set(re.findall(r"^ (\w+)", plain, re.MULTILINE))
    assert left_column <= packages


@pytest.mark.parametrize("name", NAMES)
def test_every_command_and_option_it_shows_exists(name: str) -> None:
    """In lines and back quotes that begin with `q36eval`; alternatives are written `show|verify`."""
    fences = "\n".join(re.findall(r"```[^\n]*\n(.*?)```", text_of(name), re.DOTALL))
    shown = re.findall(r"^ *(?:- )?(q36eval [^\n]*)$", fences, re.MULTILINE)
    shown += [" ".join(code.split()) for code in re.findall(r"`(q36eval [^`]*)`", text_of(name))]
    problems = []
    for line in shown:
        for part in re.split(r"\bq36eval (?=[a-z])", line)[1:]:
            words_of = part.split()
            for first in words_of[0].rstrip(".,;:)").split("|"):
                command = f"q36eval {first}"
                if command not in COMMANDS:
                    problems.append(line)
                    continue
                group = getattr(COMMANDS[command], "commands", {})
                seconds = words_of[1].rstrip(".,;:)").split("|") if group and len(words_of) > 1 else []
                for second in seconds:
                    if re.fullmatch("[a-z]+", second) and second not in group:
                        problems.append(line)
                    command = f"q36eval {first} {second}" if second in group else command
                known = {option for each in (command, f"q36eval {first}") for option in options(each)}
                text = part.split("  ")[0].split(" · ")[0]  # what a column beside it explains is no option
                problems += [line for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text) if option not in known]
    assert problems == []


def options(command: str) -> set[str]:
    return {name for parameter in COMMANDS[command].params for name in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("name", NAMES)
def test_every_target_of_make_exists(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    fences = "\n".join(re.findall(r"```[^\n]*\n(.*?)```", text_of(name), re.DOTALL))
    named = set(re.findall(r"^make ([a-z][a-z-]*)", fences, re.MULTILINE)) | set(
        re.findall(r"`make ([a-z][a-z-]*)", text_of(name))
    )
    assert named <= targets
