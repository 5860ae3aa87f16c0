"""How often whole gates err at the sizes of the suite `release`, by simulation: with the statistics of before, and now.

`python -m benchmarks.release_gates --gates 5000 --processes 32 --json FILE` prints a Markdown table. Every blocking
criterion of the policy over sampled items or documents is drawn at its true size and tested by the shipped functions,
look by look; the criteria's p-values are put together as `decide` does (every one passes; Holm over what fails; one
confirmed flip of the absolute list fails). Criteria err together: each one's gates are matched by rank with a latent
shift that correlates .5 between any two (Iman & Conover, Commun. Statist. B 11 (1982), 311-334).

*Before* are bets alone over blocks in proportion, an exact test of up to 2,000 pairs with bets above, and zero
tolerance over all 125 fixed prompts, on like branches and against the same margins. That flatters what was shipped: the
figure of one prompt that never came, the KL margin of one scheme for all, and RULER's clusters are left out of it.
"""

import argparse
import json
import multiprocessing
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.draws_by_margin import MARGIN_SPREAD
from benchmarks.gate_errors import environment, interval
from benchmarks.simulated_gates import LISTED_FLIPS
from q36eval.evals.blocks import Allocation
from q36eval.gate import Criterion, Policy
from q36eval.gate.margins import with_thresholds
from q36eval.gate.policy_file import read_policy
from q36eval.records import Clusters
from q36eval.stats import (
    Kinds,
    Looker,
    LookShares,
    holm,
    loss_limit,
    margin_looks,
    margin_test,
    planned_largest,
    why_untrusted,
)
from q36eval.stats._margin import MarginTest
from q36eval.stats._pairs import PairedProportions

Array = NDArray[np.float64]
POLICY = Path(__file__).parents[1] / "data" / "policies" / "release.yaml"
CHUNK = 125
ALPHA = 0.025
BETS_ALONE = LookShares(1.0, 0.0)
SHIFT = 0.5

MMLU_SINGLE, MMLU_PASSAGES, PASSAGE_ITEMS = 13_436, 202, 3
"""MMLU's test questions that stand alone, and the passages of its three history subjects, about three questions each
(Hendrycks et al., arXiv 2009.03300, by the sizes in benchmarks/sequential.py)."""

RULER_ITEMS, RULER_LENGTHS, BLOCK_ITEMS = 7_800, 6, 200
ACCURACY = {"mmlu": 0.85, "ruler": 0.9, "ruler-128k": 0.9}
"""What the reference gets right; of canaries it fails `FAILING`."""

DRAWS = {"failures-structured": 4_000, "failures-freeform": 2_200, "wrong-conclusions": 1_000, "answers-end": 5_600}
FIXED = {"fixed-prompts-structured": 76, "fixed-prompts-freeform": 41}
FAILING = {"failures-structured": 0.05, "failures-freeform": 0.05, "wrong-conclusions": 0.02, "answers-end": 0.01}
FAILING |= dict.fromkeys(FIXED, 0.02)
FIXED_FLIPS = 0.005
"""What the fixed prompts off the absolute list lose and gain of answers each: none of 90 flipped on the sandbox."""

SAMPLED = {"thinking-structured": 150, "thinking-freeform": 150, "thinking-ends": 300}
SEEDS = 4
HARD = {"thinking-structured": (0.5, 6.0), "thinking-freeform": (0.5, 6.0), "thinking-ends": (0.1, 5.0)}
"""Sampled prompts, and the beta distribution of how often the reference fails one: 8 % and 2 % of answers. The coupling
is taken to save nothing: two deployments fail with the same chance and otherwise at random (12 % and 3 % flip)."""

LATER = ("answers-end", *SAMPLED)
"""What the policy did not ask before."""

ABSOLUTE, ALL_FIXED = 25, 125
ARTICLES = 62

KL_SIGMA = 0.9
"""Log-spread of the documents' divergences, as measured on the sandbox (benchmarks/simulated_evidence.py)."""

TOKEN_SIGMA = 2.5
"""Log-spread of a source's tokens, which nobody has measured on this family (data/policies/release.yaml)."""

KL_SOURCES, KL_TOKENS = 400, 300
"""The least number of independent sources that a release corpus is to have, and tokens of each; it is planned with more
(kl/corpora/release.yaml)."""

NLL_NOISE, NLL_SPREAD = 0.0225, 0.5


