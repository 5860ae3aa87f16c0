"""Freezes a suite into a folder: all data of its tasks, with a manifest of the origin of each row."""

import io
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from q36eval.checkpoints import tokenizer_sha256
from q36eval.errors import CorruptCheckpointError, UsageError
from q36eval.evals.freezing.hub import Hub, Row, Split, json_lines
from q36eval.evals.freezing.ruler import features, generate
from q36eval.evals.frozen import (
    LONGEST,
    MANIFEST,
    FrozenTask,
    Manifest,
    frozen_files,
    read_manifest,
    verify,
    write_manifest,
)
from q36eval.evals.lm_configs import (
    NLTK_DATA,
    NamedTask,
    configured,
    expand,
    generates_data,
    quiet,
    runs_programs,
    use_frozen_nltk,
    with_settings,
)
from q36eval.evals.suite import EvalSuite, TaskGroup, read_suite
from q36eval.locks import exclusive
from q36eval.provenance import version_of

PACKAGES = ("lm-eval", "datasets", "nltk", "wonderwords")


@dataclass
class _Freezing:
    suite: EvalSuite
    folder: Path
    tokenizer: Path
    notify: Callable[[str], None]
    longest: int
    hub: Hub = field(init=False)

    def __post_init__(self) -> None:
        self.hub = Hub(self.suite.sources)

    def group(self, group: TaskGroup, tasks: list[NamedTask]) -> tuple[FrozenTask, ...]:
        if not group.executes_code and (programs := [task.name for task in tasks if runs_programs(task)]):
            raise UsageError(
                "task-executes-code",
                f"The task {programs[0]} runs programs; say executes_code: true in its group {group.name}.",
            )
        generated = [task for task in tasks if generates_data(task)]
        if any(not task.config.startswith("ruler/") for task in generated):
            raise UsageError(
                "task-unsupported",
                f"The group {group.name} has tasks that generate their data, and only RULER's are known.",
            )
        files: Mapping[str, tuple[str, ...]] = {}
        if generated:
            ruler = group.ruler
            if ruler is not None:
                ruler = ruler.model_copy(update={"lengths": tuple(n for n in ruler.lengths if n <= self.longest)})
            shorter = group.model_copy(update={"ruler": ruler})
            files = generate(
                generated, shorter, self.hub, self.tokenizer, self.folder, self.suite.seed, notify=self.notify
            )
        return tuple(
            FrozenTask(
                name=task.name, config=task.config, data={"test": files[task.name]}, features=features(task.name)
            )
            if task.name in files
            else self.from_hub(group, task)
            for task in tasks
        )

    def from_hub(self, group: TaskGroup, task: NamedTask) -> FrozenTask:
        config = with_settings(configured(task, group), group)
        repository, name = config["dataset_path"], config.get("dataset_name")
        arguments = {key: value for key, value in (config.get("dataset_kwargs") or {}).items() if value is not None}
        data: dict[str, tuple[str, ...]] = {}
        schema: dict[str, Any] = {}
        evaluated = str(config.get("test_split") or config.get("validation_split"))
        for split in dict.fromkeys([evaluated, *_shown(config)]):
            rows = self.hub.read(repository, name, split, arguments)
            place = f"{group.name}/{repository.replace('/', '__')}/{name or 'default'}/{split}.jsonl"
            self._write(place, self._chosen(rows, group) if split == evaluated else list(rows.rows))
            data[split], schema = (place,), rows.source.features
        self.notify(f"{task.name}: {repository}{f' ({name})' if name else ''}")
        return FrozenTask(name=task.name, config=task.config, data=data, features=schema)

    def _chosen(self, split: Split, group: TaskGroup) -> list[Row]:
        """The evaluated rows: all, or a sample that depends on no other dataset."""
        rows, source = list(split.rows), split.source
        if group.sample is None or group.sample >= len(rows):
            return rows
        rng = random.Random(f"{self.suite.seed}/{source.repository}/{source.config}/{source.split}")
        return [rows[index] for index in sorted(rng.sample(range(len(rows)), group.sample))]

    def _write(self, place: str, rows: list[Row]) -> None:
        path = self.folder / place
        if not path.exists():  # several tasks may read one split
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json_lines(rows, place), encoding="utf-8")


