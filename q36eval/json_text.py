"""JSON as text that is safe to print."""

import json
from typing import Any


def json_text(body: Any, indent: int) -> str:
    """JSON with sorted keys and a line end: the same body gives the same bytes.

    ASCII only, so that text of models can neither drive a terminal nor break an encoding; and nothing in it begins a
    command of a pipeline's runner, as `##[error]` does anywhere in a line of a log.

    Raises:
        ValueError: it holds NaN or an infinity, which JSON has no number for.
    """
    text = json.dumps(body, sort_keys=True, indent=indent, allow_nan=False)
    return text.replace("##", "#\\u0023") + "\n"
