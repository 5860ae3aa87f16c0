"""NLTK's sentence splitter, which RULER's haystacks and IFEval's checks need: copied into the frozen folder."""

import io
import shutil
from collections.abc import Iterable
from pathlib import Path

from q36eval.errors import UsageError
from q36eval.evals.lm_configs import NLTK_DATA
from q36eval.evals.lm_names import NamedTask
from q36eval.evals.quiet import quiet

PUNKT = "tokenizers/punkt_tab/english"


def needs_punkt(tasks: Iterable[NamedTask]) -> bool:
    """Whether one of the tasks splits sentences by NLTK."""
    return any(task.config.startswith(("ruler/niah", "ifeval/")) for task in tasks)


def freeze_punkt(folder: Path) -> None:
    """Copy English `punkt_tab` below `folder`; where it is not on this machine it is downloaded.

    Raises:
        UsageError: neither is possible.
    """
    import nltk
    import nltk.data

    target = folder / NLTK_DATA / PUNKT
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        found = Path(str(nltk.data.find(PUNKT)))
    except LookupError:
        with quiet():  # where it tells its errors is bound before
            where = {"download_dir": str(folder / ".nltk"), "print_error_to": io.StringIO()}
            nltk.download("punkt_tab", quiet=True, **where)
        found = folder / ".nltk" / PUNKT
    if not found.is_dir():
        raise UsageError(
            "NLTK's punkt_tab is not on this machine and cannot be downloaded now; freeze where there is a network, or "
            "point NLTK_DATA to a folder that holds tokenizers/punkt_tab."
        )
    shutil.copytree(found, target)
    shutil.rmtree(folder / ".nltk", ignore_errors=True)
