"""Source -> Binary through NVRTC: the only file that imports the compiler.

Knows NVRTC's options, its versions and how to read ptxas's report. Knows nothing of caches, threads or kernels. Works
without a GPU, a driver or a CUDA toolkit: headers travel in memory, and the libraries come from a wheel.

One compile gives both outputs. For a real target (sm_90a) NVRTC hands out the cubin and the PTX that ptxas made it
from, byte for byte the PTX of a second compile for compute_90a: the emulator reads what the device runs, at no cost.
Measured, x86-64, NVRTC 13.5.37, a 64x256 wgmma kernel, 2026-11-30: one compile 0.36 s; a second for PTX, 0.15 s more.

Line numbers are free at run time: with and without -lineinfo the SASS of that kernel is the same, line by line; the
cubin grows from 20 to 63 KB.

NVRTC compiles in parallel in threads: the bindings let the GIL go, and there is no global lock. Measured, the same
kernel, 8 compiles on 2 cores: 1 thread 2.85 s, 2 threads 1.50 s, 2 processes 1.41 s. So no process pool.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import time
from typing import Any

from tilewright.errors import CompileError, UnsupportedError
from tilewright.jit.fork_gate import ForkGate
from tilewright.jit.source import Binary, Resources, Source

MINIMUM = (13, 0)  # the first NVRTC with a wheel for cuda-bindings 13; its cubins load on drivers of CUDA 13

# What every unit is compiled with, spelled as nvcc knows it too; part of the digest. A Source adds its own.
COMMON_OPTIONS = ("-std=c++17", "-lineinfo", "--ptxas-options=-v")
# NVRTC would ask a cache of its own through libcuda, if there is one: the result must not depend on the machine, and
# it needs ptxas's report. And no header may come from a disk: the digest sees only the headers of the Source.
SEALED_OPTIONS = ("--no-cache", "--no-source-include")

# Where the unit seems to lie, in line tables and messages. NVRTC would put the working directory before every
# relative name, and one Source would give other bytes in another folder. The layout is that of a cache entry.
VIRTUAL_ROOT = "/tilewright"
UNIT = "unit.cu"
INCLUDE = "include"

_BANNER = re.compile(r"Compiler Build ID: (\S+).*?, V([\d.]+)", re.DOTALL)
_TARGET = re.compile(r"sm_(\d+)[af]?")
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_USED = re.compile(r"Used (\d+) registers")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_STACK = re.compile(r"(\d+) bytes cumulative stack size")
_SMEM = re.compile(r"(\d+) bytes smem")
_BARRIERS = re.compile(r"used (\d+) barriers")
_WARNING = re.compile(r"C75\d\d|'?setmaxnreg'? ignored|wgmma", re.IGNORECASE)


# A child forked while a thread was inside NVRTC hung at its first compile (4 of 30, NVRTC 13.5, 2026-11-30). A fork may
# wait for a compile or two; one that lasts longer than this is stuck.
_gate = ForkGate(wait_seconds=60.0)
os.register_at_fork(
    before=_gate.before_fork, after_in_parent=_gate.after_in_parent, after_in_child=_gate.after_in_child
)


@functools.cache
@_gate.entered()
def compiler_version() -> str:
    """The loaded NVRTC in full, such as "nvrtc 13.5.37 CL-39125733".

    Source: nvrtcVersion says 13.5 for every build of 13.5; the head of the PTX that the library writes names the
    build, whatever wheel, toolkit or conda package it came from.
    Raises: UnsupportedError: NVRTC is missing or older than MINIMUM.
    Cost: once a process about 0.1 s: the import, the library, one empty compile of 25 ms.
    """
    nvrtc = _nvrtc()
    _, (_, ptx), _ = _run(nvrtc, "", (), ("--gpu-architecture=compute_90", "--no-cache"))
    found = _BANNER.search(ptx.decode())
    if found is None:
        # Never seen; the text itself still tells two builds apart.
        return f"nvrtc {'.'.join(map(str, _release(nvrtc)))} {' '.join(ptx.decode().split()[:24])}"
    return f"nvrtc {found[2]} {found[1]}"


def known_version() -> str | None:
    """What compiler_version() has found in this process; None before that."""
    return compiler_version() if compiler_version.cache_info().currsize else None


def fingerprint(version: str) -> str:
    """Everything besides the Source that decides about the machine code: the compiler and the options of every unit."""
    return f"{version} {shared_options()}"


def shared_options() -> str:
    """The options of every unit as one text; with a Source they are all that decides, apart from the compiler."""
    return shlex.join((*COMMON_OPTIONS, *SEALED_OPTIONS))


def command_line(source: Source) -> str:
    """The same compile as one would type it in the folder of a cache entry."""
    flags = (f"--gpu-architecture={source.arch}", *COMMON_OPTIONS, *source.options)
    return shlex.join(("nvcc", "--cubin", *flags, f"-I{INCLUDE}", UNIT))


@_gate.entered()
def compile_source(source: Source, digest: str) -> Binary:
    """One unit compiled to cubin and PTX, with ptxas's report read.

    Raises: UnsupportedError: no NVRTC, one too old, or a target that it does not make machine code for.
            CompileError: the unit lacks a header, does not compile, or has other entries than the one it names.
    Cost: one core for 0.1 .. 4 s, about 30 MB.
    """
    nvrtc = _nvrtc()
    _require_target(nvrtc, source.arch)
    if missing := source.missing_includes():
        raise _compile_error(source, f"headers that the Source does not hold: {', '.join(missing)}", "")
    start = time.perf_counter()
    options = (f"--gpu-architecture={source.arch}", *COMMON_OPTIONS, *SEALED_OPTIONS, *source.options)
    status, (cubin, ptx), log = _run(nvrtc, source.text, source.headers, options)
    seconds = time.perf_counter() - start
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise _compile_error(source, f"{compiler_version()} says {status.name}", log)
    entries = _ENTRY.findall(log)
    if entries != [source.entry]:
        found = ", ".join(entries) if entries else "none"
        raise _compile_error(source, f'a unit has one extern "C" entry, here {source.entry}; found: {found}', log)
    if not cubin.startswith(b"\x7fELF"):
        raise _compile_error(source, f"{compiler_version()} gave no machine code for {source.arch}", log)
    return Binary(
        digest=digest,
        name=source.name,
        entry=source.entry,
        arch=source.arch,
        compiler=compiler_version(),
        cubin=cubin,
        ptx=ptx.rstrip(b"\0").decode(),
        log=log,
        resources=parse_resources(log),
        warnings=parse_warnings(log),
        compile_seconds=seconds,
        from_cache=False,
    )


def parse_resources(log: str) -> Resources:
    """What ptxas -v reports for a unit of one entry.

    Units: bytes. Functions that were not inlined have spills and frames of their own: spills add up, the stack is the
    largest figure, be it a frame or the sum along a call.
    """
    frames = [tuple(map(int, found)) for found in _FRAME.findall(log)]
    stacks = [stack for stack, _, _ in frames] + [int(found) for found in _STACK.findall(log)]
    return Resources(
        registers=_largest(_USED, log),
        spill_store_bytes=sum(stores for _, stores, _ in frames),
        spill_load_bytes=sum(loads for _, _, loads in frames),
        stack_bytes=max(stacks, default=0),
        smem_bytes=_largest(_SMEM, log),
        barriers=_largest(_BARRIERS, log),
    )


def parse_warnings(log: str) -> tuple[str, ...]:
    """ptxas's lines that tell of lost speed: C75xx (serialised wgmma, injected waits) and a setmaxnreg not obeyed."""
    lines = (line.strip() for line in log.splitlines() if line.startswith("ptxas"))
    return tuple(line for line in lines if _WARNING.search(line))


