"""What is caught of faults that only a served model has: `python -m benchmarks.serving_faults` (docs/serving.md)."""
