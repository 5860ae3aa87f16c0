"""The user-facing parts: the command line (`cli`), the dashboard, and the steps behind both.

`policies` finds, checks and explains policies; `reviewing` waives, replays and recommends; `history` moves runs between
histories and cleans up. May import everything else in q36eval; nothing imports it.
"""
