"""People's actions on a verdict: waive, decide again, replay, choose among branches.

The command line and the dashboard call the same functions here. May import the packages below `app`, neither of the
two.
"""
