"""Answers taken over from an earlier run: a deployment that repeats itself would give the very same ones.

Nothing is taken over unless the earlier run was of the same deployment in every field, against the same answers of the
same reference, evaluated on the same suite, and was measured by the same code, packages and kind of processor. What
errored then is evaluated again.
"""

import hashlib
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import q36eval
from q36eval.chat.declared import recorded_template
from q36eval.engines import repeats_itself
from q36eval.files import json_sha256, replacing
from q36eval.gate import ReusedAnswers
from q36eval.history import History, JudgedRun, RunRecord
from q36eval.history.attempts import REUSED
from q36eval.history.records import REFERENCE_ANSWERS
from q36eval.history.run_files import RunFiles, sha256_of
from q36eval.records import ItemOutcome
from q36eval.run.items import Work
from q36eval.token_files import TOKENS

MEASURED_BY = "measured_by"
"""Where a run's provenance holds `measuring_sha256`."""

CPU_INFO = Path("/proc/cpuinfo")
PROBES = ("kl", "evals", "canaries")
"""In a checkout they are links, which `rglob` does not follow."""


def reuse_answers(history: History, run: RunRecord, works: Sequence[Work], files: RunFiles) -> ReusedAnswers | None:
    """Write what an earlier run was answered to the items of `works` into this run, and say so in its provenance.

    `run` names its deployments, suites and the hashes of the reference's answers. Of several earlier runs the one that
    answered most is taken, of those the newest; None where there is none.
    """
    if run.identity is None or not repeats_itself(run.identity):
        return None
    best: tuple[JudgedRun, list[ItemOutcome]] | None = None
    for earlier in reversed(history.judged_runs(run.identity.checkpoint_sha256)):
        if earlier.id == run.id or not _same_measuring(earlier, run):
            continue
        outcomes = [outcome for work in works for outcome in _answered(history, earlier, run, work, files)]
        if outcomes and (best is None or len(outcomes) > len(best[1])):
            best = earlier, outcomes
    if best is None:
        return None
    earlier, outcomes = best
    known = {(outcome.probe, outcome.group, outcome.item_key) for outcome in history.items(run.id)}
    reused = ReusedAnswers(run_id=earlier.id, items=len({(each.probe, each.item_key) for each in outcomes}))
    history.update_run(run.id, provenance=run.provenance | {REUSED: reused.model_dump(mode="json")})
    for work in works:
        if work.probe.keeps_files and any(each.probe == work.probe.name for each in outcomes):
            _copy_tokens(history, earlier.id, run.id, files)
    history.add_items(run.id, [each for each in outcomes if (each.probe, each.group, each.item_key) not in known])
    return reused


def _same_measuring(earlier: JudgedRun, run: RunRecord) -> bool:
    """Whether everything that an answer and its judgement hang on was the same, but for the items."""
    mine, theirs = run.provenance.get(MEASURED_BY), earlier.provenance.get(MEASURED_BY)
    templates = [recorded_template(of.provenance) for of in (earlier, run)]
    if len({None if each is None else each.sha256 for each in templates}) > 1:
        return False  # the branch was asked by another template
    same = earlier.identity == run.identity and earlier.reference_identity == run.reference_identity
    return same and mine is not None and mine == theirs


def _answered(
    history: History, earlier: JudgedRun, run: RunRecord, work: Work, files: RunFiles
) -> Iterator[ItemOutcome]:
    """The outcomes of an earlier run that answer items of `work`; none where suite or reference differ."""
    name = work.probe.name.value
    then, now = (of.provenance.get(REFERENCE_ANSWERS, {}).get(name) for of in (earlier, run))
    if work.failed is not None or earlier.suites.get(name) != run.suites.get(name) or now is None or then != now:
        return
    if work.probe.keeps_files and _tokens_of(history, earlier.id, files) is None:
        return
    keys = {item.key for item in work.items}
    for outcome in history.items(earlier.id, work.probe.name):
        if outcome.item_key in keys and outcome.branch.error is None and outcome.reference.error is None:
            yield outcome


def _tokens_of(history: History, run_id: str, files: RunFiles) -> Path | None:
    """Every token's figures of a run, as they were kept; None where they are gone or are not those."""
    kept = next((artifact for artifact in history.artifacts(run_id) if artifact.name == TOKENS), None)
    place = None if kept is None else files.path(kept.sha256)
    return place if place is not None and place.is_file() and sha256_of(place) == place.name else None


def _copy_tokens(history: History, from_run: str, to_run: str, files: RunFiles) -> None:
    source, folder = _tokens_of(history, from_run, files), files.working(to_run)
    if source is not None and not (folder / TOKENS).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / TOKENS) as temporary:
            shutil.copyfile(source, temporary)


def measuring_sha256(packages: dict[str, Any]) -> str:
    """Hash of what computes and judges: our code, `packages` with their versions, Python, the processor, its threads.

    Two machines of one architecture may still differ in the last bit: no answer of the one is the other's.
    """
    import torch

    said: list[Any] = [_code_sha256(), packages, platform.python_version(), platform.machine(), _processor()]
    said += [torch.get_num_threads(), _cores()]
    return json_sha256(said)[:16]


def _cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _processor() -> str:
    try:
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "CPU part", "Features")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


@cache
def _code_sha256() -> str:
    """Hash of the code that evaluates, judges and sums up, as it was at the first call."""
    root, hashed = Path(q36eval.__file__).parent, hashlib.sha256()
    files = {file for place in (root, *(root / name for name in PROBES)) for file in place.rglob("*.py")}
    for file in sorted(file for file in files if file.relative_to(root).parts[0] != "app"):
        hashed.update(f"{file.relative_to(root)} {sha256_of(file)}".encode())
    return hashed.hexdigest()