@dataclass(frozen=True)
class Branch:
    """A kind of branch: `flips` of its answers change, half each way, beyond what it loses.

    `losses` are by criterion id in margins, `lost` by criterion id in shares of all items. `kl` and `log_perplexity` in
    nats are its means. Of its flips of fixed prompts a share `persistent` come in every batch, `near` of them on
    prompts of the absolute list, which has a margin floor; `turned` prompts of that list come out wrong always. The
    fixed prompts off the list flip at `FIXED_FLIPS` each way, or with `fixed_flip` as often as everything else.
    """

    name: str
    kind: str
    flips: float
    losses: Mapping[str, float] = field(default_factory=dict)
    lost: Mapping[str, float] = field(default_factory=dict)
    kl: float = 0.004
    log_perplexity: float = 0.0
    persistent: float = 0.25
    near: float = 1.0
    turned: int = 0
    fixed_flip: bool = False

    def loss(self, criterion: Criterion, score: float) -> float:
        """What it loses of a criterion's items, as a share of them all."""
        unit = score if criterion.margin.kind == "min_recovery" else 1.0
        margins = self.losses.get(criterion.id, 0.0) * loss_limit(criterion.margin) * unit
        return margins + self.lost.get(criterion.id, 0.0)


@dataclass(frozen=True)
class Found:
    """One criterion's p-values for G gates, `losses` that their samples show, and the share of its items evaluated."""

    losses: Array
    p_pass: Array
    p_fail: Array
    evaluated: Array

    def reordered(self, order: NDArray[np.int64]) -> "Found":
        """The same gates in another order."""
        return Found(*(column[order] for column in (self.losses, self.p_pass, self.p_fail, self.evaluated)))


