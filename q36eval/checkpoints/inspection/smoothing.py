"""Smoothing folded out: what a norm was divided by, the weights behind it were multiplied by, and nothing is computed
otherwise.

AWQ (Lin et al., arXiv 2306.00978, section 3.2) and SmoothQuant (Xiao et al., arXiv 2211.10438, equation 3) choose a
factor s per channel, divide what gives the channel by it and multiply what takes it: W diag(s) (diag(s)⁻¹ x) = W x.
Givers here are a layer's two norms, whose weight w counts as 1 + w where it is zero-centred (Qwen3.5, Gemma), so that
s = (1 + w_reference) / (1 + w_branch); and the rows of `up_proj` and `v_proj`, for the columns of `down_proj` and
`o_proj` (a head of `v_proj` for all that share it).

A norm that differs is smoothing only where the weights behind it carry the same factor. Unquantized ones carry it up to
two roundings to BF16 of each value, all with one factor per channel, which may differ from the norms' by what storing
those in BF16 costs (llm-compressor 0.14 rounds 1 + w and w'). Quantized ones are judged by least squares per channel,
b = <q, w s> / |w s|², which for all channels together must follow s; no single one may be off by more than the standard
error of q - r around it, where r is w s rounded to the stored grid: AWQ rounds small channels to zero. What remains is
judged as any weight is, against the reference's times s. Where most do not carry it, nothing is folded.

llm-compressor 0.14 turns every zero-centred norm into 1 + w in BF16 while it runs any recipe (`offset_norm.py`), and
back: w' = BF16(1 + w) - 1, bit for bit. That is said, and no difference.
"""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from q36eval.checkpoints.inspection.comparison import nearest
from q36eval.checkpoints.inspection.error import (
    BF16_UNIT,
    Examined,
    Factors,
    Pass,
    is_beyond,
    within_roundings,
)
from q36eval.checkpoints.inspection.findings import Finding, Section, Severity, finding
from q36eval.checkpoints.inspection.grids import TINY
from q36eval.checkpoints.inspection.stacks import examine_all, threads
from q36eval.checkpoints.weights import LogicalWeight

NORM_ROUNDINGS = 4.0
LEAST_SHARE = 0.5
"""Of the weights behind a norm that carry its factor, and of a pair's channels."""
LOOSE, DEVIATIONS = 0.1, 6.0
"""A quantized channel may be off by a tenth and six deviations of its own estimate."""
LEAST_SLOPE, MOST_SLOPE, KNOWN_SLOPE = 0.5, 1.5, 0.15
"""Of log b over log s: 1 where the factor is carried, 0 where not; unknown where its deviation is larger."""
LEAST_SPREAD = 0.02
"""Root mean square of log s from which a pair of projections counts as smoothed."""

Units = Mapping[str, LogicalWeight]


@dataclass
class Folding:
    """What was found: factors by weight, the weights that do not carry theirs, and what was smoothed."""

    factors: dict[str, Factors] = field(default_factory=dict)
    columns: dict[str, Factors] = field(default_factory=dict)
    """What the norm before them asks of weights, whether they carry it or not."""
    faults: dict[str, str] = field(default_factory=dict)
    norms: dict[str, Tensor] = field(default_factory=dict)
    pairs: dict[str, Tensor] = field(default_factory=dict)


