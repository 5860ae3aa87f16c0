"""The content of the pages, computed from records. Imports no Streamlit, draws nothing and reads nothing."""
