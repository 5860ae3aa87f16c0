"""Policies put to use: found, checked against what is measured, explained in words, calibrated from measured noise.

The rules themselves are in `q36eval.gate`. May import the packages below `app`; neither `cli` nor `dashboard`.
"""
