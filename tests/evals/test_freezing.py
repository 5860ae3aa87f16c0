"""A suite of lm-eval's own tasks, frozen from a mirror of the hub: the same prompts offline, the same bytes again."""

import itertools
import json
import multiprocessing
import random
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from q36eval.checkpoints import tokenizer_sha256
from q36eval.errors import UsageError
from q36eval.evals.freezing import freeze_suite, ruler
from q36eval.evals.freezing.hub import Hub
from q36eval.evals.freezing.ruler import ESSAYS, questions_at
from q36eval.evals.freezing.ruler_worker import document_rows
from q36eval.evals.freezing.suite import freeze_punkt
from q36eval.evals.frozen import verify
from q36eval.evals.lm_configs import expand, read_config
from q36eval.evals.lm_tasks import Document, load_documents, seeded
from q36eval.evals.probe import EvalsProbe
from q36eval.evals.suite import ALLOW_CODE, LoadedSuite, read_suite
from tests.evals.hub_mirror import DATA, use_cache
from tests.raising import failing, raises

ROOT = Path(__file__).resolve().parents[2]
TOKENIZER = ROOT / "data/sandbox/bf16"
RULER = ["ruler_vt", "ruler_cwe", "ruler_fwe", "ruler_qa_squad", "ruler_qa_hotpot"]
GROUPS: dict[str, dict[str, Any]] = DATA["groups"]


def written(folder: Path, groups: dict[str, dict[str, Any]], **more: Any) -> Path:
    """A suite file whose data lies beside it."""
    listed = [{"name": name, "slice": name} | {"measure": "accuracy"} | group for name, group in groups.items()]
    path = folder / "suite.yaml"
    body = {"name": "tiny", "data": "frozen", "max_length": 4096, "groups": listed} | more
    path.write_text(yaml.safe_dump(body), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def suite(mirror: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The suite of all groups, frozen from the mirror."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_cache(mirror, monkeypatch)
        sources = {"cais/mmlu": {"revision": "c30699e8356da336a370243923dbaf21066bb9fe", "licence": "MIT"}}
        path = written(tmp_path_factory.mktemp("suite"), GROUPS, sources=sources)
        freeze_suite(path, TOKENIZER)
        yield path


@pytest.fixture(autouse=True)
def programs_may_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW_CODE, "1")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket.socket, "connect", failing(AssertionError("a frozen suite reached for the network")))


def documents_of(path: Path, cache: Path) -> list[Document]:
    return load_documents(LoadedSuite(path), cache)


@pytest.mark.long
def test_prompts_and_targets_are_stock_lm_evals(
    suite: Path, filled_cache: Path, tmp_path: Path, no_network: None
) -> None:
    """As lm-eval's own task objects build them from the hub's cache, document by document."""
    from lm_eval.api.task import ConfigurableTask

    found = documents_of(suite, tmp_path)
    for name in ("mmlu", "wikitext", "gpqa", "gsm8k"):
        ours = [([one.args for one in d.instances], d.target, d.choices) for d in found if d.group.name == name]
        theirs = []
        for task in expand(GROUPS[name]["tasks"]):
            with seeded(1234, task.name):  # GPQA's choices are shuffled when it is loaded
                stock = ConfigurableTask(config=read_config(task))
                stock.set_config("num_fewshot", GROUPS[name].get("num_fewshot", 0))
            stock.set_fewshot_seed(1234)
            stock.build_all_requests(rank=0, world_size=1)
            for doc_id in dict.fromkeys(instance.doc_id for instance in stock.instances):
                instances = [instance for instance in stock.instances if instance.doc_id == doc_id]
                doc = instances[0].doc
                choices = stock.doc_to_choice(doc) if stock.config.doc_to_choice is not None else []
                theirs.append(([one.args for one in instances], stock.doc_to_target(doc), choices))
        assert ours == theirs
        assert len(ours) >= 3
    mmlu = next(d for d in found if d.group.name == "mmlu")
    assert mmlu.instances[0].args[0].count("Answer:") == 6
    assert len({instance.args[0] for d in found for instance in d.instances if d.group.name == "gsm8k"}) == 4


