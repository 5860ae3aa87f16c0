"""The KL probe from hidden states to measurements: against naive figures, and where there is little to say."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from q36eval.engines.base import Scored
from q36eval.engines.numerics import float32_logits
from q36eval.errors import UsageError
from q36eval.kl.corpus import CorpusDocument
from q36eval.kl.divergence import token_figures
from q36eval.kl.probe import KLProbe
from q36eval.kl.tokens import read_tokens
from q36eval.probes import Digest, ItemResults
from q36eval.records import ItemOutcome, Measurement
from q36eval.token_files import TOKENS, WORST, read_worst
from tests.declared import assert_declared
from tests.kl.comparing import Letters
from tests.raising import raises

VOCABULARY, WIDTH = 40, 16
LETTERS = Letters(VOCABULARY)


@dataclass
class Head:
    """The part of an engine that a comparison needs."""

    weight: torch.Tensor
    drafts = False

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        return float32_logits(states, self.weight)


class Run:
    """A probe over documents whose hidden states are drawn at random; `damage` makes the branch's of them."""

    def __init__(self, lengths: dict[str, list[int]], folder: Path | None = None) -> None:
        rng = np.random.default_rng(3)
        self.documents = [
            CorpusDocument(f"{name}-{n:03d}", name, "".join(rng.choice(list("abcdefghij"), length)))
            for name, sizes in lengths.items()
            for n, length in enumerate(sizes)
        ]
        self.probe = KLProbe(self.documents, context=128, overlap=16)
        if folder is not None:
            self.probe.keep_in(folder)
        self.items = self.probe.plan(LETTERS)
        torch.manual_seed(5)
        self.head = torch.randn(VOCABULARY, WIDTH)

    def outcomes(
        self, damage: Any, errored: Sequence[int] = (), reference_damage: Any = lambda number, states: states
    ) -> list[ItemOutcome]:
        engine, found = Head(self.head), []
        for number, item in enumerate(self.items):
            torch.manual_seed(number)
            states = [torch.randn(len(r.token_ids) - r.first, WIDTH) for r in item.scores]
            error = "the engine broke" if number in errored else None
            results = ItemResults(
                {r.key: Scored(r, damage(number, s), error) for r, s in zip(item.scores, states, strict=True)}
            )
            theirs = reference_damage(number, torch.cat(states))
            reference = Digest(tensors={"hidden_states": theirs, "head": self.head})
            found += self.probe.compare(engine, item, results, reference)  # type: ignore[arg-type]
        return found

    def measured(self, damage: Any, errored: Sequence[int] = (), **more: Any) -> dict[str, Measurement]:
        found = list(self.probe.summarize(self.outcomes(damage, errored, **more)))
        keys = [m.key.removeprefix("kl.") for m in found]
        assert len(set(keys)) == len(keys)
        return dict(zip(keys, found, strict=True))


def noise(number: int, states: torch.Tensor) -> torch.Tensor:
    return states + 0.1 * (1 + number % 3) * torch.randn(states.shape, generator=torch.Generator().manual_seed(number))


LENGTHS = {"code": [60 + 7 * n for n in range(20)], "prose": [300] * 10 + [40] * 10}


@pytest.mark.long
def test_every_figure_is_that_of_a_naive_computation(tmp_path: Path) -> None:
    run = Run(LENGTHS, tmp_path)
    found = run.measured(noise)
    rows: list[dict[str, Any]] = []
    for number, item in enumerate(run.items):
        torch.manual_seed(number)
        for request in item.scores:
            states = torch.randn(len(request.token_ids) - request.first, WIDTH)
            labels = torch.tensor(request.token_ids[request.first :])
            pair = [float32_logits(s, run.head) for s in (states, noise(number, states))]
            figures = token_figures(*pair, labels)
            for t in range(len(labels)):
                row = {name: float(getattr(figures, name)[t]) for name in vars(figures)}
                rows.append(row | {"slice": run.documents[number].slice, "position": request.first + t})

    def mean(name: str, chosen: list[dict[str, Any]]) -> float:
        return sum(row[name] for row in chosen) / len(chosen)

    code = [row for row in rows if row["slice"] == "code"]
    far = [row for row in rows if 64 <= row["position"] <= 127]
    kl = sorted(row["forward_kl"] for row in rows)
    expected = {
        "kl_divergence[all]": mean("forward_kl", rows),
        "kl_divergence[code]": mean("forward_kl", code),
        "reverse_kl_divergence[all]": mean("reverse_kl", rows),
        "top1_agreement[all]": mean("top1_agrees", rows),
        "perplexity[all]": math.exp(-mean("branch_logprob", rows)),
        "kl_divergence[position=64-127]": mean("forward_kl", far),
        "top1_agreement[position=64-127]": mean("top1_agrees", far),
        "kl_p99[all]": kl[math.ceil(len(kl) * 0.99) - 1],
        "kl_max[all]": kl[-1],
    }
    for key, value in expected.items():
        # sums in another order, and quantiles and groups from float32
        assert found[key].value == pytest.approx(value, rel=1e-6), key
    table = read_tokens(tmp_path / TOKENS)
    assert table.num_rows == len(rows) == found["kl_divergence[all]"].counts.scored
    assert max(table["position"].to_pylist()) == 127
    assert max(table["index"].to_pylist()) == 299
    # the documents were planned as they lie in the file: slices in order, documents in order
    # float32, and logits that a product of another shape may round otherwise
    assert np.allclose(table["forward_kl"].to_numpy(), [row["forward_kl"] for row in rows], rtol=1e-5, atol=0)
    for m in found.values():
        assert m.counts.scored > 0
        assert m.effect_interval.lower <= m.effect <= m.effect_interval.upper


