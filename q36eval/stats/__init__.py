"""Intervals and margin tests on clustered, paired evidence. Pure; numpy only."""

from q36eval.stats._inference import MeanInference
from q36eval.stats._summary import DEFAULT_LEVEL, summarize

__all__ = ["DEFAULT_LEVEL", "MeanInference", "summarize"]
