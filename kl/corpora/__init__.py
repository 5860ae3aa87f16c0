"""The corpora of the shipped suites as plans: the sources from which each is frozen."""
