"""Suites: which tasks are run on which frozen data."""
