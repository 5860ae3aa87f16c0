"""The canary service: asks an endpoint a little at a time, for as long as it serves, and says when it has changed.

`settings` is what is watched and how much it may cost. `detector` is the statistics and `incidents` the states of an
alarm; both are pure. `budget`, `store` and `spool` keep on disk what must survive a kill; `asking` speaks to the
endpoint within the budget, `rounds` asks one round, `verdicts` makes a run of history of it, `service` is the loop.
`exposition`, `pages` and `webhooks` report. Free of torch but for what asks (`asking`, `rounds`).
"""