def test_tokens_lie_by_slice_and_document_whatever_came_first(tmp_path: Path) -> None:
    run = Run({"prose": [60, 70], "code": [40, 50]}, tmp_path)
    list(run.probe.summarize(run.outcomes(noise)[::-1]))
    documents = read_tokens(tmp_path / TOKENS)["document"].to_pylist()
    assert documents == sorted(documents)


def test_the_worst_tokens_are_named_with_their_text(tmp_path: Path) -> None:
    run = Run({"code": [60, 67], "prose": [300, 300]}, tmp_path)
    there: list[torch.Tensor] = []

    def one_token(number: int, states: torch.Tensor) -> torch.Tensor:
        damaged = noise(number, states)
        if number == 3 and len(states) == 127:
            damaged[9] = -8 * states[9]
            there.append(states[9])
        return damaged

    run.measured(one_token)
    worst = read_worst(tmp_path / WORST)
    assert len(worst) == 20
    assert [w.forward_kl for w in worst] == sorted((w.forward_kl for w in worst), reverse=True)
    first = worst[0]
    text = LETTERS.decode(LETTERS.encode(run.documents[3].text, False))
    assert (first.document, first.index) == ("prose-001", 10)
    assert (first.before, first.text, first.after) == (text[:10], text[10], text[11:23])
    # the branch's logits are -8 times the reference's, so it expects what the reference holds least likely
    log_p, log_q = (torch.log_softmax(scale * (run.head @ there[0]).double(), 0) for scale in (1, -8))
    assert (first.reference_top, first.branch_top) == tuple(LETTERS.decode([int(x.argmax())]) for x in (log_p, log_q))
    tops = (first.reference_top_logprob, first.branch_top_logprob)
    assert tops == pytest.approx((float(log_p.max()), float(log_q.max())), rel=1e-5)
    assert all(w.branch_top is not None for w in worst)


def test_the_reference_against_itself_is_exactly_zero() -> None:
    found = Run(LENGTHS).measured(lambda number, states: states)
    for key, m in found.items():
        if key.startswith(("kl_", "reverse_kl")) and not key.startswith(("kl_max", "kl_document_max")):
            if key.startswith("kl_") and "=" in key and m.effect_interval.method.startswith("none"):
                continue  # a group of a few documents has no interval, even of zeros
            assert m.value == 0.0, key
            assert (max(m.effect_interval.lower, 0.0), m.effect_interval.upper) == (0.0, 0.0), key
    assert (found["top1_agreement[all]"].value, found["perplexity[all]"].effect) == (1.0, 1.0)
    assert found["kl_max[all]"].value == 0.0


def test_a_run_in_which_everything_errored_measures_nothing_and_says_so(tmp_path: Path) -> None:
    run = Run({"code": [50] * 4}, tmp_path)
    found = run.measured(noise, errored=range(4))
    assert list(found) == ["non_finite_tokens[all]"]
    assert found["non_finite_tokens[all]"].counts.errored == 4 * 49
    assert not (tmp_path / TOKENS).exists()


@pytest.mark.long
def test_an_errored_document_is_in_no_mean_and_in_every_count() -> None:
    run = Run(LENGTHS)
    whole, part = run.measured(noise), Run(LENGTHS).measured(noise, errored=[0])
    assert part["kl_divergence[all]"].counts.errored == 59
    assert part["kl_p99[code]"].counts.errored == 59
    assert part["kl_p99[prose]"] == whole["kl_p99[prose]"]
    assert part["kl_divergence[all]"].effect_interval.method == "none: errored units of unbounded value"
    # it could have lain in any bucket
    assert part["kl_divergence[position=64-127]"].counts.errored == 59


def test_one_document_has_figures_and_no_interval() -> None:
    found = Run({"code": [200]}).measured(noise)
    for key in ("kl_divergence[all]", "kl_p99[code]", "kl_divergence[kind=text]"):
        assert math.isfinite(found[key].value)
        assert found[key].effect_interval.upper == math.inf, key
        assert found[key].effect_interval.method.startswith("none"), key


