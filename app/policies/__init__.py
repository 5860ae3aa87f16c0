"""Using policies: found by name, checked against the measurements.

`files` finds policies, `policy_check` finds a policy's errors before a branch is measured. It may import everything
below `app`, and the app's modules for suites and branches. `q36eval.gate` judges, and `q36eval.run.declared_figures`
knows the possible measurements; neither imports this.
"""
