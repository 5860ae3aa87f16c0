"""How a person names a suite: one that ships, a file, and a folder it was frozen to."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from q36eval.app.policies.files import policy_file, policy_for
from q36eval.app.targets import load_family
from q36eval.config import Paths
from q36eval.errors import UsageError
from q36eval.evals.suite import TELLING, EvalSuite, LoadedSuite, read_suite
from q36eval.gate.policy_file import read_policy
from q36eval.kl.corpus_config import CorpusConfig
from q36eval.measurement_facts import recorded, recorded_subject
from q36eval.records import ProbeName
from q36eval.run.materials import context_and_overlap, corpus_of
from q36eval.run.measure import _texts
from q36eval.run.probe_set import Limits, build_evals, build_probes, published_facts
from q36eval.run.request import Request, Target
from q36eval.run.suites import named_canaries, shipped_suites, suite_place
from tests.commands import q36eval
from tests.raising import failing, raises
from tests.small_corpus import write_corpus

ROOT = Path(__file__).resolve().parents[3]
PATHS = Paths(ROOT, ROOT / "nowhere")


def test_a_suite_is_asked_on_its_frozen_data_and_brings_no_texts_of_a_shipped_one(tmp_path: Path) -> None:
    """The sandbox's perplexity group, as a suite of somebody's own."""
    body = yaml.safe_load((ROOT / "evals/suites/sandbox.yaml").read_text(encoding="utf-8"))
    groups = [group | {"task": str(ROOT / "evals/tasks/perplexity.yaml")} for group in body["groups"][-1:]]
    path, data = tmp_path / "sandbox.yaml", tmp_path / "frozen"
    path.write_text(yaml.safe_dump(body | {"data": "frozen", "groups": groups}), encoding="utf-8")
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
        corpus_of(str(path), None, PATHS)
    # general texts choose the scales of a quantized KV cache where evals need no KL
    request = Request(load_family("sandbox", PATHS), Target("", path), None, str(path), policy=None)
    assert _texts(request, PATHS) == corpus_of("sandbox", ROOT / "data/corpus/general.yaml", PATHS)[1]


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
    material = failing(AssertionError("the reference was asked"))
    with raises(UsageError, "frozen-data-missing", "quick"):
        build_probes([ProbeName.KL, ProbeName.EVALS], "quick", Paths(ROOT / "nowhere", ROOT), material, Limits())


# -- a run says what it is measured on: the sandbox's items by no benchmark's name, the real ones by their own

BENCHMARK = re.compile(r"mmlu|ruler|wikitext|gpqa|gsm|math-|ifeval|humaneval", re.IGNORECASE)


def test_a_run_of_the_sandbox_claims_no_benchmark_and_a_shipped_one_names_its_dataset() -> None:
    family = load_family("sandbox", Paths.default())
    target = Target("fp8-head", Paths.default().data / "sandbox" / "fp8-head")
    request = Request(family=family, branch=target, reference=None, suite="sandbox", policy=None)
    facts = published_facts(request, [build_evals("sandbox", Paths.default(), Limits())])
    assert not BENCHMARK.search(" ".join(told["title"] for told in facts["measured_on"]["evals"].values()))
    subject = recorded_subject(facts)
    assert (subject.repository, subject.scheme) == (None, "NVFP4 + FP8_BLOCK lm_head (compressed-tensors)")
    assert subject.reference == "BF16 of q36eval sandbox (trained by this repository)"
    on, part = recorded(facts, ProbeName.EVALS, "ruler/vt")
    assert (on.dataset, part) == (None, "vt")
    assert recorded(facts, ProbeName.EVALS, "czech")[1] == "czech"
    assert recorded(facts, ProbeName.KL, "all") == (None, None)
    assert recorded({"measured_on": {"evals": 3}}, ProbeName.EVALS, "x") == (None, None)
    for name in set(shipped_suites()) - {"sandbox"}:
        for group in read_suite(shipped_suites()[name]).groups:
            assert BENCHMARK.search(group.title or "")
            assert (group.dataset is None) == (group.ruler is not None)  # RULER's items are generated


def test_what_items_are_called_is_no_part_of_what_is_asked_and_a_dataset_has_a_source(tmp_path: Path) -> None:
    """So that naming them better makes no reference's answers stale."""
    path = shipped_suites()["sandbox"]
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    for group in document["groups"]:
        group["title"] = "called otherwise"
    renamed, own = EvalSuite.model_validate(document), read_suite(path)
    asked = [suite.model_dump(mode="json", exclude=TELLING, exclude_defaults=True) for suite in (renamed, own)]
    assert asked[0] == asked[1]
    assert LoadedSuite(path).measured_on["mmlu"].title == own.groups[0].title
    document = yaml.safe_load(shipped_suites()["quick"].read_text(encoding="utf-8"))
    document["groups"][0]["dataset"] = "someone/else"
    with pytest.raises(ValueError, match="someone/else"):
        EvalSuite.model_validate(document)


