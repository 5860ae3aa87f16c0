"""Per-token figures against their definitions in Python floats, on random, adversarial and degenerate logits.

The same cases run on a GPU's kernel where there is one.
"""

import hashlib
import json
import math
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from q36eval.checkpoints import load_model
from q36eval.kl.divergence import TokenFigures, token_figures
from q36eval.kl.scoring import FigureBuffer
from tests import smollm2
from tests.assets.smollm2_decoded import TEXTS
from tests.kl import naive
from tests.kl.peer import (
    StoredLogits,
    ours,
    parse_printed,
    peer_figures,
    read_stored,
    stored_rows,
)
from tests.profiles import sized

V = 50
INF = math.inf


def random(scale: float) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    reference = torch.randn(8, V) * scale
    return reference, reference + torch.randn(8, V) * scale / 8


def with_values(values: dict[tuple[int, int, int], float]) -> tuple[Tensor, Tensor]:
    """Random logits of (0) reference and (1) branch with some values replaced: (which, row, token) to value."""
    pair = random(1.0)
    for (which, row, token), value in values.items():
        pair[which][row, token] = value
    return pair


def one_hot() -> tuple[Tensor, Tensor]:
    reference = torch.full((2, V), -1e4)
    reference[:, 40] = 0
    branch = reference.clone()
    branch[1, 40], branch[1, 3] = -1e4, 0
    return reference, branch


CASES: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "small": lambda: random(1e-3),
    "ordinary": lambda: random(4.0),
    "scale 1e4": lambda: random(1e4),
    "ties throughout": lambda: (torch.zeros(2, V), torch.ones(2, V)),
    "one-hot": one_hot,
    "impossible for the reference": lambda: with_values({(0, 1, 7): -INF}),
    "impossible for the branch": lambda: with_values({(1, 2, 7): -INF}),
    "impossible for both": lambda: with_values({(0, 3, 7): -INF, (1, 3, 7): -INF}),
    "equal": lambda: (random(1.0)[0], random(1.0)[0]),
    "equal but for a constant": lambda: (random(1.0)[0], random(1.0)[0] + 5),
}
ON_GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


def computed(reference: Tensor, branch: Tensor, labels: Tensor, device: str) -> TokenFigures:
    if device == "cpu":
        return token_figures(reference, branch, labels)
    buffer = FigureBuffer(len(labels), torch.device(device))
    buffer.fill(0, reference.to(device), branch.to(device), labels.to(device))
    return buffer.figures()


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
@pytest.mark.parametrize("case", CASES)
def test_every_figure_equals_its_definition(case: str, device: str) -> None:
    reference, branch = CASES[case]()
    labels = torch.arange(len(reference)) % V
    found = computed(reference, branch, labels, device)
    # the GPU's exponentials are float32's: 2^-24 relative each, of logits that are exact
    near = {"rel": 1e-9, "abs": 1e-12} if device == "cpu" else {"rel": 2e-6, "abs": 2e-6}
    for row in range(len(reference)):
        expected = naive.figures(reference[row].double().tolist(), branch[row].double().tolist(), int(labels[row]))
        for column, value in expected.items():
            assert float(getattr(found, column)[row]) == pytest.approx(value, **near), column
    assert bool((found.forward_kl >= 0).all())
    assert bool((found.reverse_kl >= 0).all())


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
def test_equal_logits_diverge_by_exactly_zero(device: str) -> None:
    logits = torch.randn(5, 5000) * 10
    found = computed(logits, logits.clone(), torch.zeros(5, dtype=torch.long), device)
    assert found.forward_kl.tolist() == found.reverse_kl.tolist() == [0.0] * 5
    assert found.top1_agrees.all()
    assert found.finite.all()


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("value", [math.nan, INF])
def test_logits_that_are_no_distribution_give_no_figure(value: float, which: int, device: str) -> None:
    pair = with_values({(which, 1, 2): value})
    pair[which][4] = -INF
    found = computed(*pair, torch.full((8,), 3), device)
    assert found.finite.tolist() == [True, False, True, True, False, True, True, True]
    for column in fields(found):
        values = getattr(found, column.name)[[1, 4]].tolist()
        assert values == {"top1_agrees": [False] * 2, "top1_rank": [-1] * 2}.get(column.name) or all(
            math.isnan(float(each)) for each in values
        )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("vocabulary", [943, 2048, 248_320])