@pytest.mark.long
def test_strata_clusters_and_scores(suite: Path, tmp_path: Path, no_network: None) -> None:
    found = documents_of(suite, tmp_path)
    assert len({document.key for document in found}) == len(found)
    history = [d for d in found if d.stratum == "high_school_european_history"]
    assert len({d.cluster for d in history[:3]}) == 1, "questions about one passage are one cluster"
    assert len({d.cluster for d in history}) == 6
    ruler = [d for d in found if d.group.name == "ruler"]
    assert {d.stratum for d in ruler} == {f"{task}/{length}" for task in RULER for length in (2048, 2560)}
    assert len({d.cluster for d in ruler}) == len(ruler), "no text is asked about twice, at one length or at two"
    for task, asked_about in (("squad", r"by paragraph (\d+ of \d+)"), ("hotpot", r"Which village has mill (\d+)")):
        questions = [re.findall(asked_about, str(d.doc["input"]))[-1] for d in ruler if task in d.stratum]
        assert len(set(questions)) == len(questions) == 4, "the mirror has several questions of each paragraph"
    for document in ruler:
        assert document.metrics([f"It is {' and '.join(document.target)}."]) == {"{max_length}": 1.0}
        assert document.metrics(["nothing"]) == {"{max_length}": 0.0}
        assert document.doc["length"] <= document.doc["max_length"] or "fwe" in document.stratum
    sums = next(d for d in found if d.group.name == "gsm8k")
    assert sums.metrics([sums.target])["exact_match"] == 1
    (program,) = (d for d in found if d.group.name == "humaneval")
    assert program.metrics(["    return x + x\n"])["pass@1"] == 1.0
    assert program.metrics(["    import sys; sys.exit(0)\n"])["pass@1"] == 0.0


