"""Runs taken out of history and into another one, tables of them for analysis, and what nothing needs any more."""
