"""Are the pinned packages what is installed, and is anything known against them? `make audit`

    python .ci/audit.py             what can be said without a network
    python .ci/audit.py --online    also asks pip-audit for published advisories, where it is installed

Without a network it holds constraints.txt to this environment: every package that q36eval brings is pinned, at the
version that is installed; every pin is in use; nobody's requirements are broken; every package says that it runs on all
Pythons that q36eval does. Whether a version was yanked, or has a known vulnerability, no offline check can say: it says
so. Exit 1 names what is wrong, 2 that advisories were wanted and could not be had.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""Those that q36eval says it runs on and torch has wheels for."""

OURS = {"q36eval", "pip"}
OF_CUDA = re.compile(r"(nvidia|cuda)-.*|triton")
"""What a CUDA build of torch brings, and one for CPUs does not: constraints.txt serves both, and has none of it."""


@dataclass(frozen=True)
class Installed:
    """A package of this environment: its version, what it requires, and the Pythons that it says it runs on."""

    version: str
    requires: tuple[str, ...] = ()
    pythons: str = ""


def installed_here() -> dict[str, Installed]:
    """Every distribution of this environment by its canonical name."""
    return {
        canonicalize_name(each.name): Installed(
            each.version, tuple(each.requires or ()), each.metadata.get("Requires-Python") or ""
        )
        for each in distributions()
    }


def pins_of(lines: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Versions by canonical name, and what is wrong with lines that are no pin of one version."""
    pins: dict[str, str] = {}
    problems = []
    for line in (line.partition("#")[0].strip() for line in lines):
        if not line:
            continue
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!+_-]+)", line)
        if match is None:
            problems.append(f"{line!r} pins no single version.")
            continue
        name = canonicalize_name(match[1])
        if name in pins:
            problems.append(f"{name} is pinned twice.")
        pins[name] = match[2]
    return pins, problems


def findings(
    pins: Mapping[str, str], here: Mapping[str, Installed], declared: Sequence[str], pythons: Sequence[str] = PYTHONS
) -> list[str]:
    """What does not fit between the pins, this environment, and what pyproject.toml declares; a sentence each."""
    problems = []
    for name, package in sorted(here.items()):
        if name in OURS or OF_CUDA.fullmatch(name):
            continue
        if name not in pins:
            problems.append(f"{name} {package.version} is installed and not pinned.")
        elif Version(package.version).public != Version(pins[name]).public:
            problems.append(f"{name} is pinned to {pins[name]}, and {package.version} is installed.")
        outside = [python for python in pythons if not SpecifierSet(package.pythons).contains(f"{python}.0")]
        if outside:
            problems.append(
                f"{name} {package.version} does not run on Python {', '.join(outside)} ({package.pythons})."
            )
    problems += [f"{name} is pinned and not installed." for name in sorted(set(pins) - set(here))]
    for text in declared:
        needed = Requirement(text)
        pinned = pins.get(canonicalize_name(needed.name))
        if pinned is not None and not needed.specifier.contains(pinned, prereleases=True):
            problems.append(f"pyproject.toml needs {needed.name}{needed.specifier}, and {pinned} is pinned.")
    return problems + list(_unmet(here))


def _unmet(here: Mapping[str, Installed]) -> Iterable[str]:
    """What an installed package requires, unconditionally, and this environment lacks or has in another version."""
    for name, package in sorted(here.items()):
        for text in package.requires:
            needed = Requirement(text)
            if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
                continue
            other = here.get(canonicalize_name(needed.name))
            if other is None:
                yield f"{name} requires {needed.name}, which is not installed."
            elif not needed.specifier.contains(other.version, prereleases=True):
                yield f"{name} requires {needed.name}{needed.specifier}, and {other.version} is installed."


def declared_by(pyproject: Path) -> list[str]:
    """All requirements of q36eval, those of its extras and of its build among them."""
    content = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    project = content["project"]
    extras = [text for texts in project["optional-dependencies"].values() for text in texts]
    return [text for text in [*project["dependencies"], *extras] if not text.startswith("q36eval")]


def advisories(constraints: Path) -> int:
    """What pip-audit says of the pins, from an environment of its own; its exit code, and 2 where there is none."""
    program = shutil.which("pip-audit")
    if program is None:
        print("pip-audit is not on the path (pipx install pip-audit): advisories are not known.", file=sys.stderr)
        return 2
    return 1 if subprocess.call([program, "--requirement", str(constraints), "--no-deps", "--disable-pip"]) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Hold constraints.txt to this environment.")
    parser.add_argument("--online", action="store_true", help="also ask pip-audit for published advisories")
    options = parser.parse_args()
    constraints = ROOT / "constraints.txt"
    pins, problems = pins_of(constraints.read_text(encoding="utf-8").splitlines())
    problems += findings(pins, installed_here(), declared_by(ROOT / "pyproject.toml"))
    for problem in problems:
        print(problem, file=sys.stderr)
    asked = "" if options.online else " Vulnerable and yanked versions are not known offline: make audit ONLINE=1."
    print(f"{len(pins)} pins held to what is installed, {len(problems)} problems.{asked}")
    found = advisories(constraints) if options.online else 0
    return 1 if problems else found


if __name__ == "__main__":
    sys.exit(main())
