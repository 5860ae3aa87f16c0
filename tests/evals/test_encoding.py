"""What the token ids of a suite take: RULER to 128k is hundreds of millions of them."""

import tracemalloc
from typing import Any

import pytest
import torch

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
