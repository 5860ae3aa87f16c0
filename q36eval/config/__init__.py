"""What a person writes and where it lies: family files, how a family answers, the paths of the working state.

Pydantic models that refuse unknown keys. May import `q36eval.errors` and `q36eval.records`, nothing heavy: the command
line loads this package before it knows what it will do.
"""

from q36eval.config.answer_budgets import SamplingSettings
from q36eval.config.family import Branch, Family, Source
from q36eval.config.paths import Paths
from q36eval.config.project import Project

__all__ = [
    "Branch",
    "Family",
    "Paths",
    "Project",
    "SamplingSettings",
    "Source",
]
