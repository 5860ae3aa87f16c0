"""What `make test` leaves out is what is listed, and nothing is listed that is not there."""

import ast
from collections.abc import Iterator

import pytest

from tests.slowest import COSTLY_SECONDS, ROOT, costly, function_of, listed


def test_parameters_are_added_up_and_of_several_tables_the_most_counts() -> None:
    half = COSTLY_SECONDS["test"] / 2
    first = [f"test\t{half + 0.1}\ttests/a.py\ttest_one[{n}]" for n in range(2)]
    first += [f"test\t{half}\ttests/a.py\ttest_two", f"fixture\t{8 * half}\t/elsewhere/tests/a.py\tmodel"]
    second = [f"test\t{9 * half}\ttests/b.py\tTestA.test", f"test\t{half}\ttests/a.py\ttest_two"]
    assert list(listed([first, second])) == [
        f"test\t{9 * half:.1f}\ttests/b.py\tTestA.test",
        f"fixture\t{8 * half:.1f}\ttests/a.py\tmodel",
        f"test\t{2 * half + 0.2:.1f}\ttests/a.py\ttest_one",
    ]


def functions_of(file: str) -> Iterator[str]:
    """As `function_of` names them."""
    for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef))


def test_every_function_that_is_listed_is_there() -> None:
    functions = costly()["test"] | costly()["fixture"]
    there = {(file, name) for file in {file for file, _ in functions} for name in functions_of(file)}
    assert functions
    assert functions <= there, "write tests/costly.tsv again: see tests/slowest.py"


def test_this_test_is_not_costly(request: pytest.FixtureRequest) -> None:
    assert function_of(request.node) == ("tests/test_slowest.py", "test_this_test_is_not_costly")
    assert request.node.get_closest_marker("costly") is None
