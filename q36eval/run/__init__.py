"""A gate's run, from what a person requests to the verdict: open this package to follow one.

The order of a run, and where each step lives:

1. `request`: what is to be judged against what, how (one frozen `Request`).
2. `preflight`: everything that is missing or impossible, reported at once before any work, by what the probes declare
   (`declared_figures`) and the room on disk (`disk`). `probe_set`: the probes of a run (`suites` finds the files of a
   suite, `material` what the KL probe scores).
3. `reference`: the reference deployment or its pack; `capture` has it answer what the branch is asked next, and keeps
   each answer; `floor` its noise floor, `pack` makes a whole pack of both for other machines.
4. `branch`: the branch inspected (`weights`), loaded and evaluated. `rounds` goes through all probes stage by stage
   until a rule says that the verdict stands, the reference one round ahead; `items` hands the engine's results out
   item by item; `order_check` evaluates the first items again at the end.
5. `measure`: the whole run: begins or resumes it in history, calls all of the above, decides, records, closes.
6. `progress` follows along; `drift` keeps where the branch stands now.

Next to gates: `workload` and `memory_report` (what a run would compute, `--plan`), `attribution` (which tensors cost
the quality) and `corpora` (freezing texts).
`run` may import the core and the three probes; `app` imports `run`, nothing here imports `app`.
"""
