"""`make audit` compares constraints.txt with the environment; `pip check` and pip-audit do the rest."""

import runpy
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
AUDIT = runpy.run_path(str(ROOT / ".ci" / "audit.py"))


def test_a_package_that_is_not_its_pin_is_found() -> None:
    installed = {
        "good": "1.0",
        "local": "2.13.0+cpu",
        "stray": "3",
        "moved": "2.0",
        "nvidia-nvtx": "13",
        "q36eval": "1",
    }
    assert AUDIT["differences"](
        AUDIT["pins_of"]("good==1.0\nLocal==2.13.0\nmoved==1.9\n\nun_used==4\n"), installed
    ) == [
        "un-used is pinned and not installed.",
        "moved is pinned to 1.9, and 2.0 is installed.",
        "stray 3 is installed and not pinned.",
    ]


@pytest.mark.parametrize("line", ["c>=2", "e==1.*", "d @ https://example.org/d.whl"])
def test_a_line_that_does_not_pin_one_version_is_refused(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of whichever library reads it
        AUDIT["pins_of"](line)


def test_each_declared_requirement_is_pinned_to_a_version_that_fits() -> None:
    pins = AUDIT["pins_of"]((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [text for texts in project["optional-dependencies"].values() for text in texts]
    for needed in map(Requirement, [*project["dependencies"], *extras]):
        if needed.name != "q36eval":
            assert needed.specifier.contains(pins[canonicalize_name(needed.name)], prereleases=True), needed
