"""The process in which lm-eval's RULER generators run; see `evals.freezing.ruler`. Reads one job from stdin."""

import contextlib
import importlib
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from evals.lm_tasks import seeded

GENERATORS = ("generate_samples", "sys_vartrack_w_noise_random", "sys_word_pair_random", "sys_kwext")
LM_EVALS_SAMPLES = 500


def main() -> None:
    """Generate what the job asks, with a line on stdout after each task and length."""
    job = json.load(sys.stdin)
    with _only_lines_of_ours() as say:
        try:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(job["tokenizer"], local_files_only=True)
            say("ready lm-eval")
            for name, config, length in job["work"]:
                rows = _rows(job, tokenizer, name, config, length)
                path = Path(job["folder"]) / f"{name}-{length}.jsonl"
                path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
                say(f"done {len(rows)}")
        except ImportError as error:
            say(
                f"error RULER needs the package {error.name}, which is not installed; run: pip install 'q36eval[suites]'."
            )
        except Exception as error:  # lm-eval raises ValueError for a length that holds nothing
            where = f"RULER's {name} at {length:,} tokens" if "name" in locals() else "RULER"
            say(f"error {where} cannot be generated: {type(error).__name__}: {' '.join(str(error).split())[:300]}")


@contextlib.contextmanager
def _only_lines_of_ours() -> Iterator[Callable[[str], None]]:
    """What libraries print goes to nowhere; ours to the real stdout."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")

    def say(line: str) -> None:
        out.write(line + "\n")
        out.flush()

    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
        yield say


def _rows(job: dict[str, Any], tokenizer: Any, name: str, config: str, length: int) -> list[dict[str, Any]]:
    with seeded(job["seed"], f"{name}/{length}"):
        custom = _prepared(job, tokenizer, name, config)
        documents = custom(max_seq_lengths=[length], tokenizer=job["tokenizer"])["test"]
    rows = [dict(row) for row in documents]
    if not all(row["outputs"] for row in rows):
        raise ValueError("a sample without an answer was made: the length is too short for this task")
    too_long = [row["length"] for row in rows if row["length"] > length]
    if name != "ruler_fwe" and too_long:  # lm-eval lets frequent words fill the length and generates beyond it
        raise ValueError(f"a sample of {too_long[0]} tokens was made")
    return [row | {"cluster": _cluster(name, length, row["index"])} for row in rows]


def _cluster(name: str, length: int, index: int) -> str:
    """A question asked at several lengths is one draw, as are all questions about one paragraph of SQuAD."""
    if name == "ruler_qa_squad":
        from lm_eval.tasks.ruler import qa_utils

        return f"{name}/{qa_utils.read_squad()[0][index]['context'][0]}"
    return f"{name}/{index}" if name == "ruler_qa_hotpot" else f"{name}/{length}/{index}"


def _prepared(job: dict[str, Any], tokenizer: Any, name: str, config: str) -> Callable[..., Any]:
    """lm-eval's generator of that task, with our tokenizer, sources, number of samples and seeds."""
    if Path(job["nltk_data"]).is_dir():
        import nltk.data

        nltk.data.path.insert(0, job["nltk_data"])
    from lm_eval.tasks._yaml_loader import load_yaml

    path = Path(importlib.import_module("lm_eval.tasks").__file__ or "").parent / config
    generator: Callable[..., Any] = load_yaml(path)["custom_dataset"]
    module = sys.modules[generator.__module__]
    module.get_tokenizer = lambda name: tokenizer  # type: ignore[attr-defined]
    for called in GENERATORS:
        _sample(module, called, job["samples"])
    if hasattr(module, "RNG"):  # drawn from at import and by every sample before
        module.RNG.seed(random.getrandbits(32))
    if hasattr(module, "download_json"):
        module.download_json = lambda url: _source(job, "squad" if "SQuAD" in url else "hotpot")
    if hasattr(module, "get_haystack"):
        haystack = sys.modules[module.get_haystack.__module__]
        haystack.datasets = SimpleNamespace(load_dataset=lambda *_, **__: {"text": _source(job, "essays")})  # type: ignore[attr-defined]
    return generator


def _sample(module: ModuleType, called: str, samples: int) -> None:
    """lm-eval states 500 samples in its code; a worked example of one sample stays one."""
    generator = getattr(module, called, None)
    if generator is None or hasattr(generator, "sampled"):
        return

    def sampled(*arguments: Any, **named: Any) -> Any:
        if named.get("num_samples", LM_EVALS_SAMPLES) == LM_EVALS_SAMPLES:
            named["num_samples"] = samples
        return generator(*arguments, **named)

    sampled.sampled = True  # type: ignore[attr-defined]
    setattr(module, called, sampled)


def _source(job: dict[str, Any], name: str) -> Any:
    return json.loads(Path(job["sources"][name]).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
