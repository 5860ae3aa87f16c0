"""The canary service: queries an endpoint continuously in small amounts, while it serves, and reports changes.

`settings` defines the deployment and the cost. `detector` is the statistics and `incidents` the states of an alarm;
both are pure. `budget`, `store` and the spool store on disk what must survive a kill; `endpoint_sampling` queries the
endpoint within the budget, `rounds` runs one round, `verdicts` makes a run of it, `service` is the loop. `exposition`,
`pages` and `webhooks` report. Only `endpoint_sampling` and `rounds` import torch.
"""
