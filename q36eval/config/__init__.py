"""Configuration a person writes: families, paths."""

from q36eval.config.family import Branch, Family, Figure, Source, load_yaml
from q36eval.config.paths import Paths

__all__ = ["Branch", "Family", "Figure", "Paths", "Source", "load_yaml"]
