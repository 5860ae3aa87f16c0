"""Throughput against lm-eval's own `hf` model: `python benchmarks/evals.py [--part choices|suite|noise] [--batch N]`.

Both ask the same items of the same model object on two cores, from building the tasks to the metrics of each document,
alternately in one run; ratios as median (smallest to largest) of several rounds. In float32 every log-likelihood,
choice, text and metric is compared too. `choices` is MMLU's form with five solved examples, made from the sandbox's
frozen questions; `suite` is the sandbox's whole suite. Ratios of CPU time are given beside those of wall-clock time:
where other work holds a core, torch's threads wait for one another, and wall-clock ratios flatter whoever has none.
"""

import argparse
import contextlib
import io
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)  # this folder's evals.py must not hide the package
FROZEN = ROOT / "data/tasks/sandbox"
SHOTS = 5


@dataclass
class Pass:
    """One way's answers by prompt, and where its time went."""

    responses: dict[str, list[Any]] = field(default_factory=dict)
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    cpu_seconds: float = 0.0

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def spent(self) -> str:
        kinds = ", ".join(f"{kind} {seconds:.1f}" for kind, seconds in self.seconds.items())
        return f"{self.total:.1f} s ({kinds}), CPU {self.cpu_seconds:.1f} s"


@contextlib.contextmanager
def clocked(one_pass: Pass, name: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    one_pass.seconds[name] = one_pass.seconds.get(name, 0.0) + time.perf_counter() - started


def suite_of_choices(folder: Path) -> Path:
    """The sandbox's MMLU group with five solved examples: the frozen one and each subject's first four questions."""
    import yaml

    from benchmarks.frozen import write_frozen

    records = {}
    for path in sorted((FROZEN / "mmlu").glob("*.jsonl")):
        questions = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        solved = [
            json.loads(line) for line in (FROZEN / "mmlu_dev" / path.name).read_text(encoding="utf-8").splitlines()
        ]
        missing = SHOTS - len(solved)
        records[f"mmlu_dev/{path.name}"] = solved + questions[:missing]
        records[f"mmlu/{path.name}"] = questions[missing:]
    write_frozen(folder / "data", "five shots", 0, records, {})
    suite = yaml.safe_load((ROOT / "evals/suites/sandbox.yaml").read_text(encoding="utf-8"))
    groups = [group for group in suite["groups"] if group["name"] == "mmlu"]
    for group in groups:
        group["task"] = str(ROOT / "evals/tasks/mmlu.yaml")
        group["subsets"] = {name: {"num_fewshot": SHOTS} for name in group["subsets"]}
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump(suite | {"data": "data", "groups": groups}), encoding="utf-8")
    return path


def ours(engine: Any, suite: Path) -> Pass:
    """Plan, ask, read: what a gate does for one deployment."""
    from q36eval.evals.probe import EvalsProbe
    from q36eval.probes import ItemResults

    one_pass, probe = Pass(), EvalsProbe(suite)
    with clocked(one_pass, "building tasks"):
        items = probe.plan(engine.tokenizer)
    results: dict[str, Any] = {}
    with clocked(one_pass, "scoring"):
        results |= {s.request.key: s for s in engine.score([request for item in items for request in item.scores])}
    with clocked(one_pass, "generating"):
        generations = [request for item in items for request in item.generations]
        results |= {g.request.key: g for g in engine.generate(generations)}
    with clocked(one_pass, "reading answers"):
        for item in items:
            scored = {request.key: results[request.key] for request in item.scores}
            digest = probe.digest(engine, item, ItemResults(scored, {r.key: results[r.key] for r in item.generations}))
            prompt = str(probe._encoded[item.key][0].instances[0].args[0])
            one_pass.responses[prompt], one_pass.metrics[prompt] = digest.values["responses"], digest.values["metrics"]
    return one_pass


