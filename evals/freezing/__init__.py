"""Freezing a suite that names lm-eval's tasks: its datasets and RULER's documents, written to files once."""

from q36eval.evals.freezing.suite import freeze_suite as freeze_suite
