"""A model named on the Hub: inspected, gated and resumed by that name alone, against a Hub on loopback."""

import json
from pathlib import Path

import pytest

from tests.app.test_project_file import POLICY, REPOSITORY
from tests.commands import code_of, q36eval
from tests.loopback_hub import Hub
from tests.raising import failing


@pytest.fixture
def hub(hub: Hub, llamas: tuple[Path, Path], elsewhere: Path) -> Hub:
    """A tiny Llama and it in FP8, as two repositories, and an empty cache; we are outside the checkout."""
    reference, branch = llamas
    (elsewhere / "mine.yaml").write_text(POLICY)
    hub.publish("Org/Base", reference)
    hub.publish("Org/Base-FP8", branch, "v1")
    return hub


def commit_of(hub: Hub, name: str, branch: str) -> str:
    return hub.repositories[f"models/{name}"].branches[branch]


def test_a_gate_of_two_names_goes_on_with_their_commits(
    hub: Hub, llamas: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, corpus = tmp_path / "state", REPOSITORY / "data" / "corpus" / "general.yaml"
    branch, base = commit_of(hub, "Org/Base-FP8", "v1"), commit_of(hub, "Org/Base", "main")
    named = ("--branch", "Org/Base-FP8@v1", "--reference", "Org/Base", "--policy", "mine.yaml", "--suite", "sandbox")
    options = ("--corpus", str(corpus), "--skip", "canaries", "--skip", "evals", "--lane", "freeform")
    with monkeypatch.context() as patched:
        patched.setattr("q36eval.run.branch.run_probes", failing(KeyboardInterrupt()))
        ended = q36eval("gate", *named, *options, state=state)
    assert ended.returncode == 130, ended.stderr
    (begun,) = json.loads(q36eval("history", "list", "--json", state=state).stdout)["runs"]
    hub.publish("Org/Base-FP8", llamas[0], "v1")  # both names lead elsewhere now
    hub.publish("Org/Base", llamas[1])
    ended = q36eval("gate", "--resume", begun["id"], "--out", "out", "--json", state=state)
    assert ended.returncode == 0, ended.stderr
    assert f"Branch Org/Base-FP8@v1: Org/Base-FP8 at commit {branch} (" in ended.stderr
    assert f"Reference Org/Base@{base}: Org/Base at commit {base} (" in ended.stderr
    run = json.loads(ended.stdout)["run"]
    assert (run["family"], run["branch"]) == ("Base", "Org/Base-FP8@v1")
    subject = run["provenance"]["subject"]
    assert (subject["repository"], subject["revision"], subject["commit"]) == ("Org/Base-FP8", "v1", branch)
    assert subject["reference"].endswith(f"Org/Base at commit {base}")
    card = q36eval("report", run["id"], "--format", "card", state=state).stdout
    assert branch in card
    assert base in card
    listed = json.loads(q36eval("history", "list", "--branch", "Org/Base-FP8@v1", "--json", state=state).stdout)["runs"]
    assert [each["id"] for each in listed] == [run["id"]]
    hub.publish("Org/Base-FP8", llamas[1], "v1")
    hub.publish("Org/Base", llamas[0])
    served = len(hub.downloads())
    ended = q36eval("inspect", "Org/Base-FP8@v1", "--reference", "Org/Base", state=state)
    assert (ended.returncode, len(hub.downloads())) == (0, served), "they are in the cache"
    hub.down = True
    ended = q36eval("inspect", "Org/Base-FP8@v1", "--reference", "Org/Base", state=state)
    assert ended.returncode == 0, ended.stderr
    ended = q36eval("inspect", "Org/Other", state=state)
    assert (ended.returncode, code_of(ended)[:4]) == (2, "hub-")


def test_a_familys_branch_is_fetched_from_its_source_and_a_reference_is_not_where_a_pack_stands_for_it(
    hub: Hub, tmp_path: Path
) -> None:
    family = "qwen3.6-35b-a3b"
    ended = q36eval("gate", "--branch", "fp8-head", "--family", family, state=tmp_path / "state")
    assert (ended.returncode, ended.stderr.count("[hub-repository-missing]")) == (2, 2), ended.stderr
    asked = {path for _, path, _ in hub.requests if "/api/models/" in path}
    assert any("inferRouter/Qwen3.6-35B-A3B-NVFP4" in path for path in asked)
    assert any("Qwen/Qwen3.6-35B-A3B" in path for path in asked)
    hub.requests.clear()
    (tmp_path / "pack").mkdir()
    named = ("--branch", "Org/Base-FP8@v1", "--family", family, "--reference-pack", str(tmp_path / "pack"))
    assert q36eval("gate", *named, state=tmp_path / "state").returncode == 2
    assert not any("Qwen/" in path for _, path, _ in hub.requests)
