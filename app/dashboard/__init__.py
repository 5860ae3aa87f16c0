"""The review dashboard: Streamlit pages over history, started by `q36eval ui`.

`views` has one module per page, `models` computes the content of a page, `drawing` has shared drawing code;
`history_reader` caches slow reads, and `review_writer` writes. Text from models and people is shown as plain text,
never as markup. May import the packages below `app` but no model library: torch, transformers and lm-eval stay out.
"""
