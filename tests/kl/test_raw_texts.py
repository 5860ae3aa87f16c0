"""How a raw text begins for a model, texts that a reference cannot model, and the corpus of the suite `standard`."""

import copy
import json
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch

from q36eval.config import Paths
from q36eval.evals.frozen import verify
from q36eval.kl import raw_texts
from q36eval.kl.corpus import CorpusDocument, load_corpus
from q36eval.kl.corpus_plan import plan_of, settings_of
from q36eval.kl.on_policy import OnPolicyPrompt, OnPolicySettings, kept_or_sampled
from q36eval.kl.planning import Material, plan_material
from q36eval.kl.probe import KLProbe
from q36eval.kl.raw_texts import chat_prefix, leading_ids
from q36eval.probes import Progress
from q36eval.run.materials import on_policy_prompts
from tests.kl.comparing import ROOT, Letters, compared

TEXTS = ["The clock in the workshop was silver and empty.", "Leo drew a simple ladder at school."]


class WithBos(Letters):
    bos_token_id = 1

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + super().encode(text)


def documents(*texts: str) -> tuple[CorpusDocument, ...]:
    return tuple(CorpusDocument(id=text[:9], slice="s", text=text) for text in texts)


def test_bos_stands_before_a_text_once_and_lets_its_first_token_be_scored() -> None:
    planned = plan_material(Material(documents("abc", "\x01de", "f", "\x01")), WithBos())
    asked = [(each.token_ids, each.first, len(each.kinds)) for each in planned.documents.values()]
    assert asked == [((1, 97, 98, 99), 1, 3), ((1, 100, 101), 1, 2), ((1, 102), 1, 1)]
    assert planned.too_short == 1
    without = plan_material(Material(documents("abc")), Letters())
    assert [(each.token_ids, each.first) for each in without.documents.values()] == [((97, 98, 99), 1)]


def test_a_prefix_is_read_and_not_scored() -> None:
    (each,) = plan_material(Material(documents("ab{}"), prefix=(1, 7, 8)), WithBos()).documents.values()
    assert (each.token_ids, each.first, each.labels) == ((1, 7, 8, *b"ab{}"), 3, tuple(b"ab{}"))
    assert (list(each.kinds), list(each.positions)) == ([0, 0, 1, 1], [3, 4, 5, 6])


def test_the_gain_of_a_chat_prompt_is_that_of_whole_forward_passes(bf16: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_texts, "GAIN_NATS", -100.0)
    prefix = chat_prefix(bf16, TEXTS)
    assert raw_texts.REQUEST in bf16.tokenizer.decode(prefix)
    assert leading_ids(bf16.tokenizer) == ()
    naive = [mean_loss(bf16, ()), mean_loss(bf16, prefix)]
    # in another batch BF16 rounds otherwise
    assert [raw_texts._mean_loss(bf16, before, encoded(bf16)) for before in ((), prefix)] == pytest.approx(naive, 1e-2)
    gain = naive[0] - naive[1]
    for needed, expected in ((gain - 0.05, prefix), (gain + 0.05, ())):
        monkeypatch.setattr(raw_texts, "GAIN_NATS", needed)
        assert chat_prefix(bf16, TEXTS) == expected
    assert chat_prefix(bf16, []) == ()


def encoded(engine: Any) -> list[tuple[int, ...]]:
    return [tuple(engine.tokenizer.encode(text, add_special_tokens=False)) for text in TEXTS]


@torch.inference_mode()
def mean_loss(engine: Any, before: tuple[int, ...]) -> float:
    losses: list[float] = []
    for ids in encoded(engine):
        log_probs = engine.model(torch.tensor([before + ids])).logits[0].float().log_softmax(-1)
        start = len(before) + 1
        losses += [-float(log_probs[start + n - 1, token]) for n, token in enumerate(ids[1:])]
    return sum(losses) / len(losses)


def test_what_the_reference_cannot_model_is_left_out_by_name(bf16: Any) -> None:
    sense, noise = documents(*TEXTS), documents("zq xj 7 kk { wv", "qq jj ] zx 9 % vw")
    told: list[str] = []
    whole = compared(KLProbe((*sense, *noise), most_loss=6.0, notify=told.append), bf16, bf16)
    alone = compared(KLProbe(sense), bf16, bf16)
    key = "perplexity[all]"
    assert (whole[key].value, whole[key].counts) == (alone[key].value, alone[key].counts)
    assert compared(KLProbe((*sense, *noise)), bf16, bf16)[key].counts != alone[key].counts
    assert all(each.id in (whole["kl_divergence[all]"].note or "") for each in noise)
    assert len(told) == 1


def test_a_base_model_continues_and_only_a_thinking_switch_gives_the_thinking_budget(tmp_path: Any, bf16: Any) -> None:
    ask = OnPolicyPrompt("p", "on_policy/chat", ({"role": "user", "content": "The river"},), enable_thinking=True)
    settings = OnPolicySettings(max_new_tokens=5, thinking_tokens=9, temperature=10.0, top_p=1.0)
    lengths, prompts = [], []
    for number, template in enumerate((bf16.tokenizer.chat_template, "{{ messages[0].content }}", None)):
        engine = copy.copy(bf16)
        engine.tokenizer = copy.deepcopy(bf16.tokenizer)
        engine.tokenizer.chat_template = template
        root = tmp_path / str(number)
        (answer,) = kept_or_sampled(root, engine.identity, [ask], settings, lambda e=engine: e, Progress()).answers
        lengths.append(len(answer.token_ids))
        prompts.append(engine.tokenizer.decode(answer.prompt_ids))
    assert lengths == [9, 5, 5]
    assert prompts[1:] == ["The river", "The river\n\n"]


def test_the_standard_corpus_is_varied_and_of_its_stated_size() -> None:
    manifest = verify(ROOT / "data/corpus/standard")
    texts = load_corpus(ROOT / "data/corpus/standard", {name: file.sha256 for name, file in manifest.files.items()})
    plan = settings_of("standard")
    assert plan_of("standard") is None, "it ships whole"
    assert (plan.on_policy.prompts, plan.most_loss) == ("standard", 6.0)
    counts = Counter(each.slice for each in texts)
    assert counts["prose"] >= 30
    assert min(counts[name] for name in ("code", "mathematics", "json", "tool_dialogue")) >= 10
    assert min(counts[name] for name in ("czech", "german", "french", "spanish")) >= 6
    assert len({each.cluster or each.id for each in texts}) >= 105
    seen: dict[tuple[str, ...], str] = {}
    for each in texts:
        words = each.text.split()
        assert 480 <= len(each.text) <= 1500, each.id
        for start in range(len(words) - 7):
            run = tuple(words[start : start + 8])
            assert seen.setdefault(run, each.id) == each.id, (run, each.id)


def test_the_standard_prompts_suit_any_chat_model() -> None:
    prompts = on_policy_prompts(OnPolicySettings(prompts="standard", per_canary=0), Paths(ROOT, ROOT))
    assert len(prompts) == 31
    assert sum(prompt.max_new_tokens for prompt in prompts) <= 45 * 88
    assert sum(prompt.enable_thinking for prompt in prompts) <= 2
    for prompt in prompts:
        roles = [message["role"] for message in prompt.messages]
        assert roles[0] == roles[-1] == "user"
        assert all(one != other for one, other in pairwise(roles))
        assert not prompt.tools
        assert json.loads(prompt.content)["max_new_tokens"] <= 112
