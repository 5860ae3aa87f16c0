"""The version of what the in-process engine computes: part of every deployment's identity.

References and kept answers of another version are of another deployment: they are captured and asked again. A change
of code alone is no change of numbers; `tests/q36eval/test_numerics.py` holds recorded logits, hidden states, scores
(alone and after a shared prefix), generated answers and draws, and fails where they move and the version did not. It
computes in float32 on a CPU: what moves in BF16 alone, or on a GPU alone, is for whoever changes it to know.
"""

NUMERICS_VERSION = 1
"""Raised with every change that may move a number, each with what it changed:

1. What the engine computes, decodes, emulates and draws on 2026-11-22; before it, the code's own hash stood here.
"""
