"""The dashboard's entry, which `server.py` serves for `q36eval ui`; where Streamlit alone runs it, nobody writes."""

from pathlib import Path

import streamlit as st

from q36eval.app.dashboard.drawing.tables import TERMS
from q36eval.app.dashboard.escape import label
from q36eval.app.dashboard.history_reader import explained
from q36eval.app.dashboard.launch_options import Started, shown_source
from q36eval.app.dashboard.reviewer import draw_login
from q36eval.provenance import version_of

# A tick and a cross; drawn here, for Streamlit fetches its own icons for the browser's tab from a server elsewhere.
SVG = '<svg xmlns="http://www.w3.org/2000/svg" height="32" viewBox="0 0 {} 32" fill="none" stroke-width="4">{}</svg>'
MARK = '<path d="M3 17l6 6 9-14" stroke="#2e9e5b"/><path d="M20 15l9 9M29 15l-9 9" stroke="#e0483e"/>'
NAME = '<text x="40" y="24" font-family="sans-serif" font-size="20" font-weight="700" fill="#4d86d6">q36eval</text>'
ICON, LOGO = SVG.format(32, MARK), SVG.format(136, MARK + NAME)


def main() -> None:
    """Draw the chosen page."""
    st.set_page_config(page_title="q36eval", page_icon=ICON, layout="wide")
    page = st.navigation(
        {
            "All branches": [
                st.Page("views/overview.py", title="Overview", icon=":material/grid_view:", default=True),
                st.Page("views/review.py", title="Review", icon=":material/rate_review:", url_path="review"),
                st.Page("views/sizes.py", title="KL and size", icon=":material/scatter_plot:", url_path="sizes"),
                st.Page("views/compare.py", title="Compare", icon=":material/compare_arrows:", url_path="compare"),
            ],
            "One branch": [
                st.Page("views/branch.py", title="Branch", icon=":material/show_chart:", url_path="branch"),
                st.Page("views/drift.py", title="Drift", icon=":material/timeline:", url_path="drift"),
            ],
            "One run": [
                st.Page("views/run.py", title="Run", icon=":material/rule:", url_path="run"),
                st.Page("views/kl.py", title="KL", icon=":material/water_drop:", url_path="kl"),
                st.Page("views/evals.py", title="Evals", icon=":material/quiz:", url_path="evals"),
                st.Page("views/canaries.py", title="Canaries", icon=":material/compare:", url_path="canaries"),
            ],
            "Help": [st.Page("views/docs.py", title="Docs", icon=":material/menu_book:", url_path="docs")],
        }
    )
    st.html(Path(__file__).with_name("drawing") / "pages.css")
    st.logo(LOGO, size="large", icon_image=ICON)
    started = Started.of()
    source = shown_source(started.source)
    with st.sidebar:
        st.caption(f"Version {version_of('q36eval') or 'unknown'}")
        of = f"History{', read only' * started.read_only}: {label(source.rpartition('/')[2])}"
        st.caption(of, help=label(source))
        st.caption("Terms", help="\n\n".join(f"**{term}**: {meaning}" for term, meaning in TERMS.items()))
        draw_login()
    with explained():
        page.run()


main()
