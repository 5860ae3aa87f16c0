"""The dashboard's entry: `streamlit run app/dashboard/main.py -- HISTORY_PATH` (what `q36eval ui` does)."""

import streamlit as st

from app.dashboard.inert import line
from q36eval.errors import Q36Error


def main() -> None:
    """Draw the chosen page."""
    st.set_page_config(page_title="q36eval", page_icon=":material/balance:", layout="wide")
    page = st.navigation(
        [
            st.Page("views/overview.py", title="Overview", icon=":material/grid_view:", default=True),
            st.Page("views/run.py", title="Run", icon=":material/rule:", url_path="run"),
            st.Page("views/kl.py", title="KL", icon=":material/water_drop:", url_path="kl"),
            st.Page("views/evals.py", title="Evals", icon=":material/quiz:", url_path="evals"),
            st.Page("views/drift.py", title="Drift", icon=":material/show_chart:", url_path="drift"),
            st.Page("views/canaries.py", title="Canaries", icon=":material/compare:", url_path="canaries"),
        ]
    )
    try:
        page.run()
    except Q36Error as error:
        st.error("The history cannot be read.")
        st.text(line(str(error)))


main()
