"""Opening a folder that may be damaged: what can be read is, and what cannot becomes a finding."""

from typing import Any

from q36eval.checkpoints.inspection.findings import Finding, Section
from q36eval.checkpoints.open_files import HeldFolder
from q36eval.checkpoints.reader import INDEX_FILE, SINGLE_FILE, Checkpoint, is_weight_map, read_weights
from q36eval.errors import CorruptCheckpointError, UsageError


def integrity(rule: str, subject: str, message: str) -> Finding:
    """A blocking finding about the files, whose name is the subject and no path in front of the message."""
    message = message.split(f"/{subject}: ", 1)[-1]
    return Finding(section=Section.INTEGRITY, rule=rule, subject=subject, message=message)


def json_of(held: HeldFolder, name: str, findings: list[Finding]) -> dict[str, Any] | None:
    """A JSON object of the folder; None, with a finding, when it is missing or is none.

    Raises:
        EngineError: the system cannot read it.
    """
    try:
        return held.json(name)
    except (UsageError, CorruptCheckpointError) as error:
        findings.append(integrity("unreadable-file", name, str(error)))
        return None


def open_damaged(held: HeldFolder) -> tuple[Checkpoint, list[Finding], bool]:
    """The checkpoint as far as it can be read, what is wrong with its files, and whether every file was whole.

    Raises:
        EngineError: the system cannot read a file.
    """
    findings: list[Finding] = []
    config = json_of(held, "config.json", findings)
    index = json_of(held, INDEX_FILE, findings) if INDEX_FILE in held else None
    weight_map = (index or {}).get("weight_map", {})
    if not is_weight_map(weight_map):
        findings.append(integrity("index", INDEX_FILE, f"{INDEX_FILE}: weight_map does not map tensors to files here."))
        weight_map = {}
    tensors, faults = read_weights(held, weight_map)
    findings += [integrity(fault.rule, fault.subject, str(fault.error)) for fault in faults]
    readable = not any(fault.rule == "unreadable-file" for fault in faults)
    if config == {}:
        message = "config.json is empty: the architecture and the sizes of the model are missing."
        findings.append(integrity("empty-file", "config.json", message))
    if readable and not tensors:
        message = f"{SINGLE_FILE} holds no tensors: every weight is missing."
        findings.append(integrity("empty-file", SINGLE_FILE, message))
    return Checkpoint(held, config or {}, tensors), findings, readable and bool(tensors) and config is not None
