"""lm-eval's Python API on local frozen files: tasks from a suite, their documents, and their own scoring.

Nothing here uses the network: the hub is switched off before lm-eval is imported, and data comes from files.
"""

import contextlib
import dataclasses
import functools
import hashlib
import logging
import os
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from q36eval.chat import TemplateRaisedError, continued_chat, rendered_chat
from q36eval.errors import Q36Error, UsageError
from q36eval.evals.lm_configs import quiet
from q36eval.evals.lm_configs import task_configs as task_configs
from q36eval.evals.suite import TASK_FIELD, LoadedSuite, TaskGroup
from q36eval.files import canonical_json, json_sha256
from q36eval.hub import one_line

THINK_END = "</think>"
NOTHING_FOUND = "[invalid]"
"""The value of lm-eval's filters for a text without an answer."""


@dataclass(frozen=True)
class Document:
    """One document of one lm-eval task, with the instances lm-eval built for it.

    `copy` counts earlier identical documents: published sets contain a few questions twice.
    """

    group: TaskGroup
    task: Any
    doc: dict[str, Any]
    instances: tuple[Any, ...]
    copy: int = 0
    problem: str | None = None
    """Why the chat template does not render its prompt, so that it cannot be evaluated."""

    @cached_property
    def key(self) -> str:
        """Content hash of the question and its scoring."""
        identity = [self.group.name, self.task.config.task, self.group.metric, self.task.config.output_type]
        arguments = [instance.args for instance in self.instances]
        body = canonical_json([identity, arguments, self.target], default=str, non_finite=True)
        copy = f"\0{self.copy}" if self.copy else ""
        return hashlib.sha256(f"evals\0{body}{copy}".encode()).hexdigest()

    @property
    def cluster(self) -> str:
        """The common source of documents that share a text; else the question, which only copies share."""
        group = self.group
        if not group.cluster_fields:
            return str(self.doc["cluster"]) if "cluster" in self.doc else self._alone
        text = "\0".join(str(self.doc[field]) for field in group.cluster_fields)
        if group.cluster_pattern is not None:
            shared = re.search(group.cluster_pattern, text)
            if shared is None:
                return self._alone
            text = shared[0]
        elif len(text) <= 80:
            return text
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def _alone(self) -> str:
        return dataclasses.replace(self, copy=0).key if self.copy else self.key

    @property
    def stratum(self) -> str:
        """The values of the group's slice fields, joined by slashes; "all" without fields."""
        fields = [
            str(self.task.config.task if name == TASK_FIELD else self.doc[name]).replace("/", "-")
            for name in self.group.slice_fields
        ]
        return "/".join(fields) or "all"

    @cached_property
    def target(self) -> Any:
        """lm-eval's target: an index among the choices, a list of strings, or the text itself."""
        target = self.task.doc_to_target(self.doc)
        if self.task.config.output_type == "multiple_choice" and isinstance(target, str) and target in self.choices:
            return self.choices.index(target)  # as lm-eval reads the letter of a right choice
        return target

    @property
    def choices(self) -> list[str]:
        """The choices of a multiple-choice document, else empty."""
        return list(self.task.doc_to_choice(self.doc)) if self.task.config.doc_to_choice is not None else []

    @property
    def chance(self) -> float:
        """The chance of guessing right: one of the choices, or of the options that the question lists; else zero."""
        field = self.group.options_field
        options = self.choices if field is None else self.doc[field]
        return 1.0 / len(options) if len(options) > 1 else 0.0

    def metrics(self, responses: Sequence[Any]) -> dict[str, Any]:
        """The metrics of this document by lm-eval's own filters and `process_results`.

        The group's metric is included under the group's name for it.
        """
        metrics = dict(self.task.process_results(self.doc, self._filtered(responses)))
        if "{" in self.group.metric:
            # RULER names its metric after the length, and returns -1 for other lengths
            return {self.group.metric: metrics[self.group.metric.format(**self.doc)]}
        return metrics

    def is_unreadable(self, responses: Sequence[Any]) -> bool:
        """Whether the task's filter found no answer in any of these."""
        return all(isinstance(answer, str) and answer == NOTHING_FOUND for answer in self._filtered(responses))

    def _filtered(self, responses: Sequence[Any]) -> list[Any]:
        """The task's filters applied to each response."""
        answered = [
            dataclasses.replace(instance, resps=[self._without_thinking(response)], filtered_resps={})
            for instance, response in zip(self.instances, responses, strict=True)
        ]
        filters = self.task._filters  # the public `apply_filters` works on all documents at once
        for ensemble in filters:
            ensemble.apply(answered)
        name = self.group.filter or filters[0].name
        return [instance.filtered_resps[name] for instance in answered]

    def _without_thinking(self, response: Any) -> Any:
        """As lm-eval cuts a generated text: the part after the thinking, up to the first stop."""
        if not self.group.thinking or not isinstance(response, str):
            return response
        answer = response.split(THINK_END)[-1].lstrip()
        stops = (self.task.config.metadata or {}).get("until") or []
        for stop in [stops] if isinstance(stops, str) else stops:
            answer = answer.split(stop)[0] if stop else answer
        return answer


