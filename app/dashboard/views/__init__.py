"""One module per page; each is run by Streamlit as a script and draws what the view models say."""
