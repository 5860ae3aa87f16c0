"""Gemma 3's rotary embedding, as older and newer versions of transformers write it, is one setting."""

import json
from pathlib import Path
from typing import Any

from q36eval.checkpoints.inspection import inspect_checkpoint
from tests.q36eval.checkpoints.architectures import saved

OLDER: dict[str, Any] = {
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
NEWER: dict[str, Any] = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    }
}


def test_two_ways_of_writing_one_rotary_embedding_are_no_difference(tmp_path: Path) -> None:
    older, newer = saved("gemma3_text", tmp_path / "older"), saved("gemma3_text", tmp_path / "newer")

    def differing(changes: dict[str, Any]) -> list[str]:
        for folder, rope in ((older, OLDER | changes), (newer, NEWER)):
            config = json.loads((folder / "config.json").read_text())
            kept = {key: value for key, value in config.items() if not key.startswith("rope")}
            (folder / "config.json").write_text(json.dumps(kept | rope))
        both = (*inspect_checkpoint(newer, older).findings, *inspect_checkpoint(older, newer).findings)
        return [finding.message for finding in both if finding.rule == "computation-differs"]

    assert differing({}) == []
    assert [message.partition(" ")[0] for message in differing({"rope_local_base_freq": 50_000.0})] == [
        "sliding_attention",
        "sliding_attention",
    ]