def smoothing_folded_out(
    units: Units, examined: Sequence[Examined], how: Pass, workers: int
) -> tuple[list[Examined], list[Finding]]:
    """The weights as examined, those of smoothed channels anew with the factors folded out, and what is said of it.

    Nothing is read again where nothing differs that smoothing could explain.

    Raises:
        UsageError: the reference's weight cannot be decoded.
        EngineError: the memory of this machine does not suffice, or its disk gives errors.
    """
    outcomes = dict(zip(units, examined, strict=True))
    found = Folding()
    changed = [name for name in units if name.endswith("norm.weight") and _is_changed(outcomes[name])]
    rounded = [name for name in changed if _is_rounded(units[name], how)]
    outcomes |= {name: _without_difference(outcomes[name]) for name in rounded}
    with threads(workers) as pool:
        for norm in [name for name in changed if name not in rounded and name.endswith("layernorm.weight")]:
            _fold_norm(norm, units, outcomes, how, pool, found)
        _fold_pairs(units, outcomes, how, pool, found)
    again = {name: units[name] for name in found.factors}
    folded = examine_all(list(again.values()), replace(how, factors=found.factors), workers)
    outcomes |= zip(again, folded, strict=True)
    for norm in found.norms:
        outcomes[norm] = _without_difference(outcomes[norm], folded=True)
    for name, fault in found.faults.items():
        message = f"{name}: {fault}"
        lost = finding(Section.WEIGHTS, "smoothing-not-carried", name, message)
        others = [one for one in outcomes[name].findings if one.rule != "unquantized-differs"]
        outcomes[name] = replace(outcomes[name], findings=(*others, lost))
    told = []
    if rounded:
        norms = "1 norm is" if len(rounded) == 1 else f"{len(rounded):,} norms are"
        words = f"{norms} the reference's with 1 + weight rounded to BF16, as llm-compressor 0.14 leaves them."
        told.append(_advisory("norms-rounded", words))
    if found.norms or found.pairs:
        told.append(_advisory("smoothed", _smoothed_words(found)))
    return list(outcomes.values()), told


def _advisory(rule: str, message: str) -> Finding:
    return finding(Section.WEIGHTS, rule, "the checkpoint", message, Severity.ADVISORY)


def _smoothed_words(found: Folding) -> str:
    factors = torch.cat([*found.norms.values(), *found.pairs.values()])
    largest = float(torch.maximum(factors, 1 / factors).max())
    pairs = f" and the rows of {len(found.pairs):,} projections" if found.pairs else ""
    return (
        f"Smoothed: {len(found.norms):,} norms{pairs} are divided by factors that the weights behind them are "
        f"multiplied by, the largest {largest:.3g}; errors are of what remains."
    )


def _is_rounded(unit: LogicalWeight, how: Pass) -> bool:
    """Whether a zero-centred norm is the reference's after 1 + w was rounded to BF16; the gated norm is not centred."""
    if how.centre == 0 or unit.name.endswith(".linear_attn.norm.weight"):
        return False
    reference = _decoded(how.reference[unit.name])
    return torch.equal(
        _decoded(unit).float(), ((1 + reference.float()).bfloat16().float() - 1).to(reference.dtype).float()
    )


def _is_changed(outcome: Examined) -> bool:
    """Whether a weight is not the reference's, and can be compared with it."""
    return _comparable(outcome) and outcome.error is not None and outcome.error.relative_error > 0


def _without_difference(outcome: Examined, folded: bool = False) -> Examined:
    """A norm whose difference is explained; where it is folded into others nothing of it is left to compare."""
    left = tuple(one for one in outcome.findings if one.rule != "unquantized-differs")
    error = outcome.error
    return Examined(left, replace(error, relative_error=0.0, gain=1.0) if folded and error is not None else error)


def behind(norm: str, units: Units) -> list[str]:
    """The weights that take a norm's channels, in the order of the checkpoint: all of them must carry its factor."""
    layer = norm[: norm.rindex(".", 0, -len(".weight")) + 1]
    if norm.endswith(".input_layernorm.weight"):
        takers = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.qkv_proj")
        linear = ("qkv", "z", "b", "a", "qkvz", "ba")
        wanted = {f"{layer}{one}.weight" for one in (*takers, *(f"linear_attn.in_proj_{one}" for one in linear))}
        return [name for name in units if name in wanted]
    if f"{layer}pre_feedforward_layernorm.weight" in units and "pre_feedforward" not in norm:
        return []  # this one follows attention
    own = {f"{layer}mlp.{gate}.weight" for gate in ("gate", "router", "shared_expert_gate")}
    ends = (".gate_proj.weight", ".up_proj.weight", ".gate_up_proj.weight")
    return [name for name in units if name in own or (name.startswith(f"{layer}mlp.") and name.endswith(ends))]


