"""What several pages draw alike: charts, tables, choices, forms. May import Streamlit, Plotly and `models`."""
