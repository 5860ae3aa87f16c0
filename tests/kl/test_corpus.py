"""Corpora a person brings: what is read, what is refused in one sentence, and that every token is scored once."""

import copy
import json
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from q36eval.config import Paths
from q36eval.errors import UsageError
from q36eval.evals.frozen import verify
from q36eval.kl import raw_texts
from q36eval.kl.corpus import CorpusDocument, corpus_sha256, load_corpus
from q36eval.kl.corpus_config import load_configured_corpus, load_corpus_config
from q36eval.kl.corpus_plan import plan_of, settings_of
from q36eval.kl.hub_datasets import HubDataset, documents_of
from q36eval.kl.on_policy import OnPolicyAnswer, OnPolicyPrompt, OnPolicySettings, kept_or_sampled
from q36eval.kl.planning import Material, plan_material, windows
from q36eval.kl.probe import KLProbe
from q36eval.kl.raw_texts import chat_prefix, leading_ids
from q36eval.probes import Progress
from q36eval.run.materials import on_policy_prompts
from tests.kl.comparing import ROOT, Letters, compared
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


# -- texts as they are


TEXTS = ["The clock in the workshop was silver and empty.", "Leo drew a simple ladder at school."]


class WithBos(Letters):
    bos_token_id = 1

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + super().encode(text)


def documents(*texts: str) -> tuple[CorpusDocument, ...]:
    return tuple(CorpusDocument(id=text[:9], slice="s", text=text) for text in texts)


def test_bos_stands_before_a_text_once_and_lets_its_first_token_be_scored() -> None:
    planned = plan_material(Material(documents("abc", "\x01de", "f", "\x01")), WithBos())
    asked = [(each.token_ids, each.first, len(each.kinds)) for each in planned.documents.values()]
    assert asked == [((1, 97, 98, 99), 1, 3), ((1, 100, 101), 1, 2), ((1, 102), 1, 1)]
    assert planned.too_short == 1
    without = plan_material(Material(documents("abc")), Letters())
    assert [(each.token_ids, each.first) for each in without.documents.values()] == [((97, 98, 99), 1)]


def test_a_prefix_is_read_and_not_scored() -> None:
    (each,) = plan_material(Material(documents("ab{}"), prefix=(1, 7, 8)), WithBos()).documents.values()
    assert (each.token_ids, each.first, each.labels) == ((1, 7, 8, *b"ab{}"), 3, tuple(b"ab{}"))
    assert (list(each.kinds), list(each.positions)) == ([0, 0, 1, 1], [3, 4, 5, 6])


def test_the_gain_of_a_chat_prompt_is_that_of_whole_forward_passes(bf16: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_texts, "GAIN_NATS", -100.0)
    prefix = chat_prefix(bf16, TEXTS)
    assert raw_texts.REQUEST in bf16.tokenizer.decode(prefix)
    assert leading_ids(bf16.tokenizer) == ()
    naive = [mean_loss(bf16, ()), mean_loss(bf16, prefix)]
    # in another batch BF16 rounds otherwise
    assert [raw_texts._mean_loss(bf16, before, encoded(bf16)) for before in ((), prefix)] == pytest.approx(naive, 1e-2)
    gain = naive[0] - naive[1]
    for needed, expected in ((gain - 0.05, prefix), (gain + 0.05, ())):
        monkeypatch.setattr(raw_texts, "GAIN_NATS", needed)
        assert chat_prefix(bf16, TEXTS) == expected
    assert chat_prefix(bf16, []) == ()


def encoded(engine: Any) -> list[tuple[int, ...]]:
    return [tuple(engine.tokenizer.encode(text, add_special_tokens=False)) for text in TEXTS]


