"""RULER's documents from lm-eval's own generators: per task and length, independent of other tasks, with a deadline.

lm-eval draws from shared random generators, fetches its sources at run time, and two of its generators (variable
tracking, common words) loop forever if even the shortest sample is too long. Here every task and length is generated
from its own seed in its own process (`ruler_worker`), from existing sources, within a deadline.

lm-eval also uses the first questions of SQuAD and HotpotQA at every length. One paragraph of SQuAD then determines a
dozen answers or more, which are right or wrong together, and a hundred items may be worth only twenty-four. Here
`questions_at` uses no paragraph at two lengths, and at most one question about each if possible.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from q36eval.errors import UsageError
from q36eval.evals.freezing.hub import Hub
from q36eval.evals.lm_configs import NamedTask
from q36eval.evals.suite import RulerSettings, TaskGroup

ESSAYS = ("baber/paul_graham_essays", None, "train")
SQUAD = ("rajpurkar/squad_v2", "squad_v2", "validation")
HOTPOT = ("hotpotqa/hotpot_qa", "distractor", "validation")
WITH_ESSAYS = frozenset({"niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery"})
PATIENCE_S = 120.0
"""Seconds that each task and length may take in addition to the time for its tokens."""
TOKENS_PER_S = 20_000.0
"""Far below the speed of a tokenizer with its retries; a slower generation is an endless loop."""


def features(task: str) -> dict[str, Any]:
    """The schema of RULER's documents, which lm-eval leaves undefined, and of the cluster that we add."""
    from datasets import Features, List, Value

    text, number = Value("string"), Value("int64")
    schema = Features(
        index=number, input=text, outputs=List(text), length=number, max_length=number, gen_prefix=text, cluster=text
    )
    if task == "ruler_cwe":
        schema["input_example"] = text
    return dict(schema.to_dict())


def generate(
    tasks: Sequence[NamedTask],
    group: TaskGroup,
    hub: Hub,
    tokenizer: Path,
    folder: Path,
    seed: int,
    *,
    notify: Callable[[str], None],
) -> dict[str, tuple[str, ...]]:
    """Generate the documents of RULER tasks below `folder`; returns every task's files, one per length.

    Raises:
        UsageError: a source is missing or too small, a length holds no sample, or a generator does not end.
    """
    settings = group.ruler
    if settings is None:
        raise UsageError(
            "suite-invalid", f"The group {group.name} has RULER tasks; give it `ruler` with lengths and samples."
        )
    job = {
        "tokenizer": str(tokenizer),
        "folder": str(folder / group.name),
        "seed": seed,
        "samples": settings.samples,
        "lengths": settings.lengths,
        "sources": {name: str(path) for name, path in _sources(tasks, hub, folder).items()},
        "nltk_data": str(folder / "nltk_data"),
        "work": [[task.name, task.config, length] for length in settings.lengths for task in tasks],
        "limits_s": {length: PATIENCE_S + settings.samples * length / TOKENS_PER_S for length in settings.lengths},
    }
    (folder / group.name).mkdir(parents=True, exist_ok=True)
    try:
        _run(job, settings, notify)
    finally:
        for path in (folder / ".sources").glob("*.json"):
            path.unlink()
    return {
        task.name: tuple(f"{group.name}/{task.name}-{length}.jsonl" for length in settings.lengths) for task in tasks
    }


