"""How much the in-process engine gains from its two devices: `python benchmarks/engine.py [BRANCH]`.

Prints ratios of wall-clock times measured alternately in one run, as median (smallest to largest) of several rounds:
transformers' `generate` over our greedy decoding on the same batches, torch's threads over forked workers, prompts
after one long context read whole over reading what they share once, and, on a CPU without instructions for BF16, what
torch computes in it over the same in float32.
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

ROUNDS = 3
REQUESTS = 192
CONTEXT_TOKENS = 1500
QUESTIONS = 50
ROOT = Path(__file__).resolve().parents[1]


def requests(tokenizer: Any) -> list[Any]:
    """Canary prompts, evenly over the families."""
    from q36eval.canaries.probe import CanaryProbe
    from q36eval.canaries.specification import load_specs

    items = CanaryProbe(load_specs()).plan(tokenizer)
    planned = [request for item in items for request in item.generations]
    return planned[:: max(1, len(planned) // REQUESTS)]


def after_one_context(prompts: list[Any], tokenizer: Any) -> list[Any]:
    """The `QUESTIONS` shortest of those prompts, each after the same `CONTEXT_TOKENS` tokens of held-out text."""
    from q36eval.engines.batches import common_prefixes
    from q36eval.kl.corpus import load_corpus

    text = "\n".join(document.text for document in load_corpus(ROOT / "data/corpus/sandbox"))
    context = tuple(tokenizer.encode(text, add_special_tokens=False)[:CONTEXT_TOKENS])
    shortest = sorted(prompts, key=lambda request: len(request.token_ids))[:QUESTIONS]
    sequences = [context + request.token_ids for request in shortest]
    shared = common_prefixes(sequences)
    return [
        replace(request, token_ids=ids, shared=length, max_new_tokens=64)
        for request, ids, length in zip(shortest, sequences, shared, strict=True)
    ]


def stock(engine: Any, batches: list[list[Any]], stop_ids: list[int]) -> None:
    """transformers' own greedy generation: a batch runs until its last row ends or its largest budget is spent."""
    import torch
    from transformers import GenerationConfig

    for batch in batches:
        width = max(len(request.token_ids) for request in batch)
        ids = torch.tensor([[stop_ids[-1]] * (width - len(r.token_ids)) + list(r.token_ids) for r in batch])
        mask = torch.tensor([[0] * (width - len(r.token_ids)) + [1] * len(r.token_ids) for r in batch])
        budget = max(request.max_new_tokens for request in batch)
        settings = GenerationConfig(
            max_new_tokens=budget, do_sample=False, eos_token_id=stop_ids, pad_token_id=stop_ids[-1]
        )
        engine.model.generate(input_ids=ids, attention_mask=mask, generation_config=settings)


def seconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main() -> None:
    """Load one sandbox branch and print the ratios."""
    import torch

    from q36eval.app.sandbox import build
    from q36eval.engines import cpu_products, open_engine, resident
    from q36eval.engines.batches import batches_by_length
    from q36eval.engines.decoding import decode

    branch = sys.argv[1] if len(sys.argv) > 1 else "fp8-head"
    folder = build(branch)
    engine = open_engine(folder)
    planned = requests(engine.tokenizer)
    batches = list(batches_by_length(planned, 16384, 64))
    stops = [engine.tokenizer.eos_token_id, engine.tokenizer.pad_token_id]

    sharing = after_one_context(planned, engine.tokenizer)
    whole = [replace(request, shared=0) for request in sharing]

    def ours() -> None:
        for batch in batches:
            prompts, budgets = [r.token_ids for r in batch], [r.max_new_tokens for r in batch]
            decode(engine.model, prompts, budgets, frozenset(stops), stops[-1])

    def threads() -> None:
        limit, resident.FORKED_WEIGHT_BYTES = resident.FORKED_WEIGHT_BYTES, 0
        try:
            list(engine.generate(planned))
        finally:
            resident.FORKED_WEIGHT_BYTES = limit

    def bf16() -> None:
        with cpu_products.as_torch_has_them():
            list(engine.generate(planned[::4]))

    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "transformers generate / greedy decoding that sheds rows": (lambda: stock(engine, batches, stops), ours),
        "torch threads / forked workers": (threads, lambda: list(engine.generate(planned))),
        f"{QUESTIONS} prompts after {CONTEXT_TOKENS} tokens, read whole / sharing what they begin with": (
            lambda: list(engine.generate(whole)),
            lambda: list(engine.generate(sharing)),
        ),
    }
    if cpu_products.needed(engine.device):
        pairs["BF16 as torch has it / in float32"] = (bf16, lambda: list(engine.generate(planned[::4])))
    print(f"{branch}: {len(planned)} prompts, {torch.get_num_threads()} threads, median of {ROUNDS} rounds")
    for name, (slow, fast) in pairs.items():
        ratios = [seconds(slow) / seconds(fast) for _ in range(ROUNDS)]
        print(f"{name}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
