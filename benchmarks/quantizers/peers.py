"""What other gates say of the same branch, by the rules that they publish.

    python -m benchmarks.quantizers.peers --nel FILE --study FOLDER         how often `nel gate` agrees with our form
    python -m benchmarks.quantizers.peers --checkpoint FOLDER [--items 40]  item scores of lm-eval's `hf`, and ours

Each rule is written from its description and takes a benchmark's items: whether the reference answered each one right,
and whether the branch did. `FAIL` is also what a tool calls NO-GO, BLOCK, REGRESSION or a failed test. All thresholds
are the published defaults. `NO_RULE` names projects that measure and leave the verdict to the reader.
"""

import argparse
import json
import math
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import yaml
from scipy.stats import norm, t

Verdict = Literal["PASS", "FAIL", "undecided"]
Right = Sequence[bool]

NO_RULE = {
    "exllamav3": "KL and perplexity of each model, with a noise floor and plots (turboderp-org/exllamav3, "
    "eval/qbench/measure.py at 848897d1)",
    "Evalution": "the difference of each metric, and as `winner` the model with the higher value, even of a perplexity "
    "(PyPI evalution 0.0.17, evalution/compare.py)",
    "llama-perplexity": "KL, its percentiles and perplexity (ggml-org/llama.cpp, tools/perplexity/perplexity.cpp)",
}

CRITICAL = {"max_drop": 0.01, "max_relative_drop": 0.02, "relative_guard_below": 0.2}
"""Limits of a critical benchmark of low accuracy in NeMo Evaluator's tutorial."""


def nel_gate(
    reference: Right,
    branch: Right,
    max_drop: float = 0.015,
    max_relative_drop: float = math.inf,
    relative_guard_below: float = math.inf,
) -> Verdict:
    """NeMo Evaluator's release gate for one required benchmark of tier supporting.

    The 95 % interval (Student's t) of the mean paired drop must lie within `max_drop` to pass and beyond it to fail.
    Fewer than 10 pairs, or an interval that contains the limit, decide nothing. A relative drop of the point estimate
    beyond `max_relative_drop` fails without an interval, if a policy sets it.

    Source: https://github.com/NVIDIA-NeMo/Evaluator at ac66aff5, src/nemo_evaluator/engine/gate.py,
    config/gate_policy.py and docs/tutorials/quality-gate.mdx; identical in PyPI nemo-evaluator 0.3.0.
    """
    count = len(reference)
    if count < 10:
        return "undecided"
    drops = [float(p) - float(q) for p, q in zip(reference, branch, strict=True)]
    drop, score = statistics.fmean(drops), round(statistics.fmean(reference), 6)
    if 0 < score < relative_guard_below and round(drop, 6) / score > max_relative_drop:
        return "FAIL"
    half = t.ppf(0.975, count - 1) * statistics.stdev(drops) / math.sqrt(count)
    if round(drop - half, 6) > max_drop:
        return "FAIL"
    return "PASS" if round(drop + half, 6) <= max_drop else "undecided"


def nel_gate_critical(reference: Right, branch: Right) -> Verdict:
    """The same by the limits of tier critical."""
    return nel_gate(reference, branch, **CRITICAL)


def lm_eval_comparator(reference: Right, branch: Right) -> Verdict:
    """lm-eval's comparator of two runs: an unpaired two-sided z-test of accuracies at 5 %.

    A branch that is significantly better fails as well. Both accuracies 0 or 1 leave 0 / 0, which the script marks as
    a failure.

    Source: https://github.com/EleutherAI/lm-evaluation-harness at 1c62da1d, scripts/model_comparator.py; the standard
    error is `mean_stderr` of lm_eval/api/metrics.py.
    """
    difference = statistics.fmean(reference) - statistics.fmean(branch)
    variance = sum(statistics.variance([float(r) for r in right]) / len(right) for right in (reference, branch))
    if variance == 0:
        return "FAIL"
    return "PASS" if 2 * norm.sf(abs(difference) / math.sqrt(variance)) > 0.05 else "FAIL"


def llm_compressor(reference: Right, branch: Right) -> Verdict:
    """llm-compressor's test of recovery: at least 0.95 of the reference's accuracy, rounded to whole percents.

    So 0.945 passes. The tests evaluate 1,000 questions of GSM8K by default, and some lower the threshold.

    Source: https://github.com/vllm-project/llm-compressor at 0090f199, tests/lmeval/test_lmeval.py.
    """
    if not any(reference):
        return "undecided"
    return "PASS" if round(statistics.fmean(branch) / statistics.fmean(reference), 2) >= 0.95 else "FAIL"


def model_optimizer(reference: Right, branch: Right) -> Verdict:
    """Model-Optimizer's day-0 comparison: accuracy may drop by 0.01.

    A gain of more than 0.05 is anomalous: the baseline is to be examined and evaluated again, which decides nothing.

    Source: https://github.com/NVIDIA/Model-Optimizer at a2fbac7b,
    plugins/modelopt/skills/day0-release/scripts/gate_compare.py and SKILL.md.
    """
    p, q = sum(reference) / len(reference), sum(branch) / len(branch)
    if q - p > 0.05:
        return "undecided"
    return "PASS" if p - q <= 0.01 else "FAIL"


