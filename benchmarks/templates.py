"""What rendering under limits costs: every shipped canary by the sandbox's template, here and in transformers, in turn.

`python -m benchmarks.templates` prints a Markdown table: wall clock and this process' CPU time for the same prompts,
the medians of several rounds, and what starting the process that renders takes.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from q36eval.canaries.cases import Case, cases_of
from q36eval.canaries.specification import load_specs
from q36eval.chat import rendered_chat, renderer
from q36eval.checkpoints import load_tokenizer

SANDBOX = Path(__file__).parents[1] / "data" / "sandbox" / "bf16"


def here(tokenizer: Any, case: Case) -> str:
    """Under limits."""
    return rendered_chat(tokenizer, case.messages, case.tools, enable_thinking=case.generation.enable_thinking)


def in_transformers(tokenizer: Any, case: Case) -> str:
    """Without."""
    settings = {"add_generation_prompt": True, "enable_thinking": case.generation.enable_thinking, "tokenize": False}
    return str(tokenizer.apply_chat_template(list(case.messages), tools=list(case.tools) or None, **settings))


def timed(render: Callable[[Any, Case], str], tokenizer: Any, cases: list[Case]) -> tuple[float, float, list[str]]:
    """Wall and CPU seconds, and what was written."""
    wall, cpu = time.perf_counter(), time.process_time()
    texts = [render(tokenizer, case) for case in cases]
    return time.perf_counter() - wall, time.process_time() - cpu, texts


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=30, help="of every canary family")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    tokenizer = load_tokenizer(SANDBOX)
    cases = [case for spec in load_specs(skills=None, n=options.draws) for case in cases_of(spec)]
    renderer().close()
    begun = time.perf_counter()
    renderer().render("x", {})
    started = time.perf_counter() - begun
    ways = {"transformers": in_transformers, "under limits": here}
    rounds = [{name: timed(way, tokenizer, cases) for name, way in ways.items()} for _ in range(options.rounds)]
    if any(each["transformers"][2] != each["under limits"][2] for each in rounds):
        raise SystemExit("they write other texts")
    print(f"{len(cases)} prompts, medians of {options.rounds} rounds; the process starts in {started:.2f} s\n")
    print("| | wall, ms a prompt | CPU of this process, ms a prompt |\n|---|---|---|")
    for name in ways:
        wall, cpu = (1000 * median(each[name][place] for each in rounds) / len(cases) for place in (0, 1))
        print(f"| {name} | {wall:.3f} | {cpu:.3f} |")
    ratio = median(each["under limits"][0] / each["transformers"][0] for each in rounds)
    print(f"\nwall clock, ratio within a round: {ratio:.2f}")


if __name__ == "__main__":
    main()
