"""The bound from K log-probabilities: never above the exact divergence, better with every token, exact with all."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from q36eval.engines import Scored, ScoreRequest
from q36eval.kl.corpus import CorpusDocument
from q36eval.kl.divergence import token_figures
from q36eval.kl.probe import KLProbe
from q36eval.kl.topk import TopK, TopKProbe, lower_bound, lower_bound_of_likeliest
from q36eval.probes import ItemResults, WorkItem
from tests.profiles import sized

ROUNDING = 1e-12
"""Of sums of a few hundred float64 terms of at most some hundred nats."""


@st.composite
def logit_pairs(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Two deployments' logits [T, V]: flat or sharp, with ties, near or far, with impossible tokens in either."""
    rows, vocabulary = draw(st.integers(1, 4)), draw(st.integers(2, 40))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    scale, distance = draw(st.sampled_from([0.1, 3.0, 50.0])), draw(st.sampled_from([0.0, 1e-3, 1.0, 30.0]))
    p = torch.randn(rows, vocabulary, generator=generator, dtype=torch.float64) * scale
    if draw(st.booleans()):
        p = p.round()  # ties
    q = p + torch.randn(p.shape, generator=generator, dtype=torch.float64) * distance
    for logits in (p, q):
        if draw(st.booleans()):
            impossible = torch.rand(p.shape, generator=generator) < 0.2
            impossible[:, 0] = False
            logits.masked_fill_(impossible, -torch.inf)
    return p, q


def exact(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return token_figures(p, q, torch.zeros(len(p), dtype=torch.long)).forward_kl


@pytest.mark.long
@settings(max_examples=sized(75, 300), deadline=None)
@given(logit_pairs())
def test_it_is_a_lower_bound_grows_with_k_and_is_exact_with_all(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    p, q = pair
    divergence = exact(p, q)
    slack = ROUNDING * (1 + divergence.nan_to_num(posinf=0.0))
    previous = torch.zeros(len(p), dtype=torch.float64)
    for k in range(1, p.shape[-1] + 1):
        bound = lower_bound(TopK.of_logits(p, k), q)
        assert (bound <= divergence + slack).all()
        assert (bound >= previous - slack).all()
        previous = bound
    # both +inf, or equal to rounding
    assert torch.allclose(previous, divergence, rtol=1e-9, atol=ROUNDING)


@settings(max_examples=sized(50, 200), deadline=None)
@given(logit_pairs(), st.sampled_from([torch.float32, torch.float64]))
def test_what_is_stored_in_fewer_bits_is_a_bound_too_and_none_on_the_reference_itself(
    pair: tuple[torch.Tensor, torch.Tensor], stored: torch.dtype
) -> None:
    p, q = pair
    divergence = exact(p, q)
    for k in (1, 2, p.shape[-1]):
        whole = TopK.of_logits(p, k)
        kept = TopK(whole.ids, whole.logprobs.to(stored), whole.tail_mass.to(stored))
        # of float64 the arithmetic's own rounding is left
        assert (lower_bound(kept, p) <= (0.0 if stored == torch.float32 else ROUNDING)).all()
        slack = ROUNDING * (1 + divergence.nan_to_num(posinf=0.0))
        assert (lower_bound(kept, q) <= divergence + slack).all()
        # and what is taken off is little, but where a tail is too small to be stored at all
        same = (kept.tail_mass > 0) == (whole.tail_mass > 0)
        assert torch.allclose(lower_bound(kept, q)[same], lower_bound(whole, q)[same], rtol=1e-4, atol=1e-8)


@settings(max_examples=sized(75, 300), deadline=None)
@given(logit_pairs(), st.integers(1, 41), st.integers(1, 41))
def test_a_branch_of_which_the_likeliest_are_known_gives_a_lower_bound_too(
    pair: tuple[torch.Tensor, torch.Tensor], k: int, known: int
) -> None:
    """Never above the exact divergence; where all of the branch's tokens are known, the bound from its logits."""
    p, q = pair
    reference, branch = TopK.of_logits(p, k), TopK.of_logits(q, known)
    stored = TopK(reference.ids, reference.logprobs.float(), reference.tail_mass.float())
    ids, logprobs = branch.ids.long(), branch.logprobs.float()
    bound, whole = lower_bound_of_likeliest(stored, ids, logprobs), lower_bound(reference, q)
    assert (bound >= 0).all()
    assert (bound <= exact(p, q) + 1e-9 * (1 + whole.nan_to_num(posinf=0.0))).all()
    # of the branch itself nothing is found
    itself = TopK(branch.ids, logprobs, branch.tail_mass.float())
    assert (lower_bound_of_likeliest(itself, ids, logprobs) <= 1e-9).all()
    padded = (
        torch.cat([ids, torch.full((len(ids), 1), -1)], -1),
        torch.cat([logprobs, torch.full((len(ids), 1), torch.nan)], -1),
    )
    assert torch.equal(lower_bound_of_likeliest(stored, *padded), bound)
    if known >= q.shape[-1]:
        # what float32 may have rounded away (41 tokens by 1.2e-7 each) counts as probability of the others: it changes
        # little where they have a tenth, and may be all they have where they have less
        shown = q.softmax(-1).gather(-1, reference.ids.long()).sum(-1) < 0.9
        both = bound.isfinite() & whole.isfinite()
        assert (bound[both] <= whole[both] + 1e-4).all()
        assert torch.allclose(bound[both & shown], whole[both & shown], rtol=1e-3, atol=1e-4)


def test_the_likeliest_by_hand() -> None:
    """p = (1/2, 1/4, 1/8, 1/8) by its two likeliest; of q = (1/8, 1/8, 1/2, 1/4) the ids 2 and 0 are known.

    Both name id 0 alone: 1/2 ln 4 + 1/2 ln (4/7).
    """
    p = torch.tensor([[0.5, 0.25, 0.125, 0.125]], dtype=torch.float64).log()
    ids, logprobs = torch.tensor([[2, 0]]), torch.tensor([[0.5, 0.125]]).log()
    bound = lower_bound_of_likeliest(TopK.of_logits(p, 2), ids, logprobs)
    assert float(bound) == pytest.approx(0.41333, abs=1e-5)


def test_by_hand() -> None:
    """p = (1/2, 1/4, 1/8, 1/8), q uniform, K = 1: 1/2 ln 2 + 1/2 ln (2/3), against an exact 1/4 ln 2."""
    p, q = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log(), torch.zeros(1, 4)
    bound = lower_bound(TopK.of_logits(p, 1), q)
    assert float(bound) == pytest.approx(0.5 * torch.log(torch.tensor(4 / 3)).item(), abs=1e-7)
    assert float(exact(p, q)) == pytest.approx(0.25 * 0.6931471805599453, abs=1e-7)


def test_equal_ones_are_taken_by_id_so_that_smaller_sets_are_nested() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 1.0, 1.0, -torch.inf]])
    sets = [TopK.of_logits(logits, k).ids[0].tolist() for k in range(1, 7)]
    assert sets == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 5]]