class Gates:
    """Gates of one branch, by the rules of now or (`before`) of before."""

    def __init__(self, policy: Policy, branch: Branch, gates: int, seed: Sequence[int], *, before: bool) -> None:
        self.branch, self.count, self.before = branch, gates, before
        self.rng = np.random.default_rng(list(seed))
        self.criteria = {c.id: c for c in with_thresholds(policy).criteria if c.tier == "blocking"}
        self.sharing = sum(c.margin.kind != "max_count" for c in self.criteria.values())

    def verdicts(self) -> tuple[NDArray[np.str_], dict[str, Found], NDArray[np.bool_]]:
        """Each gate's verdict, what every criterion found, and which gates a confirmed flip failed."""
        by_criterion = {
            **self._mmlu(),
            **self._ruler(),
            **self._canaries(),
            **self._sampled(),
            **self._divergences(),
            **self._perplexity(),
        }
        missing = {
            name
            for name, c in self.criteria.items()
            if c.margin.kind != "max_count"
            and name not in by_criterion
            and not (self.before and name in {*FIXED, *LATER})
        }
        if missing:
            raise ValueError(f"nothing is simulated of {', '.join(sorted(missing))}")
        common = self.rng.standard_normal(self.count)
        matched = {}
        for name, each in by_criterion.items():
            latent = SHIFT**0.5 * common + (1 - SHIFT) ** 0.5 * self.rng.standard_normal(self.count)
            matched[name] = each.reordered(_matching(each.losses, latent, self.rng))
        flipped = self._confirmed_flips()
        passes = np.all([each.p_pass <= 1 - self.criteria[name].confidence for name, each in matched.items()], axis=0)
        p_fail = np.stack([each.p_fail for each in matched.values()])
        rest = [1.0] * (self.sharing - len(matched))
        fails = np.array([min(holm([*column, *rest])) <= ALPHA for column in p_fail.T]) | flipped
        return np.where(fails, "FAIL", np.where(passes, "PASS", "INCONCLUSIVE")), matched, flipped

    # -- multiple choice, drawn by margin

    def _mmlu(self) -> dict[str, Found]:
        criterion, score = self.criteria["mmlu"], ACCURACY["mmlu"]
        margins = np.concatenate([self._margins(MMLU_SINGLE, score), self._margins(MMLU_PASSAGES, score)])
        sizes = np.repeat([1.0, float(PASSAGE_ITEMS)], [MMLU_SINGLE, MMLU_PASSAGES])
        rates = self._rates(margins, sizes, self.branch.loss(criterion, score))
        blocks = BLOCK_ITEMS * len(sizes) / sizes.sum()
        plan = None if self.before else Allocation.of(np.abs(margins), blocks)
        counts, kinds = _laid_out(plan, sizes, rates, self.count, self.rng)
        kinds = replace(kinds, right_share=score)
        looker = margin_looks(kinds, criterion.margin, BETS_ALONE if self.before else criterion.look_shares)
        by_criterion, _ = self._stopped({"mmlu": (looker, counts)}, counts @ kinds.units)
        return by_criterion

    def _margins(self, items: int, score: float) -> Array:
        from scipy.special import ndtri

        return self.rng.normal(ndtri(score), 1.0, items) * MARGIN_SPREAD

    def _rates(self, margins: Array, sizes: Array, loss: float) -> Array:
        """Probabilities [clusters, 4] of lost, gained, right and wrong; flips and losses follow the margin."""
        from scipy.special import ndtr

        share = sizes / sizes.sum()
        right = margins > 0
        flips = self.branch.flips
        low, high = 1e-9, 1e9
        for _ in range(60):
            middle = (low * high) ** 0.5
            under = float(share @ ndtr(-np.abs(margins) / middle)) < max(flips, 1e-4)
            low, high = (middle, high) if under else (low, middle)
        noise = ndtr(-np.abs(margins) / high) if flips else np.zeros_like(margins)
        lost, gained = np.where(right, noise, 0.0), np.where(right, 0.0, noise)
        if flips:
            lost, gained = (each * flips / 2 / float(share @ each) for each in (lost, gained))
        harm = right * ndtr(-np.abs(margins) / MARGIN_SPREAD * 8)
        lost = np.minimum(lost + loss * harm / float(share @ harm), right)
        gained = np.minimum(gained, ~right)
        return np.stack([lost, gained, right - lost, ~right - gained], axis=-1)

    # -- RULER

    def _ruler(self) -> dict[str, Found]:
        blocks = RULER_ITEMS // BLOCK_ITEMS
        per_block = {"ruler-128k": BLOCK_ITEMS // RULER_LENGTHS, "rest": BLOCK_ITEMS - BLOCK_ITEMS // RULER_LENGTHS}
        score = ACCURACY["ruler"]
        longest = self.criteria["ruler-128k"]
        losses = {
            "ruler-128k": max(self.branch.loss(longest, score), self.branch.loss(self.criteria["ruler"], score)),
            "rest": self.branch.loss(self.criteria["ruler"], score),
        }
        half = self.branch.flips / 2
        gained = min(half, 1 - score)
        drawn = {
            part: self.rng.multinomial(
                n,
                [gained + losses[part], gained, score - gained - losses[part], 1 - score - gained],
                (self.count, blocks),
            ).astype(np.float64)
            for part, n in per_block.items()
        }
        kinds = Kinds(*np.array([[0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0], [1.0] * 4]), 1.0, right_share=score)
        lookers = {
            name: (
                margin_looks(
                    kinds, self.criteria[name].margin, BETS_ALONE if self.before else self.criteria[name].look_shares
                ),
                counts,
            )
            for name, counts in (("ruler-128k", drawn["ruler-128k"]), ("ruler", drawn["ruler-128k"] + drawn["rest"]))
        }
        return self._stopped(lookers, (drawn["ruler-128k"] + drawn["rest"]).sum(axis=-1))[0]

    def _stopped(
        self, lookers: Mapping[str, tuple[Looker, Array]], items: Array
    ) -> tuple[dict[str, Found], NDArray[np.int64]]:
        """A group is evaluated until all its criteria are settled by the same look, or to its end."""
        values = {name: looker(counts) for name, (looker, counts) in lookers.items()}
        settled = np.ones(next(iter(values.values()))[0].shape, dtype=bool)
        for name, (p_pass, p_fail) in values.items():
            settled &= (p_pass <= 1 - self.criteria[name].confidence) | (self.sharing * p_fail <= ALPHA)
        last = settled.shape[1] - 1
        at = np.where(settled.any(axis=1), settled.argmax(axis=1), last)
        each = np.arange(self.count)
        so_far = np.cumsum(items, axis=1)
        evaluated = so_far[each, at] / so_far[:, -1]
        changes = {name: np.array([1.0, -1.0, 0.0, 0.0]) for name in lookers}
        by_criterion = {}
        for name, (p_pass, p_fail) in values.items():
            counts = lookers[name][1]
            kinds = counts.shape[-1] // 4
            losses = counts.sum(axis=1) @ np.tile(changes[name], kinds)
            by_criterion[name] = Found(losses, p_pass[each, at], p_fail[each, at], evaluated)
        return by_criterion, at

    # -- canaries

    def _canaries(self) -> dict[str, Found]:
        by_criterion = {}
        for name, items in {**DRAWS, **FIXED}.items():
            if name not in self.criteria or (self.before and name in {*FIXED, *LATER}):
                continue
            criterion, failing = self.criteria[name], FAILING[name]
            gained = min(self.branch.flips / 2, failing)
            lost = gained + self.branch.loss(criterion, 1.0)
            if name in FIXED and not self.branch.fixed_flip:  # none of 90 flipped on the sandbox
                gained, lost = min(FIXED_FLIPS, failing), FIXED_FLIPS + lost - gained
            drawn = self.rng.multinomial(items, [lost, gained, max(0.0, 1 - lost - gained)], self.count)
            both = np.array(
                [exact_p_values(int(w), int(b), items, loss_limit(criterion.margin), self.before) for w, b, _ in drawn]
            )
            by_criterion[name] = Found((drawn[:, 0] - drawn[:, 1]) / items, both[:, 0], both[:, 1], np.ones(self.count))
        return by_criterion

    def _sampled(self) -> dict[str, Found]:
        """Prompts of several seeds each."""
        by_criterion = {}
        for name, prompts in SAMPLED.items():
            if name not in self.criteria or self.before:
                continue
            criterion = self.criteria[name]
            hard = self.rng.beta(*HARD[name], size=(self.count, prompts))
            mean = HARD[name][0] / sum(HARD[name])
            harder = np.minimum(1.0, hard + self.branch.loss(criterion, 1.0) * (1 - hard) / (1 - mean))
            reference, branch = self.rng.binomial(SEEDS, hard), self.rng.binomial(SEEDS, harder)
            rows = []
            for theirs, own in zip(reference.tolist(), branch.tolist(), strict=True):
                clusters = Clusters(
                    units=(SEEDS,) * prompts,
                    branch=tuple(map(float, own)),
                    reference=tuple(map(float, theirs)),
                    errored=(0,) * prompts,
                    bounds=(0.0, 1.0),
                )
                test = margin_test(clusters, "paired_mean", criterion.margin)
                rows.append((test.loss, test.p_pass, test.p_fail))
            by_criterion[name] = _found(rows)
        return by_criterion

    def _confirmed_flips(self) -> NDArray[np.bool_]:
        """Whether a prompt of the absolute list (before: any fixed prompt) came out wrong in all three batches."""
        branch, half = self.branch, self.branch.flips / 2
        if self.before:
            chance, prompts = half * (branch.persistent + (1 - branch.persistent) * half**2), ALL_FIXED
        else:
            chance, prompts = branch.near * half * (branch.persistent + (1 - branch.persistent) * half**2), ABSOLUTE
        return (self.rng.binomial(prompts, chance, self.count) + branch.turned) > 0

    # -- unbounded figures

    def _divergences(self) -> dict[str, Found]:
        criterion = self.criteria["kl"]
        mean = self.branch.losses.get("kl", 0.0) * loss_limit(criterion.margin) or self.branch.kl
        columns: dict[str, list[tuple[float, float, float]]] = {"kl": []}
        shares = [c for c in self.criteria.values() if c.margin.kind == "max_share" and c.probe == "kl"]
        columns |= {each.id: [] for each in shares}
        for _ in range(self.count):
            tokens = self.rng.integers(KL_TOKENS // 2, KL_TOKENS * 3 // 2, KL_SOURCES)
            per_token = mean * self.rng.lognormal(-(KL_SIGMA**2) / 2, KL_SIGMA, KL_SOURCES)
            clusters = Clusters(
                units=tuple(tokens.tolist()), branch=tuple((tokens * per_token).tolist()), errored=(0,) * KL_SOURCES
            )
            test = margin_test(clusters, "mean", criterion.margin)
            doubt = why_untrusted(clusters, "mean", test.loss_interval.upper, test.limit)
            columns["kl"].append((test.loss, 1.0 if doubt else test.p_pass, test.p_fail))
            for each in shares:
                beyond = self._beyond(each, tokens, per_token)
                columns[each.id].append((beyond.loss, beyond.p_pass, beyond.p_fail))
        return {name: _found(rows) for name, rows in columns.items()}

    def _beyond(self, criterion: Criterion, tokens: NDArray[np.int64], per_token: Array) -> MarginTest:
        """A share of the sources: by their mean, their worst token, or the change of their own perplexity."""
        from scipy.special import ndtr

        units = tuple(tokens.tolist())
        if criterion.metric == "perplexity":
            lost = self.branch.losses.get("perplexity", 0.0) * loss_limit(self.criteria["perplexity"].margin)
            lost = lost or self.branch.log_perplexity
            change = tokens * self.rng.normal(lost, NLL_NOISE + NLL_SPREAD * lost, KL_SOURCES)
            clusters = Clusters(
                units=units, branch=tuple(change.tolist()), reference=(0.0,) * KL_SOURCES, errored=(0,) * KL_SOURCES
            )
            return margin_test(clusters, "perplexity", criterion.margin)
        values, beyond = per_token, criterion.margin.beyond
        assert beyond is not None
        if criterion.metric == "kl_max":
            over = ndtr(-(np.log(beyond / per_token) + TOKEN_SIGMA**2 / 2) / TOKEN_SIGMA)
            values = np.where(self.rng.random(KL_SOURCES) < 1 - (1 - over) ** tokens, 2 * beyond, 0.0)
        clusters = Clusters(units=units, branch=tuple(values.tolist()), errored=(0,) * KL_SOURCES, bounds=(0.0, np.inf))
        return margin_test(clusters, "maximum", criterion.margin)

    def _perplexity(self) -> dict[str, Found]:
        criterion = self.criteria["perplexity"]
        lost = self.branch.losses.get("perplexity", 0.0) * loss_limit(criterion.margin) or self.branch.log_perplexity
        rows = []
        shares = [c for c in self.criteria.values() if c.margin.kind == "max_share" and c.probe == "evals"]
        columns: dict[str, list[tuple[float, float, float]]] = {each.id: [] for each in shares}
        for _ in range(self.count):
            words = self.rng.integers(1_500, 6_500, ARTICLES)
            reference = words * self.rng.normal(2.4, 0.3, ARTICLES)
            change = self.rng.normal(lost, NLL_NOISE + NLL_SPREAD * lost, ARTICLES)
            clusters = Clusters(
                units=tuple(words.tolist()),
                branch=tuple((reference + words * change).tolist()),
                reference=tuple(reference.tolist()),
                errored=(0,) * ARTICLES,
            )
            test = margin_test(clusters, "perplexity", criterion.margin)
            doubt = why_untrusted(clusters, "perplexity", test.loss_interval.upper, test.limit)
            rows.append((test.loss, 1.0 if doubt else test.p_pass, test.p_fail))
            for each in shares:
                beyond = margin_test(clusters, "perplexity", each.margin)
                columns[each.id].append((beyond.loss, beyond.p_pass, beyond.p_fail))
        return {"perplexity": _found(rows)} | {name: _found(each) for name, each in columns.items()}


def _found(rows: Sequence[tuple[float, float, float]]) -> Found:
    losses, p_pass, p_fail = np.array(rows).T
    return Found(losses, p_pass, p_fail, np.ones(len(rows)))


@lru_cache(maxsize=1 << 18)
def exact_p_values(worse: int, better: int, items: int, limit: float, before: bool) -> tuple[float, float]:
    """p-values of a difference of rates; before, of more than 2,000 pairs by constant bets."""
    if not before or items <= 2_000:
        pairs = PairedProportions(worse, better, items)
        return pairs.p_at_least(limit), pairs.p_at_most(limit)
    kinds = Kinds(*np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0] * 3]), 1.0, by_block=False, last_look=False)
    counts = np.array([[[worse, better, items - worse - better]]], dtype=np.float64)
    p_pass, p_fail = margin_looks(kinds, _Increase(limit))(counts)
    return float(p_pass[0, 0]), float(p_fail[0, 0])


