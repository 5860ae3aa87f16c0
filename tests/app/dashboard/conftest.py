import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# the module that writes the history lies beside these tests
sys.path.insert(0, str(Path(__file__).parent))

MAIN = Path(__file__).parents[3] / "app" / "dashboard" / "main.py"


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A history file and its runs by short name; nobody writes to it afterwards."""
    from written_history import write_history

    path = tmp_path_factory.mktemp("history") / "history.sqlite"
    return path, write_history(path)


@pytest.fixture
def visit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Opens a page of the dashboard over a history file, with the parameters of its address."""
    from streamlit.testing.v1 import AppTest

    def open_page(path: Path, page: str = "overview", /, *flags: str, **address: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["main.py", str(path), *(flags or ("--local",))])
        app = AppTest.from_file(str(MAIN), default_timeout=600).run()
        for name, value in address.items():
            app.query_params[name] = value
        app = app.switch_page(f"views/{page}.py").run()
        assert not app.exception
        return app

    return open_page