def test_what_is_no_number_is_never_a_bound() -> None:
    q = torch.zeros(2, 4)
    q[1, 2] = torch.nan
    bound = lower_bound(TopK.of_logits(torch.randn(2, 4), 2), q)
    assert bound[0].isfinite()
    assert bound[1].isnan()
    with pytest.raises(ValueError, match="not numbers"):
        TopK.of_logits(q, 2)


def test_an_impossible_tail_is_infinite() -> None:
    """The branch gives the reference's likeliest token everything: KL is infinite, and so is its bound."""
    q = torch.tensor([[0.0, -torch.inf, -torch.inf]])
    assert lower_bound(TopK.of_logits(torch.zeros(1, 3), 1), q).tolist() == [torch.inf]


class Logits:
    """An engine whose hidden states are its logits."""

    scores = "states"

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        return states


def asked(tokens: int = 6) -> tuple[Any, Any, Any]:
    """A probe over nothing but its name, one item that scores `tokens`, and the reference's results of it."""

    probe = TopKProbe(KLProbe([CorpusDocument("a", "code", "text")]), 2)
    item = WorkItem("item", scores=(ScoreRequest("r", tuple(range(tokens + 1)), first=1),))
    logits = torch.randn(tokens, 8, generator=torch.Generator().manual_seed(1))
    return probe, item, ItemResults({"r": Scored(item.scores[0], logits)})


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_tokens_without_a_finite_bound_are_counted(value: float) -> None:

    probe, item, results = asked()
    reference = probe.digest(Logits(), item, results)
    broken = results.scored["r"].hidden_states.clone()
    broken[:2] = value
    outcomes = probe.compare(Logits(), item, ItemResults({"r": Scored(item.scores[0], broken)}), reference)
    found = {m.metric: m for m in probe.summarize(outcomes)}
    census = found["non_finite_tokens"]
    assert (census.value, census.counts.scored, census.counts.errored) == (2, 6, 0)
    assert found["kl_divergence_lower_bound"].counts.scored == 4
    assert "without 2 of 6 scored tokens" in found["kl_divergence_lower_bound"].note
