"""Who answers: an in-process deployment's identity, from its files, its settings and the version of our numbers."""

import platform
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import torch

from q36eval.engines.numerics import NUMERICS_VERSION
from q36eval.errors import UsageError
from q36eval.records import DeploymentIdentity

KERNEL_PACKAGES = ("flash-linear-attention", "causal-conv1d", "kernels")
"""Where they are installed, transformers computes Gated DeltaNet with them, and other numbers come out."""


def _kernel_packages() -> str:
    """The optional kernels that transformers finds here, with their versions."""
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for name in KERNEL_PACKAGES:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found) or "none"


def check_kernels(device: str) -> None:
    """Refuse a CPU where transformers would use kernels that only run on a GPU.

    Raises:
        UsageError: flash-linear-attention can be imported, which transformers then prefers on every device.
    """
    if device != "cpu" or find_spec("fla") is None:
        return
    try:
        import fla  # type: ignore[import-not-found]  # noqa: F401
    except Exception:  # without its own needs (Triton, a driver) it is as good as absent, to transformers too
        return
    raise UsageError(
        "flash-linear-attention is installed here and its kernels do not run on a CPU: name a GPU with --device, or "
        "use an environment without that package."
    )


def identity_of(
    folder: Path, *, device: str, emulate_activations: bool, kv_cache_dtype: str | None, batch_rows: int | None
) -> DeploymentIdentity:
    """What `InProcessEngine.identity_of` tells."""
    if batch_rows is not None and batch_rows < 1:
        raise UsageError(f"Batches of {batch_rows} rows hold no request; give at least 1.")
    import transformers

    from q36eval.checkpoints import chat_template_sha256, checkpoint_sha256, open_checkpoint, tokenizer_sha256
    from q36eval.checkpoints.kv_cache import check_kv_cache_dtype, declared_kv_cache_dtype

    if kv_cache_dtype is None:
        kv_cache_dtype = declared_kv_cache_dtype(open_checkpoint(folder))
    check_kv_cache_dtype(kv_cache_dtype)

    return DeploymentIdentity(
        checkpoint_sha256=checkpoint_sha256(folder),
        tokenizer_sha256=tokenizer_sha256(folder),
        chat_template_sha256=chat_template_sha256(folder),
        engine="in-process",
        engine_version=f"transformers {transformers.__version__}, torch {torch.__version__}",
        settings={
            "device": device if device == "cpu" else torch.cuda.get_device_name(device),
            "machine": platform.machine(),
            "dtype": "bfloat16",
            "activation_emulation": "on" if emulate_activations else "off",
            **({} if device == "cpu" else {"kernels": _kernel_packages()}),
            **({} if batch_rows is None else {"batch_rows": str(batch_rows)}),
            "numerics": str(NUMERICS_VERSION),
        },
        kv_cache_dtype=kv_cache_dtype,
    )