@dataclass(frozen=True)
class _Increase:
    value: float
    kind: Any = "max_increase"


def _laid_out(
    plan: Allocation | None, sizes: Array, rates: Array, gates: int, rng: np.random.Generator
) -> tuple[Array, Kinds]:
    """Counts [gates, blocks, strata * sizes * 4] and their kinds, drawn by margin or (no plan) in proportion."""
    stratum = np.zeros(len(sizes), dtype=np.int64) if plan is None else plan.stratum
    strata = int(stratum.max()) + 1
    own_sizes = np.unique(sizes)
    cells = [(h, size) for h in range(strata) for size in own_sizes]
    members = [np.flatnonzero((stratum == h) & (sizes == size)) for h, size in cells]
    means = [rates[each].mean(axis=0) if each.size else np.full(4, 0.25) for each in members]
    if plan is None:
        blocks = max(1, round(sizes.sum() / BLOCK_ITEMS))
        numbers = [np.diff(np.floor(np.linspace(0, each.size, blocks + 1) + 1e-9)).astype(int) for each in members]
    else:
        blocks, numbers = plan.blocks + 1, []
        for (h, _), each in zip(cells, members, strict=True):
            share = each.size / (stratum == h).sum()
            places = np.floor(np.linspace(0, share * plan.drawn[h] * plan.blocks, plan.blocks + 1) + 1e-9)
            first = np.diff(places).astype(int)
            numbers.append(np.append(first, each.size - first.sum()))
    counts = np.concatenate(
        [
            np.stack([rng.multinomial(n, mean / mean.sum(), size=gates) for n in number], axis=1)
            for number, mean in zip(numbers, means, strict=True)
        ],
        axis=-1,
    ).astype(np.float64)
    size = np.repeat([s for _, s in cells], 4)
    branch, reference = (np.tile(column, len(cells)) * size for column in ([0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0]))
    if plan is None:
        largest = planned_largest(sizes.tolist())
        cut = float(np.maximum(sizes - largest, 0).sum() / sizes.sum())
        return counts, Kinds(branch, reference, size, largest, cut_share=cut)
    weights = np.repeat([plan.weights[h] for h, _ in cells], 4)
    weighted = np.concatenate(
        [
            np.full(counts[0, :-1, 4 * n : 4 * n + 4].sum().astype(int), weights[4 * n] * s)
            for n, (_, s) in enumerate(cells)
        ]
    )
    largest = planned_largest(weighted.tolist())
    cut = float(np.maximum(weighted - largest, 0).sum() / weighted.sum())
    expected = np.repeat([plan.rates[h] for h, _ in cells], 4)
    return counts, Kinds(
        branch,
        reference,
        size,
        largest,
        cut_share=cut,
        weights=weights,
        expected_changes=expected,
        last_bet=plan.blocks - 1,
    )


