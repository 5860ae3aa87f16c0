"""What is shown, as files."""

import csv
import io

import pytest
from written_history import HOSTILE

from q36eval.app.dashboard.drawing.parts import csv_bytes, file_name


def read(data: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(data.decode("utf-8-sig"))))


def test_a_table_comes_back_as_it_was_shown() -> None:
    rows = [{"task": "Kč, „sleva“", "loss": "-0.0017 [-0.02, 0.03]"}, {"task": 'a "b"', "extra": "+1.2 %"}]
    assert read(csv_bytes(rows)) == [
        ["task", "loss", "extra"],
        ["Kč, „sleva“", "-0.0017 [-0.02, 0.03]", ""],
        ['a "b"', "", "+1.2 %"],
    ]


@pytest.mark.parametrize("text", ["=HYPERLINK(1)", "+cmd|' /C calc'!A0", "-2+3+cmd|x", "@SUM(A1)", "-1e5=A1", "\t=1"])
def test_no_spreadsheet_runs_what_a_model_said(text: str) -> None:
    _, (cell,) = read(csv_bytes([{"answer": text}]))
    assert not cell.startswith(("=", "+", "-", "@", "\t"))
    assert text.strip() in cell


def test_hostile_text_stays_one_cell_of_one_line() -> None:
    _, (cell, second) = read(csv_bytes([{"answer": f"{HOSTILE}\r\n=1", "b": "x"}]))
    assert not {"\x1b", "\x07", "\u202e", "\n", "\r"} & set(cell)
    assert second == "x"


def test_a_file_name_is_only_a_name() -> None:
    assert file_name("../../etc/passwd", "mmlu by task", "<b>") == "etc-passwd-mmlu-by-task-b"