def test_the_kernel_equals_the_portable_path_at_any_width(vocabulary: int) -> None:
    torch.manual_seed(vocabulary)
    reference = torch.randn(64, vocabulary, device="cuda") * 3
    branch = reference + torch.randn_like(reference) * 0.05
    labels = torch.randint(0, vocabulary, (64,), device="cuda")
    found, expected = computed(reference, branch, labels, "cuda"), token_figures(reference, branch, labels)
    for column in fields(found):
        ours, theirs = getattr(found, column.name).double(), getattr(expected, column.name).double()
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-7)


@given(st.data())
@settings(max_examples=sized(20, 60), deadline=None)
def test_a_divergence_is_never_negative(data: st.DataObject) -> None:
    number = st.floats(-1e4, 1e4, width=32) | st.just(-INF)
    rows = [data.draw(st.lists(number, min_size=4, max_size=4).filter(lambda row: max(row) > -INF)) for _ in range(2)]
    found = token_figures(torch.tensor(rows[:1]), torch.tensor(rows[1:]), torch.tensor([0]))
    assert float(found.forward_kl[0]) >= 0
    assert float(found.reverse_kl[0]) >= 0
    assert float(found.reference_entropy[0]) >= 0


# -- the same figures by llama.cpp's tool and its formulas


RECORDED = Path(__file__).parent / "llama_cpp"
LLAMA = os.environ.get("Q36EVAL_LLAMA_CPP")
EXACT = ("-t", "1", "-fa", "off", "-ctk", "f32", "-ctv", "f32")
"""One thread; attention and KV cache in float32."""


def test_the_estimators_agree_where_nothing_is_clamped() -> None:
    rng = np.random.default_rng(31)
    reference = rng.normal(0, 2, (400, 97)).astype(np.float32)  # of an odd vocabulary, whose rows are padded
    branch = (reference + rng.normal(0, 0.3, reference.shape)).astype(np.float32)
    labels = rng.integers(0, 97, 400).astype(np.int32)
    assert (reference.max(-1) - reference.min(-1)).max() < 16
    peer = peer_figures(stored_rows(reference), branch, labels)
    figures = token_figures(*(torch.from_numpy(x) for x in (reference, branch, labels.astype(np.int64))))
    ours = {name: getattr(figures, name).numpy() for name in vars(figures)}
    # half a step of its 16 bits is at most 1.2e-4 nats, and random: of a mean over a row, a tenth of that is left
    assert peer.kld == pytest.approx(ours["forward_kl"], abs=3e-5)
    printed = peer.printed()
    assert printed["Mean KLD"] == pytest.approx(ours["forward_kl"].mean(), abs=3e-6)
    ordered = np.sort(ours["forward_kl"])
    for share in (90.0, 95.0, 99.0, 99.9):
        assert printed[f"{share:.1f}% KLD"] == pytest.approx(np.quantile(ordered, share / 100), abs=5e-5)
    assert printed["Median KLD"] == pytest.approx(np.median(ordered), abs=3e-5)
    assert printed["Same top p"] == pytest.approx(100 * ours["top1_agrees"].mean(), abs=100 / 400)
    difference = np.exp(ours["branch_logprob"]) - np.exp(ours["reference_logprob"])
    assert printed["RMS Δp"] == pytest.approx(100 * np.sqrt((difference**2).mean()), rel=1e-3)
    ratio = np.exp(ours["reference_logprob"].mean() - ours["branch_logprob"].mean())
    assert printed["Mean PPL(Q)/PPL(base)"] == pytest.approx(ratio, abs=3e-5)


