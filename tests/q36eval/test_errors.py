"""Every error has a code that a reader can search for, and takes it across processes."""

import ast
import os
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import q36eval
from q36eval.errors import CorruptCheckpointError, EngineError, Q36Error, StorageError, UsageError

CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
PACKAGE = Path(q36eval.__file__).parent


def _codes() -> Iterator[tuple[str, ast.expr]]:
    """Where an error or a reason is made, and what stands for its code."""
    # the package's folders are links, which no glob follows
    files = sorted(Path(place) / name for place, _, names in os.walk(PACKAGE, followlinks=True) for name in names)
    bases: dict[str, set[str]] = {}
    calls: list[tuple[str, str, ast.expr]] = []
    for file in files:
        text = file.read_text(encoding="utf-8") if file.suffix == ".py" else ""
        if "Error" not in text and "Reason(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = {base.id for base in node.bases if isinstance(base, ast.Name)}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                calls.append((node.func.id, f"{file.relative_to(PACKAGE)}:{node.lineno}", node.args[0]))
    coded = {"Q36Error", "Reason"}  # and all classes below them are made of a code and a text
    while more := {name for name, own in bases.items() if own & coded} - coded:
        coded |= more
    yield from ((at, code) for name, at, code in calls if name in coded)


def test_every_error_and_reason_is_made_with_a_code_and_never_with_a_sentence_in_its_place() -> None:
    codes = dict(_codes())
    assert len(codes) > 600
    literal = {at: code.value for at, code in codes.items() if isinstance(code, ast.Constant)}
    assert {at: code for at, code in literal.items() if not CODE.fullmatch(str(code))} == {}
    assert [at for at, code in codes.items() if isinstance(code, ast.JoinedStr | ast.BinOp)] == []


@pytest.mark.parametrize("kind", [UsageError, CorruptCheckpointError, EngineError, StorageError])
def test_an_error_crosses_processes_with_its_code_its_sentence_and_its_notes(kind: type[Q36Error]) -> None:
    error = kind("branch-unknown", "There is no branch 'x'.")
    error.add_note("Run 1 can be resumed.")
    there = pickle.loads(pickle.dumps(error))
    assert (type(there), there.code, str(there)) == (kind, "branch-unknown", "There is no branch 'x'.")
    assert there.__notes__ == ["Run 1 can be resumed."]
    assert there.exit_code == kind.exit_code