@pytest.mark.parametrize("name", ["all", "kind=text", "position=0-63", "x=2+", "on_policy/code", " "])
def test_a_slice_named_like_other_figures_is_refused(name: str) -> None:
    fine, bad = CorpusDocument("first", "code", "abc"), CorpusDocument("second", name, "abcd")
    with raises(UsageError, "slice-name-reserved", "'second'") as refused:
        KLProbe([fine, bad])
    assert repr(name) in str(refused.value)


def spoilt(value: float, document: int = 0, rows: int = 10) -> Any:
    """Damage that puts `value` into the first states of one document."""

    def damage(number: int, states: torch.Tensor) -> torch.Tensor:
        states = states.clone()
        if number == document:
            states[:rows] = value
        return states

    return damage


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_tokens_that_a_branch_spoils_are_counted_and_every_mean_says_that_it_lacks_them(
    value: float, tmp_path: Path
) -> None:
    found = Run({"code": [50] * 4, "prose": [50] * 4}, tmp_path).measured(spoilt(value))
    census = found["non_finite_tokens[all]"]
    assert (census.value, census.counts.scored, census.counts.errored) == (10, 8 * 49, 0)
    for key in ("kl_divergence[all]", "perplexity[all]", "top1_agreement[all]"):
        assert "without 10 of 392 scored tokens" in found[key].note
    assert "without 10 of 196" in found["kl_divergence[code]"].note
    assert "without 10 of 392" in found["kl_divergence[kind=text]"].note
    assert "without" not in found["kl_divergence[prose]"].note
    assert all(math.isfinite(m.value) for key, m in found.items() if "=" in key and m.metric != "kl_p99")
    assert found["kl_p99[all]"].counts.scored == 8 * 49
    assert found["kl_p99[all]"].value == found["kl_max[all]"].value == math.inf, "they top the quantiles"
    assert math.isnan(read_worst(tmp_path / WORST)[0].forward_kl)


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
def test_what_the_reference_spoils_is_errored_and_no_fault_of_the_branch(value: float) -> None:
    """At 3e38 the states are numbers and the logits are not."""
    run = Run({"code": [50] * 4})
    outcome = run.outcomes(noise, reference_damage=spoilt(value))[0]
    assert "the reference could not be measured on this item" in outcome.branch.error
    assert "not finite at 10 of 49 tokens" in outcome.branch.error
    found = Run({"code": [50] * 4}).measured(noise, reference_damage=spoilt(value))
    census = found["non_finite_tokens[all]"]
    assert (census.value, census.counts.scored, census.counts.errored) == (0, 3 * 49, 49)
    assert found["kl_divergence[all]"].counts.errored == 49


def test_what_is_declared_is_what_is_yielded() -> None:
    run = Run(LENGTHS)
    found = run.measured(noise)
    declared = {figure.key.removeprefix("kl."): figure for figure in run.probe.declared()}
    assert_declared(declared, found)
    for name, measurement in found.items():
        figure = declared[name]
        if figure.clusters is not None:
            assert figure.clusters == len(measurement.clusters.units), name
            bounds = measurement.clusters.bounds
            assert figure.metric.bounded == (bounds is not None and all(map(math.isfinite, bounds))), name


@pytest.mark.long
def test_documents_of_one_source_are_one_cluster() -> None:
    apart = Run(LENGTHS)
    together = Run(LENGTHS)
    documents = [replace(d, cluster=f"{d.slice}/{n // 4}") for n, d in enumerate(together.documents)]
    together.probe = KLProbe(documents, context=128, overlap=16)
    together.items = together.probe.plan(LETTERS)
    one, other = apart.measured(noise, errored=[3]), together.measured(noise, errored=[3])
    assert set(one) == set(other)
    for key, measurement in one.items():
        grouped = other[key]
        assert grouped.value == pytest.approx(measurement.value, rel=1e-12), key
        assert grouped.counts == measurement.counts, key
    kl, grouped = one["kl_divergence[all]"].clusters, other["kl_divergence[all]"].clusters
    assert grouped.branch == pytest.approx([sum(kl.branch[n : n + 4]) for n in range(0, 40, 4)])
    assert len(set(grouped.names or ())) == 10
    assert "40 documents in 10 clusters" in other["kl_divergence[all]"].note
    worst, each = other["kl_document_max[all]"].clusters, one["kl_document_max[all]"].clusters
    assert worst.branch == tuple(max(each.branch[n : n + 4]) for n in range(0, 40, 4))
    assert (worst.units[0], worst.errored[0]) == (3, 1)
    fields = [run.probe.suite_fields["clusters"] for run in (apart, together)]
    assert fields[0] == ""
    assert fields[1] != ""
    assert apart.probe.suite_sha256 != together.probe.suite_sha256
