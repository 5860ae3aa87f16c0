"""The corpora that the shipped suites bring, as plans: what is frozen from where."""
