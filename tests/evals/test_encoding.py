"""What the token ids of a suite take: RULER to 128k is hundreds of millions of them."""

import copy
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from q36eval.evals import encoding
from q36eval.evals.encoding import Encoder, NotAmongLikeliestError, _read, _read_likeliest


def test_a_token_takes_a_pointer_and_no_object_of_its_own(tokenizer: Any) -> None:
    encoder = Encoder(tokenizer, 4096)
    text = " ".join(f"needle {number} of the miller" for number in range(2000))
    assert max(encoder._ids(text)) > 256, "Python keeps one object of every smaller number anyway"
    tracemalloc.start()
    kept = [tuple(encoder._ids(f"{text} {number}")) for number in range(4)]
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken / sum(map(len, kept)) < 10, "bytes a token; 25 with an object each"


def asked(tokenizer: Any) -> list[Any]:
    """Instances of every kind: shared contexts, spaces at their ends, none at all, a text with the prefix token."""
    prefix = tokenizer.decode([tokenizer.eos_token_id])
    pairs = [
        *(("Mlýn mele mouku. Kolik? ", choice) for choice in ("dvě", "tři", " pět")),
        ("", "Řeka teče."),
        ("   ", "a bílá"),
        (f"{prefix}Ahoj", " světe"),
    ]
    instances = [SimpleNamespace(request_type="loglikelihood", args=pair) for pair in pairs]
    texts = ["Obchod prodává šest kusů. " * 300, "Krátký text.", f"{prefix}Začátek. " * 40]
    instances += [SimpleNamespace(request_type="loglikelihood_rolling", args=(text,)) for text in texts]
    settings = {"until": ["\n"], "max_gen_toks": 8}
    return instances + [SimpleNamespace(request_type="generate_until", args=(text, settings)) for text in texts[1:]]


def test_texts_that_are_encoded_together_are_those_encoded_alone(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a tokenizer that begins texts with a token of its own."""
    monkeypatch.setattr(encoding, "WORTH_TOGETHER", 1)
    tokenizer = copy.deepcopy(tokenizer)
    first = [("<|im_start|>", tokenizer.convert_tokens_to_ids("<|im_start|>"))]
    template = TemplateProcessing(single="<|im_start|> $A", pair=None, special_tokens=first)
    tokenizer.backend_tokenizer.post_processor = template
    instances = asked(tokenizer)
    alone, together = Encoder(tokenizer, 2048), Encoder(tokenizer, 2048)
    together.read_together(instances)
    assert len(together._known) > 10
    assert {ids[:1] == [first[0][1]] for ids in together._known.values()} == {True, False}
    assert [together.encode("k", [each]) for each in instances] == [alone.encode("k", [each]) for each in instances]


def test_an_answer_is_read_from_the_likeliest_tokens_as_from_all_or_not_at_all() -> None:
    logits = torch.randn(5, 30, generator=torch.Generator().manual_seed(7))
    values, ids = logits.log_softmax(-1).topk(4, -1)
    greedy, third = tuple(ids[-2:, 0].tolist()), (*ids[-3:-1, 0].tolist(), int(ids[-1, 2]))
    absent = int(logits[-1].argmin())
    for token_ids in (greedy, third):
        nats, likeliest = _read(logits, logits.logsumexp(-1), token_ids, True)
        assert _read_likeliest(ids, values, token_ids) == (pytest.approx(nats, abs=1e-5), likeliest)
    assert _read_likeliest(ids, values, third)[1] is False
    padded = torch.cat([ids, torch.full((5, 1), -1)], -1), torch.cat([values, torch.full((5, 1), torch.nan)], -1)
    assert _read_likeliest(*padded, third) == _read_likeliest(ids, values, third)
    with pytest.raises(NotAmongLikeliestError, match="not among the likeliest"):
        _read_likeliest(ids, values, (absent,))