def _fold_norm(
    norm: str,
    units: Units,
    outcomes: Mapping[str, Examined],
    how: Pass,
    pool: ThreadPoolExecutor,
    found: Folding,
) -> None:
    """Judge one norm and the weights behind it; adds to `found`."""
    taken = behind(norm, units)
    branch, reference = (how.centre + _decoded(of[norm]).double() for of in (units, how.reference))
    factors = torch.where(branch == reference, torch.ones_like(branch), reference / branch)
    comparable = all(_comparable(outcomes[name]) for name in taken)
    if not taken or not comparable or not bool((factors.isfinite() & (factors > 0)).all()):
        return
    # what storing both norms in BF16 may have changed the ratio by
    loose = BF16_UNIT * (NORM_ROUNDINGS + (branch - how.centre).abs() / branch)
    plain = [name for name in taken if units[name].is_plain]
    columns, carrying = _common_factor(plain, units, how, factors, loose)
    faults: dict[str, str | None] = {
        name: None if name in carrying else _left_out(norm, "its values are not the reference's times one factor each")
        for name in plain
    }
    quantized = [name for name in taken if name not in faults]
    verdicts = pool.map(lambda name: _uncarried(units[name], how.reference[name], columns), quantized)
    faults |= {
        name: None if fault is None else _left_out(norm, fault) for name, fault in zip(quantized, verdicts, strict=True)
    }
    wrong = {name: fault for name, fault in faults.items() if fault is not None}
    if len(faults) - len(wrong) < LEAST_SHARE * len(faults):
        return
    found.norms[norm] = factors
    found.faults |= wrong
    whole = Factors(columns.float())
    found.columns |= dict.fromkeys(faults, whole)
    # one that is not scaled at all is judged as it is; one whose single columns are wrong is judged with the others
    found.factors |= {name: whole for name, fault in faults.items() if fault is None or "column" in fault}


def _left_out(norm: str, fault: str) -> str:
    return f"it does not carry what {norm} is divided by: {fault}; the layer computes otherwise than the reference."


def _common_factor(
    plain: Sequence[str], units: Units, how: Pass, factors: Tensor, loose: Tensor
) -> tuple[Tensor, set[str]]:
    """The factor of each channel that the unquantized weights share, and which of them carry it.

    Least squares over those whose own estimates agree with the norm's; where there is none, the norm's.
    """
    decoded = {name: (_decoded(units[name]).double(), _decoded(how.reference[name]).double()) for name in plain}
    products, squares = torch.zeros_like(factors), torch.zeros_like(factors)
    for branch, reference in decoded.values():
        product, square = (branch * reference).sum(0), reference.square().sum(0)
        ratio = torch.where(square > 0, product / square, factors) / factors
        if bool(((ratio - 1).abs() <= loose).all()):
            products, squares = products + product, squares + square
    common = torch.where(squares > 0, products / squares, factors)
    carrying = {name for name, (branch, reference) in decoded.items() if within_roundings(branch, reference * common)}
    return common, carrying


def _uncarried(
    unit: LogicalWeight, reference: LogicalWeight, factors: Tensor, rows: Tensor | None = None
) -> str | None:
    """Why a quantized weight [out, in] does not carry factors [in]; None where it does."""
    wanted = _decoded(reference).float() * factors.float()
    wanted = wanted if rows is None else wanted * rows[:, None].float()
    branch, near = _decoded(unit).float(), nearest(unit, wanted)
    estimate, deviation, known = _by_column(branch, wanted)
    honest = _by_column(near, wanted)[0]
    clear = known & (honest > LEAST_SHARE) & (estimate > 0)
    if _follows(factors[clear], (estimate * factors)[clear], (deviation / estimate)[clear]) is False:
        return "it is not scaled"
    usual = float((estimate / honest)[clear].median()) if bool(clear.any()) else 1.0
    excess = (estimate / usual - honest).abs() - LOOSE - DEVIATIONS * _deviation(branch / usual - near, wanted)
    if not bool((excess > 0)[known].any()):
        return None
    place = int((excess * known).argmax())
    ratio = float(estimate[place] / usual / honest[place].clamp(min=LOOSE))
    return f"column {place} is {ratio:.3g} times what it should be ({int((excess > 0)[known].sum())} are wrong)"


