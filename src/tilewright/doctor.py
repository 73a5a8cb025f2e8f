"""What this machine can do with tilewright, found out piece by piece: each finding with what to do about it.

Asks every room that touches the outside (compiler, disassembler, driver, cache) and reports rows. Prints nothing and
writes nothing; a piece that is missing is a finding, never an exception.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tilewright import __version__, disassemble, records, settings
from tilewright.backends.base import Backend
from tilewright.errors import DriverError, TilewrightError, UnsupportedError
from tilewright.jit import nvrtc
from tilewright.jit.cache import Cache, CacheFolderWarning, forget_warnings, prebuilt_caches, user_cache
from tilewright.jit.source import Source
from tilewright.records import RecordsWarning

State = Literal["ok", "note", "problem"]

# The dependencies of pyproject.toml.
PACKAGES = (
    "numpy",
    "ml-dtypes",
    "cuda-bindings",
    "cuda-pathfinder",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-nvdisasm",
    "typer",
    "rich",
    "platformdirs",
)

# The smallest unit that only the Hopper target compiles: setmaxnreg is in no other feature set.
_PROBE = Source(
    name="doctor_probe",
    text='extern "C" __global__ void doctor_probe() { asm volatile("setmaxnreg.dec.sync.aligned.u32 24;"); }\n',
    headers=(),
    entry="doctor_probe",
    arch="sm_90a",
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fact about this machine. A "problem" keeps something from working and `advice` says what to do about it;
    a "note" is a lack that only part of tilewright feels."""

    topic: str
    value: str
    state: State = "ok"
    advice: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that was found. `can_compile` and `can_run` are what the exit code of `tilewright doctor` says."""

    findings: tuple[Finding, ...]
    settings: tuple[settings.SettingRow, ...]
    can_compile: bool
    can_run: bool


def examine() -> Report:
    """The state of this machine.

    Cost: loads NVRTC and compiles one empty kernel (about 0.15 s), starts the driver where there is one, reads the
    record of every cache entry.
    """
    compiler = _compiler()
    machine, can_run = _gpus()
    findings = (
        *_packages(),
        *compiler,
        _disassembler(),
        *machine,
        _emulator(),
        *_caches(),
        *_records(),
        _torch(),
        *_settings(),
    )
    can_compile = not any(finding.state == "problem" for finding in compiler)
    return Report(findings=findings, settings=settings.rows(), can_compile=can_compile, can_run=can_run)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _packages() -> list[Finding]:
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    found = [Finding(topic="tilewright", value=f"{__version__}; {system}")]
    versions = {package: _version(package) for package in PACKAGES}
    missing = [package for package, version in versions.items() if version is None]
    listed = ", ".join(f"{package} {version}" for package, version in versions.items() if version is not None)
    found.append(Finding(topic="packages", value=listed))
    if missing:
        found.append(
            Finding(
                topic="packages",
                value=f"{', '.join(missing)} not installed",
                state="problem",
                advice=f"pip install {' '.join(missing)}",
            )
        )
    return found


def _compiler() -> list[Finding]:
    try:
        version = nvrtc.compiler_version()
        start = time.perf_counter()
        nvrtc.compile_source(_PROBE, digest="")
    except TilewrightError as error:
        advice = error.works if isinstance(error, UnsupportedError) else "reinstall the wheel nvidia-cuda-nvrtc"
        return [Finding(topic="NVRTC", value=_one_line(error), state="problem", advice=advice)]
    spent_ms = (time.perf_counter() - start) * 1e3
    return [
        Finding(topic="NVRTC", value=f"{version} compiles for {_PROBE.arch} (an empty kernel in {spent_ms:.0f} ms)")
    ]


def _disassembler() -> Finding:
    try:
        return Finding(topic="nvdisasm", value=str(disassemble.nvdisasm()))
    except UnsupportedError as error:
        return Finding(topic="nvdisasm", value=error.rule, state="note", advice=error.works)


def _gpus() -> tuple[list[Finding], bool]:
    """The driver and each GPU, and whether a kernel family runs on one of them."""
    from tilewright.backends import cuda  # the door to the driver, opened by no other finding

    try:
        backend = cuda.backend()
        count = backend.num_devices()
    except DriverError as error:
        value = f"{error.call}: {error.status}"
        return [Finding(topic="driver", value=value, state="note", advice=_one_line(error.explanation))], False
    number = backend.driver_version
    found = [Finding(topic="driver", value=f"CUDA {number // 1000}.{number % 1000 // 10}")]
    if not count:
        advice = "look at nvidia-smi and CUDA_VISIBLE_DEVICES"
        return [*found, Finding(topic="GPU", value="none is visible", state="note", advice=advice)], False
    usable = [_gpu(backend, ordinal) for ordinal in range(count)]
    return [*found, *usable], any(finding.state == "ok" for finding in usable)


def _gpu(backend: Backend, ordinal: int) -> Finding:
    from tilewright.kernels.catalog import check_supported  # see _gpus()

    topic = f"GPU {ordinal}"
    try:
        device = backend.device(ordinal)
        check_supported(device)
    except UnsupportedError as error:
        return Finding(topic=topic, value=f"{error.asked}: {error.rule}", state="note", advice=error.works)
    except TilewrightError as error:
        return Finding(topic=topic, value=_one_line(error), state="problem", advice="look at nvidia-smi")
    return Finding(topic=topic, value=str(device))


def _emulator() -> Finding:
    return Finding(topic="emulator", value="runs kernels on this CPU, slowly: `tilewright emulate`, or NumPy arrays")


def _caches() -> list[Finding]:
    try:
        found = [_user_cache(user_cache())]
        return found + [_prebuilt(cache) for cache in prebuilt_caches()]
    except UnsupportedError as error:  # a setting that is no value of its kind
        return [Finding(topic="cache", value=error.rule, state="problem", advice=error.works)]


def _user_cache(cache: Cache) -> Finding:
    variable = settings.CACHE_DIR.name
    if cache.root is None:
        advice = f"set {variable} to a folder of your own; until then every process compiles its kernels anew"
        return Finding(topic="cache", value="none: this user has no home folder", state="note", advice=advice)
    value = f"{cache.root}: {_contents(cache)}"
    if reason := distrust(cache):
        return Finding(
            topic="cache", value=f"{value}; {reason}", state="problem", advice=f"see there, or set {variable}"
        )
    if not _is_writable(cache.root):
        advice = f"set {variable} to a folder that you can write; until then new kernels stay in memory"
        return Finding(topic="cache", value=f"{value}; not writable", state="note", advice=advice)
    return Finding(topic="cache", value=f"{value}; trusted")


def _prebuilt(cache: Cache) -> Finding:
    if cache.root is None or not cache.root.is_dir():
        advice = f"correct {settings.PREBUILT.name}, or make the folder with `tilewright build --into`"
        return Finding(topic="prebuilt", value=f"{cache.root}: no such folder", state="problem", advice=advice)
    value = f"{cache.root}: {_contents(cache)}"
    if reason := distrust(cache):
        return Finding(topic="prebuilt", value=f"{value}; {reason}", state="problem", advice=f"chmod go-w {cache.root}")
    return Finding(topic="prebuilt", value=f"{value}; trusted")


def distrust(cache: Cache) -> str:
    """Why the cache reads nothing from its folder, in its own words; empty when it does.

    The cache tells it in a warning, once a process: so a lookup is made here after which it may tell it again.
    """
    forget_warnings()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", CacheFolderWarning)
        cache.lookup("0" * 32)
    forget_warnings()
    return "; ".join(str(warning.message) for warning in told)


def _contents(cache: Cache) -> str:
    count = len(cache.entries())
    return f"{count} {'entry' if count == 1 else 'entries'}, {cache.total_bytes() / 2**20:.1f} MiB"


def _is_writable(folder: Path) -> bool:
    """Whether the folder, or the nearest one above it that exists, can be written. Nothing is made to find out."""
    existing = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def _records() -> list[Finding]:
    """How many measured choices there are, and whether they are used. What cannot be read of them is told."""
    records.clear()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", RecordsWarning)
        try:
            store, is_used = records.user(), settings.USE_RECORDS.read()
        except UnsupportedError as error:  # a setting that is no value of its kind
            return [Finding(topic="records", value=error.rule, state="problem", advice=error.works)]
        own, shipped = len(list(store.records())), len(list(records.shipped().records()))
    records.clear()
    value = f"{own} in {store.path or 'no file: this user has no home folder'}, {shipped} shipped"
    if not is_used:
        advice = f"unset {settings.USE_RECORDS.name} to use them"
        return [Finding(topic="records", value=f"{value}; turned off", state="note", advice=advice)]
    found = [Finding(topic="records", value=value)]
    return found + [Finding(topic="records", value=_one_line(each.message), state="note") for each in told]


def _torch() -> Finding:
    version = _version("torch")  # not imported: that takes seconds, and only bench/ and frontends/ may
    if version is None:
        advice = "pip install torch, to run on tensors of it and to compare with cuBLAS"
        return Finding(topic="torch", value="not installed", state="note", advice=advice)
    return Finding(topic="torch", value=version)


def _settings() -> list[Finding]:
    bad = [
        Finding(topic="settings", value=row.value, state="problem", advice=f"correct or unset {row.name}")
        for row in settings.rows()
        if not row.is_valid
    ]
    known = ", ".join(setting.name for setting in settings.SETTINGS)
    unknown = [
        Finding(topic="settings", value=f"{name} is no setting", state="note", advice=f"settings are {known}")
        for name in settings.unknown_names()
    ]
    return bad + unknown


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