def test_its_formulas_give_what_the_tool_printed() -> None:
    """The tool's own file and line for one chunk; the branch's logits are ours, from the same weights in float32."""
    manifest = json.loads((RECORDED / "manifest.json").read_text())
    for name, digest in manifest["files"].items():
        assert hashlib.sha256((RECORDED / name).read_bytes()).hexdigest() == digest
    stored = read_stored(RECORDED / "base.logits")
    figures = peer_figures(stored.rows[0], np.load(RECORDED / "branch.npy"), stored.labels[0])
    printed = figures.printed()
    line = (RECORDED / "printed.txt").read_text().splitlines()[-1]
    _, branch, _, ratio, _, mean, error, rms, _, top, _ = map(float, re.findall(r"-?\d+(?:\.\d+)?", line))
    # half of the last digit printed, and what the order of additions changes in float32 logits (about 1e-6 nats)
    assert mean == pytest.approx(printed["Mean KLD"], abs=7e-6)
    assert error == pytest.approx(printed["Mean KLD ±"], abs=7e-6)
    assert np.exp(ratio) == pytest.approx(printed["Mean PPL(Q)/PPL(base)"], abs=1e-5)
    assert branch == pytest.approx(printed["Mean PPL(Q)"], abs=7e-5)
    assert figures.kld.min() < 0  # 16 bits: what no divergence can be
    assert (rms, top) == pytest.approx((printed["RMS Δp"], printed["Same top p"]), abs=6e-4)


def tool(name: str, *arguments: object) -> str:
    """What a tool of llama.cpp printed."""
    command = [Path(str(LLAMA), "build", "bin", f"llama-{name}"), *arguments]
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout


@torch.inference_mode()
def scored_logits(gguf: Path, stored: StoredLogits) -> np.ndarray:
    """Logits [T, V] of the tokens that llama.cpp scored, by our reader of GGUFs, in float32."""
    model = load_model(gguf, dtype=torch.float32).model
    chunks = torch.from_numpy(stored.tokens.astype(np.int64))
    logits = model(input_ids=chunks, use_cache=False).logits[:, stored.context // 2 : -1]
    return logits.reshape(-1, stored.vocabulary).numpy()


@pytest.mark.long
@pytest.mark.skipif(LLAMA is None, reason="Q36EVAL_LLAMA_CPP names no folder with llama.cpp")
def test_the_tool_prints_our_figures_for_the_same_pair_of_ggufs(tmp_path: Path) -> None:
    """SmolLM2 decoded from Q4_1 to float32, and that in Q4_K_M, which llama.cpp decodes to float32 again.

    Of the decoded file llama.cpp computes the same logits as we do. Of Q4_K_M itself it rounds the inputs of products
    to 8 bits, too, which costs a tenth more.
    """
    reference, branch, decoded = (tmp_path / f"{name}.gguf" for name in ("f32", "q4-k-m", "decoded"))
    for source, target, kind in (
        (smollm2.gguf(), reference, "F32"),
        (reference, branch, "Q4_K_M"),
        (branch, decoded, "F32"),
    ):
        tool("quantize", "--allow-requantize", source, target, kind, 1)
    text, base = tmp_path / "text", tmp_path / "base"
    text.write_text("\n\n".join(TEXTS["evaluation"]), encoding="utf-8")
    window = ("-c", 128, "-b", 128)
    tool("perplexity", "-m", reference, *EXACT, *window, "-f", text, "--kl-divergence-base", base)
    compare = (*EXACT, *window, "--kl-divergence-base", base, "--kl-divergence")
    rounding_inputs, exact = (parse_printed(tool("perplexity", "-m", file, *compare)) for file in (branch, decoded))
    stored = read_stored(base)
    labels = stored.labels.reshape(-1)
    logits = [scored_logits(file, stored) for file in (reference, branch)]
    by_formulas = peer_figures(stored.rows.reshape(len(labels), -1), logits[1], labels).printed()
    figures = ours(token_figures(*map(torch.from_numpy, (*logits, labels.astype(np.int64)))))
    for name, value in figures.items():
        digits = 6e-4 if "Δp" in name or "top" in name else 2e-5  # as printed, and the order of sums in float32
        assert exact[name] == pytest.approx(by_formulas[name], abs=digits), name
        # its 16 bits and its clamp take 0.2 % of the divergence
        assert value == pytest.approx(exact[name], rel=5e-3, abs=digits), name
    assert figures["Mean KLD"] > exact["Mean KLD"]
    assert 1 < rounding_inputs["Mean KLD"] / figures["Mean KLD"] < 1.25
    assert rounding_inputs["Same top p"] == pytest.approx(figures["Same top p"], abs=2)
