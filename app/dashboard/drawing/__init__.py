"""Shared drawing code of pages: charts, tables, choices, forms. May import Streamlit, Plotly and `models`."""
