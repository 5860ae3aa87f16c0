"""RULER's documents from lm-eval's own generators: per task and length, whatever else is frozen, and with an end.

lm-eval draws from shared generators of random numbers, fetches its sources when it runs, and two of its generators
(variable tracking, common words) shrink a sample that is too long for ever when the shortest one is. Here every task
and length is generated from a seed of its own in a process of its own (`ruler_worker`), on sources that are there,
until a deadline.

lm-eval also asks the first questions of SQuAD and HotpotQA at every length. Then one paragraph of SQuAD stands behind a
dozen answers or more, which are right or wrong together, and a hundred items weigh as few as twenty-four. Here
`questions_at` asks none about a paragraph of another length, nor two about one if possible.
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
"""Seconds each task and length may take besides what its tokens take."""
TOKENS_PER_S = 20_000.0
"""Far below what a tokenizer and its retries need; a generation slower than this is one that does not end."""


def features(task: str) -> dict[str, Any]:
    """The schema of RULER's documents, which lm-eval leaves to be guessed, and of the cluster that we add."""
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
    """Only what these tasks read, in the form in which lm-eval would have fetched it."""
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
"""Task -> the function of lm-eval that reads its questions, and what a person calls them."""

Question = Mapping[str, Any]
"""As lm-eval keeps it: `query`, `outputs`, and in `context` the places of the documents that it is asked about."""


def questions_at(
    questions: Sequence[Question], lengths: Sequence[int], samples: int, seed: str, name: str
) -> dict[int, list[tuple[str, Question]]]:
    """By length its `samples` questions, each with its source: one of every source, then a second one of each.

    A source is what questions have in common that share a document (a paragraph of SQuAD, the ten of a question of
    HotpotQA). Sources are shuffled by `seed` and dealt out to the lengths, so that none is asked about at two of them.
    A question that would join two sources is left out.

    Raises:
        ValueError: there are too few questions; says how many samples there may be.
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
    """Questions that share no document with those of another list, in an order that the seed alone decides."""
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
