"""What a spelling names, whichever folder one is in: branches, folders, files and checkpoints on the Hub.

Where a branch's folder is looked for that a family file names by a relative path.
"""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from q36eval.app.names import meaning
from q36eval.app.targets import family_of, kept_name, load_family, name_in_history, resolve
from q36eval.config import Family, Paths
from q36eval.errors import UsageError
from q36eval.hub_checkpoints import HubName
from tests import commands
from tests.app.sandbox_gates import REPOSITORY, SANDBOX
from tests.app.test_project_file import POLICY
from tests.commands import code_of, q36eval
from tests.loopback_hub import Hub
from tests.raising import failing, raises


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(REPOSITORY, tmp_path / "state")


@pytest.mark.parametrize("chosen", ["sandbox", None])
def test_every_spelling_means_one_thing(paths: Paths, elsewhere: Path, chosen: str | None) -> None:
    family = None if chosen is None else load_family(chosen, paths)
    for folder in ("build", "org/model", "sandbox/other", "sandbox/main", "a/b/c"):
        (elsewhere / folder).mkdir(parents=True)
    branches = {
        "sandbox/main": ("sandbox", "main"),  # although there is such a folder
        "qwen3.6-35b-a3b/main": ("qwen3.6-35b-a3b", "main"),
        "inferRouter/Qwen3.6-35B-A3B-NVFP4@fp8-head": ("qwen3.6-35b-a3b", "fp8-head"),
        "inferRouter/Qwen3.6-35B-A3B-NVFP4": ("qwen3.6-35b-a3b", "main"),
    }
    for text, (named, branch) in branches.items():
        meant = meaning(text, family, paths, everywhere=True)
        assert meant.family is not None, text
        assert (meant.family.name, meant.branch) == (named, branch)
    folders = (
        "build",
        "./build",
        "org/model",
        "sandbox/other",
        "a/b/c",
        "./nowhere",
        "/",
        ".",
        "..",
        "x/y/z",
        "q.gguf",
    )
    for text in folders:
        assert meaning(text, family, paths).path == Path(text), text
    hub = {
        "Org/Model": HubName("Org/Model"),
        "inferRouter/Qwen3.6-35B-A3B-NVFP4@other": HubName("inferRouter/Qwen3.6-35B-A3B-NVFP4", "other"),
        "sandbox/nope": HubName("sandbox/nope"),
        "Org/Model:q4.gguf": HubName("Org/Model", None, "q4.gguf"),
        "Org/Model@v1:q4.gguf": HubName("Org/Model", "v1", "q4.gguf"),
    }
    for text, named_there in hub.items():
        assert meaning(text, family, paths, everywhere=True).hub == named_there, text


def test_a_bare_name_of_several_things_is_refused_with_every_spelling(paths: Paths, elsewhere: Path) -> None:
    sandbox = load_family("sandbox", paths)
    assert meaning("main", sandbox, paths).branch == "main"
    with raises(UsageError, "name-ambiguous", "sandbox/main", "qwen3.6-35b-a3b/main"):
        meaning("main", None, paths)
    with raises(UsageError, "family-required", "sandbox/int2-experts"):
        meaning("int2-experts", None, paths)
    for name in ("main", "int2-experts"):
        (elsewhere / name).mkdir()
        for family in (sandbox, None):
            with raises(UsageError, "name-ambiguous", f"sandbox/{name}", f"./{name}"):
                meaning(name, family, paths)
    for family in (sandbox, None):
        with raises(UsageError, "branch-unknown", "nowhere"):
            meaning("nowhere", family, paths)
        for empty in ("", " "):
            with raises(UsageError, "option-empty"):
                meaning(empty, family, paths)


@pytest.mark.parametrize(
    "text", ["\0", "a\0/b", "../\0", "...", "~", "//", "a//b", "@", "a@b/c", ":", "a/b:", "é/è", "-"]
)
def test_hostile_names_are_refused_or_mean_one_thing(text: str, paths: Paths, elsewhere: Path) -> None:
    for family in (load_family("sandbox", paths), None):
        if "/" in text:
            meant = meaning(text, family, paths, everywhere=True)
            assert (meant.path is None) != (meant.hub is None)
            continue
        with raises(UsageError, "branch-unknown"):
            meaning(text, family, paths, everywhere=True)


def test_one_name_in_history_for_every_spelling(paths: Paths, elsewhere: Path) -> None:
    (elsewhere / "org" / "model").mkdir(parents=True)
    names = {
        "Org/Model": "Org/Model@main",
        "Org/Model@main": "Org/Model@main",
        "Org/Model:x.gguf": "Org/Model@main:x.gguf",
        "org/model": str(elsewhere / "org" / "model"),
        "./gone": str(elsewhere / "gone"),
        "sandbox/main": "main",
        "main": "main",
    }
    assert {text: kept_name(text, paths) for text in names} == names


def test_the_family_is_the_one_that_a_name_tells(paths: Paths, elsewhere: Path) -> None:
    published = "inferRouter/Qwen3.6-35B-A3B-NVFP4@fp8-head"
    assert family_of(None, paths, published).name == "qwen3.6-35b-a3b"
    assert family_of(None, paths, ["sandbox/main", "sandbox/fp8-head"]).name == "sandbox"
    (elsewhere / "a").mkdir()
    assert family_of(None, paths, "./a", "sandbox/bf16").name == "sandbox"
    for named, branches in ((None, ["sandbox/main", published]), ("sandbox", ["qwen3.6-35b-a3b/main"])):
        with raises(UsageError, "option-conflict", "qwen3.6-35b-a3b"):
            family_of(named, paths, branches)
    with raises(UsageError, "reference-required"):
        family_of(None, paths, str(SANDBOX / "bf16"))  # nothing defaults to the sandbox
    derived = family_of(None, paths, "./a", str(SANDBOX / "bf16"))
    assert (derived.name, derived.context_length, derived.suite in ("quick", "standard")) == ("bf16", 4096, True)


