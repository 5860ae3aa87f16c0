"""Acceptance of a draft head's guesses: the formula, a naive reading of a text, and both sides as one paired figure."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from q36eval.engines import open_engine
from q36eval.gate import Policy, decide
from q36eval.gate.policy_file import read_policy
from q36eval.kl.acceptance import GUESSES, acceptance_sums, accepted
from q36eval.kl.corpus import CorpusDocument, load_corpus
from q36eval.kl.probe import KLProbe
from q36eval.records import Measurement, Verdict
from tests.draft_heads import SANDBOX, TRAINED, head_tensors, with_head
from tests.kl.comparing import CORPUS, ROOT, compared, results_of

TEXTS = ["The discount on a price of 480 is 25 percent.", "One needle is hidden here, and it is blue.", "Two: a, b."]


def test_a_guess_is_accepted_by_what_both_distributions_share() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.1, 0.8, 0.1]]).log()
    q = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.3, 0.5], [0.0, 0.5, 0.5], [0.1, 0.8, 0.1]]).log()
    q[3, 0] = torch.nan  # a head that is broken there is accepted nowhere
    assert accepted(p, q).tolist() == pytest.approx([0.6, 1.0, 0.0, 0.0])
    generator = torch.Generator().manual_seed(1)
    p, q = torch.randn(2, 40, 500, generator=generator).mul(3).softmax(-1)
    distance = 0.5 * (p - q).abs().sum(-1)  # the acceptance is what total variation leaves
    torch.testing.assert_close(accepted(p.log(), q.log()), 1 - distance)


def documents() -> list[CorpusDocument]:
    return [CorpusDocument(id=f"d{n}", text=text, slice="prose") for n, text in enumerate(TEXTS)]


def test_sums_are_those_of_a_text_read_token_by_token(tmp_path: Path) -> None:
    engine = open_engine(with_head(tmp_path / "branch", head_tensors(256)))
    probe = KLProbe(documents(), context=10, overlap=4)
    item = max(probe.plan(engine.tokenizer), key=lambda item: len(item.scores))
    assert len(item.scores) > 1
    results = results_of(engine, item)
    expected = {str(guess): [0.0, 0] for guess in range(1, GUESSES + 1)}
    embed, head = engine.model.model.embed_tokens, engine.draft_head
    for request in item.scores:
        states, labels = results.scored[request.key].hidden_states, torch.tensor(request.token_ids[request.first :])
        model = [engine.logits(row.unsqueeze(0)).softmax(-1)[0] for row in states]
        before = states
        for guess in range(1, GUESSES + 1):
            rows = len(labels) - guess
            before = head.states(before[:rows], embed(labels[guess - 1 : guess - 1 + rows]), request.first + guess - 2)
            for row in range(rows):
                drawn = engine.logits(before[row : row + 1]).softmax(-1)[0]
                expected[str(guess)][0] += float(torch.minimum(model[row + guess], drawn).sum())
                expected[str(guess)][1] += 1
    measured = acceptance_sums(engine, item, results)
    assert {guess: count for guess, (_, count) in measured.items()} == {g: n for g, (_, n) in expected.items()}
    for guess, (total, _) in measured.items():
        assert total == pytest.approx(expected[guess][0], rel=1e-4)


def figures(branch: Path, reference: Path, texts: Sequence[CorpusDocument] | None = None) -> dict[str, Measurement]:
    return compared(KLProbe(texts or documents()), open_engine(branch), open_engine(reference))


@pytest.mark.long
@pytest.mark.parametrize("side", ["branch", "reference"])
def test_where_a_side_has_no_head_nothing_is_claimed(tmp_path: Path, side: str) -> None:
    whole = with_head(tmp_path / "whole", head_tensors(256))
    branch, reference = (SANDBOX, whole) if side == "branch" else (whole, SANDBOX)
    assert not any("draft" in key for key in figures(branch, reference))


@pytest.mark.long
def test_a_trained_head_is_accepted_and_one_with_random_weights_is_not(tmp_path: Path) -> None:
    """The reference ships the trained one; each branch has the same text model."""
    listed = json.loads((TRAINED / "MANIFEST.json").read_text())
    assert {name: hashlib.sha256((TRAINED / name).read_bytes()).hexdigest() for name in listed} == listed
    trained = load_file(TRAINED / "model_mtp.safetensors")
    scale = {name: tensor.float().std() if tensor.numel() > 1 else 1.0 for name, tensor in trained.items()}
    random = torch.Generator().manual_seed(4)
    ruined = {
        name: (torch.randn(tensor.shape, generator=random) * scale[name]).bfloat16() for name, tensor in trained.items()
    }
    reference = with_head(tmp_path / "reference", trained)
    texts = sorted(load_corpus(CORPUS), key=lambda document: len(document.text))[10:50]
    whole = figures(with_head(tmp_path / "whole", trained), reference, texts)
    broken = figures(with_head(tmp_path / "broken", ruined), reference, texts)
    # the criterion that the documentation adds to the release policy, alone
    page = (ROOT / "docs" / "memory.md").read_text(encoding="utf-8")
    (tmp_path / "own.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0], encoding="utf-8")
    added = [each for each in read_policy(tmp_path / "own.yaml").criteria if each.id == "draft-acceptance"]
    policy, first = Policy(name="own", criteria=tuple(added)), "draft_acceptance[guess=1]"
    found = [decide(policy, measured).verdict for measured in ([whole[first]], [broken[first]], [])]
    # 40 texts show no change below 0.09, and of a lost head there is no figure
    assert found == [Verdict.INCONCLUSIVE, Verdict.FAIL, Verdict.INCONCLUSIVE]
    nothing = figures(with_head(tmp_path / "both", ruined), tmp_path / "broken", texts)
    assert decide(policy, [nothing[first]]).criteria[0].code == "reference-fails", "both fail alike"
    for key in (f"draft_acceptance[guess={guess}]" for guess in (1, 2)):
        assert whole[key].value == whole[key].reference_value == broken[key].reference_value > 0.3
        assert whole[key].effect == 0.0
        assert broken[key].counts.scored == whole[key].counts.scored
        assert broken[key].value < 0.1
        assert broken[key].effect_interval.upper < -0.1
