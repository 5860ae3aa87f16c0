"""Configuration a person writes: families, paths."""

from q36eval.config.answering import Answering, Budget, SamplingSettings, Thinking
from q36eval.config.family import Branch, Family, Figure, Source, load_yaml
from q36eval.config.paths import Paths

__all__ = [
    "Answering",
    "Branch",
    "Budget",
    "Family",
    "Figure",
    "Paths",
    "SamplingSettings",
    "Source",
    "Thinking",
    "load_yaml",
]
