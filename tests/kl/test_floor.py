"""The noise floor: equal to naive computations, only its own reference's, and largest where it is largest."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from q36eval.engines import ScoreRequest
from q36eval.engines.base import Scored
from q36eval.engines.batches import scoring_batches
from q36eval.engines.memory_plan import CPU_SCORE_BATCH_TOKENS
from q36eval.engines.perturbation import SHIFT
from q36eval.errors import UsageError
from q36eval.kl.corpus import load_corpus
from q36eval.kl.floor import chosen, measure_floor
from q36eval.kl.floor_file import (
    VERSION,
    FloorFigures,
    PerturbationFloor,
    ReferenceFloor,
    measurements,
    read_floor,
    write_floor,
)
from q36eval.kl.probe import KLProbe
from q36eval.probes import Digest, ItemResults, Progress, WorkItem
from q36eval.records import Interval
from tests.kl.comparing import CORPUS
from tests.q36eval.run.runner import IDENTITY
from tests.raising import raises

WANTED = ("left-padding", "bf16-logits")


@pytest.fixture(scope="module")
def probe() -> KLProbe:
    return KLProbe(load_corpus(CORPUS)[::20])


@pytest.fixture(scope="module")
def items(bf16: Any, probe: KLProbe) -> list[WorkItem]:
    return probe.plan(bf16.tokenizer)


@pytest.fixture(scope="module")
def capture(bf16: Any, probe: KLProbe, items: list[WorkItem]) -> dict[str, Digest]:
    scored = {s.request.key: s for s in bf16.score([request for item in items for request in item.scores])}
    found = {}
    for item in items:
        digest = probe.digest(bf16, item, ItemResults({r.key: scored[r.key] for r in item.scores}))
        found[item.key] = replace(digest, tensors={**digest.tensors, **probe.shared_tensors(bf16)})
    return found


class Only:
    """The engine with two of its perturbations: the others are slow and of no account here."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def perturbations(self) -> list[Any]:
        return [p for p in self.engine.perturbations() if p.name in WANTED]


@pytest.fixture(scope="module")
def floor(bf16: Any, probe: KLProbe, items: list[WorkItem], capture: dict[str, Digest]) -> ReferenceFloor:
    return measured(Only(bf16), probe, items, capture)


def measured(only: Any, probe: KLProbe, items: list[WorkItem], capture: dict[str, Digest]) -> ReferenceFloor:
    slices = {item.key: probe.slice_of(item.key) for item in items}
    return measure_floor(only, capture, items, slices, only.engine.identity, probe.suite_sha256, Progress())


def naive(reference: np.ndarray, perturbed: np.ndarray) -> np.ndarray:
    """KL per token from logits [T, V], in float64 by the definition."""
    p, q = (x.astype(np.float64) - x.max(-1, keepdims=True).astype(np.float64) for x in (reference, perturbed))
    log_p, log_q = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (p, q))
    return np.asarray((np.exp(log_p) * (log_p - log_q)).sum(-1))


def float32_logits(bf16: Any, states: torch.Tensor) -> torch.Tensor:
    weight: torch.Tensor = bf16.model.lm_head.weight.detach().float()
    return states.float() @ weight.T


def row(floor: ReferenceFloor, name: str) -> FloorFigures:
    return next(p for p in floor.perturbations if p.name == name).slices["all"]


@pytest.mark.long
def test_rounding_logits_to_bf16_costs_what_a_naive_computation_says(
    bf16: Any, capture: dict[str, Digest], floor: ReferenceFloor
) -> None:
    kls = []
    for digest in capture.values():
        logits = float32_logits(bf16, digest.tensors["hidden_states"])
        kls.append(naive(logits.numpy(), logits.bfloat16().float().numpy()))
    everything = np.concatenate(kls)
    found = row(floor, "bf16-logits")
    assert found.tokens == len(everything)
    assert found.kl == pytest.approx(everything.mean(), rel=1e-5)  # float32 logits in two summation orders
    assert found.kl_max == pytest.approx(everything.max(), rel=1e-3)
    assert found.kl_p99 == pytest.approx(np.quantile(everything, 0.99), rel=1e-3)
    assert 1e-6 < found.kl < 1e-3


@pytest.mark.long
@torch.inference_mode()
def test_left_padding_costs_what_a_naive_computation_says(
    bf16: Any, items: Sequence[WorkItem], capture: dict[str, Digest], floor: ReferenceFloor
) -> None:
    """Padded as transformers' generation pads, here by its own `pad`, each of the engine's batches to its own width."""
    keys = {item.scores[0].key: item.key for item in items}
    kls = []
    for batch in scoring_batches([item.scores[0] for item in items], CPU_SCORE_BATCH_TOKENS):
        ids = [request.token_ids for request in batch]
        width = max(map(len, ids)) + SHIFT
        padded = bf16.tokenizer.pad(
            {"input_ids": [list(one) for one in ids]},
            padding="max_length",
            max_length=width,
            padding_side="left",
            return_tensors="pt",
        )
        mask = padded["attention_mask"]
        positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)
        states = bf16.model.model(
            input_ids=padded["input_ids"], attention_mask=mask, position_ids=positions, use_cache=False
        ).last_hidden_state
        for at, request in enumerate(batch):
            reference = float32_logits(bf16, capture[keys[request.key]].tensors["hidden_states"])
            perturbed = float32_logits(bf16, states[at, width - len(ids[at]) : -1])
            kls.append(naive(reference.numpy(), perturbed.numpy()))
    everything = np.concatenate(kls)
    found = row(floor, "left-padding")
    assert found.kl == pytest.approx(everything.mean(), rel=1e-3)
    assert 0 < found.kl < 1e-3, "it did not move, or it is another computation"