def test_two_suites_are_joined_texts_and_canaries_of_the_first_tasks_of_the_second(tmp_path: Path) -> None:
    place, first, second = (suite_place(name, PATHS) for name in ("standard+release", "standard", "release"))
    assert (place.file, place.data, place.corpus) == (second.file, second.data, first.corpus)
    assert named_canaries("standard+release", PATHS) == "standard"
    joined = read_policy(policy_file(policy_for(load_family("sandbox", PATHS), "standard+release", PATHS), PATHS))
    alone = read_policy(policy_file("standard", PATHS))
    assert [c for c in joined.criteria if c.probe is not ProbeName.EVALS] == [*alone.criteria]
    with raises(UsageError, "suite-unknown", "nothing"):
        suite_place("standard+nothing", PATHS)


# -- texts of a person's own


@pytest.mark.long
def test_a_corpus_of_ones_own_is_measured_in_windows_beside_sampled_answers(tmp_path: Path) -> None:
    long = " ".join(f"Obchod {n}: cena {n * 10} Kč." for n in range(40))
    sampled = {"per_canary": 0, "max_new_tokens": 8}
    corpus = write_corpus(tmp_path, ["Ahoj světe, jak se máš?", "x", long], context=64, on_policy=sampled)
    arguments = ("kl", "--branch", "fp8-head", "--corpus", str(corpus), "--json")
    done = q36eval(*arguments, state=tmp_path, code=0)
    assert "fewer than two tokens" in done.stderr
    figures = {(m["metric"], m["slice"]): m for m in json.loads(done.stdout)["measurements"]}
    assert figures["kl_divergence", "own"]["counts"]["scored"] > 300
    assert figures["kl_divergence", "on_policy/chat"]["value"] > 0
    assert ("kl_divergence", "czech") not in figures
    kept = list((tmp_path / "packs").rglob("on-policy-*.jsonl"))
    before = [file.stat().st_mtime_ns for file in kept]
    assert len(before) == 1
    again = q36eval(*arguments, state=tmp_path)
    assert "sampling" in done.stderr
    assert "sampling" not in again.stderr
    assert json.loads(again.stdout)["measurements"] == json.loads(done.stdout)["measurements"]


@pytest.mark.long
def test_a_pack_that_lost_its_sampled_answers_is_damaged_and_another_corpus_is_named(tmp_path: Path) -> None:
    sampled = {"per_canary": 0, "max_new_tokens": 4}
    corpus = write_corpus(tmp_path, ["Ahoj světe, jak se máš?"], on_policy=sampled)
    pack = tmp_path / "pack"
    arguments = ("reference", "capture", "--probe", "kl", "--corpus", str(corpus), "--out", str(pack))
    q36eval(*arguments, state=tmp_path, code=0)
    assert q36eval("reference", "show", "--verify", str(pack), state=tmp_path).returncode == 0
    other = q36eval("kl", "--branch", "fp8-head", "--reference-pack", str(pack), state=tmp_path, code=2)
    assert "differs in corpus (the pack's: " in other.stderr
    (answers,) = pack.glob("on-policy-*.jsonl")
    whole = answers.read_bytes()
    answers.write_bytes(whole[:-20])
    against = ("kl", "--branch", "fp8-head", "--corpus", str(corpus), "--reference-pack", str(pack))
    cut = q36eval(*against, state=tmp_path, code=2)
    assert "copy the pack again" in cut.stderr
    answers.unlink()
    verified = q36eval("reference", "show", "--verify", str(pack), state=tmp_path, code=1)
    assert "on-policy-*.jsonl" in verified.stdout


def test_the_least_stated_context_counts() -> None:
    def contexts(family: int, **config: int) -> tuple[int, int]:
        return context_and_overlap(CorpusConfig(name="x", **config), family)  # type: ignore[arg-type]

    assert contexts(262_144) == (262_144, 512)
    assert contexts(4096, context=100_000) == (4096, 512)
    assert contexts(4096, context=512) == (512, 128)
    assert contexts(4096, context=1024, overlap=1000) == (1024, 1000)
    assert contexts(2) == (2, 1)
    with raises(UsageError, "overlap-too-long", "of 600"):
        contexts(512, overlap=600)
