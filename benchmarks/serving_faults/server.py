"""The model that a real vLLM serves with the faults' plug-in, and the family that it is judged in."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.serving_faults.faults import Part
from benchmarks.serving_faults.switch import Switch
from q36eval.app.targets import family_of
from q36eval.config import Family, Paths
from q36eval.gate import Policy
from q36eval.gate.policy_file import read_policy
from q36eval.kl.corpus import CorpusDocument, load_corpus
from tests.q36eval.openai.server import SANDBOX
from tests.q36eval.openai.vllm_server import vllm

__all__ = ["DATA", "SANDBOX", "Model"]

DATA = SANDBOX.parents[1]
OPTIONS = (
    *("--max-logprobs", "20", "--max-num-seqs", "16", "--num-gpu-blocks-override", "96"),
    *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
)
"""A small cache, so that prompts are pushed out of it by few requests."""
REASONING = ("--reasoning-parser", "qwen3")
TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "qwen3_coder")
EVERY_LOG_PROBABILITY = ("--max-logprobs", "-1")


@dataclass(frozen=True)
class Model:
    """A checkpoint folder and its family: the sandbox's, or one that is derived of it."""

    folder: Path
    family: Family
    margin: float | None = None
    """Of `served-as-decoded`, where two engines without a fault differ by more than the policy allows."""

    @classmethod
    def of(cls, folder: Path, margin: float | None = None) -> "Model":
        """Raises as `family_of`."""
        return cls(folder, family_of(None, Paths.default(), str(folder), needs_reference=False), margin)

    @property
    def parts(self) -> frozenset[Part]:
        """What faults may need."""
        template = self.family.template
        known: dict[Part, bool] = {
            "hybrid layers": any(name.startswith(("Qwen3_5", "Qwen3Next")) for name in self.family.architectures),
            "tools": template.tools and self.family.tool_format is not None,
            "reasoning": template.thinking != "never",
        }
        return frozenset(part for part, has in known.items() if has)

    def beginnings(self, characters: int) -> list[CorpusDocument]:
        """So much of each text that its suite ships."""
        texts = load_corpus(DATA / "corpus" / self.family.suite)
        return [replace(each, text=each.text[:characters]) for each in texts]

    def policy(self, name: str = "") -> Policy:
        """The shipped policy of that name, by default its family's."""
        policy = read_policy(DATA / "policies" / f"{name or self.family.policy}.yaml")
        if self.margin is None:
            return policy
        own = {"value": self.margin, "source": "the floor between two engines"}
        held = [
            each.model_copy(update={"margin": each.margin.model_copy(update=own)})
            if each.metric == "serving_kl"
            else each
            for each in policy.criteria
        ]
        return policy.model_copy(update={"criteria": tuple(held)})

    def served(self, python: str | Path, switched: Switch, *options: str) -> AbstractContextManager[str]:
        """It as a server, until the block ends; gives its address. Raises as `vllm`."""
        parsers = (*(REASONING if "reasoning" in self.parts else ()), *(TOOLS if "tools" in self.parts else ()))
        which = ("--model", str(self.folder), "--served-model-name", self.folder.name)
        log = switched.folder / "log.txt"
        return vllm(python, log, *which, *OPTIONS, *parsers, *options, variables=switched.variables)
