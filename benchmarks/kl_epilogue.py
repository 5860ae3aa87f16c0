"""An experiment: KL(p || q) in the epilogue of both head products, so that no logit ever reaches memory.

`benchmarks/kl.py` compares it with what q36eval does, a cuBLAS product per head and one pass over the tiles. It yields
the forward divergence alone, one of seven figures, so it is a lower bound on what such a kernel would take.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

SPLITS = 4
COLUMNS = 5


@triton.jit
def _partial_sums(
    states_p, states_q, head_p, head_q, out, tokens, vocabulary,
    width: tl.constexpr, splits: tl.constexpr, rows: tl.constexpr, words: tl.constexpr, depth: tl.constexpr,
):  # fmt: skip
    """Of a block of rows and a share of the vocabulary: m_p, s_p, t = sum e^(x-m_p) (x - y), m_q, s_q."""
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    share = tl.program_id(1)
    mp = tl.full([rows], -3.0e38, tl.float32)
    mq = tl.full([rows], -3.0e38, tl.float32)
    sp = tl.zeros([rows], tl.float32)
    sq = tl.zeros([rows], tl.float32)
    t = tl.zeros([rows], tl.float32)
    tiles = tl.cdiv(vocabulary, words)
    for tile in range(share, tiles, splits):
        word = tile * words + tl.arange(0, words)
        inside = word < vocabulary
        p = tl.zeros([rows, words], tl.float32)
        q = tl.zeros([rows, words], tl.float32)
        for begin in range(0, width, depth):
            at = begin + tl.arange(0, depth)
            states_at = row[:, None] * width + at[None, :]
            head_at = word[None, :] * width + at[:, None]
            xp = tl.load(states_p + states_at, mask=row[:, None] < tokens, other=0.0)
            xq = tl.load(states_q + states_at, mask=row[:, None] < tokens, other=0.0)
            wp = tl.load(head_p + head_at, mask=inside[None, :], other=0.0)
            wq = tl.load(head_q + head_at, mask=inside[None, :], other=0.0)
            p = tl.dot(xp, wp, p)
            q = tl.dot(xq, wq, q)
        difference = tl.where(inside[None, :], p - q, 0.0)
        p = tl.where(inside[None, :], p, float("-inf"))
        q = tl.where(inside[None, :], q, float("-inf"))
        new = tl.maximum(mp, tl.max(p, axis=1))
        weight, keep = tl.exp(p - new[:, None]), tl.exp(mp - new)
        sp = sp * keep + tl.sum(weight, axis=1)
        t = t * keep + tl.sum(weight * difference, axis=1)
        mp = new
        new = tl.maximum(mq, tl.max(q, axis=1))
        sq = sq * tl.exp(mq - new) + tl.sum(tl.exp(q - new[:, None]), axis=1)
        mq = new
    place = out + (row * splits + share) * 5
    kept = row < tokens
    tl.store(place, mp, mask=kept)
    tl.store(place + 1, sp, mask=kept)
    tl.store(place + 2, t, mask=kept)
    tl.store(place + 3, mq, mask=kept)
    tl.store(place + 4, sq, mask=kept)


def divergences(
    states_p: Tensor, states_q: Tensor, head_p: Tensor, head_q: Tensor,
    rows: int = 128, words: int = 128, depth: int = 64, warps: int = 8, stages: int = 3,
) -> Tensor:  # fmt: skip
    """KL(p || q) [T] in float64 nats from BF16 hidden states [T, H] and heads [V, H]."""
    tokens, width = states_p.shape
    out = torch.empty(tokens, SPLITS, COLUMNS, device=states_p.device)
    _partial_sums[(triton.cdiv(tokens, rows), SPLITS)](
        states_p, states_q, head_p, head_q, out, tokens, len(head_p),
        width=width, splits=SPLITS, rows=rows, words=words, depth=depth, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    mp, sp, t, mq, sq = out.double().unbind(-1)
    top_p, top_q = mp.amax(-1, keepdim=True), mq.amax(-1, keepdim=True)
    total_p = (sp * (mp - top_p).exp()).sum(-1)
    total_q = (sq * (mq - top_q).exp()).sum(-1)
    mean = (t * (mp - top_p).exp()).sum(-1) / total_p
    shift = (top_p - top_q).squeeze(-1) + total_p.log() - total_q.log()
    return (mean - shift).clamp(min=0.0)
