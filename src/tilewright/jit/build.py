"""Source -> Binary by the shortest way: memory, the user's cache, prebuilt folders, the compiler.

Knows the order of the ways, who compiles when several threads want the same unit, and which binaries are flawed.
Knows nothing of files or compiler options.

Two names of a unit. Its *digest* covers the Source, the options of every unit and the compiler's exact version: the
user's cache goes by it, so an upgrade of NVRTC compiles anew. Its *source digest* leaves the compiler out: a prebuilt
folder goes by that, so that kernels built once serve machines whose NVRTC is another build or is not there at all.
Naming the folder in TILEWRIGHT_PREBUILT is the consent to that; the Binary says which compiler made it. On a machine
without NVRTC the user's cache is searched by source digest as well, the newest build first.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed
from pathlib import Path

from tilewright import settings
from tilewright.errors import CacheError, CompileError, UnsupportedError
from tilewright.jit import identity, nvrtc
from tilewright.jit.cache import Cache, prebuilt_caches, user_cache
from tilewright.jit.source import Binary, Source

MEMORY_BYTES = 256 << 20  # of cubins, PTX and logs; a sweep's thousand candidates must not stay in memory for ever

Progress = Callable[[int, int, Binary], None]  # (units done, units in all, the one just done)


class FlawedKernelWarning(UserWarning):
    """A kernel that this compiler made slower than need be. Nothing fails by it: it computes what it should."""


class _Memory:
    """Binaries of this process, least recently used first, and the builds under way."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # held for dictionary operations only, never while anything is read or compiled
        self.binaries: OrderedDict[str, Binary] = OrderedDict()
        self.flights: dict[str, Future[Binary]] = {}
        self.held_bytes = 0

    def put(self, key: str, binary: Binary) -> None:
        if (older := self.binaries.pop(key, None)) is not None:
            self.held_bytes -= _size_bytes(older)
        self.binaries[key] = binary
        self.held_bytes += _size_bytes(binary)
        while self.held_bytes > MEMORY_BYTES and len(self.binaries) > 1:
            _, oldest = self.binaries.popitem(last=False)
            self.held_bytes -= _size_bytes(oldest)

    def forget_flights(self) -> None:
        """In a forked child: the threads that led these builds, or held the lock, do not exist here."""
        self.lock = threading.Lock()
        self.flights = {}


_memory = _Memory()
os.register_at_fork(after_in_child=_memory.forget_flights)


def source_digest_of(source: Source) -> str:
    """The name of a unit whoever compiles it: every input but the compiler's version."""
    return source.digest(f"any {nvrtc.shared_options()}")


def digest_of(source: Source) -> str:
    """The name of a unit as this machine's compiler builds it; the source digest where there is no compiler.

    Cost: about 0.1 ms; the first in a process 1 ms, or 0.1 s where the cache holds no note of the compiler.
    """
    return _digest(source, identity.compiler_version)


def build(source: Source, *, refuse: bool = False) -> Binary:
    """The compiled unit. Threads that ask for one unit at the same time wait for one compile; others do not wait.

    `refuse` fails where `flaws` finds something, be the binary new or from a cache: for what is measured or tested.
    Raises: UnsupportedError: it must be compiled and NVRTC is missing, too old, or does not know the target.
            CompileError: it does not compile, or `refuse` and a flaw.
    Cost: about 0.1 ms from memory, 0.5 ms from disk, 0.1 .. 4 s from the compiler.
    """
    binary = _obtain(source)
    if refuse and (found := flaws(binary)):
        raise CompileError(source.name, "; ".join(found), binary.log, nvrtc.command_line(source))
    return binary


def warn_of_flaws(binary: Binary) -> None:
    """A FlawedKernelWarning of what `flaws` finds: other releases of NVRTC place registers in other ways."""
    if found := flaws(binary):
        warnings.warn(
            f"{binary.name}, compiled by {binary.compiler}: {'; '.join(found)}. It computes what it should, slower; "
            "another release of nvidia-cuda-nvrtc may do better",
            FlawedKernelWarning,
            stacklevel=3,
        )


def build_many(
    sources: Iterable[Source], threads: int | None = None, progress: Progress | None = None, *, refuse: bool = False
) -> list[Binary]:
    """The compiled units in the order of `sources`, built by `threads` threads (TILEWRIGHT_COMPILE_THREADS).

    `progress` is called in the caller's thread. Raises: what `build` raises, for the first unit that fails; units not
    begun by then are left undone.
    """
    sources = list(sources)
    if not sources:
        return []
    workers = min(threads or settings.COMPILE_THREADS.read(), len(sources))
    with ThreadPoolExecutor(workers, thread_name_prefix="tilewright-compile") as pool:
        jobs = [pool.submit(build, source, refuse=refuse) for source in sources]
        try:
            for done, job in enumerate(as_completed(jobs), start=1):
                binary = job.result()
                if progress is not None:
                    progress(done, len(jobs), binary)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [job.result() for job in jobs]


