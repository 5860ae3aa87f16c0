"""The sitecustomize of `.ci/vllm-cpu`: torchvision's two operators, declared before it is imported.

PyPI's torchvision beside a CPU wheel of torch loads no library of its own; transformers then fails over operators that
nothing here calls.
"""

import sys
from typing import Any


class Declaring:
    """Stands first among the finders until torchvision is looked for."""

    kept: Any = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Find nothing; before torchvision is found by others, declare what it would define."""
        if name != "torchvision":
            return
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        import torch

        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        Declaring.kept = library


sys.meta_path.insert(0, Declaring())  # type: ignore[arg-type]
