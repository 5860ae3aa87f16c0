"""When an answer may turn next. Of its own, since what shows it must not lead to torch."""

AT_RISK_NATS = 0.5
"""An answer that the reference gets right and whose least margin is below this (odds of 1.65 to 1) may turn next."""
