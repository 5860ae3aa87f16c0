"""The evidence of every shipped suite, asked once, and of every fault in it."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from q36eval.app.policies.files import shipped_policies
from q36eval.canaries.probe import CanaryProbe
from q36eval.canaries.specification import CanarySpec, for_family, load_specs
from q36eval.checkpoints.inspection import inspect_checkpoint
from q36eval.config import Family, Paths
from q36eval.evals.probe import EvalsProbe
from q36eval.gate import Criterion, Policy, with_integrity
from q36eval.gate.policy_file import read_policy
from q36eval.kl.corpus import CorpusDocument
from q36eval.kl.probe import KLProbe
from q36eval.probes import Probe
from q36eval.records import Measurement, ProbeName
from q36eval.run.declared_figures import Subject, declared_for
from q36eval.run.weights import measurements as of_weights
from tests.app.satisfiable import faults
from tests.app.satisfiable.frozen_like import write_suite_like
from tests.app.satisfiable.stub_deployment import Abridging, Asked, Fault, ask
from tests.branches import folder_of
from tests.evals.small_suite import FROZEN, write_small_suite


@dataclass(frozen=True)
class Sizes:
    """How much is asked: draws of every canary family, items of every group of a suite, documents of the corpus."""

    draws: dict[str, int]
    items: dict[str, dict[str, int]]
    documents: int
    subjects: int
    margins: float
    """So many margins a fault loses; few items show no smaller loss for certain."""


def of_sandbox(subjects: int, ruler: int, texts: int) -> dict[str, int]:
    """So many lines of the sandbox's frozen files: all of some subjects, a part of each kind and of each language."""
    files = sorted(path.relative_to(FROZEN).as_posix() for path in FROZEN.rglob("*.jsonl"))
    chosen = {Path(file).name for file in [file for file in files if file.startswith("mmlu/")][:subjects]}
    counts = {"ruler": ruler, "perplexity": texts}
    return {
        file: counts.get(file.split("/")[0], 1_000)
        for file in files
        if file.split("/")[0] in counts or Path(file).name in chosen
    }


FEW = Sizes(
    draws={"extended": 30, "quick": 30, "sandbox": 30},
    items={
        "extended": {"mmlu": 1200, "wikitext": 62, "ruler": 1560, "mmlu_pro": 400, "gpqa_diamond": 20, "math_500": 200}
        | {"gsm8k": 250, "ifeval": 200, "mmlu_czech": 1200},
        "quick": {"mmlu": 600, "wikitext": 30, "ruler": 260},
        "sandbox": of_sandbox(subjects=12, ruler=20, texts=20),
    },
    documents=400,
    subjects=5,
    margins=5.0,
)

SUITES = {"sandbox": "sandbox", "extended": "extended", "pre-check": "quick"}
"""By policy, the suite it is for. The groups of release are those that extended begins with, as another test says."""


SAMPLED_PROMPTS = 90
"""Of fewer than 72 prompts of one lane, all right on both sides, no bound excludes a loss of 5 %."""


def _of_enough_prompts(spec: CanarySpec) -> CanarySpec:
    """A sampled canary with so many prompts as its criteria need, where a few seeds each would be too few of them."""
    sampling, family = spec.generation.sampling, spec.family
    if sampling is None or family is None or family.n >= SAMPLED_PROMPTS:
        return spec
    generation = spec.generation.model_copy(update={"sampling": sampling.model_copy(update={"seeds": 1})})
    return spec.model_copy(
        update={"generation": generation, "family": family.model_copy(update={"n": SAMPLED_PROMPTS})}
    )


