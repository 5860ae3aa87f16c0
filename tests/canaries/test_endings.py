"""How Czech comparisons end, in a few hundred wordings: right, wrong or not to be told."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from q36eval.canaries.checks import outcome_of, run_checks

GROUPS = yaml.safe_load((Path(__file__).parent / "endings.yaml").read_text(encoding="utf-8"))


@pytest.mark.long
@pytest.mark.parametrize("label", ["right", "wrong", "unreadable"])
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group["name"])
def test_endings_are_read_as_a_person_reads_them(group: dict[str, Any], label: str) -> None:
    expected = {"offers": group["offers"], "last_line": group.get("last_line", False)}
    last = "\nRozhodnutí: stejně" if expected["last_line"] else ""
    read = {
        said: outcome_of(run_checks(f"{group['sums']}\n\n{said}{last}", ["discount"], expected))
        for said in group.get(label, [])
    }
    assert {said: outcome for said, outcome in read.items() if outcome != label} == {}
