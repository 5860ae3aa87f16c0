"""One run of a gate, from a person's request to the verdict: start here to follow one.

The order of a run, and the module of each step:

1. `request`: what to judge, against what, and how (one frozen `Request`).
2. `preflight`: everything missing or impossible, reported at once before any work, from the probes' declarations
   (`declared_figures`) and the disk space (`disk`). `probe_set`: the probes of a run (`suites` finds the files of a
   suite, `materials` the texts that the KL probe scores).
3. `reference`: the reference deployment or its pack; `capture` has it answer the branch's next items and stores
   each answer; `floor` is its noise floor, `pack` makes a whole pack of both for other machines.
4. `branch`: the branch inspected (`weights`), loaded and evaluated. `rounds` evaluates all probes stage by stage
   until a rule finds the verdict final, the reference one round ahead; `items` distributes the engine's results item by
   item; `order_check` evaluates the first items again at the end.
5. `measure`: the whole run: begins or resumes it in history, calls all of the above, decides, records, closes.
6. `progress` reports progress; `drift` reads the branch's current state.

Next to gates: `workload` and `memory_report` (the planned computation, `--plan`), `attribution` (the tensors that cause
the loss) and `corpora` (freezing texts).
`run` may import the core and the three probes; `app` imports `run`, nothing here imports `app`.
"""
