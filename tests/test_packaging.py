"""What is installed is whole, and nothing of it is importable by a name that another distribution may use.

`.ci/wheel` installs the wheel into environments of its own and runs a gate and the dashboard there. `make audit`
compares constraints.txt with the environment; `pip check` and pip-audit do the rest.
"""

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.once import built_once

ROOT = Path(__file__).parents[1]
AUDIT = runpy.run_path(str(ROOT / ".ci" / "audit.py"))
LINKED = ("app", "canaries", "data", "docs", "evals", "kl")
NOT_SHIPPED = (".safetensors", ".log")
MOST_BYTES = 4_000_000


def test_no_test_imports_the_laboratory() -> None:
    importing = re.compile(r"^\s*(?:from|import) benchmarks\b", re.MULTILINE)
    files = (ROOT / "tests").rglob("*.py")
    assert [file.name for file in files if importing.search(file.read_text(encoding="utf-8"))] == []


def test_only_one_top_level_name_is_installed() -> None:
    top_level = distribution("q36eval").read_text("top_level.txt")
    assert top_level.split() == ["q36eval"]


def test_every_folder_of_code_or_data_lies_below_it_by_a_relative_link() -> None:
    for name in LINKED:
        link = ROOT / "q36eval" / name
        assert link.is_symlink(), f"{link} must be a link: git was told to check out none (core.symlinks)"
        assert link.readlink() == Path("..") / name
        assert not (ROOT / name / "q36eval").exists()


def committed() -> list[Path]:
    """Every file of the repository, relative to it; links as links."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True)
    return [Path(name) for name in listed.stdout.split("\0") if name]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the committed files as they are now, beside data that a checkout froze for itself."""

    def build(folder: Path) -> None:
        source = folder / "source"
        for file in committed():
            if file.suffix not in NOT_SHIPPED and (ROOT / file).exists():
                (source / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / file, source / file, follow_symlinks=False)
        frozen = source / "data" / "tasks" / "release"
        frozen.mkdir()
        (frozen / "manifest.json").write_text("{}")
        pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
        subprocess.run([*pip, "-w", str(folder), str(source)], check=True, capture_output=True, env=_plain())
        shutil.rmtree(source)

    folder = built_once(tmp_path_factory, "wheel", build)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel unpacked, as pip unpacks it, inside the work tree of somebody else's repository."""
    around = tmp_path_factory.mktemp("around")
    git = ["git", "-C", str(around), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "not ours"], check=True)
    folder = around / "site-packages"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
    return folder


def _plain() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("Q36EVAL_", "PYTHONPATH"))}
    return kept | {"OMP_NUM_THREADS": "1"}


def q36eval(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The unpacked program, run in another folder, with its state there."""
    (folder / ".q36eval").mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        [sys.executable, "-P", "-m", "q36eval", *arguments],
        cwd=folder,
        env=_plain() | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
def test_the_wheel_holds_all_data_but_the_weights(wheel: Path) -> None:
    """As real files with the committed bytes, and none that a checkout froze for itself."""
    data = [file for file in committed() if file.parts[0] == "data" and not (ROOT / file).is_symlink()]
    expected = {Path("q36eval") / file for file in data if file.suffix not in NOT_SHIPPED}
    expected |= {Path("q36eval/data/schemas") / file.name for file in (ROOT / "docs" / "schemas").iterdir()}
    with zipfile.ZipFile(wheel) as packed:
        held = {Path(name) for name in packed.namelist() if name.startswith("q36eval/data/")}
        assert held == expected
        assert all(packed.read(str(file)) == (ROOT / file).read_bytes() for file in held)
        assert not any(info.external_attr >> 28 == 0o12 for info in packed.infolist()), "links"
    assert wheel.stat().st_size < MOST_BYTES


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "code", "needles"),
    [
        (["policy", "list", "--json"], 0, ["pre-check", "release", "sandbox", "extended"]),
        (["branches", "fp8-head", "--family", "qwen3.6-35b-a3b"], 0, ["FP8_BLOCK"]),
        (["canaries", "list"], 0, ["json-flat-must-pass"]),
        (["drift", "--branch", "sandbox/fp8-head"], 2, ["There is no history"]),
        (["gate", "--branch", "sandbox/fp8-head"], 2, ["q36eval sandbox build"]),
    ],
    ids=lambda value: "-".join(value[:3]) if isinstance(value, list) else "",
)
def test_every_command_that_reads_data_works_from_the_wheel(
    arguments: list[str], code: int, needles: list[str], site: Path, tmp_path: Path
) -> None:
    done = q36eval(site, tmp_path / "elsewhere", *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    for needle in needles:
        assert needle in "".join((done.stdout + done.stderr).split("\n"))
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_a_package_without_its_policies_lists_no_empty_list(site: Path, tmp_path: Path) -> None:
    maimed = tmp_path / "maimed"
    shutil.copytree(site, maimed)
    shutil.rmtree(maimed / "q36eval" / "data" / "policies")
    done = q36eval(maimed, tmp_path / "elsewhere", "policy", "list")
    assert done.returncode == 2
    assert "install q36eval again" in done.stderr


@pytest.mark.long
def test_folders_of_our_names_in_the_current_folder_are_not_imported(site: Path, tmp_path: Path) -> None:
    for name in ("app", "kl", "evals"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('not ours')\n")
    done = q36eval(site, tmp_path, "branches", "--family", "sandbox")
    assert done.returncode == 0, done.stderr
    assert "fp8-head" in done.stdout


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
