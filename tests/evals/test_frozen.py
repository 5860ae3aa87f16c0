"""Frozen data: what is shipped verifies, is held out, fits its lengths; damage is named."""

import json
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from q36eval.config import Paths
from q36eval.errors import ChangedError, UsageError
from q36eval.evals.freezing import freeze_suite
from q36eval.evals.freezing.hub import Hub
from q36eval.evals.freezing.suite import staging
from q36eval.evals.frozen import verify
from q36eval.evals.lm_tasks import load_documents
from q36eval.evals.probe import EvalsProbe
from q36eval.evals.suite import LoadedSuite, read_suite
from q36eval.examples import split_of
from q36eval.kl.corpus import load_corpus
from q36eval.run.corpora import verified
from q36eval.run.materials import corpus_of
from q36eval.run.suites import suite_place
from tests.evals.small_suite import write_small_suite
from tests.evals.test_freezing import GROUPS, TOKENIZER, written
from tests.frozen_data import write_frozen
from tests.raising import raises

ROOT = Path(__file__).resolve().parents[2]
TASKS, CORPUS = ROOT / "data/tasks/sandbox", ROOT / "data/corpus/sandbox"
SLICES = ("czech", "czech_legal", "english", "code", "mathematics", "json")
RULER_ITEMS = {256: 36, 512: 22, 1024: 8, 2048: 4}
"""Items per kind at each length, as data/sandbox/README.md and the margins of the sandbox's policy rest on them."""

RULER_TOKENS = {"niah_multiquery": (320, 2048), "niah_multivalue": (320, 2048), "qa": (0, 256), "vt": (0, 1024)}
"""Kinds whose needles alone do not fit a shorter text, and those that the reference does not solve in a longer one."""


def _records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def is_held_out(record: dict[str, Any]) -> bool:
    """Whether a multiple-choice record lies on the test side of the split."""
    return split_of("|".join(("mmlu", record["cluster"], *record["choices"]))) == "test"


def test_shipped_data_is_what_its_manifest_says_and_was_made_for_the_shipped_tokenizer() -> None:
    from q36eval.checkpoints import tokenizer_sha256

    manifest = verify(TASKS)
    assert manifest.made_from["tokenizer_sha256"] == tokenizer_sha256(ROOT / "data/sandbox/bf16")
    verify(CORPUS)


def test_every_frozen_question_and_document_is_held_out() -> None:
    questions = [record for path in (TASKS / "mmlu").glob("*.jsonl") for record in _records(path)]
    assert len(questions) >= 400
    assert all(is_held_out(record) for record in questions)
    solved = [record for path in (TASKS / "mmlu_dev").glob("*.jsonl") for record in _records(path)]
    assert not any(is_held_out(record) for record in solved), "a solved example must come from the training side"
    assert len({record["cluster"] for record in questions}) == len(questions), "one question per fact"
    assert not {record["cluster"] for record in solved} & {record["cluster"] for record in questions}
    prose = [record for path in (TASKS / "perplexity").glob("*.jsonl") for record in _records(path)]
    prose += [record for name in SLICES for record in _records(CORPUS / f"{name}.jsonl")]
    assert all(split_of(f"prose|{record['text']}") == "test" for record in prose)
    assert len({record["text"] for record in prose}) == len(prose)


def test_ruler_prompts_fit_their_length_with_the_shipped_tokenizer(tokenizer: Any) -> None:
    for path in sorted((TASKS / "ruler").glob("*.jsonl")):
        records = _records(path)
        least, most = RULER_TOKENS.get(path.stem, (0, 2048))
        fitting = {length: n for length, n in RULER_ITEMS.items() if least <= length <= most}
        assert Counter(record["length"] for record in records) == fitting
        assert len({record["input"] for record in records}) == len(records)
        for record in records[::4]:
            assert len(tokenizer.encode(record["input"])) <= record["length"]


def test_damage_is_named(tmp_path: Path) -> None:
    write_frozen(tmp_path, {"a.jsonl": [{"x": 1}], "b/c.jsonl": [{"x": 2}]})
    verify(tmp_path)
    (tmp_path / "b/c.jsonl").write_text('{"x": 3}\n')
    with raises(UsageError, "frozen-data-damaged", "c.jsonl"):
        verify(tmp_path)
    (tmp_path / "b/c.jsonl").unlink()
    with raises(UsageError, "frozen-data-incomplete", "c.jsonl"):
        verify(tmp_path)
    write_frozen(tmp_path, {"a.jsonl": [{"x": 1}]})
    (tmp_path / "z.jsonl").write_text("{}\n")
    with raises(UsageError, "frozen-data-unlisted", "z.jsonl"):
        verify(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with raises(UsageError, "frozen-manifest-malformed"):
        verify(tmp_path)


def test_a_suite_that_changes_between_its_hash_and_its_reading_is_not_asked(tmp_path: Path, tokenizer: Any) -> None:
    """lm-eval reads the files by itself, after they were hashed: what it read is what the hash is of."""
    counts = {f"mmlu{kind}/law.jsonl": 15 for kind in ("", "_dev")}
    path = write_small_suite(tmp_path, counts)
    probe = EvalsProbe(path)
    assert probe.plan(tokenizer)
    write_small_suite(tmp_path, counts | {"mmlu/law.jsonl": 14})
    with raises(ChangedError, "files-changed", "sandbox"):
        probe.plan(tokenizer)
    probe = EvalsProbe(path)
    with (tmp_path / "data/mmlu/law.jsonl").open("a") as file:
        file.write("\n")
    with raises(ChangedError, "files-changed", "law.jsonl"):
        probe.plan(tokenizer)


def test_texts_that_change_between_their_hash_and_their_reading_are_not_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = Paths(ROOT, tmp_path / "state")
    place = suite_place("sandbox", paths)
    shutil.copytree(place.corpus, tmp_path / "corpus")
    monkeypatch.setattr("q36eval.run.materials.suite_place", lambda *_: replace(place, corpus=tmp_path / "corpus"))
    assert corpus_of("sandbox", None, paths)[1] == load_corpus(place.corpus)
    one = min((tmp_path / "corpus").glob("*.jsonl"))

    def then_written_to(suite: str, folder: Path) -> Any:
        manifest = verified(suite, folder)
        one.write_text(one.read_text() + json.dumps({"id": "new", "slice": "prose", "text": "new"}) + "\n")
        return manifest

    monkeypatch.setattr("q36eval.run.materials.verified", then_written_to)
    with raises(ChangedError, "files-changed", one.name):
        corpus_of("sandbox", None, paths)


# -- what freezing refuses: places that are not its own, and files that are no suite and no tokenizer


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