def load_tasks(loaded: LoadedSuite, cache_dir: Path, measure: str | None = None) -> Iterator[tuple[TaskGroup, Any]]:
    """The lm-eval task objects of a suite, each with its group; converted data is cached in `cache_dir`.

    With a `measure` only those of groups with that measure.

    Raises:
        UsageError: a task cannot be loaded; it is named.
    """
    _go_offline()
    from lm_eval.api.task import ConfigurableTask

    for group in [group for group in loaded.groups if measure in (None, group.measure)]:
        for config in task_configs(loaded, group, cache_dir):
            try:
                with seeded(loaded.suite.seed, config["task"]):
                    task = ConfigurableTask(config=config)
            except Q36Error:
                raise
            except Exception as error:  # lm-eval and `datasets` raise arbitrary exceptions on bad data
                raise _not_loaded(loaded, config["task"], error) from error
            task.set_fewshot_seed(loaded.suite.seed)
            names = [ensemble.name for ensemble in task._filters]
            if group.filter is not None and group.filter not in names:
                raise UsageError(
                    "task-filter-unknown",
                    f"The task {config['task']} has no filter {group.filter!r}, but {', '.join(names)}.",
                )
            _check_greedy(task)
            yield group, task


def _check_greedy(task: Any) -> None:
    """Refuse sampled or repeated answers: ours are greedy and generated once, so the task would not be lm-eval's.

    Raises:
        UsageError: the task requires them.
    """
    settings = task.config.generation_kwargs or {}
    if task.config.output_type == "generate_until" and (settings.get("do_sample") or (task.config.repeats or 1) > 1):
        raise UsageError(
            "task-unsupported",
            f"The task {task.config.task} samples its answers or evaluates an item several times; here every answer is "
            f"greedy and evaluated once; leave it out.",
        )


def load_documents(
    loaded: LoadedSuite, cache_dir: Path, tokenizer: Any = None, measure: str | None = None
) -> list[Document]:
    """Every document of the suite with its instances, in order; a group with the chat template needs the tokenizer.

    With a `measure` only those of groups with that measure.

    Raises:
        UsageError: a task cannot be loaded, or two documents of our own task are identical.
    """
    documents: dict[str, Document] = {}
    for group, task in load_tasks(loaded, cache_dir, measure):
        written = _Written(group, tokenizer)
        built = _built(loaded, group, task, written)
        _check_metric(Document(group, task, built[0][0].doc, built[0]))
        for instances in built:
            document = Document(group, task, instances[0].doc, instances, problem=written.problem_of(instances))
            while document.key in documents:
                if group.task is not None:
                    raise UsageError(
                        "task-item-duplicate",
                        f"The task {task.config.task} of suite {loaded.suite.name} holds one item twice.",
                    )
                document = dataclasses.replace(document, copy=document.copy + 1)
            documents[document.key] = document
    return list(documents.values())


