"""The canary probe: prompts whose answers a program can judge, evaluated on the reference and on the branch.

The path of a prompt, one file after the other:

    specs/*.yaml → specification (what a canary is) → cases (its single questions) → probe (what is asked of an engine)
    → answers (one answer judged, by checks/) and margins (by how much it was decided) → outcomes and paired (what both
    sides' answers say) → must_pass and summary (measurements)

`generators/` draws the questions of families, and training data draws from them too.

It may import `q36eval`'s core, never `kl`, `evals` or `app`. Pages read `outcomes` and `must_pass`, so those import
neither torch nor the checks.

To add a canary with fixed prompts, write a YAML file into `specs/` (docs/canaries.md). To add a family, write a
generator (see `generators`) and a YAML file that names it under `family`. To add a check, see `checks`.
"""
