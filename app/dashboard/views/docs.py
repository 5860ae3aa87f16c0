"""Docs: the pages of documentation that come with this version."""

import re
from pathlib import Path

import streamlit as st

from q36eval.app.dashboard.drawing.parts import page_head

FOLDER = Path(__file__).parents[3] / "docs"
IMAGE = re.compile(r"^!\[.*\n+", re.MULTILINE)
LINK = re.compile(r"\]\(([a-z-]+)\.md(?:#[^)]*)?\)")


def draw() -> None:
    """The page that the address names, else that of the dashboard."""
    page_head("Docs")
    names = sorted(file.stem for file in FOLDER.glob("*.md"))
    if not names:
        st.info("This installation has no documentation; it is in the folder docs of the source.")
        return
    if st.query_params.get("page") not in names:
        st.query_params["page"] = "ui"
    name = st.selectbox("Page", names, key="page", bind="query-params", width=360)
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    st.markdown(LINK.sub(r"](/docs?page=\1)", IMAGE.sub("", text)))


if __name__ == "__main__":
    draw()