def _check_metric(document: Document) -> None:
    """Refuse a metric that is not a figure of one document, before any evaluation.

    Raises:
        UsageError: names the task's metrics.
    """
    group, kind = document.group, document.task.config.output_type
    answer: Any = {"generate_until": "", "loglikelihood_rolling": -1.0}.get(kind, (-1.0, False))
    try:
        metrics = document.metrics([answer] * len(document.instances))
    except KeyError:  # for a metric named after a field
        metrics = {}
    except Exception:  # an answer that the task's scoring cannot read is reported when it is given
        return
    wanted = {"word_perplexity"} if group.measure == "perplexity" else {group.metric}
    figures = {name for name, value in metrics.items() if isinstance(value, tuple) == (group.measure == "perplexity")}
    if missing := sorted(wanted - {name for name in figures if not isinstance(metrics[name], list)}):
        raise UsageError(
            "task-measure-unknown",
            f"The task {document.task.config.task} gives no {group.measure} {missing[0]!r} of a document, but "
            f"{', '.join(sorted(metrics)) or 'nothing by that name'}; correct the group {group.name}.",
        )


@contextlib.contextmanager
def _templates_compiled_once() -> Iterator[None]:
    """lm-eval recompiles a template for every document, which takes most of the time of building its requests."""
    from lm_eval.utils import env

    env.from_string = functools.cache(env.from_string)
    try:
        yield
    finally:
        del env.from_string  # restores the method of its class


def _built(loaded: LoadedSuite, group: TaskGroup, task: Any, written: "_Written") -> list[tuple[Any, ...]]:
    """The instances lm-eval builds, by document."""
    template: dict[str, Any] = {}
    if group.chat_template:
        template = {"apply_chat_template": True, "chat_template": written}
        template["fewshot_as_multiturn"] = True  # lm-eval's default
    try:
        with quiet(), seeded(loaded.suite.seed, task.config.task), _templates_compiled_once():
            task.build_all_requests(rank=0, world_size=1, **template)
        options = () if group.options_field is None else (group.options_field,)
        for field in (*group.slice_fields, *group.cluster_fields, *options):
            if field != TASK_FIELD and field not in task.instances[0].doc:
                raise UsageError(
                    "task-field-unknown",
                    f"The documents of {task.config.task} have no field {field!r}; correct {group.name}.",
                )
    except Q36Error:
        raise
    except Exception as error:
        raise _not_loaded(loaded, task.config.task, error) from error
    by_doc: dict[int, list[Any]] = {}
    for instance in task.instances:
        by_doc.setdefault(instance.doc_id, []).append(instance)
    return [tuple(sorted(instances, key=lambda instance: instance.idx)) for instances in by_doc.values()]


class _Written:
    """As `HFLM.apply_chat_template`. A conversation that the template does not render leaves a mark in its prompt."""

    def __init__(self, group: TaskGroup, tokenizer: Any) -> None:
        if group.chat_template and getattr(tokenizer, "chat_template", None) is None:
            raise UsageError(
                "chat-template-missing", f"The group {group.name} needs a chat template, and the tokenizer has none."
            )
        self._tokenizer, self._thinking = tokenizer, group.thinking
        self._problems: dict[str, str] = {}

    def __call__(self, history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        write = rendered_chat if add_generation_prompt else continued_chat
        try:
            return write(self._tokenizer, history, enable_thinking=self._thinking)
        except TemplateRaisedError as error:
            mark = f"[unwritten {json_sha256(history)}]"
            self._problems[mark] = str(error)
            return mark

    def problem_of(self, instances: Sequence[Any]) -> str | None:
        """Why a document's prompt is not rendered; None if it is."""
        prompts = [str(instance.args[0]) for instance in instances] if self._problems else []
        return next((why for mark, why in self._problems.items() if any(mark in prompt for prompt in prompts)), None)


@contextlib.contextmanager
def seeded(seed: int, name: str) -> Iterator[None]:
    """A task's draws from Python's and numpy's shared generators depend only on `seed` and its name."""
    import numpy as np

    before, numpy_before = random.getstate(), np.random.get_state()
    drawn = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:4])
    random.seed(drawn)
    np.random.seed(drawn)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)


def _not_loaded(loaded: LoadedSuite, task: str, error: Exception) -> UsageError:
    return UsageError(
        "task-not-loaded",
        f"The task {task} of suite {loaded.suite.name} cannot be loaded from {loaded.data}: {one_line(error)}; "
        f"freeze the data again with: {loaded.freeze_command}.",
    )


def _go_offline() -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        os.environ[name] = "1"
    import datasets
    import huggingface_hub.constants as hub

    datasets.config.HF_HUB_OFFLINE = hub.HF_HUB_OFFLINE = True  # for a process that imported them before
    datasets.disable_progress_bars()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
