"""The policy file that a calibration proposes: it extends the calibrated policy and changes its margins alone."""

import os
from pathlib import Path

import yaml

from q36eval.app.policies.calibrating import Calibration, CriterionCalibration
from q36eval.app.policies.files import FILE_ENDINGS
from q36eval.errors import UsageError
from q36eval.gate import Policy

HEADER = """\
# Proposed by `q36eval policy calibrate` from measured noise. Read each margin and its source before using it.
"""


def as_policy_file(
    found: Calibration, extends: str, out: Path | None, name: str | None = None, *, widen: bool = False
) -> str:
    """The file as text. Wider margins are in it only if asked for; `extends` is what the person named."""
    changed = [each for each in found.criteria if each.change in ("tighten", "set", *(("widen",) if widen else ()))]
    sources = {criterion.id: criterion.margin.source for criterion in found.policy.criteria}
    runs = ", ".join(each.run.id for each in found.runs)
    document = {
        "name": name or f"{found.policy.name}-calibrated",
        "description": f"{found.policy.name} with margins calibrated on {runs}.",
        "extends": _extends(extends, out),
        "criteria": [{"id": each.id, "margin": _margin(each, sources[each.id])} for each in changed],
    }
    return HEADER + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)


def _margin(each: CriterionCalibration, old_source: str) -> dict[str, object]:
    """The new value, and a source that says from what, what it was before, and whether it is wider."""
    if each.scheme is not None:
        direction = {"widen": "wider: ", "tighten": "tighter: "}.get(each.change, "")
        source = f"calibrated, {direction}{each.why}"
        return {"schemes": [{"scheme": each.scheme, "value": each.new, "source": source}]}
    direction = "wider" if each.change == "widen" else "tighter"
    source = f"calibrated, {direction} than the {each.kind} {each.old:g} before ({old_source}): {each.why}"
    return {"value": each.new, "source": source}


def _extends(named: str, out: Path | None) -> str:
    """A shipped policy by its name; a file as it is found from the folder of the new one."""
    if not named.endswith(FILE_ENDINGS):
        return named
    return os.path.relpath(Path(named).resolve(), Path.cwd() if out is None else out.resolve().parent)


def write_policy(text: str, out: Path) -> None:
    """Write the file and read it back; one that is there is never overwritten.

    Raises:
        UsageError: it exists, cannot be written, or is no .yaml file.
    """
    if out.suffix not in FILE_ENDINGS:
        raise UsageError(f"A policy is a .yaml file, not {out.name!r}.")
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise UsageError(f"{out} exists and is never overwritten; name another file.") from error
    except OSError as error:
        raise UsageError(f"The policy cannot be written to {out}: {error.strerror}.") from error
    Policy.load(out)
