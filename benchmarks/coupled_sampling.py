"""How alike two deployments answer that draw the same noise: Gumbel noise, one uniform number, none in common, greedy.

`python -m benchmarks.coupled_sampling [--branch data/sandbox/fp8-head] [--prompts 60] [--seeds 4]`: price comparisons
with reasoning, sampled. Texts that are the same to the last character, and answers of which one is right and the other
wrong (flips), with what they make of an interval: so many answers are needed for the same standard error.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from q36eval.canaries.answers import judged_answer
from q36eval.canaries.cases import Case
from q36eval.canaries.probe import CanaryProbe
from q36eval.canaries.specification import for_family, load_specs
from q36eval.config import Answering
from q36eval.engines import Engine, EngineSettings, open_engine
from q36eval.engines.base import GenerationRequest

SANDBOX = Path(__file__).parents[1] / "data" / "sandbox"
OFFSET = 1_000_000
"""Added to a seed, it gives numbers that have nothing in common with the seed's own."""


def answering(arguments: argparse.Namespace) -> Answering:
    """How the prompts are sampled."""
    sampling = {"temperature": arguments.temperature, "top_p": 0.95, "top_k": 20, "seeds": arguments.seeds}
    thinking = {"tokens": 320, "need": "as the sandbox's fixed prompts", "sampling": sampling}
    return Answering.model_validate({"thinking": thinking})


def ways(
    requests: Sequence[GenerationRequest],
) -> Iterator[tuple[str, list[GenerationRequest], list[GenerationRequest]]]:
    """How both are asked: a name, the reference's requests and the branch's."""
    yield "Gumbel noise in common", list(requests), list(requests)
    by_rank = [replace(request, coupling="inverse_cdf") for request in requests]
    yield "one uniform number in common", by_rank, by_rank
    yield "nothing in common", list(requests), [replace(each, seed=each.seed + OFFSET) for each in requests]
    greedy = [replace(request, temperature=0.0) for request in requests]
    yield "greedy", greedy, greedy


def answers(engine: Engine, requests: Sequence[GenerationRequest]) -> dict[str, tuple[str, str]]:
    """Texts and why they ended, by key."""
    generated = engine.generate(requests)
    return {each.request.key: (each.text, each.finish_reason) for each in generated}


def right(cases: dict[str, Case], texts: dict[str, tuple[str, str]]) -> np.ndarray:
    """1 for every answer that is right, in the order of `cases`."""
    return np.array([judged_answer(case, *texts[key], 0).score == 1.0 for key, case in cases.items()], dtype=float)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--branch", type=Path, default=SANDBOX / "fp8-head")
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--rows", type=int, default=7, help="rows of the batches that the reference is asked in again")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    specs = for_family(load_specs(only=["discount-thinking"], n=arguments.prompts, skills=None), answering(arguments))
    reference = open_engine(EngineSettings(SANDBOX / "bf16", device=arguments.device))
    probe = CanaryProbe(specs)
    items = probe.plan(reference.tokenizer)
    requests = [request for item in items for request in item.generations]
    cases = {key: case for key, (case, _) in probe._by_key.items()}
    others = {
        "itself": reference,
        f"itself, {arguments.rows} rows a batch": open_engine(
            EngineSettings(SANDBOX / "bf16", device=arguments.device, batch_rows=arguments.rows)
        ),
        arguments.branch.name: open_engine(EngineSettings(arguments.branch, device=arguments.device)),
    }
    print("| against | drawn with | same texts, % | flips, % | answers for the same error |\n|---|---|---|---|---|")
    for name, theirs, ours in ways(requests):
        first = answers(reference, theirs)
        for other, engine in others.items():
            second = answers(engine, ours)
            same = np.mean([first[key][0] == second[key][0] for key in cases])
            one, two = right(cases, first), right(cases, second)
            spread = float(np.var(two - one))
            alone = float(np.var(one) + np.var(two))
            needed = "–" if alone == 0 else f"{spread / alone:.2f}"
            print(f"| {other} | {name} | {100 * same:.1f} | {100 * np.mean(one != two):.1f} | {needed} |", flush=True)


if __name__ == "__main__":
    main()
