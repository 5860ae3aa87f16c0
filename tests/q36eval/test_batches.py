"""What shares a batch depends on a probe's own requests alone."""

import random

from q36eval.engines.base import GenerationRequest
from q36eval.engines.batches import batches_by_length, with_news


def requests(group: str, count: int) -> list[GenerationRequest]:
    rng = random.Random(group)
    return [
        GenerationRequest(f"{group}/{i}", tuple(rng.choices(range(9), k=rng.randint(1, 40))), 8, group=group)
        for i in range(count)
    ]


def test_other_groups_change_no_batch_and_no_limit_is_exceeded() -> None:
    mine, others = requests("canaries", 60), requests("evals", 45)
    alone = list(batches_by_length(mine, 200, 16))
    together = list(batches_by_length(others + mine[::-1], 200, 16))
    assert [batch for batch in together if batch[0].group == "canaries"] == alone
    assert {len({request.group for request in batch}) for batch in together} == {1}
    assert sorted(request.key for batch in together for request in batch) == sorted(r.key for r in mine + others)
    assert all(len(batch) * len(batch[0].token_ids) <= 200 and len(batch) <= 16 for batch in together)
    assert max(map(len, together)) > 1


def test_work_that_was_interrupted_continues_in_the_batches_it_would_have_had() -> None:
    whole = list(batches_by_length(requests("kl", 60), 200, 16))
    known = {request.key for request in whole[0]} | {whole[1][0].key}
    rest = list(with_news(batches_by_length(requests("kl", 60), 200, 16), known))
    assert rest == whole[1:]
