"""The counts of the house count what they say, on a repository of four files."""

from benchmarks import house

TEXTS = {
    "kl/one.py": """
from typing import TYPE_CHECKING
from q36eval.two import _shared
if TYPE_CHECKING:
    from q36eval.kl.three import Three
def public():
    return _once() + _twice() + _shared()
def other():
    return _twice()
def _once(): ...
def _twice(): ...
def _never(): ...
def _itself():
    return _itself()
""",
    "kl/three.py": """
class Three:
    def method(self):
        from q36eval.kl import one
        return self._inner()
    def _inner(self): ...
""",
    "q36eval/two.py": """
from q36eval import four
def _shared(): ...
""",
    "q36eval/four.py": """
def late():
    import q36eval.two
TABLE = {"late": late}
""",
}
FILES = house.read(TEXTS)


def test_a_helper_with_one_caller_is_one_that_one_function_names() -> None:
    assert house.one_caller(FILES) == 3  # _once, _shared (named where it is imported), _inner


def test_an_import_in_a_function_is_late_and_one_for_types_is_none() -> None:
    assert {path: file.late_statements for path, file in FILES.items() if file.late_statements} == {
        "kl/three.py": 1,
        "q36eval/four.py": 1,
    }
    assert house.graph_of(FILES, late=True)["q36eval.kl.one"] == {"q36eval.two"}


def test_a_cycle_is_found_only_where_its_imports_count() -> None:
    assert house.cycles(FILES, late=False) == []
    assert house.cycles(FILES, late=True) == [["q36eval.four", "q36eval.two"]]


def test_what_is_reached_is_imported_by_and_by() -> None:
    graph = house.graph_of(FILES, late=True)
    assert house.reached(graph, "q36eval.kl.three") == {
        f"q36eval.{name}" for name in ("kl.three", "kl.one", "two", "four")
    }


def test_the_table_counts_every_part() -> None:
    counts = house.counts(TEXTS | {"tests/test_x.py": "x = 1\n"})
    assert (counts["installed: files"], counts["tests: files"], counts["all: files"]) == ("4", "1", "5")
    assert counts["functions"] == "10"
