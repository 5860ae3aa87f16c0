"""Splits of datasets of the Hugging Face hub, from the local cache of `datasets` or from the network."""

import contextlib
import io
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from q36eval.errors import UsageError


def load_split(
    repository: str,
    config: str | None,
    split: str,
    *,
    revision: str | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> tuple[Any, str | None]:
    """The split as `datasets` has it, and the commit it came from; None where that is not known.

    `arguments` are a task's own for `datasets`, of which no code of a dataset is run.

    Raises:
        UsageError: it is neither cached nor can be downloaded, or it cannot be read.
    """
    import datasets

    options = {name: value for name, value in (arguments or {}).items() if name != "trust_remote_code"}
    with _quiet():
        try:
            # by its address, so that no folder of that name in the working directory is taken for it
            found = datasets.load_dataset(
                f"hf://datasets/{repository}", config, split=split, revision=revision, **options
            )
        except Exception as error:  # a damaged cache, a gated repository, a split that is not there
            # the last: the dataset is there and this configuration is not
            if isinstance(error, FileNotFoundError | ConnectionError) or "cache" in str(error):
                raise UsageError("dataset-missing", _missing(repository, config, revision)) from error
            raise UsageError(
                "dataset-unreadable",
                f"The split {split!r} of the dataset {called(repository, config)} cannot be read: {one_line(error)}.",
            ) from error
    # `datasets` keeps a dataset below the commit it came from
    name = Path(found.cache_files[0]["filename"]).parent.name if found.cache_files else ""
    return found, name if re.fullmatch(r"[0-9a-f]{40}", name) else None


def bytes_of(revisions: Mapping[str, str | None]) -> int | None:
    """How many bytes datasets have on the Hub, by their repositories and revisions; None where the Hub tells nothing.

    Of some only a part is read.
    """
    from httpx import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    api, total = HfApi(endpoint=os.environ.get("HF_ENDPOINT", "").rstrip("/") or None), 0
    try:
        for repository, revision in revisions.items():
            found = api.dataset_info(repository, revision=revision, files_metadata=True, timeout=10.0)
            total += sum(file.size or 0 for file in found.siblings or ())
    except (HTTPError, HfHubHTTPError, OfflineModeIsEnabled):
        return None
    return total


def check_revision(repository: str, config: str | None, commit: str | None, wanted: str | None) -> None:
    """Refuse a split at another commit than the wanted one.

    Raises:
        UsageError: it is at another one.
    """
    if wanted is not None and commit != wanted:
        raise UsageError(
            "dataset-revision",
            f"The dataset {called(repository, config)} is cached at {commit or 'an unknown revision'}, not at "
            f"{wanted}; remove that copy, and {_how_to_cache(repository, config, wanted)}.",
        )


def called(repository: str, config: str | None) -> str:
    """The name of a dataset in a sentence."""
    return repository if config is None else f"{repository} ({config})"


def one_line(error: Exception) -> str:
    """An exception as part of a sentence; the one behind it, where `datasets` only says that there is one."""
    if type(error).__name__ == "DatasetGenerationError" and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(".")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no notices."""
    import datasets

    logger, bars = logging.getLogger("huggingface_hub"), not datasets.are_progress_bars_disabled()
    verbosity, level = datasets.logging.get_verbosity(), logger.level
    datasets.logging.set_verbosity_error()
    logger.setLevel(logging.ERROR)  # it reports every attempt to connect
    datasets.disable_progress_bars()
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        datasets.logging.set_verbosity(verbosity)
        logger.setLevel(level)
        if bars:
            datasets.enable_progress_bars()


def _missing(repository: str, config: str | None, revision: str | None) -> str:
    return (
        f"The dataset {called(repository, config)} is not in the local cache of `datasets`, and is not downloaded now; "
        f"{_how_to_cache(repository, config, revision)}."
    )


def _how_to_cache(repository: str, config: str | None, revision: str | None) -> str:
    arguments = [repr(each) for each in (repository, config) if each is not None]
    arguments += [] if revision is None else [f"revision={revision!r}"]
    return (
        f'where there is a network run python -c "from datasets import load_dataset; '
        f'load_dataset({", ".join(arguments)})", or point HF_HOME to a cache that holds it'
    )
