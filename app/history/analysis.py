"""Runs, measurements and items as plain tables for analysis, in Parquet."""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from q36eval.errors import StorageError
from q36eval.files import replacing
from q36eval.history import History, RunSummary
from q36eval.records import Lane

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]

OF_RUN = {"run": str, "family": str, "branch": str, "started": datetime}
"""Begins every table, so that they join."""

RUNS = OF_RUN | {
    "finished": datetime,
    "state": str,
    "policy": str,
    "verdict": str,
    **{f"lane_{lane}": str for lane in Lane},
    "waived": bool,
    "awaiting_sign_off": bool,
    "exit_code": int,
    "checkpoint_sha256": str,
    "engine_version": str,
}
MEASUREMENTS = OF_RUN | {
    "probe": str,
    "metric": str,
    "slice": str,
    "unit": str,
    "direction": str,
    "estimator": str,
    "value": float,
    "reference_value": float,
    "effect": float,
    "lower": float,
    "upper": float,
    "level": float,
    "method": str,
    "total": int,
    "scored": int,
    "errored": int,
    "note": str,
}
ITEMS = OF_RUN | {
    "probe": str,
    "item_group": str,
    "item_key": str,
    "cluster": str,
    "stratum": str,
    "must_pass": bool,
    "flip": str,
    "branch_score": float,
    "reference_score": float,
    "branch_error": str,
    "reference_error": str,
    "prompt": str,
    "expected": str,
    "branch_text": str,
    "reference_text": str,
}


def run_rows(_history: History, run: RunSummary) -> Iterator[Row]:
    """One row: the run."""
    lanes = {f"lane_{lane}": verdict.value for lane, verdict in run.lanes.items()}
    yield _of_run(run) | lanes | {name: getattr(run, name) for name in RUNS if hasattr(run, name)}


def measurement_rows(history: History, run: RunSummary) -> Iterator[Row]:
    """A row for each figure of the run; bounds each hold one-sided at (1 + level) / 2."""
    for m in history.measurements(run.id):
        bounds = m.effect_interval
        figures = {name: getattr(m, name) for name in MEASUREMENTS if hasattr(m, name)}
        yield _of_run(run) | figures | bounds.model_dump() | m.counts.model_dump()


def item_rows(history: History, run: RunSummary) -> Iterator[Row]:
    """A row for each item of the run, with what was asked and both answers."""
    for o in history.items(run.id):
        own = {name: getattr(o, name) for name in ITEMS if hasattr(o, name) and name not in ("branch", "reference")}
        answers = {
            f"{side}_{name}": getattr(getattr(o, side), name)
            for side in ("branch", "reference")
            for name in ("score", "text", "error")
        }
        yield _of_run(run) | own | {"item_group": o.group} | answers


TABLES: dict[str, tuple[dict[str, type], Callable[[History, RunSummary], Iterator[Row]]]] = {
    "runs": (RUNS, run_rows),
    "measurements": (MEASUREMENTS, measurement_rows),
    "items": (ITEMS, item_rows),
}


def _of_run(run: RunSummary) -> Row:
    return {"run": run.id, "family": run.family, "branch": run.branch, "started": run.started}


def write_table(history: History, runs: Iterable[RunSummary], table: str, file: Path) -> int:
    """Write one of `TABLES` of those runs as Parquet, run by run; returns how many rows.

    Figures that are no number stay NaN and infinite.

    Raises:
        StorageError: the disk refuses it; what was there before stays.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns, rows_of = TABLES[table]
    schema, count = _schema(columns), 0
    try:
        with replacing(file) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for run in runs:
                rows = list(rows_of(history, run))
                arrays = [pa.array([row.get(name) for row in rows], schema.field(name).type) for name in columns]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
                count += len(rows)
    except OSError as error:
        raise StorageError(
            "file-unwritable", f"The table {file} could not be written: {error.strerror or error}."
        ) from error
    return count


def _schema(columns: dict[str, type]) -> "pa.Schema":
    import pyarrow as pa

    types = {
        str: pa.string(),
        float: pa.float64(),
        int: pa.int64(),
        bool: pa.bool_(),
        datetime: pa.timestamp("us", tz="UTC"),
    }
    return pa.schema([(name, types[kind]) for name, kind in columns.items()])
