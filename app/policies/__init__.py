"""Policies put to use: found by name, checked against what is measured.

`files` finds policies, `policy_check` says what is wrong with one before a branch is measured.
It may import everything below `app`, and of the app what finds suites and branches. `q36eval.gate` judges, and
`q36eval.run.declared_figures` knows what can be measured; neither imports this.
"""
