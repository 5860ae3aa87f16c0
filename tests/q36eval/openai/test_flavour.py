"""Which program answers, by what each tells of itself. SGLang was never run here: its answers are as its public API
reference describes them, written by us, and show that the client reads those, not that SGLang gives them."""

import pytest
from typing_extensions import override

from q36eval.engines import Engine, EngineSettings, GenerationRequest, open_engine
from q36eval.engines.openai.client import Address, Client
from q36eval.engines.openai.flavour import server_of
from tests.q36eval.openai.server import SANDBOX, Handler, Served, serving


class SGLang(Handler):
    """A server of that shape: it knows the arguments of its own and tells its version under one of two names."""

    page = "/server_info"

    @override
    def do_GET(self) -> None:
        if self.path == self.page:
            told = {"model_path": "/models/x", "tp_size": 1, "internal_states": [{}], "version": "0.5.9"}
            self._send(200, told)
        else:
            super().do_GET()


@pytest.mark.parametrize("page", ["/server_info", "/get_server_info"])
def test_sglang_is_known_by_its_models_and_tells_its_version(local: Engine, page: str) -> None:
    with serving(Served(local, shape="sglang"), handles=type("Handler", (SGLang,), {"page": page})) as url:
        client = Client(Address(url))
        server = server_of(client, None)
        client.close()
        assert (server.flavour, server.version, server.started) == ("sglang", "0.5.9", None)


def test_sglang_answers_and_scores_nothing(local: Engine) -> None:
    with serving(Served(local, shape="sglang"), handles=SGLang) as url:
        engine = open_engine(EngineSettings(SANDBOX, kind="openai", base_url=url))
        ids = tuple(local.tokenizer.encode("Obchod 7: cena 910 Kč", add_special_tokens=False))
        request = GenerationRequest("x", ids, 8)
        (own,), (theirs,) = local.generate([request]), engine.generate([request])
    assert engine.scores == "nothing"
    assert engine.identity.engine_version == "sglang 0.5.9"
    assert (theirs.text, theirs.finish_reason) == (own.text, own.finish_reason)


@pytest.mark.parametrize(("shape", "flavour"), [("vllm", "vllm"), ("llama.cpp", "llama.cpp"), ("x", "unknown")])
def test_other_programs_are_known_too(local: Engine, shape: str, flavour: str) -> None:
    with serving(Served(local, shape=shape)) as url:
        client = Client(Address(url))
        server = server_of(client, None)
        client.close()
    assert (server.flavour, server.version) == (flavour, "unknown" if flavour == "unknown" else "0.26.0")
    assert server.model.max_model_len == (None if flavour == "unknown" else Served.context)
