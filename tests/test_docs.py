"""The pages for people hold: the files, packages, commands, options and targets that they name exist."""

import re
from pathlib import Path

import pytest

from tests.commands import command_tree

ROOT = Path(__file__).parents[1]
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "benchmarks").glob("*.md"), *(ROOT / "docs").glob("**/*.md")})
PAGES += [ROOT / "data" / "sandbox" / "README.md", ROOT / "data" / "drafts" / "README.md"]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES if page.name != "CHANGELOG.md"]
COMMANDS = command_tree()
FOLDERS = ("app", "benchmarks", "canaries", "data", "docs", "evals", "kl", "q36eval", "tests")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def fences_of(name: str) -> str:
    return "\n".join(re.findall(r"```[^\n]*\n(.*?)```", text_of(name), re.DOTALL))


@pytest.mark.parametrize("name", NAMES)
def test_every_path_it_names_exists(name: str) -> None:
    """Code in back quotes that begins with a folder of ours is a path; one with a word in capitals is a pattern."""
    named = re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)`", text_of(name))
    named += re.findall(r"\b(docs/[\w/-]+\.md)\b", text_of(name))
    paths = [path for path in named if not re.search(r"[A-Z]{2,}", path)]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_page_that_code_and_data_name_exists() -> None:
    files = [file for folder in FOLDERS for kind in ("py", "yaml") for file in (ROOT / folder).glob(f"**/*.{kind}")]
    named = {page for file in files for page in re.findall(r"\bdocs/[a-z]+\.md\b", file.read_text(encoding="utf-8"))}
    assert named
    assert [page for page in sorted(named) if not (ROOT / page).exists()] == []


def anchors_of(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_somewhere(name: str) -> None:
    broken = []
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", text_of(name)):
        if "://" in target:
            continue
        page = (ROOT / name).parent / target if target else ROOT / name
        if not page.exists() or (anchor and anchor not in anchors_of(page)):
            broken.append(f"{target}#{anchor}")
    assert broken == []


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
    """In lines and back quotes that begin with `q36eval`; alternatives are written `show|list`."""
    shown = re.findall(r"^ *(?:- )?(q36eval [^\n]*)$", fences_of(name), re.MULTILINE)
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
                    if re.fullmatch("[a-z][a-z-]*", second) and second not in group:
                        problems.append(line)
                    command = f"q36eval {first} {second}" if second in group else command
                known = {option for each in (command, f"q36eval {first}") for option in options(each)}
                text = part.split("  ")[0].split(" · ")[0]  # what a second column explains is not an option
                problems += [line for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text) if option not in known]
    assert problems == []


def options(command: str) -> set[str]:
    return {name for parameter in COMMANDS[command].params for name in (*parameter.opts, *parameter.secondary_opts)}


def test_every_command_and_every_option_has_help() -> None:
    without = [name for name, command in COMMANDS.items() if not (command.help or "").strip()]
    without += [
        f"{name} {parameter.name}"
        for name, command in COMMANDS.items()
        for parameter in command.params
        if getattr(parameter, "opts", [""])[0].startswith("-") and not (getattr(parameter, "help", "") or "").strip()
    ]
    assert without == []


@pytest.mark.parametrize("name", NAMES)
def test_every_target_of_make_exists(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    named = set(re.findall(r"^make ([a-z][a-z-]*)", fences_of(name), re.MULTILINE)) | set(
        re.findall(r"`make ([a-z][a-z-]*)", text_of(name))
    )
    assert named <= targets
