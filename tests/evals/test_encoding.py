"""What the token ids of a suite take: RULER to 128k is hundreds of millions of them."""

import tracemalloc
from typing import Any

from q36eval.evals.encoding import Encoder


def test_a_token_takes_a_pointer_and_no_object_of_its_own(tokenizer: Any) -> None:
    encoder = Encoder(tokenizer, 4096)
    text = " ".join(f"needle {number} of the miller" for number in range(2000))
    assert max(encoder._ids(text)) > 256, "Python keeps one object of every smaller number anyway"
    tracemalloc.start()
    kept = [tuple(encoder._ids(f"{text} {number}")) for number in range(4)]
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken / sum(map(len, kept)) < 10, "bytes a token; 25 with an object each"