def stock(engine: Any, suite: Path, batch_size: int | str) -> Pass:
    """lm-eval's `simple_evaluate` with its `hf` model around the same model."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    from q36eval.evals.lm_tasks import task_configs
    from q36eval.evals.suite import LoadedSuite

    one_pass, loaded = Pass(), LoadedSuite(suite)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as cache, contextlib.redirect_stdout(io.StringIO()) as printed:
        configs = [config for group in loaded.suite.groups for config in task_configs(loaded, group, Path(cache))]
        model = HFLM(
            pretrained=engine.model,
            tokenizer=engine.tokenizer,
            batch_size=batch_size,
            max_length=loaded.suite.max_length,
        )
        for name, kind in (("_detect_batch_size", "finding a batch size"), ("_model_generate", "generating")):
            setattr(model, name, _timed(one_pass, kind, getattr(model, name)))
        inner = model._loglikelihood_tokens
        model._loglikelihood_tokens = _timed(one_pass, "scoring", inner, less="finding a batch size")
        with contextlib.redirect_stderr(io.StringIO()):
            results = lm_eval.simple_evaluate(model=model, tasks=configs, bootstrap_iters=0, log_samples=True)
    one_pass.seconds["all else"] = time.perf_counter() - started - one_pass.total
    for line in printed.getvalue().splitlines():
        print(f"  lm-eval: {line}")
    assert results is not None
    for samples in results["samples"].values():
        for sample in samples:
            prompt = sample["arguments"][0][0]
            one_pass.responses[prompt] = [response[0] for response in sample["resps"]]
            one_pass.metrics[prompt] = {name: sample[name] for name in sample["metrics"]}
    return one_pass


def _timed(one_pass: Pass, kind: str, call: Callable[..., Any], less: str | None = None) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        before, inside = time.perf_counter(), one_pass.seconds.get(less, 0.0) if less else 0.0
        answer = call(*args, **kwargs)
        spent = time.perf_counter() - before - (one_pass.seconds.get(less, 0.0) - inside if less else 0.0)
        one_pass.seconds[kind] = one_pass.seconds.get(kind, 0.0) + spent
        return answer

    return timed


def compared(one: Pass, other: Pass) -> str:
    """How far two passes are apart."""
    if one.responses.keys() != other.responses.keys():
        return "DIFFERENT ITEMS"
    gap, texts, choices, metrics = 0.0, 0, 0, 0
    for prompt, answers in one.responses.items():
        pairs = list(zip(answers, other.responses[prompt], strict=True))
        numbers = [(a[0], b[0]) if isinstance(a, tuple | list) else (a, b) for a, b in pairs if not isinstance(a, str)]
        gap = max([gap, *(abs(a - b) for a, b in numbers)])
        texts += sum(a != b for a, b in pairs if isinstance(a, str))
        if len(numbers) > 1:
            choices += _best([a for a, _ in numbers]) != _best([b for _, b in numbers])
        metrics += any(
            not isinstance(value, list | tuple) and value != other.metrics[prompt][name]
            for name, value in one.metrics[prompt].items()
        )
    return (
        f"{len(one.responses)} items: log-likelihoods at most {gap:.1e} nats apart, {choices} other choices, "
        f"{texts} other texts, {metrics} other metrics"
    )


def _best(values: list[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


def _with_cpu_time(call: Callable[[], Pass]) -> Pass:
    """Also of the processes that it forked and ended."""

    def spent() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(each.ru_utime + each.ru_stime for each in used)

    before = spent()
    one_pass = call()
    one_pass.cpu_seconds = spent() - before
    return one_pass


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def measure(engine: Any, suite: Path, batch_size: int | str, rounds: int) -> None:
    """Alternate both and print ratios, where the time went, and whether the numbers are equal."""
    pairs = []
    for number in range(rounds):
        calls = [lambda: stock(engine, suite, batch_size), lambda: ours(engine, suite)]
        done = [_with_cpu_time(call) for call in (calls[::-1] if number % 2 else calls)]
        pair = (done[1], done[0]) if number % 2 else (done[0], done[1])
        pairs.append(pair)
        print(f"  lm-eval {pair[0].spent()}; ours {pair[1].spent()}", flush=True)
        print(f"  {compared(pair[1], pair[0])}", flush=True)
    wall = spread([theirs.total / own.total for theirs, own in pairs])
    cpu = spread([theirs.cpu_seconds / own.cpu_seconds for theirs, own in pairs])
    print(f"  lm-eval with batch_size={batch_size} / ours: {wall}, in CPU time {cpu}")
    for name, passes in (("lm-eval", [theirs for theirs, _ in pairs]), ("ours", [own for _, own in pairs])):
        kinds = passes[0].seconds
        print(f"  {name}: " + ", ".join(f"{k} {spread([p.seconds[k] for p in passes])} s" for k in kinds))


def noise(engine: Any, suite: Path) -> None:
    """How far log-likelihoods of the choices move with sharing, and with nothing but other batches."""
    import torch

    from q36eval.engines import batches
    from q36eval.engines.perturbation import LeftPadded, OneByOne
    from q36eval.evals.probe import EvalsProbe

    items = EvalsProbe(suite).plan(engine.tokenizer)
    requests = [request for item in items for request in item.scores]
    apart = [replace(request, shared=0) for request in requests]
    letters = torch.tensor([engine.tokenizer.encode(f" {letter}")[-1] for letter in "ABCD"])

    def log_likelihoods(engine: Any, requests: list[Any]) -> torch.Tensor:
        log_probabilities = {
            s.request.key: engine.logits(s.hidden_states)[-1].log_softmax(-1) for s in engine.score(requests)
        }
        return torch.stack([log_probabilities[request.key][letters] for request in requests])

    whole = log_likelihoods(engine, apart)
    likelihoods = {"sharing": log_likelihoods(engine, requests)}
    chunk, batches.CHUNK_TOKENS = batches.CHUNK_TOKENS, 1
    likelihoods["sharing all tokens, not whole chunks"] = log_likelihoods(engine, requests)
    batches.CHUNK_TOKENS = chunk
    for name, kind in (("each alone", OneByOne), ("left padding", LeftPadded)):
        likelihoods[name] = log_likelihoods(kind(engine.model, engine.tokenizer, engine.identity), apart)
    for name, values in likelihoods.items():
        gap, same = (values - whole).abs(), values.argmax(-1) == whole.argmax(-1)
        print(
            f"  {name}: {float((gap == 0).double().mean()):.1%} bit for bit alike, {float(gap.mean()):.1e} nats apart "
            f"on average, {float(gap.max()):.1e} at most, {int((~same).sum())} of {len(requests)} choices changed",
            flush=True,
        )


def main() -> None:
    """Load a branch of the sandbox and measure."""
    import torch

    from q36eval.app.sandbox import build
    from q36eval.engines import open_engine

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=["choices", "suite", "noise"], action="append")
    parser.add_argument("--branch", default="bf16")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--batch", action="append", help="lm-eval's batch size: auto or a number")
    parser.add_argument("--threads", type=int, default=2, help="torch threads of lm-eval's, processes of ours")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    engine = open_engine(build(options.branch))
    engine.model.to(getattr(torch, options.dtype))
    with tempfile.TemporaryDirectory() as folder:
        suites = {"choices": suite_of_choices(Path(folder)), "suite": ROOT / "evals/suites/sandbox.yaml"}
        for part in options.part or ["choices", "suite"]:
            if part == "noise":
                print(f"five shots, {options.branch} in {options.dtype}, against no sharing:")
                noise(engine, suites["choices"])
                continue
            for batch in options.batch or ["auto"]:
                print(f"{part}, {options.branch} in {options.dtype}, {options.rounds} rounds", flush=True)
                measure(engine, suites[part], int(batch) if batch.isdigit() else batch, options.rounds)


if __name__ == "__main__":
    main()
