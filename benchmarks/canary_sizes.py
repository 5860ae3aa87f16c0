"""What a family's canaries cost and can show: tokens of questions and right answers, and what so few prompts prove.

`python -m benchmarks.canary_sizes tokens --tokenizer TOKENIZER_JSON [--family qwen3.6-35b-a3b]` renders every canary
under the test template and counts, beside the hand-labelled right answers. `python -m benchmarks.canary_sizes power`
says what margins fixed prompts and sampled prompts can show: exact for the former, simulated for the latter.
"""

import argparse
import statistics
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy.stats import binom

from q36eval.canaries.cases import cases_of
from q36eval.canaries.checks import Outcome
from q36eval.canaries.probe import rendered
from q36eval.canaries.specification import for_family, load_specs
from q36eval.config import Family
from q36eval.gate import Margin
from q36eval.records import Clusters, Direction, Estimator
from q36eval.stats import margin_test
from tests.canaries.hand_labelled import hand_labelled

ROOT = Path(__file__).parents[1]
RENDERED = 12
"""So many questions of each canary are rendered; their mean stands for all of them."""

LOST = 0.02
"""Share of fixed prompts that an acceptable branch loses."""

SEEDS, SIMULATED = 4, 400
HARD = (0.5, 6.0)
"""How often the reference fails a sampled prompt: a few are hard and most are easy, 8 % of answers in all."""

BIN = 32
THOUGHT = 2_000
"""Tokens of a thought, assumed: no model of this family has been run here."""

PREFILL, DECODE = 47_000, 11_000
"""Tokens a second of vLLM 0.26 on one H200 with random weights of this shape: prompts, and answers at 256 at a time."""


def tokens(tokenizer_file: Path, family_name: str) -> None:
    """Print questions and tokens by suite, and the lengths of right answers by kind of prompt."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_file))
    tokenizer.chat_template = (ROOT / "tests/canaries/template/strict.jinja").read_text(encoding="utf-8")
    lengths: dict[str, list[int]] = defaultdict(list)
    for answer in hand_labelled():
        if answer.label is Outcome.RIGHT:
            lengths[answer.prompt.id.rpartition("-")[0]].append(len(tokenizer.encode(answer.text)))
    print(f"| right answers to | answers | median | greatest | by {BIN} tokens |\n|---|---|---|---|---|")
    for kind, sizes in sorted(lengths.items()):
        print(f"| {kind} | {len(sizes)} | {statistics.median(sizes):g} | {max(sizes)} | {histogram(sizes)} |")
    family = Family.load(ROOT / "data" / "families" / f"{family_name}.yaml")
    heads = ("draws", "questions", "sampled with reasoning", "prompts", "answers", "thoughts", "minutes", "at most")
    print(f"\n| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for draws in (60, 200):
        questions = sampled = 0
        prompts = answers = at_most = 0.0
        for spec in for_family(load_specs(n=draws, skills=family.skills), family.answers):
            cases = cases_of(spec)
            some = cases[:: max(1, len(cases) // RENDERED)]
            prompts += statistics.mean(len(tokenizer.encode(rendered(case, tokenizer))) for case in some) * len(cases)
            answers += statistics.mean(len(tokenizer.encode(case.answer)) for case in some) * len(cases)
            questions += len(cases)
            if spec.generation.enable_thinking:
                sampled += len(cases)
                at_most += spec.generation.max_new_tokens * len(cases)
        thoughts = THOUGHT * sampled
        # prompts and answers are read once more, teacher-forced
        minutes, most = (
            (2 * prompts + answers) / PREFILL / 60 + (answers + thought) / DECODE / 60
            for thought in (thoughts, at_most)
        )
        tokens_of = " | ".join(f"{each / 1e6:.1f} M" for each in (prompts, answers, thoughts))
        print(f"| {draws} | {questions:,} | {sampled:,} | {tokens_of} | {minutes:.1f} | {most:.1f} |", flush=True)


def histogram(values: list[int]) -> str:
    """How many of `values` fall into each bin from 0 on, as heights."""
    counts = np.bincount(np.array(values) // BIN)
    return "".join(" ▁▂▃▄▅▆▇█"[0 if not count else 1 + round(7 * count / counts.max())] for count in counts)


def passes(branch: np.ndarray, reference: np.ndarray, answers: int, margin: float, estimator: Estimator) -> bool:
    """Whether sums of so many answers a prompt lie inside the margin at 97.5 %."""
    clusters = Clusters(
        units=(answers,) * len(branch),
        branch=tuple(branch.tolist()),
        reference=tuple(reference.tolist()),
        errored=(0,) * len(branch),
        bounds=(0.0, 1.0),
    )
    limit = Margin(kind="max_increase", value=margin, source="as given")
    test = margin_test(clusters, estimator, limit, direction=Direction.LOWER_IS_BETTER, level=0.95)
    return test.p_pass <= 0.025


def power() -> None:
    """Print the least margin of fixed prompts that a branch may lose some of, and how often sampled prompts pass."""
    print("| fixed prompts | lost | least margin, 1/100 | a branch that loses 2 % passes, % |\n|---|---|---|---|")
    for prompts in (31, 41, 44, 76):
        for lost in range(1, 5):
            branch = np.array([1.0] * lost + [0.0] * (prompts - lost))
            zero = np.zeros(prompts)
            least = next(m for m in range(1, 100) if passes(branch, zero, 1, m / 100, "paired_proportions"))
            print(f"| {prompts} | {lost} | {least} | {100 * binom.cdf(lost, prompts, LOST):.1f} |")
    print("\n| sampled prompts | answers that flip, % | without loss they pass a margin of 0.1, % |\n|---|---|---|")
    rng = np.random.default_rng(20261122)
    for prompts in (50, 100, 150, 200):
        passed, flipped = 0, 0.0
        for _ in range(SIMULATED):
            # the same chance for both deployments and nothing in common beyond it: the most that can flip without loss
            chance = rng.beta(*HARD, size=prompts)
            branch, reference = (rng.binomial(SEEDS, chance).astype(float) for _ in range(2))
            flipped += float(np.mean(2 * chance * (1 - chance))) / SIMULATED
            passed += passes(branch, reference, SEEDS, 0.1, "paired_mean")
        print(f"| {prompts} | {100 * flipped:.1f} | {100 * passed / SIMULATED:.1f} |", flush=True)


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tokens", "power"])
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json of the family")
    parser.add_argument("--family", default="qwen3.6-35b-a3b")
    arguments = parser.parse_args()
    if arguments.what == "power":
        power()
    elif arguments.tokenizer is None:
        parser.error("tokens needs --tokenizer")
    else:
        tokens(arguments.tokenizer, arguments.family)


if __name__ == "__main__":
    main()
