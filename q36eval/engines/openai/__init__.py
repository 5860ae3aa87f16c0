"""The engine `openai`: a served model that answers over HTTP in the OpenAI API's shape, whatever program serves it.

`client` asks, waits and asks again; `answers` holds every answer to what was asked; `flavour` tells which program
answers; `capabilities` tries what it can do; `deployment` is one server as it was opened; `in_flight` keeps so many
requests under way; `engine` is the engine.
"""