def freeze_suite(
    path: Path,
    tokenizer: Path,
    out: Path | None = None,
    *,
    context: int | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> Manifest:
    """Write all data of the suite at `path` into `out`, by default the folder that it names.

    Deterministic for the same suite, sources, tokenizer and packages. A failed freezing leaves no files. Of RULER's
    lengths, in tokens, only those within `context` are written.

    Raises:
        UsageError: a dataset is unavailable, a task is unknown, no length is within the context, or `out` holds
            something else.
    """
    suite = read_suite(path)
    target = (out if out is not None else path.parent / suite.data).resolve()
    if not suite.frozen_by_name or len(suite.frozen_by_name) != len(suite.groups):
        raise UsageError(
            "nothing-to-freeze",
            f"The suite {suite.name} ships with its data; there is nothing to freeze.",
        )
    made_from = {"suite_sha256": suite.freezing_sha256, "tokenizer_sha256": _tokenizer_sha256(tokenizer)}
    whole, longest = suite.longest(), suite.longest(context)
    if whole is not None and longest is None:
        raise UsageError("context-too-short", f"The suite {suite.name} asks nothing as short as {context:,} tokens.")
    made_from |= {} if longest == whole else {LONGEST: str(longest)}
    made_from |= {name: number for name in PACKAGES if (number := version_of(name)) is not None}
    name = f"{suite.name} tasks"
    check_replaceable(target, name)
    plan = [(group, expand(group.tasks)) for group in suite.groups]
    with staging(target) as folder:
        freezing = _Freezing(suite, folder, tokenizer.resolve(), notify, longest or 0)
        if needs_punkt(task for _, tasks in plan for task in tasks):
            freeze_punkt(folder)
            use_frozen_nltk(folder)
        tasks = {group.name: freezing.group(group, named) for group, named in plan}
        shutil.rmtree(folder / ".sources", ignore_errors=True)
        manifest = Manifest(
            name=name,
            seed=suite.seed,
            made_from=made_from,
            sources=freezing.hub.sources,
            tasks=tasks,
            files=frozen_files(folder),
        )
        write_manifest(folder, manifest)
    return verify(target)


def _tokenizer_sha256(folder: Path) -> str:
    """Loaded before any download, because otherwise only RULER, which comes last, would detect an error."""
    try:
        with quiet():
            return tokenizer_sha256(folder)
    except CorruptCheckpointError as error:
        raise UsageError("tokenizer-unreadable", f"The tokenizer in {folder} cannot be loaded: {error}") from error


def _shown(config: dict[str, Any]) -> list[str]:
    """The split of the solved examples, found as in lm-eval; none without examples."""
    if not config.get("num_fewshot"):
        return []
    settings = config.get("fewshot_config") or {}
    if split := settings.get("split") or config.get("fewshot_split"):
        return [split]
    if settings.get("samples") is not None:
        return []
    split = config.get("training_split") or config.get("validation_split") or config.get("test_split")
    return [split] if split else []


PUNKT = "tokenizers/punkt_tab/english"


def needs_punkt(tasks: Iterable[NamedTask]) -> bool:
    """Whether one of the tasks splits sentences by NLTK."""
    return any(task.config.startswith(("ruler/niah", "ifeval/")) for task in tasks)


def freeze_punkt(folder: Path) -> None:
    """Copy English `punkt_tab` below `folder`; if it is not on this machine, it is downloaded.

    Raises:
        UsageError: neither is possible.
    """
    import nltk
    import nltk.data

    target = folder / NLTK_DATA / PUNKT
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        source = Path(str(nltk.data.find(PUNKT)))
    except LookupError:
        with quiet():  # its error stream is bound earlier
            where = {"download_dir": str(folder / ".nltk"), "print_error_to": io.StringIO()}
            nltk.download("punkt_tab", quiet=True, **where)
        source = folder / ".nltk" / PUNKT
    if not source.is_dir():
        raise UsageError(
            "dataset-missing",
            "NLTK's punkt_tab is not on this machine and cannot be downloaded now; freeze where there is a network, or "
            "point NLTK_DATA to a folder that holds tokenizers/punkt_tab.",
        )
    shutil.copytree(source, target)
    shutil.rmtree(folder / ".nltk", ignore_errors=True)


def check_replaceable(target: Path, name: str) -> None:
    """Refuse a target that holds anything but an older freezing of the data called `name`.

    Raises:
        UsageError: names its content.
    """
    other = "name another folder with --out"
    try:
        if not target.exists() or (target.is_dir() and not any(target.iterdir())):
            return
        if not target.is_dir() or not (target / MANIFEST).is_file():
            raise UsageError("folder-occupied", f"{target} holds something that is not frozen data; {other}.")
        manifest = read_manifest(target)
        present = [path for path in target.rglob("*") if path.is_file() and not path.name.startswith(".")]
    except OSError as error:
        raise _unusable(target, error) from error
    if manifest.name != name:
        raise UsageError("folder-occupied", f"{target} holds {manifest.name}, not {name}; {other}.")
    listed = {MANIFEST, *manifest.files}
    if extra := sorted(path for path in present if path.relative_to(target).as_posix() not in listed):
        raise UsageError(
            "folder-occupied", f"{target} holds {extra[0].relative_to(target)}, which is not frozen data; {other}."
        )


@contextmanager
def staging(target: Path) -> Iterator[Path]:
    """A folder next to `target` that replaces it on success, and is removed on failure.

    The remains of a killed freezing are removed first.

    Raises:
        UsageError: it is not writable, or another process is freezing into it.
    """
    beside = target.parent / f".{target.name}-freezing"
    new, old = beside / "new", beside / "old"
    try:
        with exclusive(beside / "lock"):
            try:
                if old.exists() and not target.exists():  # killed between the two renames below
                    old.rename(target)
                for left in (new, old):
                    shutil.rmtree(left, ignore_errors=True)
                new.mkdir()
                yield new
                if target.exists():
                    target.rename(old)
                new.rename(target)
            finally:
                if target.exists() or not old.exists():
                    shutil.rmtree(beside, ignore_errors=True)
    except BlockingIOError as error:
        raise UsageError("already-running", f"Another process is freezing into {target}; wait for it.") from error
    except OSError as error:
        raise _unusable(target, error) from error


def _unusable(target: Path, error: OSError) -> UsageError:
    return UsageError(
        "folder-unwritable", f"{target} cannot be written ({error.strerror or error}); name another folder with --out."
    )
