"""One guard around every driver call: a status becomes an exception with its name, its meaning and what to do.

Knows nothing of the bindings' import: whoever makes a Driver hands in the module, or a stand-in with the same names.
"""

from __future__ import annotations

from typing import Any

from tilewright.errors import DriverError

MIN_VERSION = 13000  # cuDriverGetVersion of CUDA 13.0: a cubin of NVRTC 13.x runs on any driver of that major version
MIN_RELEASE = 580  # the display driver that brings it: CUDA 13.0 release notes, table of driver versions

# What to do about a status, where the driver's own sentence does not say.
_HINTS: dict[str, str] = {
    "CUDA_ERROR_NO_DEVICE": "no GPU is visible to this process; look at nvidia-smi and CUDA_VISIBLE_DEVICES",
    "CUDA_ERROR_NOT_INITIALIZED": "a child made by fork cannot use CUDA once its parent has; start it with spawn",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "kernel module and libcuda.so.1 are of different releases; reboot",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "an earlier kernel of this process touched memory that is not its own; restart the "
    "process and run it under compute-sanitizer",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": "an earlier kernel of this process stopped; restart the process",
    "CUDA_ERROR_LAUNCH_FAILED": "an earlier kernel of this process faulted; restart the process",
    "CUDA_ERROR_OUT_OF_MEMORY": "free device memory, or choose smaller sizes",
}


class Driver:
    """The initialised driver. `module` is for calls whose status the caller reads itself."""

    def __init__(self, module: Any) -> None:
        """Raises: DriverError: no driver, one that is too old, or one that refuses to start."""
        self.module = module
        try:
            self.call("cuInit", 0)
        except DriverError:
            raise
        except Exception as missing:  # the bindings raise their loader's own error when there is no libcuda
            raise DriverError(
                call="cuInit",
                status="no libcuda.so.1",
                explanation=f"this machine has no NVIDIA driver ({missing}); install release {MIN_RELEASE} or newer. "
                "Planning, compiling and `tilewright show` work without one",
                arguments="0",
            ) from missing
        self.version: int = self.call("cuDriverGetVersion")
        if self.version < MIN_VERSION:
            raise DriverError(
                call="cuDriverGetVersion",
                status=version_text(self.version),
                explanation=f"this driver serves CUDA up to {version_text(self.version)}; cubins of NVRTC 13 need "
                f"one for CUDA {version_text(MIN_VERSION)}, release {MIN_RELEASE} or newer: update the driver",
            )

    def call(self, name: str, *arguments: Any) -> Any:
        """What the driver function `name` returns: nothing, its one result, or a tuple of them.

        Raises: DriverError: any status but success.
        """
        status, *results = getattr(self.module, name)(*arguments)
        if status:
            raise self.error(name, status, arguments)
        return results[0] if len(results) == 1 else tuple(results) if results else None

    def error(self, name: str, status: Any, arguments: tuple[Any, ...], fact: str = "") -> DriverError:
        """The exception for a status; `fact` is what the caller knows about the call."""
        label = getattr(status, "name", str(status))
        _, text = self.module.cuGetErrorString(status)
        sentence = text.decode() if isinstance(text, bytes) else str(text or "unknown error")
        explanation = "; ".join(part for part in (sentence, fact, _HINTS.get(label, "")) if part)
        return DriverError(name, label, explanation, ", ".join(map(_brief, arguments)))


def version_text(number: int) -> str:
    """13000 -> "13.0", as cuDriverGetVersion counts."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _brief(argument: Any) -> str:
    """An argument as a line of a log can carry it."""
    if isinstance(argument, bytes):
        return f"{len(argument)} bytes"
    text = repr(argument)
    return text if len(text) <= 80 else text[:77] + "..."
