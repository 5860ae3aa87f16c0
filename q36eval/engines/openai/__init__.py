"""The engine `openai`: a served model behind the OpenAI API over HTTP, for any serving program.

`client` sends requests, with waits and retries; `answers` validates every answer against its request; `flavour` detects
the program; `capabilities` tests its abilities; `deployment` is one opened server; `concurrency` limits concurrent
requests; `engine` is the engine.
"""
