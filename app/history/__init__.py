"""Runs taken out of history and into another one, and the removal of what nothing needs.

The commands of `q36eval history` and the dashboard call it. May import the packages below `app`, such as
`q36eval.history`; neither `cli` nor `dashboard`.
"""