def build_into(
    sources: Iterable[Source],
    folder: Path,
    threads: int | None = None,
    progress: Progress | None = None,
    *,
    refuse: bool = False,
) -> list[Binary]:
    """The compiled units, written to `folder` as well, for TILEWRIGHT_PREBUILT on other machines.

    Entries go by source digest and replace older builds of the same source. New folders get mode 0755: a folder that
    others can write is not trusted where it is used.
    Raises: CacheError: the folder cannot be written, tried before anything is compiled; and what `build` raises.
    """
    sources = list(sources)
    target = Cache(folder, trusted=True, folder_mode=0o755)
    works = "choose a folder that you can write"
    try:
        target.prepare()
    except OSError as error:
        raise CacheError(str(folder), f"it cannot be written ({error.strerror or error})", works) from error
    binaries = build_many(sources, threads, progress, refuse=refuse)
    for source, binary in zip(sources, binaries, strict=True):
        if not _store(target, source_digest_of(source), binary, source, replace=True):
            raise CacheError(str(folder), f"{source.name} could not be written there", works)
    return binaries


def flaws(binary: Binary) -> tuple[str, ...]:
    """What makes this binary slower than its source is meant to be: spills, a stack frame, ptxas's C75xx lines."""
    resources = binary.resources
    found = []
    if resources.spill_store_bytes or resources.spill_load_bytes:
        stored, loaded = resources.spill_store_bytes, resources.spill_load_bytes
        found.append(f"registers spill ({stored} bytes stored, {loaded} bytes loaded a thread)")
    if resources.stack_bytes:
        found.append(f"it uses {resources.stack_bytes} bytes of stack a thread")
    return (*found, *binary.warnings)


def clear() -> None:
    """Forgets the binaries in memory; what is on disk stays, and builds under way end as they would."""
    with _memory.lock:
        _memory.binaries.clear()
        _memory.held_bytes = 0
    identity.forget()


def _obtain(source: Source) -> Binary:
    key = digest_of(source)
    while True:
        with _memory.lock:
            if (known := _memory.binaries.get(key)) is not None:
                _memory.binaries.move_to_end(key)
                return known
            flight = _memory.flights.get(key)
            if flight is None:
                own = _memory.flights[key] = Future[Binary]()
                break
        try:
            return flight.result()
        except CancelledError:
            continue  # the thread that led was interrupted; whoever comes first leads now
    return _lead(own, key, source)


def _lead(flight: Future[Binary], key: str, source: Source) -> Binary:
    """Makes the unit for this thread and for every thread that waits on `flight`."""
    try:
        binary = _make(key, source)
    except BaseException as error:
        with _memory.lock:
            _memory.flights.pop(key, None)
        if isinstance(error, Exception):
            flight.set_exception(error)
        else:
            flight.cancel()  # Ctrl-C belongs to this thread alone
        raise
    with _memory.lock:
        _memory.flights.pop(key, None)
        _memory.put(key, binary)
    flight.set_result(binary)
    return binary


def _make(key: str, source: Source) -> Binary:
    source_digest = source_digest_of(source)
    has_compiler = key != source_digest
    cache = user_cache()
    found = cache.lookup(key) if has_compiler else cache.find_source(source_digest)
    if found is not None:
        return found
    for prebuilt in prebuilt_caches():
        if (found := prebuilt.lookup(source_digest)) is not None:
            return found
    asked_key = _digest(source, identity.asked_version)
    if asked_key != key:  # the note of the compiler was wrong: what is here of the real one?
        return _make(asked_key, source)
    binary = nvrtc.compile_source(source, key)
    _store(cache, key, binary, source)
    return binary


def _digest(source: Source, version: Callable[[Cache], str]) -> str:
    cache = user_cache()
    try:
        return source.digest(nvrtc.fingerprint(version(cache)))
    except UnsupportedError:  # no NVRTC: the unit can still come from a cache or a prebuilt folder
        return source_digest_of(source)


def _store(cache: Cache, key: str, binary: Binary, source: Source, replace: bool = False) -> bool:
    return cache.store(key, binary, source, source_digest_of(source), nvrtc.command_line(source), replace)


def _size_bytes(binary: Binary) -> int:
    return len(binary.cubin) + len(binary.ptx) + len(binary.log)