@torch.inference_mode()
def mean_loss(engine: Any, before: tuple[int, ...]) -> float:
    losses: list[float] = []
    for ids in encoded(engine):
        log_probs = engine.model(torch.tensor([before + ids])).logits[0].float().log_softmax(-1)
        start = len(before) + 1
        losses += [-float(log_probs[start + n - 1, token]) for n, token in enumerate(ids[1:])]
    return sum(losses) / len(losses)


def test_what_the_reference_cannot_model_is_left_out_by_name(bf16: Any) -> None:
    sense, noise = documents(*TEXTS), documents("zq xj 7 kk { wv", "qq jj ] zx 9 % vw")
    told: list[str] = []
    whole = compared(KLProbe((*sense, *noise), most_loss=6.0, notify=told.append), bf16, bf16)
    alone = compared(KLProbe(sense), bf16, bf16)
    key = "perplexity[all]"
    assert (whole[key].value, whole[key].counts) == (alone[key].value, alone[key].counts)
    assert compared(KLProbe((*sense, *noise)), bf16, bf16)[key].counts != alone[key].counts
    assert all(each.id in (whole["kl_divergence[all]"].note or "") for each in noise)
    assert len(told) == 1


def test_a_base_model_continues_and_only_a_thinking_switch_gives_the_thinking_budget(tmp_path: Any, bf16: Any) -> None:
    ask = OnPolicyPrompt("p", "on_policy/chat", ({"role": "user", "content": "The river"},), enable_thinking=True)
    settings = OnPolicySettings(max_new_tokens=5, thinking_tokens=9, temperature=10.0, top_p=1.0)
    lengths, prompts = [], []
    for number, template in enumerate((bf16.tokenizer.chat_template, "{{ messages[0].content }}", None)):
        engine = copy.copy(bf16)
        engine.tokenizer = copy.deepcopy(bf16.tokenizer)
        engine.tokenizer.chat_template = template
        root = tmp_path / str(number)
        (answer,) = kept_or_sampled(root, engine.identity, [ask], settings, lambda e=engine: e, Progress()).answers
        lengths.append(len(answer.token_ids))
        prompts.append(engine.tokenizer.decode(answer.prompt_ids))
    assert lengths == [9, 5, 5]
    assert prompts[1:] == ["The river", "The river\n\n"]


def test_the_standard_corpus_is_varied_and_of_its_stated_size() -> None:
    manifest = verify(ROOT / "data/corpus/standard")
    texts = load_corpus(ROOT / "data/corpus/standard", {name: file.sha256 for name, file in manifest.files.items()})
    plan = settings_of("standard")
    assert plan_of("standard") is None, "it ships whole"
    assert (plan.on_policy.prompts, plan.most_loss) == ("standard", 6.0)
    counts = Counter(each.slice for each in texts)
    assert counts["prose"] >= 30
    assert min(counts[name] for name in ("code", "mathematics", "json", "tool_dialogue")) >= 10
    assert min(counts[name] for name in ("czech", "german", "french", "spanish")) >= 6
    assert len({each.cluster or each.id for each in texts}) >= 105
    seen: dict[tuple[str, ...], str] = {}
    for each in texts:
        words = each.text.split()
        assert 480 <= len(each.text) <= 1500, each.id
        for start in range(len(words) - 7):
            run = tuple(words[start : start + 8])
            assert seen.setdefault(run, each.id) == each.id, (run, each.id)


def test_the_standard_prompts_suit_any_chat_model() -> None:
    prompts = on_policy_prompts(OnPolicySettings(prompts="standard", per_canary=0), Paths(ROOT, ROOT))
    assert len(prompts) == 31
    assert sum(prompt.max_new_tokens for prompt in prompts) <= 45 * 88
    assert sum(prompt.enable_thinking for prompt in prompts) <= 2
    for prompt in prompts:
        roles = [message["role"] for message in prompt.messages]
        assert roles[0] == roles[-1] == "user"
        assert all(one != other for one, other in pairwise(roles))
        assert not prompt.tools
        assert json.loads(prompt.content)["max_new_tokens"] <= 112
