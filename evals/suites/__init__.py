"""Suites: tasks and their frozen data."""