@pytest.mark.long
def test_the_floor_is_kept_for_its_own_reference_only(tmp_path: Path, floor: ReferenceFloor) -> None:
    path = tmp_path / "floor.json"
    assert read_floor(path, floor.identity, floor.suite_sha256) is None
    write_floor(path, floor)
    assert read_floor(path, floor.identity, floor.suite_sha256) == floor
    for field in ("checkpoint_sha256", "tokenizer_sha256", "engine_version", "kv_cache_dtype"):
        other = floor.identity.model_copy(update={field: "other"})
        with raises(UsageError, "floor-identity", field):
            read_floor(path, other, floor.suite_sha256)
    with raises(UsageError, "floor-identity", "suite_sha256"):
        read_floor(path, floor.identity, "another")
    body = json.loads(path.read_text())
    body["perturbations"][0]["slices"]["all"]["kl"] = 1e-12
    path.write_text(json.dumps(body))
    with raises(UsageError, "floor-damaged"):
        read_floor(path, floor.identity, floor.suite_sha256)
    path.write_text(path.read_text()[:-100])
    with raises(UsageError, "floor-damaged"):
        read_floor(path, floor.identity, floor.suite_sha256)


def figures(kl: float, shift: float = 0.0) -> FloorFigures:
    interval = Interval(lower=0, upper=1, level=0.95, method="x")
    return FloorFigures(
        documents=9,
        tokens=90,
        non_finite_tokens=0,
        kl=kl,
        kl_interval=interval,
        reverse_kl=2 * kl,
        nll_shift=shift,
        nll_shift_interval=interval,
        top1_agreement=1,
        kl_p99=kl,
        kl_max=kl,
    )


def written(*rows: PerturbationFloor) -> ReferenceFloor:
    return ReferenceFloor(version=VERSION, identity=IDENTITY, suite_sha256="s", perturbations=rows)


def test_each_metric_and_slice_has_its_own_largest() -> None:
    still = PerturbationFloor(name="still", what="", slices={"all": figures(0.0), "czech": figures(0.0)})
    one = PerturbationFloor(name="one", what="", slices={"all": figures(3e-6, -2e-5), "czech": figures(1e-6)})
    two = PerturbationFloor(name="two", what="", slices={"all": figures(2e-6, 1e-5), "czech": figures(5e-6)})
    gone = PerturbationFloor(name="gone", what="", skipped="there is no GPU")
    found = {m.key: (m.value, m.note) for m in measurements(written(still, one, two, gone))}
    assert (still.moved, one.moved, gone.moved) == (False, True, False)
    assert found["kl.kl_divergence_noise_floor[all]"] == (3e-6, "one")
    assert found["kl.kl_divergence_noise_floor[czech]"] == (5e-6, "two")
    assert found["kl.reverse_kl_divergence_noise_floor[all]"] == (6e-6, "one")
    assert found["kl.perplexity_noise_floor[all]"] == (2e-5, "one")  # whichever way it moves
    assert found["kl.kl_noise_floor[still]"][0] == 0.0
    assert "kl.kl_noise_floor[gone]" not in found
    assert found["kl.kl_p99_noise_floor[czech]"] == found["kl.kl_max_noise_floor[czech]"] == (5e-6, "two")
    assert found["kl.top1_agreement_noise_floor[all]"][0] == 0.0
    assert found["kl.kl_noise_floor[all]"] == (3e-6, "the largest, one; not measured here: gone (there is no GPU)")


def test_a_floor_that_is_no_number_stays_the_largest(tmp_path: Path) -> None:
    broken = written(
        PerturbationFloor(name="one", what="", slices={"all": figures(1.0)}),
        PerturbationFloor(name="nan", what="", slices={"all": figures(math.nan)}),
    )
    write_floor(tmp_path / "floor.json", broken)
    again = read_floor(tmp_path / "floor.json", broken.identity, "s")
    largest = again.largest("kl_divergence", "all")
    assert largest.name == "nan"


class Broken(Only):
    """Every variant's engine runs out of memory."""

    def perturbations(self) -> list[Any]:
        return [replace(p, variant=lambda: self) for p in super().perturbations() if p.rescores]

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[Scored]:
        yield from (Scored(request, None, error="out of memory") for request in requests)


def test_an_engine_that_breaks_gives_no_figure(
    bf16: Any, probe: KLProbe, items: list[WorkItem], capture: dict[str, Digest]
) -> None:
    (found,) = measured(Broken(bf16), probe, items, capture).perturbations
    assert (found.failed, found.slices, found.skipped) == (True, {}, "the engine failed: out of memory")


def test_the_sample_takes_every_slice_in_turn_within_its_tokens() -> None:
    rows = [WorkItem(f"{i:02d}", (ScoreRequest(f"{i}", (1,) * 100),)) for i in range(30)]
    slices = {item.key: "abc"[int(item.key) % 3] for item in rows}
    assert [item.key for item in chosen(rows, slices, 650, 2)] == ["00", "01", "02", "03", "04", "05"]
    assert len(chosen(rows, slices, 50, 4)) == 4
