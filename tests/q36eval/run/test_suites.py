"""How a person names a suite: one that ships, a file, and a folder it was frozen to."""

import shutil
from pathlib import Path

import pytest
import yaml

from q36eval.config.paths import Paths
from q36eval.errors import UsageError
from q36eval.kl.planning import Material
from q36eval.records import ProbeName
from q36eval.run.materials import corpus_of
from q36eval.run.probe_set import Limits, build_evals, build_probes
from q36eval.run.suites import suite_place
from tests.raising import raises

ROOT = Path(__file__).resolve().parents[3]
PATHS = Paths(ROOT, ROOT / "nowhere")


def own_suite(folder: Path) -> Path:
    """The sandbox's perplexity group, as a suite of somebody's own."""
    body = yaml.safe_load((ROOT / "evals/suites/sandbox.yaml").read_text(encoding="utf-8"))
    groups = [group | {"task": str(ROOT / "evals/tasks/perplexity.yaml")} for group in body["groups"][-1:]]
    path = folder / "sandbox.yaml"
    path.write_text(yaml.safe_dump(body | {"data": "frozen", "groups": groups}), encoding="utf-8")
    return path


def test_a_suite_is_asked_on_its_frozen_data_and_brings_no_texts_of_a_shipped_one(tmp_path: Path) -> None:
    path, data = own_suite(tmp_path), tmp_path / "frozen"
    with raises(UsageError, "frozen-data-incomplete"):
        build_evals(str(path), PATHS, Limits())
    shutil.copytree(ROOT / "data/tasks/sandbox", data)
    own = build_evals(str(path), PATHS, Limits())
    data.rename(tmp_path / "elsewhere")
    assert build_evals(f"{path}={tmp_path / 'elsewhere'}", PATHS, Limits()).suite_sha256 == own.suite_sha256
    shipped = build_evals(f"sandbox={tmp_path / 'elsewhere'}", PATHS, Limits())
    assert shipped.suite_sha256 == build_evals("sandbox", PATHS, Limits()).suite_sha256 != own.suite_sha256
    # a file brings no texts of a shipped suite of its name
    assert corpus_of("sandbox", None, PATHS)[1]
    with raises(UsageError, "corpus-missing"):
        corpus_of(str(own_suite(tmp_path)), None, PATHS)


def test_what_is_no_suite_is_one_sentence_and_a_folder_hides_no_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for asked, code in (
        ("nope", "suite-unknown"),
        ("../suites/sandbox", "suite-unknown"),
        ("release=", "option-value"),
        ("nowhere/own.yaml", "suite-unknown"),
    ):
        with raises(UsageError, code):
            suite_place(asked, PATHS)
    (tmp_path / "sandbox").mkdir()
    monkeypatch.chdir(tmp_path)
    assert suite_place("sandbox", PATHS).data == ROOT / "data/tasks/sandbox"


def test_what_is_not_frozen_is_told_before_the_reference_answers_anything() -> None:
    def material() -> Material:
        raise AssertionError("the reference was asked")

    with raises(UsageError, "frozen-data-missing", "quick"):
        build_probes([ProbeName.KL, ProbeName.EVALS], "quick", Paths(ROOT / "nowhere", ROOT), material, Limits())
