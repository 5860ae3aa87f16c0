"""Are the pinned packages the installed ones, and do their requirements fit? `make audit` also runs `pip check`.

Exit 1 names what differs between constraints.txt and this environment. Published advisories need a network: `make audit
ONLINE=1` asks pip-audit for them.
"""

import re
import sys
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
UNPINNED = re.compile(r"q36eval|pip|(nvidia|cuda)-.*|triton")
"""This program, pip, and what only a CUDA build of torch brings: constraints.txt serves builds for CPUs too."""


def pins_of(text: str) -> dict[str, str]:
    """Versions by canonical name; a line that does not pin one version raises ValueError."""
    pins = [line.split("==") for line in text.splitlines() if line.strip()]
    return {canonicalize_name(name): str(Version(version)) for name, version in pins}


def differences(pins: Mapping[str, str], installed: Mapping[str, str]) -> list[str]:
    """A sentence for each package that is not pinned to its installed version, and for each pin that nothing uses."""
    problems = [f"{name} is pinned and not installed." for name in sorted(set(pins) - set(installed))]
    for name, version in sorted(installed.items()):
        if UNPINNED.fullmatch(name):
            continue
        if name not in pins:
            problems.append(f"{name} {version} is installed and not pinned.")
        elif Version(version).public != pins[name]:
            problems.append(f"{name} is pinned to {pins[name]}, and {version} is installed.")
    return problems


if __name__ == "__main__":
    here = {canonicalize_name(each.name): each.version for each in distributions()}
    sys.exit("\n".join(differences(pins_of(CONSTRAINTS.read_text(encoding="utf-8")), here)) or None)
