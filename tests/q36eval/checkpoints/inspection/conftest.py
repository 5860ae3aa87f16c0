"""A copy of the sandbox's branch to damage.

Most weights of a damaged copy are the undamaged ones: the error of each distinct weight is computed once.
"""

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from q36eval.checkpoints.inspection import error
from q36eval.checkpoints.inspection.error import WeightError
from q36eval.checkpoints.weights import LogicalWeight
from tests.branches import folder_of

COMPARE = error._compare


def _content(tensor: Tensor) -> tuple[str, tuple[int, ...], str]:
    stored = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return str(tensor.dtype), tuple(tensor.shape), hashlib.blake2b(stored, digest_size=16).hexdigest()


@pytest.fixture(scope="session", autouse=True)
def errors_once() -> Iterator[None]:
    """The comparison is a function of what is stored, how that is to be read, and the reference's values."""
    known: dict[tuple[object, ...], WeightError] = {}

    def compare(unit: LogicalWeight, parts: Mapping[str, Tensor], decoded: Tensor, original: Tensor) -> WeightError:
        how = (unit.name, unit.tensor_class, unit.is_plain, repr(unit.scheme))
        stored = tuple((name, _content(parts[name])) for name in sorted(parts))
        key = (*how, stored, _content(decoded), _content(original))
        if key not in known:
            known[key] = COMPARE(unit, parts, decoded, original)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(error, "_compare", compare)
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the branch `main`."""
    return Path(shutil.copytree(folder_of("main"), tmp_path / "copy"))
