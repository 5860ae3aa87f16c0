"""Opening a folder that may be damaged: what can be read is, and what cannot becomes a finding."""

from typing import Any

from q36eval.checkpoints.header import Header, TensorEntry, examine_header
from q36eval.checkpoints.held import HeldFolder
from q36eval.checkpoints.inspection.findings import Finding, Section
from q36eval.checkpoints.reader import INDEX_FILE, MTP_FILE, SINGLE_FILE, Checkpoint, is_weight_map
from q36eval.errors import CorruptCheckpointError, UsageError


def integrity(rule: str, subject: str, message: str) -> Finding:
    """A blocking finding about the files."""
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
    tensors: dict[str, TensorEntry] = {}
    readable = True
    for file in _files(held, weight_map, findings):
        try:
            header = examine_header(held.files[file])
        except CorruptCheckpointError as error:
            header = Header({}, (str(error),))
        findings += [integrity("unreadable-file", file, fault) for fault in header.faults]
        findings += [integrity("impossible-shape", name, fault) for name, fault in header.impossible.items()]
        if header.faults:
            readable = False
            continue
        for name, entry in header.entries.items():
            if name in tensors:
                message = f"tensor {name!r} is stored in both {tensors[name].file.name} and {file}."
                findings.append(integrity("stored-twice", name, message))
            tensors.setdefault(name, entry)
    if readable:
        findings += _index_faults(weight_map, tensors)
    if config == {}:
        message = "config.json is empty: the architecture and the sizes of the model are missing."
        findings.append(integrity("empty-file", "config.json", message))
    if readable and not tensors:
        message = f"{SINGLE_FILE} holds no tensors: every weight is missing."
        findings.append(integrity("empty-file", SINGLE_FILE, message))
    return Checkpoint(held, config or {}, tensors), findings, readable and bool(tensors) and config is not None


def _files(held: HeldFolder, weight_map: dict[str, str], findings: list[Finding]) -> list[str]:
    """The weight files that are there, with findings about those that are missing or belong to nothing."""
    named = set(weight_map.values()) or {SINGLE_FILE}
    present = set(held.weight_files)
    for name in sorted(named - present):
        findings.append(integrity("missing-file", name, f"{name} is missing; download the checkpoint again."))
    for name in sorted(present - named - {MTP_FILE}):
        findings.append(integrity("stray-file", name, f"{name} is not named in {INDEX_FILE}; remove it or name it."))
    return sorted(present & (named | {MTP_FILE}))


def _index_faults(weight_map: dict[str, str], tensors: dict[str, TensorEntry]) -> list[Finding]:
    """Every tensor the index names is in the file it says, and every stored tensor is in the index."""
    if not weight_map:
        return []
    wrong = [
        integrity("index", name, f"{INDEX_FILE} names tensor {name!r} in {file}, which lacks it.")
        for name, file in weight_map.items()
        if name not in tensors or tensors[name].file.name != file
    ]
    unnamed = [
        integrity("index", name, f"tensor {name!r} of {entry.file.name} is not named in {INDEX_FILE}.")
        for name, entry in tensors.items()
        if name not in weight_map and entry.file.name != MTP_FILE
    ]
    return wrong + unnamed
