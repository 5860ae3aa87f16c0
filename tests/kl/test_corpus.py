"""Corpora a person brings: what is read, what is refused in one sentence, and that every token is scored once."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from q36eval.errors import UsageError
from q36eval.kl.corpus import CorpusDocument, corpus_sha256
from q36eval.kl.corpus_config import load_configured_corpus, load_corpus_config
from q36eval.kl.hub_datasets import HubDataset, documents_of
from q36eval.kl.on_policy import OnPolicyAnswer
from q36eval.kl.planning import Material, plan_material, windows
from q36eval.kl.probe import KLProbe
from tests.kl.comparing import Letters
from tests.raising import raises

DATA = yaml.safe_load(Path(__file__).with_name("bad_corpora.yaml").read_text(encoding="utf-8"))
WIKITEXT = DATA["wikitext"]


def written(folder: Path, text: str) -> list[CorpusDocument]:
    path = folder / "corpus.yaml"
    path.write_text("name: mine\n" + text, encoding="utf-8")
    return load_configured_corpus(path, load_corpus_config(path))


def lines(*bodies: object) -> str:
    return "".join(json.dumps(body) + "\n" for body in bodies)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "notes" / "deep").mkdir(parents=True)
    (tmp_path / "notes" / "a.txt").write_bytes("\ufeffPříliš žluťoučký".encode())
    (tmp_path / "notes" / "deep" / "b.txt").write_text("kůň", encoding="utf-8")
    (tmp_path / "notes" / "c.md").write_text("another kind", encoding="utf-8")
    (tmp_path / "own.jsonl").write_text(lines({"id": 1, "slice": "s", "text": "one"}, {"slice": "t", "text": "two"}))
    (tmp_path / "other.jsonl").write_text(lines({"text": "three"}))
    return tmp_path


def test_files_and_folders(folder: Path) -> None:
    """Files of one name are other documents."""
    found = written(
        folder,
        "json_lines: [{path: own.jsonl}, {path: other.jsonl, slice: o}]\n"
        "texts: [{path: notes, slice: n}, {path: notes/c.md, slice: md}]\n",
    )
    assert [(d.id, d.slice, d.text) for d in found] == [
        ("1", "s", "one"),
        ("own.jsonl:2", "t", "two"),
        ("other.jsonl:1", "o", "three"),
        ("notes/a.txt", "n", "Příliš žluťoučký"),
        ("notes/deep/b.txt", "n", "kůň"),
        ("notes/c.md", "md", "another kind"),
    ]
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "data.jsonl").write_text(lines({"text": f"one {name}"}))
    found = written(folder, "json_lines: [{path: a/data.jsonl, slice: x}, {path: b/data.jsonl, slice: x}]\n")
    assert [d.id for d in found] == ["a/data.jsonl:1", "b/data.jsonl:1"]


@pytest.mark.parametrize("row", DATA["corpora"], ids=lambda row: row["config"])
def test_bad_input_is_refused(folder: Path, row: dict[str, Any]) -> None:
    (folder / "latin.jsonl").write_bytes('{"text": "p\u0159\u00ed'.encode() + b"\xe9")
    for name, text in DATA["files"].items():
        (folder / name).write_text(text, encoding="utf-8")
    with raises(UsageError, row["code"], *row["names"]):
        written(folder, row["config"])


def source(**changes: object) -> HubDataset:
    settings = {"name": "a/b", "split": "test", "slice": "s", "revision": "0" * 40, "licence": "MIT"}
    return HubDataset.model_validate({**settings, "max_documents": 9, **changes})


def test_wikitext_is_joined_per_article() -> None:
    found = documents_of(source(documents="articles", config="raw"), {"text": WIKITEXT})
    assert [document.id for document in found] == ["a/b/raw/test:s/articles-0", "a/b/raw/test:s/articles-1"]
    assert found[0].text == (
        " = Robert Boulter = \n\n He is an actor . \n\n = = Career = = \n\n He = 3 = played . \n\n"
    )
    assert found[1].text.startswith(" = Du Fu = \n")
    assert "".join(document.text for document in found) == "".join(line.rstrip("\n") + "\n" for line in WIKITEXT[1:])
    with raises(UsageError, "dataset-empty"):
        documents_of(source(documents="articles"), {"text": ["text", "more"]})


def test_rows_are_chosen_joined_and_cut_into_pieces_of_one_cluster() -> None:
    rows = {"text": ["a b", "a b", " ", "c d"], "more": ["x", "x", "", "y"]}
    chosen = source(more_columns=["more"], joined_by=" ", drop_duplicates=True, skip_documents=1, max_documents=1)
    assert [d.text for d in documents_of(chosen, rows)] == ["c d y"]
    long = documents_of(source(piece_characters=100, max_pieces=2), {"text": ["word " * 50, "short"]})
    assert [(d.id.partition("-")[2], len(d.text), d.cluster) for d in long] == [
        ("0.0", 100, "a/b/test:s-0."),
        ("0.1", 100, "a/b/test:s-0."),
        ("1", 5, None),
    ]
    for columns, code in (({"words": ["x"]}, "dataset-column-unknown"), ({"text": [1]}, "dataset-column-not-text")):
        with raises(UsageError, code, "'text'"):
            documents_of(source(), columns)


@pytest.mark.parametrize("shared", ["", None, 7, ["a"]])
def test_a_row_that_names_no_cluster_is_refused(shared: object) -> None:
    columns = {"text": ["one", "two"], "link": ["page", shared]}
    with raises(UsageError, "corpus-cluster-invalid", "Row 1 of the split 'test' of a/b", "'link'"):
        documents_of(source(cluster="link"), columns)
    pages = columns | {"link": ["page", "page"]}
    assert [d.cluster for d in documents_of(source(cluster="link"), pages)] == ["a/b#page"] * 2


def test_the_example_of_the_docs_is_a_corpus_file(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "kl.md").read_text(encoding="utf-8")
    (tmp_path / "corpus.yaml").write_text(page.split("```yaml\n")[1].split("```")[0], encoding="utf-8")
    config = load_corpus_config(tmp_path / "corpus.yaml")
    assert config.json_lines
    assert config.texts


def test_windows_score_every_token_from_the_first_one_on_exactly_once() -> None:
    rng = random.Random(1)
    cases = [(length, 8, 2, 1) for length in (1, 2, 8, 9, 100)]
    for _ in range(200):
        length, overlap = rng.randint(2, 60), rng.randint(1, 8)
        cases.append((length, overlap + rng.randint(1, 12), overlap, rng.randint(1, length - 1)))
    for length, context, overlap, first in cases:
        scored: list[int] = []
        for begin, end, start in windows(length, context, overlap, first):
            assert end - begin <= context
            assert start - begin >= min(overlap, start)
            scored += range(start, end)
        assert scored == list(range(first, length))


def test_positions_and_requests_of_documents_and_answers() -> None:
    long, short = CorpusDocument("long", "s", "abcdefghijkl"), CorpusDocument("short", "s", "x")
    answer = OnPolicyAnswer(
        id="a",
        slice="on_policy/chat",
        prompt_ids=(1, 2, 3, 4, 5),
        token_ids=(91, 49, 93, 7),
        text="[1]",
        finish_reason="stop",
    )
    told: list[str] = []
    probe = KLProbe([long, short], 8, 3, answers=[answer], notify=told.append)
    items = probe.plan(Letters())
    probe.plan(Letters())
    assert told == ["Skipped 1 documents of fewer than two tokens: nothing is predicted there."]
    assert [item.key for item in items] == [long.key, answer.key]
    document, sampled = probe.planned[long.key], probe.planned[answer.key]
    assert document.positions.tolist() == [1, 2, 3, 4, 5, 6, 7, 3, 4, 5, 6]
    assert (sampled.first, sampled.labels) == (5, answer.token_ids)
    assert sampled.positions.tolist() == [5, 6, 7, 3]
    assert sampled.kinds.tolist() == [1, 1, 1, 0]
    for planned in (document, sampled):
        assert len(planned.kinds) == len(planned.positions) == len(planned.labels)
        asked = np.concatenate([np.array(r.token_ids[r.first :]) for r in planned.requests])
        assert asked.tolist() == list(planned.labels)
        seen = [position for r in planned.requests for position in range(r.first, len(r.token_ids))]
        assert seen == planned.positions.tolist()


def test_a_corpus_without_two_tokens_is_refused() -> None:
    with raises(UsageError, "corpus-too-short", "2 documents"):
        plan_material(Material((CorpusDocument("a", "s", "x"), CorpusDocument("b", "s", ""))), Letters())


def test_the_suite_changes_with_all_that_is_scored() -> None:
    one, two = CorpusDocument("a", "s", "text"), CorpusDocument("b", "s", "more")
    answer = OnPolicyAnswer(id="a", slice="c", prompt_ids=(1,), token_ids=(2, 3), text="", finish_reason="stop")
    other = answer.model_copy(update={"token_ids": (2, 4)})
    probes = [
        KLProbe([one, two]),
        KLProbe([one]),
        KLProbe([one, two], 2048),
        KLProbe([one, two], overlap=64),
        KLProbe([one, two], answers=[answer]),
        KLProbe([one, two], answers=[other]),
    ]
    assert len({probe.suite_sha256 for probe in probes}) == len(probes)
    assert KLProbe([two, one]).suite_sha256 == probes[0].suite_sha256
    assert corpus_sha256([one, two]) == corpus_sha256([two, one]) != corpus_sha256([one])
