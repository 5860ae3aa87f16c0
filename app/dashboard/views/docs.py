"""Docs: the documentation of this version."""

import re
from pathlib import Path

import streamlit as st

from q36eval.app.dashboard.drawing.parts import page_head

FOLDER = Path(__file__).parents[3] / "docs"
LINK = re.compile(r"\]\(([a-z-]+)\.md(?:#[^)]*)?\)")


def draw() -> None:
    """The page that the address names, else that of the dashboard."""
    page_head("Docs")
    pages = {file.stem: file.read_text(encoding="utf-8") for file in FOLDER.glob("*.md")}
    name = st.query_params.get("page", "")
    st.caption(" · ".join(f"[{page}](/docs?page={page})" for page in sorted(pages)))
    text = re.sub(r"(?m)^!\[.*$", "", pages.get(name, pages.get("ui", "This installation has no documentation.")))
    st.markdown(LINK.sub(r"](/docs?page=\1)", text))


if __name__ == "__main__":
    draw()