def _matching(losses: Array, latent: Array, rng: np.random.Generator) -> NDArray[np.int64]:
    """The order that gives the greatest loss to the greatest latent value; ties are broken by chance."""
    by_loss = np.lexsort((rng.random(losses.size), losses))
    order = np.empty(losses.size, dtype=np.int64)
    order[np.argsort(latent)] = by_loss
    return order


def branches(policy: Policy, measured: float) -> Iterator[Branch]:
    """The rows; `measured` is the persistence of flips that was measured on the sandbox."""
    for persistent in (measured, 0.25):
        for flips in (0.0, 0.01, 0.02, 0.03, 0.04, 0.06):
            yield Branch(f"no loss, {flips:.0%} flips, c = {persistent:.2g}", "lossless", flips, persistent=persistent)
    for flips in (0.02, 0.04, 0.06):
        name = f"no loss, {flips:.0%} flips, those of the fixed prompts too, c = {measured:.2g}"
        yield Branch(name, "lossless", flips, persistent=measured, fixed_flip=True)
    yield Branch(
        "good NVFP4: MMLU -0.3 points, RULER -1 %, canaries -0.3 points, KL 0.055, perplexity +2.5 %, 3% flips",
        "good",
        0.03,
        lost={"mmlu": 0.003, "ruler": 0.009, "ruler-128k": 0.009}
        | dict.fromkeys(("failures-structured", "failures-freeform"), 0.003),
        kl=0.055,
        log_perplexity=0.025,
        persistent=measured,
    )
    sampled = [
        c.id for c in policy.criteria if c.tier == "blocking" and c.margin.kind not in ("max_count", "max_share")
    ]
    for flips in (0.01, 0.04):
        for name in sampled:
            yield Branch(f"{name} at its margin, {flips:.0%} flips", "at the margin", flips, {name: 1.0})
    for name in sampled:
        yield Branch(f"{name} three margins, 2% flips", "three margins", 0.02, {name: 3.0})
    yield Branch("one prompt of the absolute list turned, 1% flips", "one fault", 0.01, turned=1)


