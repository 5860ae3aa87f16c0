"""The check of pinned packages finds what it is for; `make audit` runs it on the environment itself."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def audit() -> Any:
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["audit"] = module
    spec.loader.exec_module(module)
    return module


def test_every_line_pins_one_version(audit: Any) -> None:
    pins, problems = audit.pins_of(["A_b==1.0", "c>=2", "a.b==1.1", "", "d @ https://example.org/d.whl", "e==1.*"])
    assert pins == {"a-b": "1.1"}
    assert [problem.split(" ")[0] for problem in problems] == ["'c>=2'", "a-b", "'d", "'e==1.*'"]


def test_what_does_not_fit_is_found(audit: Any) -> None:
    here = {
        "good": audit.Installed("1.0", ("other>=1; extra == 'x'", "local")),
        "local": audit.Installed("2.13.0+cpu"),
        "stray": audit.Installed("3"),
        "moved": audit.Installed("2.0", ("absent", "good>=2")),
        "old": audit.Installed("1", (), ">=3.8,<3.13"),
        "nvidia-nvtx": audit.Installed("13"),
        "q36eval": audit.Installed("0.1.0"),
    }
    pins = {"good": "1.0", "local": "2.13.0", "moved": "1.9", "old": "1", "unused": "4"}
    assert audit.findings(pins, here, ["good>=1", "Moved>=2"]) == [
        "moved is pinned to 1.9, and 2.0 is installed.",
        "old 1 does not run on Python 3.13, 3.14 (>=3.8,<3.13).",
        "stray 3 is installed and not pinned.",
        "unused is pinned and not installed.",
        "pyproject.toml needs Moved>=2, and 1.9 is pinned.",
        "moved requires absent, which is not installed.",
        "moved requires good>=2, and 1.0 is installed.",
    ]


def test_everything_that_is_declared_is_pinned_to_a_version_that_fits(audit: Any) -> None:
    pins, problems = audit.pins_of((ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())
    assert problems == []
    declared = audit.declared_by(ROOT / "pyproject.toml")
    assert {audit.canonicalize_name(audit.Requirement(text).name) for text in declared} <= set(pins)
    assert audit.findings(pins, {name: audit.Installed(version) for name, version in pins.items()}, declared) == []


@pytest.mark.parametrize(("answer", "code"), [("exit 0", 0), ("exit 1", 1), (None, 2)])
def test_advisories_are_asked_of_pip_audit_and_its_absence_is_no_pass(
    audit: Any, answer: str | None, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer is not None:
        (tmp_path / "pip-audit").write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / "pip-audit").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin" if answer else str(tmp_path))
    assert audit.advisories(ROOT / "constraints.txt") == code


def test_offline_it_says_what_it_cannot_know() -> None:
    done = subprocess.run([sys.executable, str(ROOT / ".ci/audit.py")], capture_output=True, text=True, check=False)
    assert "Vulnerable and yanked versions are not known offline" in done.stdout
