"""Our figures against llama.cpp's formulas where its format holds all there is to hold, and where it does not."""

import hashlib
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from q36eval.kl.divergence import token_figures
from tests.kl.peer import PeerFigures, peer_figures, read_stored, restored, stored_rows

RECORDED = Path(__file__).parent / "llama_cpp"


def both(reference, branch, labels) -> tuple[PeerFigures, dict[str, np.ndarray]]:
    peer = peer_figures(stored_rows(reference), branch, labels)
    figures = token_figures(*(torch.from_numpy(x) for x in (reference, branch, labels.astype(np.int64))))
    return peer, {name: getattr(figures, name).numpy() for name in vars(figures)}


def test_the_estimators_agree_where_nothing_is_clamped() -> None:
    rng = np.random.default_rng(31)
    reference = rng.normal(0, 2, (400, 97)).astype(np.float32)  # of an odd vocabulary, whose rows are padded
    branch = (reference + rng.normal(0, 0.3, reference.shape)).astype(np.float32)
    labels = rng.integers(0, 97, 400).astype(np.int32)
    assert (reference.max(-1) - reference.min(-1)).max() < 16
    peer, ours = both(reference, branch, labels)
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


def test_its_clamp_loses_a_tail_that_ours_keeps() -> None:
    # 20,000 tokens at 17 nats below the likeliest: 0.08 % of the reference's mass, which the branch lowers by 8 nats
    reference = np.full((1, 20_001), -17.0, np.float32)
    reference[0, 0] = 0.0
    branch = reference.copy()
    branch[0, 1:] -= 8.0
    peer, ours = both(reference, branch, np.array([7], np.int32))
    tail, lowered = 20_000 * math.exp(-17), 20_000 * math.exp(-25)
    gained = math.log1p(lowered) - math.log1p(tail)  # the likeliest token's log p - log q; the others' is 8 more
    exact = gained + 8 * tail / (1 + tail)
    assert ours["forward_kl"][0] == pytest.approx(exact, rel=1e-9)
    assert exact == pytest.approx(5.8e-3, rel=0.02)
    assert peer.kld[0] < 0  # a divergence cannot be: what is left of the sum is the likeliest token's own loss
    # and a label that unlikely is held likelier than it is, so the reference's perplexity comes out too low
    assert -peer.nll_base[0] - ours["reference_logprob"][0] == pytest.approx(1.0, abs=1e-3)


def test_its_file_is_read_and_written_as_it_does() -> None:
    stored = read_stored(RECORDED / "base.logits")
    assert (stored.context, stored.vocabulary, stored.tokens.shape) == (64, 1024, (1, 64))
    log_p = restored(stored.rows[0], stored.vocabulary)
    # what lies at the clamp is counted at its height, so a row's sum may exceed one by as much as lies there
    assert np.exp(log_p.astype(np.float64)).sum(-1) == pytest.approx(np.ones(31), abs=1.5e-4)
    again = restored(stored_rows(log_p), stored.vocabulary)
    assert again == pytest.approx(log_p, abs=16 / 65535)
    with pytest.raises(ValueError, match="does not begin as"):
        read_stored(RECORDED / "printed.txt")


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