def _deviation(error: Tensor, wanted: Tensor, index: Tensor | None = None) -> Tensor:
    """Of <error, w> / <w, w> for each column w, whatever its values' own errors are: sqrt(sum(e² w²)) / sum(w²)."""
    sums = [(error * wanted).square().sum(0).double(), wanted.square().sum(0).double()]
    if index is not None:
        sums = [each.new_zeros(int(index.max()) + 1).index_add_(0, index, each) for each in sums]
    return sums[0].sqrt() / sums[1].clamp(min=TINY)


def _follows(factors: Tensor, estimates: Tensor, relative: Tensor) -> bool | None:
    """Whether estimates with those relative deviations are of those factors; None where that cannot be told."""
    logs = factors.log()
    power = float(logs.square().sum())
    if power == 0 or math.sqrt(float((relative * logs).square().sum())) / power > KNOWN_SLOPE:
        return None
    return LEAST_SLOPE <= float((logs * estimates.log()).sum()) / power <= MOST_SLOPE


def _by_column(branch: Tensor, reference: Tensor, index: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Least squares of each column [in]: the factor, its standard deviation, and where the reference is not zero.

    With an `index` [in] of channels, the columns of one channel are estimated together.
    """
    product, square, own = (branch * reference).sum(0), reference.square().sum(0), branch.square().sum(0)
    count = torch.full_like(square, branch.shape[0])
    sums = [each.double() for each in (product, square, own, count)]
    if index is not None:
        channels = int(index.max()) + 1
        sums = [torch.zeros(channels, dtype=torch.float64).index_add_(0, index, each) for each in sums]
    product, square, own, count = sums
    known = square > 0
    factor = torch.where(known, product / square, 1.0)
    residual = (own - factor.square() * square).clamp(min=0)
    return factor, torch.where(known, (residual / (square * count)).sqrt(), 0.0), known


def _fold_pairs(
    units: Units, outcomes: Mapping[str, Examined], how: Pass, pool: ThreadPoolExecutor, found: Folding
) -> None:
    """Judge `up_proj` with `down_proj` and `v_proj` with `o_proj` wherever one of them is not explained; adds to
    `found`."""
    partners = {".up_proj.weight": ".down_proj.weight", ".v_proj.weight": ".o_proj.weight"}
    pairs = [
        (name, name.removesuffix(end) + other)
        for name in units
        for end, other in partners.items()
        if name.endswith(end) and name.removesuffix(end) + other in units
    ]
    suspects = [pair for pair in pairs if any(_unexplained(outcomes[name], name, found) for name in pair)]
    suspects = [pair for pair in suspects if all(_comparable(outcomes[name]) for name in pair)]
    for (giver, taker), outcome in zip(
        suspects,
        pool.map(lambda pair: _pair(pair[0], pair[1], units, how, found.columns.get(pair[0])), suspects),
        strict=True,
    ):
        if outcome is None:
            continue
        channels, index, faults = outcome
        columns = found.columns[giver].columns if giver in found.columns else None
        found.pairs[giver] = channels
        found.factors[giver] = Factors(columns, (1 / channels).float())
        found.factors[taker] = Factors(channels[index].float())
        found.faults.pop(giver, None)  # its columns were judged before its rows were known
        found.faults |= {name: fault for name, fault in faults.items() if fault is not None}


def _unexplained(outcome: Examined, name: str, found: Folding) -> bool:
    """Whether it differs by more than its scheme, or would have to carry a norm's factors, which hides that."""
    differs = any(finding.rule == "unquantized-differs" for finding in outcome.findings)
    return name in found.columns or differs or is_beyond(outcome.error)


def _pair(
    giver: str, taker: str, units: Units, how: Pass, before: Factors | None
) -> tuple[Tensor, Tensor, dict[str, str | None]] | None:
    """Factors [channels] by which the giver's rows are divided and the taker's columns multiplied, the channel of each
    of those columns, and what does not carry them; None where that is not what was done."""
    given, wanted = _decoded(units[giver]).float(), _decoded(how.reference[giver]).float()
    if before is not None:
        wanted = before.applied(wanted)
    taken, original = _decoded(units[taker]).float(), _decoded(how.reference[taker]).float()
    index = _channels(giver, given.shape[0], taken.shape[1], how)
    if index is None:
        return None
    rows, _, known_rows = _by_column(given.T, wanted.T)
    columns, _, known = _by_column(taken, original, index)
    known = known & known_rows
    if not bool(known.any()) or not bool((rows[known] > 0).all()):
        return None
    exact_rows, exact_columns = units[giver].is_plain, units[taker].is_plain
    channels = torch.where(known, columns if exact_columns and not exact_rows else 1 / rows, 1.0)
    asked_rows, asked_columns = (wanted / channels[:, None].float()).T, original * channels[index].float()
    near_rows, near_columns = nearest(units[giver], asked_rows.T).T, nearest(units[taker], asked_columns)
    left, left_columns = _by_column(near_rows, asked_rows)[0], _by_column(near_columns, asked_columns, index)[0]
    known = known & (torch.minimum(left, left_columns) > LEAST_SHARE)
    if not bool(known.any()):
        return None
    rows, columns = rows / left, columns / left_columns
    own_rows, own_columns = rows * channels, columns / channels  # 1 where both carry them
    of_row = _deviation(given.T - own_rows.float() * near_rows, asked_rows) / left
    of_column = _deviation(taken - own_columns[index].float() * near_columns, asked_columns, index) / left_columns
    relative = torch.where(known, of_row / own_rows + of_column / own_columns.clamp(min=LOOSE), 0.0)
    if not exact_rows and not exact_columns:
        channels = torch.where((columns > 0) & (left_columns > 1 - LOOSE), (columns / rows).sqrt(), 1 / rows)
    spread = float(channels[known].log().square().mean().sqrt())
    if spread < LEAST_SPREAD + 3 * float(relative[known].median()) or not _follows(
        1 / rows[known], columns[known], relative[known]
    ):
        return None
    product = rows * columns
    product = torch.where(known, product / product[known].median(), 1.0)
    wrong = (product - 1).abs() > LOOSE + DEVIATIONS * relative
    if float(wrong[known].float().mean()) > 1 - LEAST_SHARE:
        return None
    faults: dict[str, str | None] = {}
    if bool(wrong.any()):
        worst = int(torch.where(wrong, (product - 1).abs(), 0.0).argmax())
        channels = torch.where(wrong, 1 / rows, channels)  # so that the row is the reference's, and the column not
        faults[taker] = (
            f"column {worst} is {float(product[worst]):.3g} times what row {worst} of {giver} is divided by "
            f"({int(wrong.sum())} are wrong); the layer computes otherwise than the reference."
        )
    if before is not None and not exact_rows:
        assert before.columns is not None  # for the type checker: a norm's factors are columns
        fault = _uncarried(units[giver], how.reference[giver], before.columns.double(), 1 / channels)
        faults[giver] = None if fault is None else f"it does not carry what the norm before it is divided by: {fault}."
    return channels, index, faults


def _channels(giver: str, rows: int, columns: int, how: Pass) -> Tensor | None:
    """Which row of the giver each column of the taker belongs to; None where shapes do not say it."""
    if giver.endswith(".up_proj.weight"):
        return torch.arange(columns) if rows == columns else None
    head = how.head
    if not head or rows % head or columns % rows:
        return None
    place = torch.arange(columns)
    return place // head // (columns // rows) * head + place % head


def _comparable(outcome: Examined) -> bool:
    return outcome.error is not None and math.isfinite(outcome.error.relative_error)


def _decoded(unit: LogicalWeight) -> Tensor:
    return unit.decode(unit.read_parts())
