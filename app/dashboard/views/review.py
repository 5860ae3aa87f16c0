"""Review."""

import streamlit as st

st.title("Review")
