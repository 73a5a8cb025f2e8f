"""tilewright: matrix multiplication for NVIDIA Hopper and Ampere GPUs from Python, with every instruction in the open.

The face of the package. A name is imported when it is first used, so that `import tilewright` loads no CUDA, no array
library and no compiler.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

TYPE_CHECKING = False  # typing.TYPE_CHECKING to a type checker; importing typing would be most of this import's time
if TYPE_CHECKING:
    from typing import Any

    from tilewright import epilogue, errors
    from tilewright.ampere_config import AmpereConfig
    from tilewright.config import Config
    from tilewright.device import Device, preset
    from tilewright.dispatch import clear, matmul, plan
    from tilewright.emulation import Emulator
    from tilewright.frontends import torch as torch
    from tilewright.packing import packed
    from tilewright.plan import Plan
    from tilewright.problem import Problem
    from tilewright.tuning.tune import tune

__version__ = "0.1.0"

__all__ = [
    "AmpereConfig",
    "Config",
    "Device",
    "Emulator",
    "Plan",
    "Problem",
    "__version__",
    "clear",
    "epilogue",
    "errors",
    "matmul",
    "packed",
    "plan",
    "preset",
    "tune",
]

_HOMES: dict[str, str] = {
    "AmpereConfig": "tilewright.ampere_config",
    "Config": "tilewright.config",
    "Device": "tilewright.device",
    "Emulator": "tilewright.emulation",
    "Plan": "tilewright.plan",
    "Problem": "tilewright.problem",
    "clear": "tilewright.dispatch",
    "matmul": "tilewright.dispatch",
    "packed": "tilewright.packing",
    "plan": "tilewright.dispatch",
    "preset": "tilewright.device",
    "tune": "tilewright.tuning.tune",
}

# Modules. `torch` is not in __all__: `from tilewright import *` must neither need PyTorch nor take its name.
_MODULES: dict[str, str] = {
    "epilogue": "tilewright.epilogue",
    "errors": "tilewright.errors",
    "torch": "tilewright.frontends.torch",
}


def __getattr__(name: str) -> Any:
    home = _MODULES.get(name)
    if home is not None:
        return importlib.import_module(home)
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value  # the next use finds it without coming here
    return value


class _Face(ModuleType):
    """Keeps `tilewright.plan` the function: importing plan.py would otherwise bind the name to the module."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Face


def __dir__() -> list[str]:
    return sorted(__all__)
