"""The process in which lm-eval's RULER generators run; see `evals.freezing.ruler`. Reads one job from stdin."""

import contextlib
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from q36eval.evals.freezing.ruler import QA_TASKS, questions_at
from q36eval.evals.lm_configs import task_root
from q36eval.evals.lm_tasks import seeded

GENERATORS = ("generate_samples", "sys_vartrack_w_noise_random", "sys_word_pair_random", "sys_kwext")
LM_EVALS_SAMPLES = 500


def main() -> None:
    """Generate the job's documents, with a line on stdout after each task and length."""
    job = json.load(sys.stdin)
    with _only_lines_of_ours() as say:
        try:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(job["tokenizer"], local_files_only=True)
            for name, config, length in job["work"]:
                signal.setitimer(signal.ITIMER_REAL, job["limits_s"][str(length)])  # its signal ends the process
                rows = document_rows(job, tokenizer, name, config, length)
                path = Path(job["folder"]) / f"{name}-{length}.jsonl"
                path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
                say("done")
        except ImportError as error:
            say(f"error RULER needs {error.name}, which is not installed; run: pip install 'q36eval[suites]'.")
        except Exception as error:  # lm-eval raises ValueError for a length without room for a sample
            where = f"RULER's {name} at {length:,} tokens" if "name" in locals() else "RULER"
            say(f"error {where} cannot be generated: {type(error).__name__}: {' '.join(str(error).split())[:300]}")


@contextlib.contextmanager
def _only_lines_of_ours() -> Iterator[Callable[[str], None]]:
    """Discards the output of libraries; ours goes to the real stdout."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")

    def say(line: str) -> None:
        out.write(line + "\n")
        out.flush()

    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
        yield say


def document_rows(job: dict[str, Any], tokenizer: Any, name: str, config: str, length: int) -> list[dict[str, Any]]:
    """The documents of one task at one length, as lm-eval makes them, with their clusters.

    Raises:
        ValueError: the length has no room for a sample with an answer.
    """
    names = _prepared(job, tokenizer, config)
    sources = _dealt(job, names, name, length)
    # imports must not draw from these generators, so they are seeded afterwards
    with seeded(job["seed"], f"{name}/{length}"):
        if "RNG" in names:  # for common words: shared by all earlier samples
            names["RNG"].seed(random.getrandbits(32))
        documents = names["custom_dataset"](max_seq_lengths=[length], tokenizer=job["tokenizer"])["test"]
    rows = [dict(row) for row in documents]
    if not all(row["outputs"] for row in rows):
        raise ValueError("a sample without an answer was made: the length is too short for this task")
    too_long = [row["length"] for row in rows if row["length"] > length]
    if name != "ruler_fwe" and too_long:  # lm-eval lets frequent words fill the length and generates beyond it
        raise ValueError(f"a sample of {too_long[0]} tokens was made")
    # lm-eval leaves out a sample that does not fit, and keeps the others' numbers
    own = {row["index"]: sources[row["index"]] if sources else f"{length}/{row['index']}" for row in rows}
    return [row | {"cluster": f"{name}/{own[row['index']]}"} for row in rows]


def _dealt(job: dict[str, Any], names: dict[str, Any], name: str, length: int) -> list[str]:
    """Restrict a task with questions to those of this length; returns their sources in order, nothing for another task.

    Everything else is drawn for every sample: its keys, values, words and places. Essays around needles are shared by
    all samples, as in RULER: they are part of the task, not of the draw.
    """
    if name not in QA_TASKS:
        return []
    reader, called = QA_TASKS[name]
    # lm-eval caches its questions: a second length must not reuse those of the first
    read = getattr(names[reader], "read", names[reader])
    questions, documents = read()
    dealt = questions_at(questions, job["lengths"], job["samples"], f"{job['seed']}/{name}", called)[length]

    def asked() -> tuple[list[Any], list[str]]:
        return [question for _, question in dealt], documents

    setattr(asked, "read", read)  # noqa: B010 - a function has no such attribute for a type checker
    names["custom_dataset"].__globals__[reader] = asked
    return [source for source, _ in dealt]


def _prepared(job: dict[str, Any], tokenizer: Any, config: str) -> dict[str, Any]:
    """The namespace of lm-eval's generator module, with our tokenizer, sources and number of samples."""
    from lm_eval.tasks._yaml_loader import _import_fun_from_str, load_yaml

    if Path(job["nltk_data"]).is_dir():
        import nltk.data

        nltk.data.path.insert(0, job["nltk_data"])
    # every task file includes that of the needles, whose module takes ten seconds and NLTK: only its own is imported
    generator = _import_fun_from_str(load_yaml(task_root() / config, resolve_func=False)["custom_dataset"])
    names: dict[str, Any] = generator.__globals__
    names["get_tokenizer"] = lambda _: tokenizer
    for called in GENERATORS:
        if called in names and not hasattr(names[called], "sampled"):
            names[called] = _sampled(names[called], job["samples"])
    if "download_json" in names:
        names["download_json"] = lambda url: _source(job, "squad" if "SQuAD" in url else "hotpot")
    if "get_haystack" in names:
        hub = SimpleNamespace(load_dataset=lambda *_, **__: {"text": _source(job, "essays")})
        names["get_haystack"].__wrapped__.__globals__["datasets"] = hub
    return names | {"custom_dataset": generator}


def _sampled(generator: Callable[..., Any], samples: int) -> Callable[..., Any]:
    """lm-eval hard-codes 500 samples; a worked example of one sample stays one."""

    def sampled(*arguments: Any, **named: Any) -> Any:
        if named.get("num_samples", LM_EVALS_SAMPLES) == LM_EVALS_SAMPLES:
            named["num_samples"] = samples
        return generator(*arguments, **named)

    setattr(sampled, "sampled", True)  # noqa: B010 - a function has no such attribute for a type checker
    return sampled


def _source(job: dict[str, Any], name: str) -> Any:
    return json.loads(Path(job["sources"][name]).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