@pytest.mark.long
def test_programs_run_only_when_allowed(suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = LoadedSuite(suite)
    monkeypatch.delenv(ALLOW_CODE)
    loaded = LoadedSuite(suite)
    assert "humaneval" not in {d.group.name for d in load_documents(loaded, tmp_path)}
    (sentence,) = loaded.skipped
    assert f"{ALLOW_CODE}=1" in sentence
    assert not allowed.skipped
    assert loaded.sha256 != allowed.sha256


@pytest.mark.long
def test_the_manifest_says_where_every_row_is_from(suite: Path) -> None:
    manifest = verify(suite.parent / "frozen")
    sources = {(source.repository, source.config, source.split): source for source in manifest.sources}
    mmlu = sources["cais/mmlu", "anatomy", "test"]
    assert (mmlu.revision[:7], mmlu.licence, mmlu.rows) == ("c30699e", "MIT", 8)
    assert ("rajpurkar/squad_v2", "squad_v2", "validation") in sources
    assert ("EleutherAI/wikitext_document_level", "wikitext-2-raw-v1", "train") not in sources, "nothing reads it"
    assert {"lm-eval", "datasets", "tokenizer_sha256", "suite_sha256"} <= set(manifest.made_from)
    rows = (suite.parent / "frozen/mmlu/cais__mmlu/anatomy/test.jsonl").read_text(encoding="utf-8").splitlines()
    assert list(json.loads(rows[0])) == ["question", "subject", "choices", "answer"], "the dataset's own schema"


@pytest.mark.long
def test_ruler_is_the_same_whatever_else_is_frozen(suite: Path, tokenizer: Any) -> None:
    """Alone, in another order and in another process: common words have a generator of random numbers of their own."""
    job = {"tokenizer": str(TOKENIZER), "samples": 2, "seed": 1234, "nltk_data": "none", "lengths": [2048, 2560]}
    for name, config in (("ruler_cwe", "ruler/cwe.yaml"), ("ruler_vt", "ruler/vt.yaml")):
        frozen = (suite.parent / f"frozen/ruler/{name}-2560.jsonl").read_text(encoding="utf-8").splitlines()
        made = document_rows(job, tokenizer, name, config, 2560)
        assert made == [json.loads(line) for line in frozen]
        assert document_rows(job | {"seed": 1}, tokenizer, name, config, 2560) != made


def test_no_document_is_asked_about_at_two_lengths_and_more_than_there_are_is_refused() -> None:
    """Whatever questions have in common: of 300 about three of 900 documents each, most share one with another."""
    rng = random.Random(1)
    asked = [{"query": str(n), "context": rng.sample(range(900), 3)} for n in range(300)]
    dealt = questions_at(asked, [4096, 8192, 16384], 20, "0", "a set")
    documents = [{place for _, question in of_length for place in question["context"]} for of_length in dealt.values()]
    assert not any(one & other for one, other in itertools.combinations(documents, 2))
    assert [len({source for source, _ in of_length}) for of_length in dealt.values()] == [20, 20, 20]
    assert questions_at(asked, [4096], 20, "1", "a set") != questions_at(asked, [4096], 20, "0", "a set")
    for one, other in itertools.combinations(questions_at(asked, [4096], 100, "0", "a set")[4096], 2):
        assert one[0] == other[0] or not {*one[1]["context"]} & {*other[1]["context"]}
    asked = [{"query": str(n), "context": [n // 2]} for n in range(24)]
    with pytest.raises(ValueError, match="24 questions about 12 texts, enough for 12 samples at each of 2 lengths"):
        questions_at(asked, [2048, 2560], 13, "0", "a set")


@pytest.mark.long
def test_a_generator_that_does_not_end_is_stopped(
    filled_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lm-eval's variable tracking tries for ever when its shortest sample is longer than asked."""
    endless = GROUPS["ruler"] | {"tasks": ["ruler_vt"], "ruler": {"lengths": [150], "samples": 1}}
    monkeypatch.setattr(ruler, "PATIENCE_S", 1.0)
    with raises(UsageError, "freezing-timeout", "ruler_vt", "150"):
        freeze_suite(written(tmp_path, {"ruler": endless}), TOKENIZER)
    assert {file.name for file in tmp_path.iterdir()} == {"suite.yaml"}, "nothing half-written remains"


@pytest.mark.long
def test_needles_lie_in_the_frozen_essays(
    filled_cache: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: None
) -> None:
    """With fewer words than the six million pairs that lm-eval sorts for ten seconds. In a process of its own, as the
    product makes them: in this one others' threads draw from the generator that lm-eval draws from."""
    import wonderwords

    class FewWords(wonderwords.RandomWord):
        def __init__(self) -> None:
            super().__init__()
            self._categories = {kind: sorted(words)[:40] for kind, words in self._categories.items()}

    monkeypatch.setattr(wonderwords, "RandomWord", FewWords)
    for module in ("prepare_niah", "niah_utils"):
        monkeypatch.delitem(sys.modules, f"lm_eval.tasks.ruler.{module}", raising=False)
    freeze_punkt(tmp_path)
    essays = [row["text"] for row in Hub({}).read(*ESSAYS).rows]
    (tmp_path / "essays.json").write_text(json.dumps(essays), encoding="utf-8")
    job = {"tokenizer": str(TOKENIZER), "samples": 2, "seed": 1234, "nltk_data": str(tmp_path / "nltk_data")}
    job["sources"] = {"essays": str(tmp_path / "essays.json")}

    def make() -> None:
        made: dict[str, Any] = {}
        for name in ("niah_single_2", "niah_multikey_3", "niah_single_2"):  # the other draws between
            rows = document_rows(job, tokenizer, name, f"ruler/{name}.yaml", 2048)
            assert made.setdefault(name, rows) == rows
            assert len(rows) == 2
            for row in rows:
                assert row["outputs"][0] in row["input"]
                assert len(tokenizer.encode(row["input"])) + 128 == row["length"] <= 2048
        assert " ".join(essays[0].split()[:40]) in made["niah_single_2"][0]["input"]

    child = multiprocessing.get_context("fork").Process(target=make)
    child.start()
    child.join(100)
    child.kill()
    assert child.exitcode == 0, "its traceback is above"


@pytest.mark.long
def test_freezing_again_gives_the_same_bytes_and_a_sample_is_of_what_is_asked(
    filled_cache: Path, tmp_path: Path
) -> None:
    freeze_suite(written(tmp_path, {"gsm8k": GROUPS["gsm8k"]}), TOKENIZER)
    path = written(tmp_path, {"mmlu": GROUPS["mmlu"] | {"sample": 4}})
    freeze_suite(path, TOKENIZER)
    first = {file: file.read_bytes() for file in (tmp_path / "frozen").rglob("*") if file.is_file()}
    freeze_suite(path, TOKENIZER)
    assert {file: file.read_bytes() for file in (tmp_path / "frozen").rglob("*") if file.is_file()} == first
    assert not (tmp_path / "frozen/gsm8k").exists(), "what the suite no longer reads is gone"
    sampled = documents_of(path, tmp_path / "cache")
    assert [d.stratum for d in sampled].count("anatomy") == 4
    assert sampled[0].instances[0].args[0].count("Solved:") == 5, "solved examples are not sampled"


@pytest.mark.long
@pytest.mark.parametrize(
    ("group", "code", "values"),
    [
        ({"tasks": ["mmlu_anatomy"], "metric": "acc"}, "dataset-missing", ["cais/mmlu (anatomy)", "HF_HOME"]),
        (
            {"tasks": ["niah_single_1"], "metric": "x", "ruler": {"lengths": [2048], "samples": 1}},
            "dataset-missing",
            ["NLTK_DATA"],
        ),
        ({"tasks": ["mmlu_astrology"], "metric": "acc"}, "task-unknown", ["'mmlu_astrology'"]),
        ({"tasks": ["humaneval"], "metric": "pass@1"}, "task-executes-code", ["executes_code: true"]),
        ({"tasks": ["ruler_vt"], "metric": "x"}, "suite-invalid", ["`ruler`"]),
    ],
)
def test_missing_data_is_refused_and_nothing_is_left(
    empty_cache: Path, tmp_path: Path, group: dict[str, Any], code: str, values: list[str]
) -> None:
    path = written(tmp_path, {"one": group})
    with raises(UsageError, code, *values):
        freeze_suite(path, TOKENIZER)
    assert {file.name for file in tmp_path.iterdir()} == {"suite.yaml"}
    (tmp_path / "own").mkdir()
    for data, option in ((None, ""), (tmp_path / "own", f" --out {tmp_path / 'own'}")):
        with raises(UsageError, "frozen-data-missing", f"data freeze {path} --tokenizer FOLDER{option}"):
            LoadedSuite(path, data)


@pytest.mark.long
def test_documents_cut_for_another_tokenizer_are_not_asked(suite: Path) -> None:
    probe = EvalsProbe(suite)
    probe.check_tokenizer(tokenizer_sha256(TOKENIZER))
    with raises(UsageError, "frozen-for-another-tokenizer", "suite.yaml"):
        probe.check_tokenizer("0" * 64)
    with raises(UsageError, "frozen-for-another-context", "2560"):
        probe.check_tokenizer(tokenizer_sha256(TOKENIZER), 2048)


def test_another_commit_than_the_pinned_one_is_refused(filled_cache: Path, tmp_path: Path) -> None:
    path = written(tmp_path, {"mmlu": GROUPS["mmlu"]}, sources={"cais/mmlu": {"revision": "0" * 40}})
    with raises(UsageError, "dataset-revision", "c30699e", "0" * 40):
        freeze_suite(path, TOKENIZER)


@pytest.mark.long
def test_damaged_and_foreign_data_is_refused(suite: Path, filled_cache: Path, tmp_path: Path) -> None:
    path = written(tmp_path, {"mmlu": GROUPS["mmlu"]})
    freeze_suite(path, TOKENIZER)
    rows = tmp_path / "frozen/mmlu/cais__mmlu/anatomy/test.jsonl"
    body = rows.read_bytes()
    rows.write_bytes(body.replace(b"Bone 1", b"Bone 9"))
    with raises(UsageError, "frozen-data-damaged", "anatomy/test.jsonl"):
        LoadedSuite(path)
    rows.write_bytes(body)
    written(tmp_path, {"mmlu": GROUPS["mmlu"] | {"num_fewshot": 4}})
    with raises(UsageError, "frozen-data-outdated"):
        LoadedSuite(path)
    written(tmp_path, {"mmlu": GROUPS["mmlu"] | {"slice_fields": ["topic"]}})
    with raises(UsageError, "task-field-unknown", "topic"):
        documents_of(path, tmp_path / "cache")
    written(tmp_path, {"mmlu": GROUPS["mmlu"] | {"filter": "strict"}})
    with raises(UsageError, "task-filter-unknown", "strict"):
        documents_of(path, tmp_path / "cache")
    for wrong in ({"metric": "acc_nrom"}, {"measure": "perplexity", "metric": "word_perplexity"}):
        written(tmp_path, {"mmlu": GROUPS["mmlu"] | wrong})
        with raises(UsageError, "task-measure-unknown", "acc", "mmlu"):
            documents_of(path, tmp_path / "cache")
    with raises(UsageError, "folder-occupied"):
        freeze_suite(path, TOKENIZER, tmp_path)


@pytest.mark.long
def test_shipped_suites_name_tasks_that_lm_eval_has() -> None:
    suites = {name: read_suite(ROOT / f"evals/suites/{name}.yaml") for name in ("quick", "release", "extended")}
    counts = {group.name: len(expand(group.tasks)) for group in suites["extended"].groups}
    assert {name: counts[name] for name in ("mmlu", "ruler", "mmlu_pro", "mmlu_czech")} == {
        **{"mmlu": 57, "ruler": 13, "mmlu_pro": 14, "mmlu_czech": 57}
    }
    assert suites["extended"].groups[:3] == suites["release"].groups
    for name in ("quick", "release"):
        assert [group.tasks for group in suites[name].groups] == [("mmlu",), ("wikitext",), ("ruler",)]
    passage = "Text " * 40
    for name in ("mmlu", "mmlu_pro", "mmlu_czech"):  # all have MMLU's history questions
        pattern = re.compile(next(g.cluster_pattern for g in suites["extended"].groups if g.name == name) or "")
        before = "This question refers to the following information.\n" if name == "mmlu" else ""
        one, other = (pattern.search(f"{before}{passage}\nWhich {word}?") for word in ("king", "year"))
        assert one is not None, name
        assert other is not None, name
        assert one[0] == other[0]
        assert pattern.search("Which king?\nAnd which year?") is None
    for suite in suites.values():
        ruler = next(group.ruler for group in suite.groups if group.ruler is not None)
        assert max(ruler.lengths) + 128 <= suite.max_length
