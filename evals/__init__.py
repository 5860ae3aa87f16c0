"""The evals probe: lm-eval's tasks and scoring on frozen data, with our engine in place of lm-eval's model.

A suite (`suite`, files in `suites/`) names task groups; `frozen` checks their data, `lm_configs` and `lm_tasks` make
lm-eval's documents of it, `encoding` turns lm-eval's requests into ours and back, `blocks` determines their order.
`probe` joins them. `paired_clusters` and `competence` turn outcomes into evidence, `figures` into those of one slice,
`summaries` into all measurements of a suite, and into its declared figures. `code_execution` runs programs written by a
model; `freezing/` writes a suite's data on a machine with a network.

It may import the core (`q36eval.*`) and neither another probe nor the app; it alone imports lm-eval, always inside the
function that needs it, since lm-eval takes seconds and the hub must be switched off first.

To add a suite: a file in `suites/` with names of lm-eval's tasks (then `q36eval data freeze`), or with our own task
file in `tasks/`, whose text is part of the suite's hash. To add a metric: its `Figure` and the function that yields it
in `figures`, its slices in `summaries`.
"""
