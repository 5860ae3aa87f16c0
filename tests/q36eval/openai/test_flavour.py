"""A server's program is known by its answers."""

import pytest

from q36eval.engines import Engine
from q36eval.engines.openai.client import Address, Client
from q36eval.engines.openai.flavour import server_of
from tests.q36eval.openai.server import Served, serving


@pytest.mark.parametrize(
    ("shape", "page", "version"),
    [
        ("sglang", "/server_info", "0.26.0"),
        ("sglang", "/get_server_info", "0.26.0"),
        ("vllm", "", "0.26.0"),
        ("llama.cpp", "", "0.26.0"),
        ("unknown", "", "unknown"),
    ],
)
def test_a_program_is_known_by_its_models_and_gives_its_version(
    local: Engine, shape: str, page: str, version: str
) -> None:
    """SGLang was never run here: its answers are as its public API reference describes them."""
    with serving(Served(local, shape=shape, sglang_page=page)) as url:
        client = Client(Address(url))
        server = server_of(client, None)
        client.close()
    assert (server.flavour, server.version, server.started is None) == (shape, version, shape != "vllm")
    assert server.model.max_model_len == (Served.context if shape in ("vllm", "llama.cpp") else None)
