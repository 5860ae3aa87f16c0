"""The corpus a person brings, through the command line: measured beside the reference's answers, or one sentence."""

import json
from pathlib import Path

import pytest

from q36eval.errors import UsageError
from q36eval.kl.corpus_config import CorpusConfig
from q36eval.run.materials import context_and_overlap
from tests.commands import q36eval
from tests.raising import raises
from tests.small_corpus import write_corpus


@pytest.mark.long
def test_a_corpus_of_ones_own_is_measured_in_windows_beside_sampled_answers(tmp_path: Path) -> None:
    long = " ".join(f"Obchod {n}: cena {n * 10} Kč." for n in range(40))
    sampled = {"per_canary": 0, "max_new_tokens": 8}
    corpus = write_corpus(tmp_path, ["Ahoj světe, jak se máš?", "x", long], context=64, on_policy=sampled)
    arguments = ("kl", "--branch", "fp8-head", "--corpus", str(corpus), "--json")
    done = q36eval(*arguments, state=tmp_path)
    assert done.returncode == 0, done.stderr
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
    done = q36eval(*arguments, state=tmp_path)
    assert done.returncode == 0, done.stderr
    assert q36eval("reference", "show", "--verify", str(pack), state=tmp_path).returncode == 0
    other = q36eval("kl", "--branch", "fp8-head", "--reference-pack", str(pack), state=tmp_path)
    assert other.returncode == 2
    assert "differs in corpus (the pack's: " in other.stderr
    (answers,) = pack.glob("on-policy-*.jsonl")
    whole = answers.read_bytes()
    answers.write_bytes(whole[:-20])
    against = ("kl", "--branch", "fp8-head", "--corpus", str(corpus), "--reference-pack", str(pack))
    cut = q36eval(*against, state=tmp_path)
    assert cut.returncode == 2
    assert "copy the pack again" in cut.stderr
    answers.unlink()
    verified = q36eval("reference", "show", "--verify", str(pack), state=tmp_path)
    assert verified.returncode == 1
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
