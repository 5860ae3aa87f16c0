"""Splits of datasets of the Hugging Face hub at known commits, from the network or from the local cache."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from q36eval.errors import UsageError
from q36eval.evals.frozen import Source
from q36eval.evals.suite import HubSource
from q36eval.hub import check_revision, load_split

Row = dict[str, Any]


@dataclass(frozen=True)
class Split:
    """The rows of one split in the dataset's own schema, and their origin."""

    rows: tuple[Row, ...]
    source: Source


@dataclass
class Hub:
    """Reads splits, each once; `known` holds the suite's entries for the repositories."""

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
            UsageError: it is neither cached nor downloadable, or its commit is not the requested one.
        """
        key = (repository, config, split)
        if key not in self._read:
            self._read[key] = self._load(repository, config, split, arguments or {})
        return self._read[key]

    def _load(self, repository: str, config: str | None, split: str, arguments: Mapping[str, Any]) -> Split:
        known = self.known.get(repository, HubSource())
        dataset, commit = load_split(repository, config, split, revision=known.revision, arguments=arguments)
        check_revision(repository, config, commit, known.revision or commit or "a commit of the hub")
        rows = tuple(dict(row) for row in dataset)
        source = Source(
            repository=repository,
            config=config,
            split=split,
            revision=str(commit),
            licence=known.licence or dataset.info.license or "not stated",
            rows=len(rows),
            features=dataset.features.to_dict(),
        )
        return Split(rows, source)


def json_lines(rows: tuple[Row, ...] | list[Row], dataset: str) -> str:
    """Rows as JSON Lines, in their own order of fields.

    Raises:
        UsageError: a row holds a value that JSON cannot represent.
    """
    try:
        return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    except (TypeError, ValueError) as error:
        raise UsageError(
            "dataset-unsupported", f"The dataset {dataset} holds what JSON cannot ({error}), so it cannot be frozen."
        ) from error