def _sources(tasks: Sequence[NamedTask], hub: Hub, folder: Path) -> dict[str, Path]:
    """Only the sources of these tasks, in the form in which lm-eval would have fetched them."""
    names = {task.name for task in tasks}
    contents: dict[str, Any] = {}
    if names & WITH_ESSAYS:
        contents["essays"] = [row["text"] for row in hub.read(*ESSAYS).rows]
    if "ruler_qa_squad" in names:
        contents["squad"] = squad_json(hub.read(*SQUAD).rows)
    if "ruler_qa_hotpot" in names:
        contents["hotpot"] = hotpot_json(hub.read(*HOTPOT).rows)
    where = folder / ".sources"
    where.mkdir(exist_ok=True)
    for name, content in contents.items():
        (where / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return {name: where / f"{name}.json" for name in contents}


def squad_json(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """SQuAD 2.0's own file from its rows on the hub: articles of paragraphs of questions, in their order."""
    articles: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        texts = row["answers"]["text"]
        question = {
            "question": row["question"],
            "answers": [{"text": text} for text in texts],
            "is_impossible": not texts,
        }
        articles.setdefault(row["title"], {}).setdefault(row["context"], []).append(question)
    return {
        "data": [
            {"paragraphs": [{"context": context, "qas": questions} for context, questions in paragraphs.items()]}
            for paragraphs in articles.values()
        ]
    }


def hotpot_json(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """HotpotQA's own file from its rows on the hub."""
    return [
        {
            "question": row["question"],
            "answer": row["answer"],
            "context": [list(pair) for pair in zip(row["context"]["title"], row["context"]["sentences"], strict=True)],
        }
        for row in rows
    ]


def _run(job: dict[str, Any], settings: RulerSettings, notify: Callable[[str], None]) -> None:
    """One process generates everything, with a line after each task and length; an alarm ends it at a deadline."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HF_HUB_OFFLINE": "1"}
    environment |= {"TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0"}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "q36eval.evals.freezing.ruler_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the generating process has no pipes")
    with process:
        try:
            process.stdin.write(json.dumps(job))
            process.stdin.close()
            for name, _, length in job["work"]:
                where = f"{name} at {length:,} tokens"
                kind, _, text = process.stdout.readline().rstrip("\n").partition(" ")
                if kind == "error":
                    raise UsageError("freezing-failed", text)
                if kind != "done" and process.wait() == -signal.SIGALRM:
                    raise UsageError(
                        "freezing-timeout",
                        f"The generator of {where} was stopped: it does not end. Use longer lengths.",
                    )
                if kind != "done":
                    raise UsageError("process-died", f"The process that generates {where} died; see its output above.")
                notify(f"{where}: {settings.samples} samples")
        finally:
            process.kill()


QA_TASKS: Mapping[str, tuple[str, str]] = {
    "ruler_qa_squad": ("read_squad", "SQuAD"),
    "ruler_qa_hotpot": ("read_hotpotqa", "HotpotQA"),
}
"""Task -> the function of lm-eval that reads its questions, and their display name."""

Question = Mapping[str, Any]
"""lm-eval's form: `query`, `outputs`, and in `context` the positions of its documents."""


def questions_at(
    questions: Sequence[Question], lengths: Sequence[int], samples: int, seed: str, name: str
) -> dict[int, list[tuple[str, Question]]]:
    """`samples` questions for each length, each with its source: one of every source, then a second one of each.

    A source is the set of questions that share a document (a paragraph of SQuAD, the ten of a question of HotpotQA).
    Sources are shuffled by `seed` and divided among the lengths, so that none is used at two of them. A question that
    would join two sources is left out.

    Raises:
        ValueError: there are too few questions; gives the possible number of samples.
    """
    sources = _by_source(questions, seed)
    dealt = {}
    for place, length in enumerate(lengths):
        own = list(range(place, len(sources), len(lengths)))
        deepest = max((len(sources[source]) for source in own), default=0)
        in_turn = [
            (str(source), sources[source][turn])
            for turn in range(deepest)
            for source in own
            if turn < len(sources[source])
        ]
        dealt[length] = in_turn
    least = min(map(len, dealt.values()), default=0)
    if least < samples:
        raise ValueError(
            f"{name} has {len(questions)} questions about {len(sources)} texts, enough for {least} samples at each of "
            f"{len(lengths)} lengths without a text at two of them, and {samples} are asked for; lower samples"
        )
    return {length: in_turn[:samples] for length, in_turn in dealt.items()}


def _by_source(questions: Sequence[Question], seed: str) -> list[list[Question]]:
    """Groups of questions that share no document with another group, in an order that depends on the seed alone."""
    order = list(questions)
    random.Random(seed).shuffle(order)
    owner: dict[int, int] = {}
    sources: list[list[Question]] = []
    for question in order:
        owners = {owner[document] for document in question["context"] if document in owner}
        if len(owners) > 1:
            continue
        source = owners.pop() if owners else len(sources)
        if source == len(sources):
            sources.append([])
        sources[source].append(question)
        owner |= dict.fromkeys(question["context"], source)
    return sources
