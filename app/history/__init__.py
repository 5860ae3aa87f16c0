"""Moving runs between histories, and removing unneeded data.

The commands of `q36eval history` and the dashboard call it. May import the packages below `app`, such as
`q36eval.history`; neither `cli` nor `dashboard`.
"""
