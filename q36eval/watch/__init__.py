"""The canary service: queries an endpoint a little at a time, while it serves, and reports when it has changed.

`settings` is what is watched and how much it may cost. `detector` is the statistics and `incidents` the states of an
alarm; both are pure. `budget`, `store` and `spool` keep on disk what must survive a kill; `endpoint_sampling` queries
the endpoint within the budget, `rounds` makes one round, `verdicts` makes a run of it, `service` is the loop.
`exposition`, `pages` and `webhooks` report. Free of torch but for `endpoint_sampling` and `rounds`.
"""