def vllm_ci(reference: Right, branch: Right) -> Verdict:
    """vLLM's test of GSM8K: accuracy may be 0.08 below the expected one, for which the reference's stands here.

    The expected accuracy is a number in each model's configuration file, usually of the quantized model itself.

    Source: https://github.com/vllm-project/vllm at 05d96d79, tests/evals/gsm8k/test_gsm8k_correctness.py.
    """
    return "PASS" if statistics.fmean(branch) >= statistics.fmean(reference) - 0.08 else "FAIL"


RULES: dict[str, Callable[[Right, Right], Verdict]] = {
    "nel gate": nel_gate,
    "nel gate, critical": nel_gate_critical,
    "lm-eval comparator": lm_eval_comparator,
    "llm-compressor": llm_compressor,
    "Model-Optimizer": model_optimizer,
    "vLLM CI": vllm_ci,
}


def verdicts(reference: Right, branch: Right) -> dict[str, Verdict]:
    """What every rule says of a branch, by the name of the project."""
    return {name: rule(reference, branch) for name, rule in RULES.items()}


def nel_gate_itself(nel: Path, pairs: Mapping[str, tuple[Right, Right]], policy: dict[str, Any]) -> dict[str, Verdict]:
    """What NeMo Evaluator's own command says of each pair (the reference first), all as benchmarks of one call.

    `nel` is the command of an environment with nemo-evaluator and scipy; `policy` is written as its YAML file.
    """
    words: dict[str, Verdict] = {"PASS": "PASS", "BREACH": "FAIL", "INSUFFICIENT_EVIDENCE": "undecided"}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for side, model in enumerate(("reference", "branch")):
            for name, pair in pairs.items():
                place = folder / model / name
                place.mkdir(parents=True)
                bundle = {"benchmark": {"name": name, "samples": len(pair[side]), "scores": {}}}
                (place / f"eval-{name}.json").write_text(json.dumps(bundle), encoding="utf-8")
                items = [{"problem_idx": at, "repeat": 0, "reward": float(r)} for at, r in enumerate(pair[side])]
                (place / "results.jsonl").write_text("\n".join(map(json.dumps, items)), encoding="utf-8")
        (folder / "policy.yaml").write_text(yaml.safe_dump(policy), encoding="utf-8")
        command: list[str | Path] = [nel, "gate", folder / "reference", folder / "branch", "--no-strict", "--no-report"]
        files: list[str | Path] = ["--policy", folder / "policy.yaml", "--output", folder / "report.json"]
        subprocess.run([*command, *files], check=True, stdout=subprocess.DEVNULL)
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return {entry["benchmark"]: words[entry["status"]] for entry in report["benchmarks"]}


def agreement(nel: Path, study: Path) -> str:
    """How often the command and our rule give the same verdict of the study's items, by the limits of both tiers."""
    from benchmarks.quantizers.tables import entries

    measured = {f"{each.name}-{group}": each.items(group) for each in entries(study) for group in ("hellaswag", "piqa")}
    pairs = {f"{name}-{tier}": pair for name, pair in measured.items() if pair for tier in ("supporting", "critical")}
    limits: dict[str, Any] = {name: CRITICAL if name.endswith("critical") else {} for name in pairs}
    policy = {"version": 1, "defaults": {"metric": "mean_reward"}, "benchmarks": limits}
    theirs = nel_gate_itself(nel, pairs, policy)
    same = sum(theirs[name] == nel_gate(*pair, **limits[name]) for name, pair in pairs.items())
    counts = ", ".join(f"{verdict} {list(theirs.values()).count(verdict)}" for verdict in ("PASS", "FAIL", "undecided"))
    return f"nel gate: {same} of {len(pairs)} verdicts are identical ({counts})"


def lm_eval_hf(checkpoint: Path, items: int, dtype: str) -> str:
    """How far our scores of HellaSwag are from those of lm-eval's `hf`, for which transformers loads the checkpoint.

    Quantized inputs leave a gap: equal layers differ by what a rounding turns over, and those differences grow.
    """
    from transformers import AutoModelForCausalLM

    from benchmarks import evals
    from benchmarks.frozen import write_frozen
    from benchmarks.quantizers import truth
    from q36eval.engines import open_engine

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        truth.write(folder)
        write_frozen(folder / "data", "first items", 0, {"hellaswag.jsonl": truth.hellaswag()[:items]}, {})
        suite = yaml.safe_load((folder / "suite.yaml").read_text(encoding="utf-8"))
        suite["groups"] = [group for group in suite["groups"] if group["name"] == "hellaswag"]
        (folder / "suite.yaml").write_text(yaml.safe_dump(suite), encoding="utf-8")
        engine, loaded = open_engine(checkpoint), AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype).eval()
        engine.model.to(loaded.dtype)
        own = evals.ours(engine, folder / "suite.yaml")
        theirs = evals.stock(SimpleNamespace(model=loaded, tokenizer=engine.tokenizer), folder / "suite.yaml", 1)
    right = [sum(each["acc"] for each in one.metrics.values()) for one in (own, theirs)]
    return f"{dtype}: {evals.compared(own, theirs)}; right: ours {right[0]:.0f}, lm-eval {right[1]:.0f}"


def main() -> None:
    """Print one comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--nel", type=Path, help="the command of an environment with nemo-evaluator")
    chosen.add_argument("--checkpoint", type=Path)
    parser.add_argument("--study", type=Path, help="the study's folder, whose items --nel judges")
    parser.add_argument("--items", type=int, default=40)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    asked = parser.parse_args()
    print(agreement(asked.nel, asked.study) if asked.nel else lm_eval_hf(asked.checkpoint, asked.items, asked.dtype))


if __name__ == "__main__":
    main()
