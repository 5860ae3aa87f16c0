"""The version of what drift finds: findings that history keeps under another are found anew."""

FINDINGS_VERSION = 1
"""Raised with every change after which the same runs may be said to have drifted otherwise, or in other words:

1. What is found on 2026-11-22; before it, the hash of all our code stood here.
"""