class Evidence:
    """Asks every suite's probes when first needed."""

    def __init__(self, folder: Path, paths: Paths, sizes: Sizes) -> None:
        from transformers import AutoTokenizer

        self._folder, self._paths, self._sizes = folder, paths, sizes
        tokenizer = AutoTokenizer.from_pretrained(paths.data / "sandbox" / "bf16", local_files_only=True)
        self._tokenizer = Abridging(tokenizer)
        self._asked: dict[tuple[str, ProbeName], Asked] = {}
        self._weights: dict[str, tuple[Measurement, ...]] = {}
        self._faulty: dict[tuple[int, str, str, float], tuple[Measurement, ...]] = {}
        self._policies: dict[str, Policy] = {}
        self.shipped = {name: with_integrity(read_policy(file)) for name, file in shipped_policies(paths).items()}

    def policy(self, name: str) -> Policy:
        """A shipped policy, which asks for no more than its share of the fewer items that are asked here."""
        if name not in self._policies:
            path = self._folder / f"{name}-here.yaml"
            changes = list(self._fewer(name))
            path.write_text(yaml.safe_dump({"name": path.stem, "extends": name, "criteria": changes}), encoding="utf-8")
            self._policies[name] = read_policy(path)
        return self._policies[name]

    def _fewer(self, name: str) -> Iterator[dict[str, object]]:
        suite = self.suite(name)
        whole = declared_for(Subject(self.family(suite), suite, code=False), self._paths).by_key
        probes = [asked.probe for asked in self.asked(suite)]
        here = {figure.key: figure for probe in probes for figure in probe.declared()}
        for criterion in self.shipped[name].criteria:
            full, few = whole.get(criterion.key), here.get(criterion.key)
            if full is not None and few is not None and full.items and few.items and few.items < full.items:
                yield {"id": criterion.id, "min_scored": max(1, criterion.min_scored * few.items // full.items)}

    def clean(self, name: str) -> list[Measurement]:
        """What is measured of a checkpoint without a fault that answers as the reference does."""
        answered = [measurement for asked in self.asked(self.suite(name)) for measurement in asked.measurements]
        return [*self._inspected(""), *answered]

    def faulty(self, name: str, criterion_id: str) -> list[Measurement]:
        """The same with the fault that this criterion is for; strict is shown the fault that release fails."""
        suite = self.suite(name)
        judged = {criterion.id: criterion for criterion in self.shipped[name].criteria}
        if suite == self.suite("release") and "release" in self.shipped[name].lineage:
            judged |= {criterion.id: criterion for criterion in self.shipped["release"].criteria}
        criterion = judged[criterion_id]
        if criterion.probe is ProbeName.WEIGHTS:
            wrong: tuple[Measurement, ...] = self._inspected(criterion.metric)
        else:
            asked = self._of(suite, criterion.probe)
            # suites that ask the same of a probe are shown the same fault
            fault = (id(asked), criterion.key, criterion.margin.kind, criterion.margin.value)
            if fault not in self._faulty:
                made = FAULTS[criterion.probe](asked, criterion, self._sizes.margins)
                self._faulty[fault] = asked.with_fault(made)
            wrong = self._faulty[fault]
        return [*(each for each in self.clean(name) if each.probe is not criterion.probe), *wrong]

    def suite(self, policy: str) -> str:
        return SUITES.get(policy, "extended")

    def family(self, suite: str) -> Family:
        name = "sandbox" if suite == "sandbox" else "qwen3.6-35b-a3b"
        return Family.load(self._paths.families / f"{name}.yaml")

    def asked(self, suite: str) -> list[Asked]:
        return [self._of(suite, probe) for probe in (ProbeName.CANARIES, ProbeName.KL, ProbeName.EVALS)]

    def _of(self, suite: str, probe: ProbeName) -> Asked:
        if (suite, probe) not in self._asked:
            made = {ProbeName.CANARIES: self._canaries, ProbeName.KL: self._texts, ProbeName.EVALS: self._evals}
            self._asked[suite, probe] = made[probe](suite)
        return self._asked[suite, probe]

    def _canaries(self, suite: str) -> Asked:
        """Two suites that ask one family as many draws ask the same."""
        family, draws = self.family(suite), self._sizes.draws[suite]
        for other in self._sizes.draws:
            same = (self.family(other).name, self._sizes.draws[other]) == (family.name, draws)
            if same and (other, ProbeName.CANARIES) in self._asked:
                return self._asked[other, ProbeName.CANARIES]
        specs = for_family(load_specs(n=draws, skills=family.skills), family)
        return self._ask(CanaryProbe([_of_enough_prompts(spec) for spec in specs]))

    def _texts(self, suite: str) -> Asked:
        for (_, probe), asked in self._asked.items():
            if probe is ProbeName.KL:
                return asked
        slices = ("czech", "code", "json")
        texts = [
            f'{{"document": {n}}} ' + " ".join(f"word {n + m}" for m in range(60)) for n in range(self._sizes.documents)
        ]
        return self._ask(KLProbe([CorpusDocument(f"d{n}", slices[n % 3], text) for n, text in enumerate(texts)]))

    def _evals(self, suite: str) -> Asked:
        folder = self._folder / suite
        folder.mkdir()
        if suite == "sandbox":
            return self._ask(EvalsProbe(write_small_suite(folder, self._sizes.items[suite])))
        return self._ask(EvalsProbe(write_suite_like(suite, folder, self._sizes.items[suite], self._sizes.subjects)))

    def _ask(self, probe: Probe) -> Asked:
        return ask(probe, self._tokenizer, self._folder / "captures")

    def _inspected(self, metric: str) -> tuple[Measurement, ...]:
        """The weights of the sandbox's NVFP4 branch, with the fault that is for a metric; without for none."""
        if metric not in self._weights:
            sandbox = self._paths.data / "sandbox"
            folder = self._folder / f"checkpoint-{metric}"
            shutil.copytree(folder_of("main"), folder)
            if metric:
                faults.OF_WEIGHTS[metric](folder)
            self._weights[metric] = tuple(of_weights(inspect_checkpoint(folder, sandbox / "bf16")))
        return self._weights[metric]


FAULTS: dict[ProbeName, Callable[[Asked, Criterion, float], Fault]] = {
    ProbeName.CANARIES: faults.of_canaries,
    ProbeName.KL: faults.of_texts,
    ProbeName.EVALS: faults.of_evals,
}
