"""What the pages say, worked out from records. Imports no Streamlit, draws nothing and reads nothing."""
