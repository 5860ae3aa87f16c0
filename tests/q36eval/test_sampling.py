"""Coupled sampling: right distributions, the same numbers for the same request, and few draws that differ."""

from typing import Any

import pytest
import torch
from scipy import stats

from q36eval.engines import sampling
from q36eval.engines.base import Coupling
from q36eval.engines.sampling import Sampler, gumbel_noise, sample

DRAWS = 10_000


def samplers(count: int, coupling: Coupling, **changed: float) -> list[Sampler]:
    settings = {"temperature": 1.0, "top_p": 1.0, "seed": 7} | changed
    return [Sampler(key=f"prompt {n}", coupling=coupling, **settings) for n in range(count)]  # type: ignore[arg-type]


def drawn(logits: torch.Tensor, coupling: Coupling, **changed: float) -> torch.Tensor:
    return sample(logits.expand(DRAWS, -1), samplers(DRAWS, coupling, **changed))


@pytest.mark.parametrize("coupling", ["gumbel", "inverse_cdf"])
def test_draws_follow_the_nucleus(coupling: Coupling) -> None:
    """A fixed seed, so this does not flicker; one seed in ten thousand would fail by chance."""
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -8.0])
    counts = torch.bincount(drawn(logits, coupling, temperature=0.8, top_k=4), minlength=6)
    assert counts[4:].sum() == 0
    expected = (logits[:4].double() / 0.8).softmax(-1) * DRAWS
    assert stats.chisquare(counts[:4].numpy(), expected.numpy()).pvalue > 1e-4
    # 0.95 of the whole are held by the first four tokens, 0.90 by three
    assert drawn(logits, coupling, top_p=0.9).max() == 3
    assert drawn(logits, coupling, top_p=0.5).max() == 0


def test_the_noise_is_standard_gumbel_and_independent_between_tokens_and_steps() -> None:
    one = Sampler(1.0, 1.0, 0, "k", coupling="gumbel")
    noise = []
    for _ in range(3):
        noise.append(gumbel_noise(torch.arange(DRAWS).unsqueeze(0), [one])[0])
        one.took(5)
    for each in noise:
        assert stats.kstest(each.numpy(), stats.gumbel_r.cdf).pvalue > 1e-4
    pairs = ((noise[0], noise[1]), (noise[1], noise[2]), (noise[0][1:], noise[0][:-1]))
    for a, b in pairs:
        assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 4 / DRAWS**0.5


@pytest.mark.long
def test_two_deployments_differ_no_more_than_the_bound_and_less_than_by_inverse_cdf() -> None:
    torch.manual_seed(3)
    logits = torch.randn(200) * 1.5
    other = logits + torch.randn(200) * 0.1
    variation = float((logits.double().softmax(-1) - other.double().softmax(-1)).abs().sum() / 2)
    differing = {
        coupling: float((drawn(logits, coupling) != drawn(other, coupling)).double().mean())
        for coupling in ("gumbel", "inverse_cdf")
    }
    # nobody can differ in fewer than `variation` of the draws
    error = 4 * (variation / DRAWS) ** 0.5
    assert variation - error < differing["gumbel"] < 2 * variation / (1 + variation) + error
    assert differing["gumbel"] < 0.5 * differing["inverse_cdf"]


def test_a_token_answered_before_is_penalized_and_no_other() -> None:
    logits = torch.tensor([[3.0, 2.9, -9.0]])
    for coupling in ("gumbel", "inverse_cdf"):
        one = Sampler(1e-4, 1.0, 0, "k", presence_penalty=1.0, coupling=coupling)
        assert int(sample(logits, [one])) == 0
        one.took(0)
        assert int(sample(logits, [one])) == 1
        one.took(1)
        assert int(sample(logits, [one])) == 0


@pytest.mark.parametrize("coupling", ["gumbel", "inverse_cdf"])
def test_no_token_is_drawn_of_what_is_no_distribution(coupling: Coupling) -> None:
    logits = torch.zeros(2, 8)
    logits[1, 3] = torch.nan
    with pytest.raises(ValueError, match="not finite"):
        sample(logits, [Sampler(1.0, 1.0, 1, key, coupling=coupling) for key in "ab"])


@pytest.mark.parametrize("coupling", ["inverse_cdf", "gumbel"])
@pytest.mark.parametrize(("top_k", "top_p"), [(20, 0.95), (0, 0.95), (0, 1.0), (3, 1.0), (5000, 0.3)])
@pytest.mark.parametrize("shape", ["peaked", "tied", "flat"])
def test_the_likeliest_tokens_alone_give_what_a_sort_of_all_gives(
    coupling: Coupling, top_k: int, top_p: float, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where many are equally likely, at the edge of what is ranked too."""
    generator = torch.Generator().manual_seed(5)
    logits = {
        "peaked": torch.randn(8, 3000, generator=generator) * 4,
        "tied": torch.randint(0, 4, (8, 3000), generator=generator).float() * 3,
        "flat": torch.zeros(8, 3000),
    }[shape]
    by_hand = logits.double().softmax(-1).sort(dim=-1, descending=True, stable=True).indices
    ranked, widths = sampling._ranked, []

    def all_of_them(likely: torch.Tensor, order: torch.Tensor, sizes: Any, top_p: Any, width: int) -> Any:
        _, narrow, complete = ranked(likely, order, sizes, top_p, width)
        whole = complete.squeeze(-1)
        assert torch.equal(narrow[whole], by_hand[whole, : narrow.shape[-1]])
        widths.append(width)
        shares, ids, _ = ranked(likely, order, sizes, top_p, likely.shape[-1])
        assert torch.equal(ids, by_hand)
        return shares, ids, complete

    def draw() -> torch.Tensor:
        return sample(logits, [Sampler(0.7, top_p, 3, f"r{row}", top_k=top_k, coupling=coupling) for row in range(8)])

    short = draw()
    monkeypatch.setattr(sampling, "_ranked", all_of_them)
    assert torch.equal(draw(), short)
    assert (widths[0] == 3000) == ((top_k, top_p) == (0, 1.0))


@pytest.mark.parametrize("coupling", ["inverse_cdf", "gumbel"])
def test_what_waits_in_a_batch_of_all_kinds_changes_no_draw(coupling: Coupling) -> None:
    """Rows with other nuclei, couplings and penalties beside it, and one by one."""
    generator = torch.Generator().manual_seed(6)
    logits = (torch.randn(6, 4000, generator=generator) * 3).bfloat16().float()

    def samplers() -> list[Sampler]:
        other: Coupling = "gumbel" if coupling == "inverse_cdf" else "inverse_cdf"
        made = [
            Sampler(0.6, 0.95, 1, "a", top_k=20, coupling=coupling),
            Sampler(1.0, 1.0, 1, "b", coupling=other),
            Sampler(1.3, 0.7, 1, "c", coupling=coupling),
            Sampler(0.6, 0.95, 1, "d", top_k=20, coupling=coupling, presence_penalty=1.5),
            Sampler(2.0, 0.99, 1, "e", top_k=7, coupling=other),
            Sampler(0.6, 0.95, 1, "f", top_k=20, coupling=coupling),
        ]
        for sampler, liked in zip(made, logits.argmax(-1).tolist(), strict=True):
            sampler.took(liked)
        return made

    together, alone = samplers(), samplers()
    for _ in range(5):
        drawn = sample(logits, together)
        assert drawn.tolist() == [int(sample(logits[row : row + 1], [alone[row]])) for row in range(6)]
