"""What a row of measurements must say besides its number: the card, the versions, the day.

Knows nothing of what was measured.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

from tilewright.backends.cuda import CudaBackend

PACKAGES = ("tilewright", "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cublas", "torch", "numpy")


def facts(backend: CudaBackend, ordinal: int = 0) -> dict[str, Any]:
    """One flat JSON-able record of the machine, in which a package that is absent is None."""
    device = backend.device(ordinal)
    version = backend.driver_version
    return {
        "device": device.name,
        "num_sms": device.num_sms,
        "l2_mib": device.l2_bytes >> 20,
        "driver_cuda": f"{version // 1000}.{version % 1000 // 10}",
        "python": platform.python_version(),
        "date": _today(),
        "commit": commit(),
    } | {package.replace("-", "_"): version_of(package) for package in PACKAGES}


def emulator_facts() -> dict[str, Any]:
    """The same of rows that the emulator made, which no machine's speed is in."""
    told: dict[str, Any] = {"device": "emulator", "date": _today(), "commit": commit()}
    return told | {package.replace("-", "_"): version_of(package) for package in ("nvidia-cuda-nvrtc", "numpy")}


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def version_of(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit of the checkout that this file lies in, with a + when files differ; None outside a checkout."""
    here = Path(__file__).parent

    def git(*words: str) -> str | None:
        try:
            return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):  # no git, or an installed package: the row says None
            return None

    head = git("rev-parse", "--short=12", "HEAD")
    if head is None:
        return None
    return head + ("+" if git("status", "--porcelain", "--", "src") else "")
