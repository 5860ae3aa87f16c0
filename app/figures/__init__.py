"""Readable forms of a run's figures, probe by probe: rows, sentences and points to draw, for commands and pages.

Nothing here draws.
"""
