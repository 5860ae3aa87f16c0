"""`kl`, `inspect` and `attribute` of checkpoint folders need no family."""

import json
import shutil
from pathlib import Path

import pytest

from q36eval.app.targets import family_of
from q36eval.config.paths import Paths
from tests import commands

FAMILY_WORDS = ("sandbox", "family", "expert", "DeltaNet", "Czech", "Qwen", "router")


@pytest.fixture
def folders(llamas: tuple[Path, Path]) -> tuple[str, str]:
    reference, branch = map(str, llamas)
    return reference, branch


def test_without_a_name_a_family_is_the_sandbox_or_the_references_own(folders: tuple[str, str]) -> None:
    paths, (reference, branch) = Paths.default(), folders
    assert family_of(None, paths, branch, reference).name == "mine-bf16"
    sandbox = str(paths.data / "sandbox" / "bf16")
    for branch_name, reference_name in (("main", None), (branch, "bf16"), (sandbox, None), ("nope", None)):
        assert family_of(None, paths, branch_name, reference_name).name == "sandbox"
    assert family_of("sandbox", paths, branch, reference).name == "sandbox"


def test_inspection_says_nothing_of_other_models(folders: tuple[str, str], tmp_path: Path) -> None:
    reference, branch = folders
    for against in ((), ("--reference", reference)):
        done = commands.q36eval("inspect", branch, *against, state=tmp_path, code=0)
        assert [word for word in FAMILY_WORDS if word in done.stdout] == []


def test_folders_of_one_name_are_two_branches_and_a_rebuilt_one_stays(
    folders: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("a", "b"):
        shutil.copytree(folders[0], tmp_path / place / "release")
        assert commands.q36eval("inspect", str(tmp_path / place / "release"), state=tmp_path).returncode == 0
    shutil.rmtree(tmp_path / "a" / "release")
    shutil.copytree(folders[1], tmp_path / "a" / "release")
    monkeypatch.chdir(tmp_path / "a")
    assert commands.q36eval("inspect", "release", state=tmp_path).returncode == 0
    for chosen, places in (((), "aba"), (("--branch", "./release"), "aa")):
        done = commands.q36eval("history", "list", *chosen, "--json", state=tmp_path)
        branches = [run["branch"] for run in json.loads(done.stdout)["runs"]]
        assert branches == [str(tmp_path / place / "release") for place in places]


@pytest.mark.long
def test_kl_and_attribution_use_general_texts_and_sample_nothing(folders: tuple[str, str], tmp_path: Path) -> None:
    reference, branch = folders
    named = ("--branch", branch, "--reference", reference, "--json")
    done = commands.q36eval("kl", *named, state=tmp_path, code=0)
    measured = {(one["metric"], one["slice"]): one for one in json.loads(done.stdout)["measurements"]}
    assert measured["kl_divergence", "all"]["value"] > 0
    assert {"english", "code", "json"} <= {slice_name for _, slice_name in measured}
    assert not any(slice_name.startswith("on_policy") for _, slice_name in measured)
    done = commands.q36eval("attribute", *named, "--bands", "1", state=tmp_path, code=0)
    body = json.loads(done.stdout)
    classes = {blame["suspect"] for blame in body["blames"] if blame["kind"] == "class"}
    assert classes == {"self-attention", "dense MLP"}
    assert {"embeddings", "lm_head", "norms"} <= set(body["identical"])