def _largest(pattern: re.Pattern[str], log: str) -> int:
    return max((int(found) for found in pattern.findall(log)), default=0)


def _nvrtc() -> Any:
    """The bindings with their library loaded.

    Raises: UnsupportedError: one of them is missing, the library is older than MINIMUM, or a fork broke it.
    """
    needed = ".".join(map(str, MINIMUM))
    works = (
        f"pip install 'cuda-bindings>={needed},<14' 'nvidia-cuda-nvrtc>={needed},<14', "
        "or let TILEWRIGHT_PREBUILT name a folder made by `tilewright build --into` on a machine that has them"
    )
    if _gate.is_broken:
        raise UnsupportedError(
            asked="compiling a kernel in a forked process",
            rule=f"its parent forked while a compile had lasted {_gate.wait_seconds:.0f} s: NVRTC stays locked here",
            works="compile before the fork, or start the process with spawn or forkserver",
        )
    try:
        # Here, not above: importing, planning and hits in a prebuilt folder need no compiler.
        from cuda.bindings import nvrtc

        release = _release(nvrtc)
    except (ImportError, RuntimeError, OSError) as error:  # RuntimeError: the bindings did not find the library
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        rule = f"it needs NVRTC {needed} or newer, none found ({reason})"
        raise UnsupportedError("compiling a kernel", rule, works) from error
    if release < MINIMUM:
        found = ".".join(map(str, release))
        raise UnsupportedError("compiling a kernel", f"it needs NVRTC {needed} or newer, found {found}", works)
    return nvrtc


