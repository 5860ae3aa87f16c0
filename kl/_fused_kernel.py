# mypy: ignore-errors
"""The Triton kernel behind `kl.fused`: one program a row."""

import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.0e38)
NEGATIVE_INFINITY = tl.constexpr(float("-inf"))


@triton.jit
def row_figures(
    reference, branch, labels, real, integer, reference_stride, branch_stride, vocabulary, block: tl.constexpr
):
    """Row r of `real` [T, 5] and `integer` [T, 2] from row r of the float32 logits.

    Per lane and deployment: m, the largest logit so far; s = sum e^(x-m); t = sum e^(x-m) * (x - other), over tokens
    that neither holds impossible; u = sum e^(x-m) * (x-m), of the reference; i, where m was first seen.
    """
    row = tl.program_id(0).to(tl.int64)
    a_row, b_row = reference + row * reference_stride, branch + row * branch_stride
    lane = tl.arange(0, block)
    ma = tl.full([block], LOWEST, tl.float32)
    mb = tl.full([block], LOWEST, tl.float32)
    sa = tl.zeros([block], tl.float32)
    sb = tl.zeros([block], tl.float32)
    ta = tl.zeros([block], tl.float32)
    tb = tl.zeros([block], tl.float32)
    ua = tl.zeros([block], tl.float32)
    ia = tl.zeros([block], tl.int32)
    ib = tl.zeros([block], tl.int32)
    faults = tl.zeros([block], tl.int32)
    a_next = tl.load(a_row + lane, mask=lane < vocabulary, other=NEGATIVE_INFINITY)
    b_next = tl.load(b_row + lane, mask=lane < vocabulary, other=NEGATIVE_INFINITY)
    for begin in range(0, vocabulary, block):
        a, b = a_next, b_next
        at = begin + lane
        ahead = at + block
        a_next = tl.load(a_row + ahead, mask=ahead < vocabulary, other=NEGATIVE_INFINITY)
        b_next = tl.load(b_row + ahead, mask=ahead < vocabulary, other=NEGATIVE_INFINITY)
        a_possible, b_possible = a > NEGATIVE_INFINITY, b > NEGATIVE_INFINITY
        both = a_possible & b_possible
        # 1: NaN or +inf; 2: only the reference holds the token possible; 4: only the branch does
        no_number = (a != a) | (b != b) | (a == float("inf")) | (b == float("inf"))
        faults |= tl.where(no_number, 1, 0) | tl.where(a_possible & (b == NEGATIVE_INFINITY), 2, 0)
        faults |= tl.where(b_possible & (a == NEGATIVE_INFINITY), 4, 0)
        difference = tl.where(both, a - b, 0.0)

        step = a - ma
        decay = tl.exp(-tl.abs(step))
        rises = step > 0
        keep, weight = tl.where(rises, decay, 1.0), tl.where(rises, 1.0, decay)
        own = tl.where(rises | (a == NEGATIVE_INFINITY), 0.0, weight * step)
        ua = keep * (ua - tl.where(rises, step * sa, 0.0)) + own
        sa = sa * keep + weight
        ta = ta * keep + weight * difference
        ma = tl.where(rises, a, ma)
        ia = tl.where(rises, at, ia)

        step = b - mb
        decay = tl.exp(-tl.abs(step))
        rises = step > 0
        keep, weight = tl.where(rises, decay, 1.0), tl.where(rises, 1.0, decay)
        sb = sb * keep + weight
        tb = tb * keep - weight * difference
        mb = tl.where(rises, b, mb)
        ib = tl.where(rises, at, ib)

    top_a, top_b = tl.max(ma, axis=0), tl.max(mb, axis=0)
    first_a = tl.min(tl.where(ma == top_a, ia, vocabulary), axis=0)
    first_b = tl.min(tl.where(mb == top_b, ib, vocabulary), axis=0)
    below_a, below_b = (ma - top_a).to(tl.float64), (mb - top_b).to(tl.float64)
    weight_a, weight_b = tl.exp(below_a), tl.exp(below_b)
    total_a = tl.sum(sa.to(tl.float64) * weight_a, axis=0)
    total_b = tl.sum(sb.to(tl.float64) * weight_b, axis=0)
    mean_difference_a = tl.sum(ta.to(tl.float64) * weight_a, axis=0) / total_a
    mean_difference_b = tl.sum(tb.to(tl.float64) * weight_b, axis=0) / total_b
    spread = tl.sum((ua.to(tl.float64) + below_a * sa.to(tl.float64)) * weight_a, axis=0)
    log_a, log_b = tl.log(total_a), tl.log(total_b)
    shift = (top_a.to(tl.float64) - top_b.to(tl.float64)) + (log_a - log_b)
    fault = tl.reduce_or(faults, axis=0)
    broken = ((fault & 1) != 0) | (total_a == 0) | (total_b == 0)
    nothing = float("nan")
    forward = tl.where((fault & 2) != 0, float("inf"), tl.maximum(mean_difference_a - shift, 0.0))
    reverse = tl.where((fault & 4) != 0, float("inf"), tl.maximum(mean_difference_b + shift, 0.0))
    label = tl.load(labels + row)
    a_label = tl.load(a_row + label).to(tl.float64) - top_a.to(tl.float64) - log_a
    b_label = tl.load(b_row + label).to(tl.float64) - top_b.to(tl.float64) - log_b
    out = real + row * 5
    tl.store(out, tl.where(broken, nothing, forward))
    tl.store(out + 1, tl.where(broken, nothing, reverse))
    tl.store(out + 2, tl.where(broken, nothing, tl.maximum(log_a - spread / total_a, 0.0)))
    tl.store(out + 3, tl.where(broken, nothing, a_label))
    tl.store(out + 4, tl.where(broken, nothing, b_label))

    rank = 0
    if first_a != first_b:  # rare, so that the second pass over the branch's row costs little
        mark = tl.load(b_row + first_a)
        higher = tl.zeros([block], tl.int32)
        for begin in range(0, vocabulary, block):
            at = begin + lane
            b = tl.load(b_row + at, mask=at < vocabulary, other=NEGATIVE_INFINITY)
            higher += tl.where(b > mark, 1, 0)
        rank = tl.sum(higher, axis=0)
    tl.store(integer + row * 2, tl.where((first_a == first_b) & (broken == 0), 1, 0))
    tl.store(integer + row * 2 + 1, tl.where(broken, -1, rank))
