"""What the quantization configuration says about modules by name: ignore lists, and groups with their targets."""

import fnmatch
import re
from collections.abc import Iterable, Mapping
from typing import Any

from q36eval.checkpoints.names import canonical, module_type


def ignore_patterns(quantization: Mapping[str, Any]) -> list[str]:
    """The patterns of what is to stay unquantized, as the configuration's method writes them."""
    method = quantization.get("quant_method")
    if method == "gptq":
        dynamic = quantization.get("dynamic") or {}
        return [pattern for pattern in dynamic if pattern.startswith("-:")]
    keys = ("ignore", "exclude_modules", "modules_to_not_convert")
    return next((list(quantization[key]) for key in keys if quantization.get(key)), [])


def matches(method: str | None, pattern: str, module: str) -> bool:
    """Whether a pattern of that method's configuration means a stored module (in either published layout)."""
    names = (module, canonical(module))
    if method == "gptq":
        return any(re.match(pattern.removeprefix("-:").removeprefix("+:"), name) for name in names)
    if method == "modelopt":
        return any(fnmatch.fnmatchcase(name, pattern) for name in names)
    if pattern.startswith("re:"):
        return any(re.match(pattern.removeprefix("re:"), name) for name in names)
    if pattern in names or pattern == module_type(canonical(module)):
        return True
    # fine-grained FP8 lists modules and whole subtrees by name
    return method == "fp8" and any(name.startswith(pattern + ".") or name.endswith("." + pattern) for name in names)


def dead_patterns(quantization: Mapping[str, Any], modules: Iterable[str]) -> list[str]:
    """Ignore patterns that mean none of the stored modules; a malformed pattern means nothing either."""
    known, method = list(modules), quantization.get("quant_method")
    return [pattern for pattern in ignore_patterns(quantization) if not _matches_any(method, pattern, known)]


def _matches_any(method: str | None, pattern: str, modules: list[str]) -> bool:
    try:
        return any(matches(method, pattern, module) for module in modules)
    except re.error:
        return False
