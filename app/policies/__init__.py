"""Policies put to use: found by name, checked against what is measured, explained in words.

`files` finds policies, `checking` says what is wrong with one before a branch is measured, `words` explains a policy.
It may import everything below `app`, and of the app what finds suites and branches. `q36eval.gate` judges, and
`q36eval.run.declared_figures` knows what can be measured; neither imports this.
"""
