"""Runs taken out of history and into another one, tables of them for analysis, and the removal of what nothing needs.

The commands of `q36eval history` and the dashboard call it. May import `q36eval.history` and `q36eval.run`; no SQLAlchemy.
"""