# -- where a branch's folder is looked for

SHIPPED = REPOSITORY / "data" / "families" / "sandbox.yaml"


def declaring(folder: Path, paths: Paths, **main: object) -> Family:
    """A copy of the shipped family's file in that folder, which says something else of `main`."""
    body = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    body["branches"]["main"] |= main
    (folder / "family.yaml").write_text(yaml.safe_dump(body))
    return load_family(str(folder / "family.yaml"), paths)


def test_beside_the_family_file_first_and_then_where_the_data_lie(paths: Paths, tmp_path: Path) -> None:
    """A copy of the shipped file goes on naming what ships; a team's own folder lies beside its file."""
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "config.json").write_text("{}")
    family = declaring(tmp_path, paths, source={"path": "ours"})
    assert resolve("main", family, paths).folder == tmp_path / "ours"
    assert resolve("bf16", family, paths).folder == REPOSITORY / "data" / "sandbox" / "bf16"


def test_a_branch_may_be_a_gguf_file_and_so_may_a_path(paths: Paths, tmp_path: Path) -> None:
    golden = REPOSITORY / "tests" / "assets" / "ggufs" / "bf16.gguf"
    (tmp_path / "ours.gguf").write_bytes(golden.read_bytes())
    family = declaring(tmp_path, paths, source={"path": "ours.gguf"}, scheme="Q4_K + Q6_K")
    assert resolve("main", family, paths).folder == tmp_path / "ours.gguf"
    named = resolve(str(tmp_path / "ours.gguf"), family, paths)
    assert (named.name, named.folder) == (str(tmp_path / "ours.gguf"), tmp_path / "ours.gguf")
    with raises(UsageError, "branch-unknown", "other.gguf"):
        resolve(str(tmp_path / "other.gguf"), family, paths)


def test_a_folder_goes_by_its_path_and_a_link_by_its_own(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does one that is called like a published branch, whose runs and waivers are not its own."""
    family = load_family("sandbox", paths)
    for folder in ("a/release", "b/release", "builds/2"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "c").symlink_to("a")
    (tmp_path / "newest").symlink_to("builds/2")
    monkeypatch.chdir(tmp_path / "a")
    named = {
        "release": "a/release",
        "./release/": "a/release",
        "../c/release": "a/release",
        "release/..": "a",
        ".": "a",
        "../b/release": "b/release",
        "../newest": "newest",
        "./main": "a/main",
    }
    assert {name: name_in_history(name, family, paths) for name in named} == {
        name: str(tmp_path / path) for name, path in named.items()
    }
    assert name_in_history("main", family, paths) == "main"
    assert name_in_history("missing", family, paths) == "missing"


# -- `kl`, `inspect` and `attribute` of checkpoint folders need no family


def test_without_a_name_a_family_is_the_sandbox_or_the_references_own(llamas: tuple[Path, Path]) -> None:
    paths, (reference, branch) = Paths.default(), map(str, llamas)
    assert family_of(None, paths, branch, reference).name == "mine-bf16"
    sandbox = str(paths.data / "sandbox" / "bf16")
    for branch_name, reference_name in (("main", None), (branch, "bf16"), (sandbox, None), ("nope", None)):
        assert family_of(None, paths, branch_name, reference_name).name == "sandbox"
    assert family_of("sandbox", paths, branch, reference).name == "sandbox"


def test_folders_of_one_name_are_two_branches_and_a_rebuilt_one_stays(
    llamas: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("a", "b"):
        shutil.copytree(llamas[0], tmp_path / place / "release")
        assert commands.q36eval("inspect", str(tmp_path / place / "release"), state=tmp_path).returncode == 0
    shutil.rmtree(tmp_path / "a" / "release")
    shutil.copytree(llamas[1], tmp_path / "a" / "release")
    monkeypatch.chdir(tmp_path / "a")
    assert commands.q36eval("inspect", "release", state=tmp_path).returncode == 0
    for chosen, places in (((), "aba"), (("--branch", "./release"), "aa")):
        done = commands.q36eval("history", "list", *chosen, "--json", state=tmp_path)
        branches = [run["branch"] for run in json.loads(done.stdout)["runs"]]
        assert branches == [str(tmp_path / place / "release") for place in places]


@pytest.mark.long
def test_kl_and_attribution_use_general_texts_and_sample_nothing(llamas: tuple[Path, Path], tmp_path: Path) -> None:
    reference, branch = map(str, llamas)
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


# -- a model named on the Hub: inspected, gated and resumed by that name alone


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
        ended = q36eval("gate", *named, *options, state=state, code=130)
    (begun,) = json.loads(q36eval("history", "list", "--json", state=state).stdout)["runs"]
    hub.publish("Org/Base-FP8", llamas[0], "v1")  # both names lead elsewhere now
    hub.publish("Org/Base", llamas[1])
    ended = q36eval("gate", "--resume", begun["id"], "--out", "out", "--json", state=state, code=0)
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
    ended = q36eval("inspect", "Org/Base-FP8@v1", "--reference", "Org/Base", state=state, code=0)
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
