"""Frozen data: what is shipped verifies, is held out, fits its lengths; damage is named."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from q36eval.config import Paths
from q36eval.errors import ChangedError, UsageError
from q36eval.evals.frozen import verify
from q36eval.evals.probe import EvalsProbe
from q36eval.examples import split_of
from q36eval.kl.corpus import load_corpus
from q36eval.run.corpora import verified
from q36eval.run.materials import corpus_of
from q36eval.run.suites import suite_place
from tests.evals.small_suite import write_small_suite
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
    assert place.corpus is not None
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
