"""tilewright for PyTorch: differentiable, compilable products, a Linear module, and patch() for whole models.

The face, reached as `tilewright.torch`; importing it imports torch and registers the ops of the namespace `tilewright`.
"""

from __future__ import annotations

from tilewright.errors import UnsupportedError

try:
    import torch as _torch  # noqa: F401  first: the files below import it without a word of advice
except ImportError as missing:
    raise UnsupportedError(
        asked="tilewright.torch",
        rule=f"it needs PyTorch, which does not import here ({missing})",
        works="pip install 'tilewright[torch]', or use tilewright.matmul with another array library",
    ) from missing

from tilewright.frontends.torch import gradients as _gradients  # noqa: F401  registers what it knows of the ops
from tilewright.frontends.torch import transforms as _transforms  # noqa: F401  the same
from tilewright.frontends.torch.functional import addmm, bmm, gated_linear, linear, matmul, mm
from tilewright.frontends.torch.modules import Linear, PatchedLinear
from tilewright.frontends.torch.patching import PatchReport, patch, unpatch

__all__ = [
    "Linear",
    "PatchReport",
    "PatchedLinear",
    "addmm",
    "bmm",
    "gated_linear",
    "linear",
    "matmul",
    "mm",
    "patch",
    "unpatch",
]
