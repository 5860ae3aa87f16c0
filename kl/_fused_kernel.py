# mypy: ignore-errors
"""The Triton kernel behind `kl.scoring`: one program per row."""

import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.0e38)
NEGATIVE_INFINITY = tl.constexpr(float("-inf"))


@triton.jit
def _risen(m, x):
    """The rise of a running maximum m by a new value x, and the factors for m's earlier terms and for x's own."""
    step = x - m
    smaller = tl.exp(-tl.abs(step))
    rises = step > 0
    return step, rises, tl.where(rises, smaller, 1.0), tl.where(rises, 1.0, smaller)


@triton.jit
def _guarded(reference, branch, total_a, total_b, top_a, top_b, vocabulary, block: tl.constexpr):
    """E_p[x - y], E_q[y - x], E_p[x - top] and whether p or q is impossible at a token that the other allows.

    Repeats the plain loop's sums for a row that holds an impossible token: here 0 times infinity is 0.
    """
    lane = tl.arange(0, block)
    ta = tl.zeros([block], tl.float64)
    tb = tl.zeros([block], tl.float64)
    ua = tl.zeros([block], tl.float64)
    only = tl.zeros([block], tl.int32)
    for begin in range(0, vocabulary, block):
        at = begin + lane
        a = tl.load(reference + at, mask=at < vocabulary, other=NEGATIVE_INFINITY)
        b = tl.load(branch + at, mask=at < vocabulary, other=NEGATIVE_INFINITY)
        a_possible, b_possible = a > NEGATIVE_INFINITY, b > NEGATIVE_INFINITY
        difference = tl.where(a_possible & b_possible, a - b, 0.0).to(tl.float64)
        below = tl.where(a_possible, a - top_a, 0.0)
        weight_a = tl.where(a_possible, tl.exp(below), 0.0).to(tl.float64)
        weight_b = tl.where(b_possible, tl.exp(b - top_b), 0.0).to(tl.float64)
        ta += weight_a * difference
        tb -= weight_b * difference
        ua += weight_a * below.to(tl.float64)
        only |= tl.where(a_possible & (b == NEGATIVE_INFINITY), 1, 0)
        only |= tl.where(b_possible & (a == NEGATIVE_INFINITY), 2, 0)
    which = tl.reduce_or(only, axis=0)
    return tl.sum(ta, axis=0) / total_a, tl.sum(tb, axis=0) / total_b, tl.sum(ua, axis=0) / total_a, which


@triton.jit
def _rank(branch, first, vocabulary, block: tl.constexpr):
    """The number of tokens with a larger branch logit than the token `first`."""
    lane = tl.arange(0, block)
    mark = tl.load(branch + first)
    higher = tl.zeros([block], tl.int32)
    for begin in range(0, vocabulary, block):
        at = begin + lane
        b = tl.load(branch + at, mask=at < vocabulary, other=NEGATIVE_INFINITY)
        higher += tl.where(b > mark, 1, 0)
    return tl.sum(higher, axis=0)


@triton.jit
def row_figures(
    reference, branch, labels, real, rank, reference_stride, branch_stride, vocabulary, block: tl.constexpr
):
    """Row r of `real` [T, 5] and `rank` [T] from row r of the float32 logits.

    Per lane and deployment: m, the largest logit so far; s = sum e^(x-m); t = sum e^(x-m) (x - other); for the
    reference also u = sum e^(x-m) (x-m), and the tile that first held m; low, the smallest logit of both.
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
    where_a = tl.zeros([block], tl.int32)
    low = tl.zeros([block], tl.float32)
    # the next tile loads while one is summed; nothing is read twice, so nothing needs to stay in the cache
    a_next = tl.load(a_row + lane, mask=lane < vocabulary, other=LOWEST, eviction_policy="evict_first")
    b_next = tl.load(b_row + lane, mask=lane < vocabulary, other=LOWEST, eviction_policy="evict_first")
    for begin in range(0, vocabulary, block):
        # past the end: the lowest number, which adds nothing to any sum
        a, b = a_next, b_next
        ahead = begin + block + lane
        a_next = tl.load(a_row + ahead, mask=ahead < vocabulary, other=LOWEST, eviction_policy="evict_first")
        b_next = tl.load(b_row + ahead, mask=ahead < vocabulary, other=LOWEST, eviction_policy="evict_first")
        difference = a - b
        low = tl.minimum(low, tl.minimum(a, b))

        step, rises, keep, weight = _risen(ma, a)
        ua = keep * (ua - tl.maximum(step, 0.0) * sa) + weight * tl.minimum(step, 0.0)
        sa = sa * keep + weight
        ta = ta * keep + weight * difference
        ma = tl.where(rises, a, ma)
        where_a = tl.where(rises, begin, where_a)

        step, rises, keep, weight = _risen(mb, b)
        sb = sb * keep + weight
        tb = tb * keep - weight * difference
        mb = tl.where(rises, b, mb)

    top_a, top_b = tl.max(ma, axis=0), tl.max(mb, axis=0)
    first = tl.min(tl.where(ma == top_a, where_a + lane, vocabulary - 1), axis=0)
    below_a, below_b = (ma - top_a).to(tl.float64), (mb - top_b).to(tl.float64)
    weight_a, weight_b = tl.exp(below_a), tl.exp(below_b)
    total_a = tl.sum(sa.to(tl.float64) * weight_a, axis=0)
    total_b = tl.sum(sb.to(tl.float64) * weight_b, axis=0)
    difference_a = tl.sum(ta.to(tl.float64) * weight_a, axis=0) / total_a
    difference_b = tl.sum(tb.to(tl.float64) * weight_b, axis=0) / total_b
    below = tl.sum((ua.to(tl.float64) + below_a * sa.to(tl.float64)) * weight_a, axis=0) / total_a
    # NaN and +inf propagate to their sums; a row of only -inf has no largest value
    broken = (total_a != total_a) | (total_b != total_b) | (top_a <= LOWEST) | (top_b <= LOWEST)
    only = 0
    if tl.min(low, axis=0) == NEGATIVE_INFINITY:
        difference_a, difference_b, below, only = _guarded(
            a_row, b_row, total_a, total_b, top_a, top_b, vocabulary, block
        )

    log_a, log_b = tl.log(total_a), tl.log(total_b)
    shift = (top_a.to(tl.float64) - top_b.to(tl.float64)) + (log_a - log_b)
    nothing, infinite = float("nan"), float("inf")
    forward = tl.where((only & 1) != 0, infinite, tl.maximum(difference_a - shift, 0.0))
    reverse = tl.where((only & 2) != 0, infinite, tl.maximum(difference_b + shift, 0.0))
    label = tl.load(labels + row)
    a_label = tl.load(a_row + label).to(tl.float64) - top_a.to(tl.float64) - log_a
    b_label = tl.load(b_row + label).to(tl.float64) - top_b.to(tl.float64) - log_b
    out = real + row * 5
    tl.store(out, tl.where(broken, nothing, forward))
    tl.store(out + 1, tl.where(broken, nothing, reverse))
    tl.store(out + 2, tl.where(broken, nothing, tl.maximum(log_a - below, 0.0)))
    tl.store(out + 3, tl.where(broken, nothing, a_label))
    tl.store(out + 4, tl.where(broken, nothing, b_label))
    place = tl.where(broken, -1, 0)
    if (place == 0) & (tl.load(b_row + first) < top_b):  # rare, so that a second pass over the row costs little
        place = _rank(b_row, first, vocabulary, block)
    tl.store(rank + row, place)
