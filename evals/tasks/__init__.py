"""lm-eval task files; `$DATA` and `$SUBSET` in them are filled in when a suite is loaded."""
