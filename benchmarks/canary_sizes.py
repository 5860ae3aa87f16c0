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

from canaries.cases import cases_of
from canaries.checks import Outcome
from canaries.probe import rendered
from canaries.specification import for_family, load_specs
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

SEEDS, SIMULATED = 4, 200


def tokens(tokenizer_file: Path, family_name: str) -> None:
    """Print questions and tokens by suite, and the lengths of right answers by kind of prompt."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_file))
    tokenizer.chat_template = (ROOT / "tests/canaries/template/strict.jinja").read_text(encoding="utf-8")
    lengths: dict[str, list[int]] = defaultdict(list)
    for answer in hand_labelled():
        if answer.label is Outcome.RIGHT:
            lengths[answer.prompt.id.rpartition("-")[0]].append(len(tokenizer.encode(answer.text)))
    print("| right answers to | answers | median | greatest |\n|---|---|---|---|")
    for kind, found in sorted(lengths.items()):
        print(f"| {kind} | {len(found)} | {statistics.median(found):g} | {max(found)} |")
    family = Family.load(ROOT / "data" / "families" / f"{family_name}.yaml")
    print("\n| draws | questions | of them sampled with reasoning | prompt tokens | budget |\n|---|---|---|---|---|")
    for draws in (60, 200):
        questions = sampled = budget = 0
        prompts = 0.0
        for spec in for_family(load_specs(n=draws, skills=family.skills), family.answers):
            cases = cases_of(spec)
            some = cases[:: max(1, len(cases) // RENDERED)]
            prompts += statistics.mean(len(tokenizer.encode(rendered(case, tokenizer))) for case in some) * len(cases)
            questions += len(cases)
            sampled += len(cases) if spec.generation.enable_thinking else 0
            budget += spec.generation.max_new_tokens * len(cases)
        print(f"| {draws} | {questions:,} | {sampled:,} | {prompts / 1e6:.1f} M | {budget / 1e6:.1f} M |", flush=True)


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
    for prompts in (31, 44, 43, 76):
        for lost in range(1, 5):
            branch = np.array([1.0] * lost + [0.0] * (prompts - lost))
            zero = np.zeros(prompts)
            least = next(m for m in range(1, 100) if passes(branch, zero, 1, m / 100, "paired_proportions"))
            print(f"| {prompts} | {lost} | {least} | {100 * binom.cdf(lost, prompts, LOST):.1f} |")
    print("\n| sampled prompts | answers that flip, % | without loss they pass a margin of 0.1, % |\n|---|---|---|")
    rng = np.random.default_rng(20261122)
    for prompts in (50, 100, 200):
        for flips in (0.06, 0.12):
            passed = 0
            for _ in range(SIMULATED):
                # a few prompts are hard and most are easy; what flips is drawn anew, so that nothing is lost on average
                hard = rng.beta(0.5, 6, size=(prompts, 1))
                reference = rng.random((prompts, SEEDS)) < hard
                anew = rng.random((prompts, SEEDS)) < hard
                flipping = rng.random((prompts, SEEDS)) < flips / np.maximum(2 * hard * (1 - hard), 1e-3)
                branch = np.where(flipping, anew, reference)
                sums = branch.sum(axis=1).astype(float), reference.sum(axis=1).astype(float)
                passed += passes(*sums, SEEDS, 0.1, "paired_mean")
            print(f"| {prompts} | at most {100 * flips:.0f} | {100 * passed / SIMULATED:.1f} |", flush=True)


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tokens", "power"])
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json of the family")
    parser.add_argument("--family", default="qwen3.6-35b-a3b")
    asked = parser.parse_args()
    if asked.what == "power":
        power()
    elif asked.tokenizer is None:
        parser.error("tokens needs --tokenizer")
    else:
        tokens(asked.tokenizer, asked.family)


if __name__ == "__main__":
    main()