BARS = {
    "lossless": lambda flips: (("PASS", 0.95 if flips < 0.05 else 0.9, True), ("FAIL", 0.01, False)),
    "good": lambda _: (("PASS", 0.7, True),),
    "at the margin": lambda _: (("PASS", 0.05, False),),
    "three margins": lambda _: (("FAIL", 0.95, True),),
    "one fault": lambda _: (("FAIL", 1.0, True),),
}
"""By kind of branch, what must hold: a verdict's share, and whether it is a least or a most."""


def run_chunk(chunk: tuple[Policy, Branch, int, tuple[int, int], bool]) -> dict[str, Counter[str]]:
    """The verdicts of some gates, each criterion's own, and the shares of items evaluated."""
    policy, branch, gates, seed, before = chunk
    verdicts, by_criterion, flipped = Gates(policy, branch, gates, seed, before=before).verdicts()
    own: Counter[str] = Counter()
    evaluated: Counter[str] = Counter()
    for name, each in by_criterion.items():
        own[f"{name} PASS"] += int((each.p_pass <= ALPHA).sum())
        evaluated[name] += float(each.evaluated.sum())  # type: ignore[assignment]
    own["absolute FAIL"] = int(flipped.sum())
    return {"verdicts": Counter(verdicts.tolist()), "own": own, "evaluated": evaluated}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", type=int, default=5_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--policy", type=Path, default=POLICY)
    parser.add_argument("--only", default="", help="the branches whose name this regular expression finds")
    parser.add_argument("--persistence", type=float, default=0.91, help="share of flips that stay in other batches")
    parser.add_argument("--near", type=float, default=LISTED_FLIPS, help="share of flips that the margin floor leaves")
    parser.add_argument("--before", action="store_true", help="beside it what was before")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no row after so long")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    policy = read_policy(options.policy)
    rows: list[dict[str, Any]] = []
    began = time.monotonic()
    columns = ("branch", "PASS, %", "FAIL, %", "INCONCLUSIVE, %", "kept it from PASS, %", "holds", "before: PASS, FAIL")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for number, branch in enumerate(branches(policy, options.persistence)):
            if not re.search(options.only, branch.name) or time.monotonic() - began > options.seconds:
                continue
            branch = Branch(**{**asdict(branch), "near": options.near})
            kept: dict[str, Any] = {"branch": asdict(branch)}
            for before in (False, True) if options.before else (False,):
                total: dict[str, Counter[str]] = {}
                chunks = [
                    (
                        policy,
                        branch,
                        min(CHUNK, options.gates - start),
                        (20_261_122 + number, part, int(before)),
                        before,
                    )
                    for part, start in enumerate(range(0, options.gates, CHUNK))
                ]
                for counted in pool.imap_unordered(run_chunk, chunks):
                    for name, counts in counted.items():
                        total.setdefault(name, Counter()).update(counts)
                kept["before" if before else "now"] = {name: dict(counts) for name, counts in total.items()}
            rows.append(kept)
            print(_row(branch, options.gates, kept), flush=True)
            if options.json is not None:
                options.json.write_text(
                    json.dumps({"environment": environment(), "gates": options.gates, "rows": rows})
                )


