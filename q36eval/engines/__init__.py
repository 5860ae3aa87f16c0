"""Engines: what answers for a deployment. Torch is imported only inside `in_process`."""

from q36eval.engines.base import Engine, Generated, GenerationRequest, Scored, ScoreRequest

__all__ = ["Engine", "Generated", "GenerationRequest", "ScoreRequest", "Scored"]
