"""Splits of datasets of the Hugging Face hub at known commits, from the network or from the local cache."""

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from q36eval.errors import UsageError
from q36eval.evals.frozen import Source
from q36eval.evals.lm_configs import quiet
from q36eval.evals.suite import HubSource, is_verified

Row = dict[str, Any]


@dataclass(frozen=True)
class Split:
    """The rows of one split in the dataset's own schema, and where they are from."""

    rows: tuple[Row, ...]
    source: Source


@dataclass
class Hub:
    """Reads splits, each once; `known` says what the suite knows of the repositories."""

    known: Mapping[str, HubSource]
    _read: dict[tuple[str, str | None, str], Split] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every split that was read, in the order of their names."""
        return tuple(self._read[key].source for key in sorted(self._read, key=lambda key: tuple(map(str, key))))

    def read(
        self, repository: str, config: str | None, split: str, arguments: Mapping[str, Any] | None = None
    ) -> Split:
        """One split; `arguments` are the task's own for `datasets`.

        Raises:
            UsageError: it is neither cached nor can be downloaded, or its commit or its rows are not those asked for.
        """
        key = (repository, config, split)
        if key not in self._read:
            self._read[key] = self._load(repository, config, split, arguments or {})
        return self._read[key]

    def _load(self, repository: str, config: str | None, split: str, arguments: Mapping[str, Any]) -> Split:
        known = self.known.get(repository, HubSource())
        called = repository if config is None else f"{repository} ({config})"
        dataset = _dataset(repository, config, split, known.revision, called, arguments)
        commit = _commit(dataset)
        if commit is None or (known.revision is not None and commit != known.revision):
            wanted = known.revision or "a commit of the hub"
            raise UsageError(
                "dataset-revision",
                f"The dataset {called} is cached at {commit or 'an unknown revision'}, not at {wanted}; "
                f"remove that copy from the cache of `datasets` and freeze where there is a network.",
            )
        rows = tuple(dict(row) for row in dataset)
        source = Source(
            repository=repository,
            config=config,
            split=split,
            revision=commit,
            licence=known.licence or dataset.info.license or "not stated",
            rows=len(rows),
            rows_sha256=hashlib.sha256(json_lines(rows, called).encode()).hexdigest(),
            features=dataset.features.to_dict(),
        )
        return Split(rows, source.model_copy(update={"verified": is_verified(source, self.known)}))


def json_lines(rows: tuple[Row, ...] | list[Row], called: str) -> str:
    """Rows as JSON Lines, in their own order of fields.

    Raises:
        UsageError: a row holds what JSON cannot.
    """
    try:
        return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    except (TypeError, ValueError) as error:
        raise UsageError(
            "dataset-unsupported", f"The dataset {called} holds what JSON cannot ({error}), so it cannot be frozen."
        ) from error


def _dataset(
    repository: str, config: str | None, split: str, revision: str | None, called: str, arguments: Mapping[str, Any]
) -> Any:
    import datasets

    datasets.disable_progress_bars()
    options = {name: value for name, value in arguments.items() if name != "trust_remote_code"}
    verbosity = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity_error()
    hub = logging.getLogger("huggingface_hub")  # it tells every attempt to connect
    hub_level = hub.level
    hub.setLevel(logging.ERROR)
    try:
        with quiet():
            # by its address, so that no folder of that name in the working directory is taken for it
            address = f"hf://datasets/{repository}"
            return datasets.load_dataset(address, config, split=split, revision=revision, **options)
    except (FileNotFoundError, ConnectionError) as error:
        raise UsageError("dataset-missing", _missing(repository, called, revision)) from error
    except Exception as error:  # a damaged cache, a gated repository, a split that is not there
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(".")
        if "cache" in str(error):  # the dataset is there and this configuration is not
            raise UsageError("dataset-missing", _missing(repository, called, revision)) from error
        raise UsageError(
            "dataset-unreadable", f"The split {split!r} of the dataset {called} cannot be read: {reason}."
        ) from error
    finally:
        datasets.logging.set_verbosity(verbosity)
        hub.setLevel(hub_level)


def _missing(repository: str, called: str, revision: str | None) -> str:
    at = f" at {revision}" if revision else ""
    return (
        f"The dataset {called} is not in the local cache of `datasets` and cannot be downloaded now; freeze where "
        f"there is a network, or point HF_HOME or HF_DATASETS_CACHE to a cache that holds {repository}{at}."
    )


def _commit(dataset: Any) -> str | None:
    """`datasets` keeps a dataset below the commit it came from."""
    if not dataset.cache_files:
        return None
    name = Path(dataset.cache_files[0]["filename"]).parent.name
    return name if re.fullmatch(r"[0-9a-f]{40}", name) else None