def _release(nvrtc: Any) -> tuple[int, int]:
    _, major, minor = nvrtc.nvrtcVersion()
    return major, minor


def _require_target(nvrtc: Any, arch: str) -> None:
    """Machine code or nothing: PTX is never what a device loads."""
    found = _TARGET.fullmatch(arch)
    if found is None:
        made_for = ".".join(map(str, _release(nvrtc)))
        real = arch.replace("compute_", "sm_") if arch.startswith("compute_") else "sm_90a"
        raise UnsupportedError(
            asked=f"target {arch!r}",
            rule=f"it is no sm_NN, and PTX of {compiler_version()} loads only on drivers of CUDA {made_for} or newer",
            works=f"ask for {real!r}: its cubin loads on every driver of CUDA {MINIMUM[0]}.{MINIMUM[1]} or newer",
        )
    _, known = nvrtc.nvrtcGetSupportedArchs()
    if int(found[1]) not in known:
        raise UnsupportedError(
            asked=f"target {arch!r}",
            rule=f"{compiler_version()} does not make code for it",
            works="it makes code for " + ", ".join(f"sm_{number}" for number in known),
        )


def _compile_error(source: Source, reason: str, log: str) -> CompileError:
    return CompileError(source=source.name, reason=reason, log=log, command=command_line(source))


def _run(
    nvrtc: Any, text: str, headers: tuple[tuple[str, str], ...], options: tuple[str, ...]
) -> tuple[Any, tuple[bytes, bytes], str]:
    """(status, (cubin, PTX), log) of one program; empty outputs where it did not compile."""
    bodies = [_located(f"{INCLUDE}/{path}", body) for path, body in headers]
    names = [path.encode() for path, _ in headers]
    name = f"{VIRTUAL_ROOT}/{UNIT}".encode()
    status, program = nvrtc.nvrtcCreateProgram(text.encode(), name, len(names), bodies, names)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        return status, (b"", b""), ""
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        raw = _fetch(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        log = raw.rstrip(b"\0").decode(errors="replace")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            return status, (b"", b""), log
        cubin = _fetch(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        ptx = _fetch(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
        return status, (cubin, ptx), log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _located(path: str, body: str) -> bytes:
    """A header whose lines count from 1 in its place under VIRTUAL_ROOT."""
    return f'#line 1 "{VIRTUAL_ROOT}/{path}"\n{body}'.encode()


def _fetch(size_of: Any, get: Any, program: Any) -> bytes:
    _, size = size_of(program)
    buffer = bytearray(max(size, 1))  # a bytearray: NVRTC writes into it, and small bytes objects are shared
    get(program, buffer)
    return bytes(buffer[:size])
