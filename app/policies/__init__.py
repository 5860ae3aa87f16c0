"""Policies put to use: found, checked against what is measured, explained in words, calibrated from measured noise."""
