"""What freezing refuses: places that are not its own, and files that are no suite and no tokenizer."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from q36eval.errors import UsageError
from q36eval.evals.freezing import freeze_suite
from q36eval.evals.freezing.hub import Hub
from q36eval.evals.freezing.suite import staging
from q36eval.evals.frozen import verify
from q36eval.evals.lm_tasks import load_documents
from q36eval.evals.suite import LoadedSuite, read_suite
from tests.evals.test_freezing import GROUPS, TOKENIZER, written
from tests.raising import raises


def test_freezing_replaces_nothing_but_its_own(filled_cache: Path, tmp_path: Path) -> None:
    path, out = written(tmp_path, {"wikitext": GROUPS["wikitext"]}), tmp_path / "out"
    freeze_suite(path, TOKENIZER, out)
    (out / "notes.txt").write_text("mine")
    with raises(UsageError, "folder-occupied", "notes.txt"):
        freeze_suite(path, TOKENIZER, out)
    (out / "notes.txt").unlink()
    freeze_suite(path, TOKENIZER, out)
    written(tmp_path, {"wikitext": GROUPS["wikitext"]}, name="other")
    with raises(UsageError, "folder-occupied", "tiny tasks", "other tasks"):
        freeze_suite(path, TOKENIZER, out)
    verify(out)
    unwritable = "folder-unwritable"
    for place, code in ((path, "folder-occupied"), (path / "x", unwritable), (Path("/proc/x"), unwritable)):
        with raises(UsageError, code):
            freeze_suite(path, TOKENIZER, place)
    assert {file.name for file in tmp_path.iterdir()} == {"suite.yaml", "out"}


def test_a_split_that_is_not_there_is_refused(
    filled_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of the dataset's name where a person works is not taken for it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "openai/gsm8k").mkdir(parents=True)
    (tmp_path / "openai/gsm8k/test.txt").write_text("not this")
    hub = Hub({})
    assert len(hub.read("openai/gsm8k", "main", "test").rows) == 4
    for name, config, split, code in (
        ("no/such", "main", "test", "dataset-missing"),
        ("openai/gsm8k", "socratic", "test", "dataset-missing"),
        ("openai/gsm8k", "main", "validation", "dataset-unreadable"),
    ):
        with raises(UsageError, code):
            hub.read(name, config, split)


def test_what_a_killed_freezing_left_is_cleared_and_what_it_took_away_comes_back(tmp_path: Path) -> None:
    target, beside = tmp_path / "out", tmp_path / ".out-freezing"
    for name in ("new", "old"):
        (beside / name).mkdir(parents=True)
        (beside / name / "rows").write_text(name)
    with suppress(RuntimeError), staging(target) as folder:
        assert not any(folder.iterdir())
        with raises(UsageError, "already-running"), staging(target):
            pass
        raise RuntimeError("this freezing fails too")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (target / "rows").read_text() == "old"


def test_a_tokenizer_that_cannot_be_loaded_is_told_before_anything_is_fetched(
    empty_cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_text('{"a": 1}')
    both = {"wikitext": GROUPS["wikitext"], "ruler": GROUPS["ruler"]}
    with raises(UsageError, "tokenizer-unreadable"):
        freeze_suite(written(tmp_path, both), tmp_path)


def test_what_is_no_suite_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "broken.yaml").write_text("a: [1")
    (tmp_path / "empty.yaml").write_text("name: x\ndata: .\nmax_length: 100\ngroups: []\n")
    for name, code in (
        ("bytes", "file-unreadable"),
        ("folder", "file-unreadable"),
        ("broken", "yaml-malformed"),
        ("empty", "file-invalid"),
        ("none", "suite-unknown"),
    ):
        with raises(UsageError, code):
            read_suite(tmp_path / f"{name}.yaml")
    same = {name: GROUPS["wikitext"] | {"slice": "same"} for name in ("one", "two")}
    for groups, code in (
        ({"one": GROUPS["wikitext"] | {"slice": "suite"}}, "file-invalid"),
        (same, "suite-duplicate-group"),
    ):
        with raises(UsageError, code):
            read_suite(written(tmp_path, groups))


def test_a_manifest_that_leads_elsewhere_is_refused(filled_cache: Path, tmp_path: Path) -> None:
    """A task file holds code: a folder from a stranger must not choose one, nor rows that no hash covers."""
    path = written(tmp_path, {"gsm8k": GROUPS["gsm8k"]})
    freeze_suite(path, TOKENIZER)
    manifest = tmp_path / "frozen/manifest.json"
    body, honest = json.loads(manifest.read_text()), LoadedSuite(path).sha256

    def changed(**changes: Any) -> LoadedSuite:
        tasks = {"gsm8k": [body["tasks"]["gsm8k"][0] | changes]}
        manifest.write_text(json.dumps(body | {"tasks": tasks}))
        return LoadedSuite(path)

    for config in ("../../../evil.yaml", str(tmp_path / "evil.yaml")):
        with raises(UsageError, "path-outside-folder"):
            changed(config=config)
    with raises(UsageError, "frozen-data-unlisted"):
        changed(data={"test": ["/etc/passwd"]})
    with raises(UsageError, "task-executes-code"):
        load_documents(changed(config="humaneval/humaneval.yaml"), tmp_path / "cache")
    with raises(UsageError, "task-file-missing"):
        load_documents(changed(config="gsm8k/gone.yaml"), tmp_path / "cache")
    swapped = changed(
        data=dict(zip(("test", "train"), reversed(body["tasks"]["gsm8k"][0]["data"].values()), strict=True))
    )
    assert swapped.sha256 != honest