def _row(branch: Branch, gates: int, kept: Mapping[str, Any]) -> str:
    now = kept["now"]
    shares = []
    for verdict in ("PASS", "FAIL", "INCONCLUSIVE"):
        count = now["verdicts"].get(verdict, 0)
        low, high = interval(count, gates)
        shares.append(f"{100 * count / gates:.2f} ({100 * low:.2f} to {100 * high:.2f})")
    open_shares = {
        name.removesuffix(" PASS"): 100 * (1 - count / gates)
        for name, count in now["own"].items()
        if name.endswith(" PASS") and count < gates
    }
    who = ", ".join(f"{name} {share:.1f}" for name, share in sorted(open_shares.items(), key=lambda e: -e[1])[:3])
    holds = "yes"
    for verdict, bar, least in BARS[branch.kind](branch.flips):
        share = now["verdicts"].get(verdict, 0) / gates
        holds = holds if (share >= bar if least else share <= bar) else "no"
    before = kept.get("before", {}).get("verdicts", {})
    past = ", ".join(f"{100 * before.get(v, 0) / gates:.1f}" for v in ("PASS", "FAIL")) if before else "–"
    return f"| {branch.name} | {' | '.join(shares)} | {who or '–'} | {holds} | {past} |"


if __name__ == "__main__":
    main()
