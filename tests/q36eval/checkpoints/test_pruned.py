"""A branch with fewer experts than its reference (REAP) loads; its inspection lists what it cannot compare."""

import json
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from q36eval.checkpoints.inspection import Inspection, inspect_checkpoint
from q36eval.checkpoints.inspection.findings import Severity
from q36eval.checkpoints.loader import load_model
from tests.q36eval.checkpoints.architectures import saved
from tests.q36eval.checkpoints.inspection.tiny import write_texts

KEPT = (0, 2, 3)


def pruned(reference: Path, folder: Path, changes: dict[str, Tensor]) -> Path:
    """The reference without its expert 1, the others numbered again; `changes` replace tensors."""
    folder.mkdir()
    tensors: dict[str, Tensor] = {}
    for name, value in load_file(reference / "model.safetensors").items():
        before, expert, after = name.partition(".experts.")
        if not expert:
            tensors[name] = value[list(KEPT)].clone() if name.endswith(".mlp.gate.weight") else value
        elif int(after[0]) in KEPT:
            tensors[f"{before}.experts.{KEPT.index(int(after[0]))}{after[1:]}"] = value
    save_file(tensors | changes, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((reference / "config.json").read_text())
    count = next(name for name in ("num_local_experts", "num_experts") if name in config)
    (folder / "config.json").write_text(json.dumps(config | {count: len(KEPT)}))
    write_texts(folder)
    return folder


def blocking(inspection: Inspection) -> list[tuple[str, str]]:
    return [(one.rule, one.subject) for one in inspection.findings if one.severity is Severity.BLOCKING]


def test_a_branch_without_some_experts_is_compared_where_there_is_something_to_compare(tmp_path: Path) -> None:
    reference = saved("qwen3_moe", tmp_path / "reference")
    write_texts(reference)
    branch = pruned(reference, tmp_path / "branch", {})
    assert load_model(branch).model.config.num_experts == 3
    inspection = inspect_checkpoint(branch, reference)
    assert blocking(inspection) == blocking(inspect_checkpoint(reference, reference))
    (listed,) = (finding for finding in inspection.findings if finding.rule == "experts-pruned")
    assert "3 of the reference's 4 experts" in listed.message
    assert "20 tensors" in listed.message  # two layers of three experts of three projections, and a gate each
    assert inspection.compared_weights == len(load_file(branch / "model.safetensors")) - 20
    norm = "model.layers.1.input_layernorm.weight"
    damaged = pruned(reference, tmp_path / "damaged", {norm: load_file(reference / "model.safetensors")[norm] * 2})
    assert ("unquantized-differs", norm) in blocking(inspect_checkpoint(damaged, reference))
