"""The branch `gptqmodel-4` of SmolLM2 by GPTQModel: `python gptq.py NAME REFERENCE TARGET`.

GPTQ with 4 bits in symmetric groups of 64. On two cores GPTQModel gives its pool of threads one worker and then refuses
to load, so the script sets two workers.
"""

import os
import sys
from pathlib import Path
from unittest.mock import Mock

import torch
from smollm2_decoded import CALIBRATION  # type: ignore[import-not-found]  # of `tests/assets`


def make(reference: str, target: Path) -> None:
    """Quantize and save."""
    from gptqmodel import GPTQModel, QuantizeConfig  # type: ignore[import-not-found]
    from transformers import AutoTokenizer

    settings = QuantizeConfig(bits=4, group_size=64, sym=True, desc_act=False, device="cpu")
    model = GPTQModel.load(reference, settings)
    model.quantize(CALIBRATION, batch_size=1)
    model.save(str(target))
    AutoTokenizer.from_pretrained(reference).save_pretrained(target)


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.chdir(Path(sys.argv[3]).parent)  # it writes logs into the current folder
    os.environ["GPTQMODEL_CPU_WORKERS"] = "2"
    sys.modules["gptqmodel.models.definitions.internvl_chat"] = Mock()  # which would import torchvision
    make(sys.argv[2], Path(sys.argv[3]))
