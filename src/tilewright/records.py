"""Measured choices as JSON lines: which config ran fastest for a problem on a device, and what was measured.

For those who ask:

    records.lookup(problem, device, num_sms) -> Record | None    the choice of record; a dictionary and a parse
    records.neighbours(problem, device, num_sms) -> [(m, Record)]    those of the same product with other rows
    records.append(record) -> bool                               one more line in the user's file
    records.user(), records.shipped() -> Store                   a file, or the package's files: listing, forgetting

The user's file (TILEWRIGHT_RECORDS) goes before what is shipped (data/records/), and within a file a later line before
an earlier one. The file only ever grows: a line is appended whole, under a lock, and forgetting is a line as well, so
any number of processes may tune and read at once. A line that is torn or not ours is passed over and told once; what
another writer put behind a torn line is found.

A record is a fact about one kernel's source, named by its digest. Where the source has changed since, it is a hint;
that is judged by choice.py, as is whether the config is still legal. Knows nothing of kernels, of the model or of how
anything is measured.

State: the index of each file that was read, renewed when the file changes; `clear()` drops it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import stat
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal

from tilewright import settings
from tilewright.ampere_config import AmpereConfig
from tilewright.config import Config
from tilewright.device import Device
from tilewright.dtypes import sums_of
from tilewright.order import Reduction, order_for, order_of
from tilewright.problem import Problem
from tilewright.tiling import SWIZZLE_BYTES
from tilewright.tma import TMA_ALIGNMENT_BYTES

SCHEMA = 1  # of a line; a line of another is not ours

Regime = Literal["burst", "interleaved", "steady"]
REGIMES: tuple[Regime, ...] = ("burst", "interleaved", "steady")

_BETWEEN = " | "  # the parts of a key
_HEAD = b'{"key": "'  # how every line begins
_PASSED = "; a line that is torn or of another version is passed over"
_WORKS = f"let {settings.RECORDS.name} name a file that you can write"
_ROWS = re.compile(rb" (\d{1,10})x\d+x\d+ ")  # of a key: m
_KEY = re.compile(rb'\{"key": ("[^"\\]*(?:\\.[^"\\]*)*"), ')


class RecordsWarning(UserWarning):
    """A file of records that cannot be read or written in whole. Nothing fails by it: the model chooses."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One measured choice. `key` says of what on which device: key_of() spells it, and three properties read it.

    Units: microseconds; `spread` the distance between the quartiles over the median, of `rounds` samples. `digest` is
    the kernel's source digest, whichever compiler built it; `compiler`, `driver`, `date` (ISO) tell of the measurement.
    """

    key: str
    family: str
    config: Config
    measured_us: float
    predicted_us: float
    spread: float
    rounds: int
    regime: Regime
    digest: str
    compiler: str
    driver: str
    date: str

    @property
    def device(self) -> str:
        """The device, as device_text() spells it."""
        return self.key.split(_BETWEEN)[0]

    @property
    def problem(self) -> str:
        """The problem, as problem_text() spells it."""
        return self.key.split(_BETWEEN)[1]

    @property
    def sms(self) -> str:
        """The SMs that it ran on, "all SMs" or "66 SMs"; ", invariant" where one order of summation was asked for."""
        return self.key.split(_BETWEEN)[2]

    def line(self) -> str:
        """The record as one line of JSON, without its end; the key comes first."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return json.dumps({"key": self.key, "schema": SCHEMA, **fields, "config": dataclasses.asdict(self.config)})

    def __str__(self) -> str:
        return f"{self.problem} on {self.sms} of {self.device}: {self.config}, {self.measured_us:.1f} us, {self.date}"


_CONFIGS: dict[str, type[Config]] = {kind.family: kind for kind in (Config, AmpereConfig)}
_TEXTS = ("key", "family", "regime", "digest", "compiler", "driver", "date")
_NUMBERS = ("measured_us", "predicted_us", "spread", "rounds")


def record_of(line: str) -> Record:
    """The record of a line.

    Raises: ValueError: no JSON, not ours, of a field that this version does not know, or a value of the wrong kind.
    """
    try:
        fields = json.loads(line)
        if type(fields) is not dict or fields.pop("schema", None) != SCHEMA:
            raise ValueError(f"no record of schema {SCHEMA}")
        for name in _TEXTS:
            if type(fields[name]) is not str:
                raise ValueError(f"{name} = {fields[name]!r} is no text")
        for name in _NUMBERS:
            if type(fields[name]) not in (int, float) or not 0 <= fields[name] < float("inf"):
                raise ValueError(f"{name} = {fields[name]!r} is no number from 0 up")
        if fields["regime"] not in REGIMES or fields["key"].count(_BETWEEN) != 2:
            raise ValueError(f"regime {fields['regime']!r} or key {fields['key']!r} is none")
        fields["config"] = _CONFIGS.get(fields["family"], Config)(**fields["config"])
        return Record(**fields)
    except (AttributeError, KeyError, RecursionError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


# -- keys --------------------------------------------------------------------------------------------------------------


def device_text(device: Device) -> str:
    """What tells devices apart: the driver's name, which tells the kind of memory too; SMs and L2, fewer in a slice."""
    major, minor = device.sm
    return f"{device.name} sm_{major}{minor} {device.num_sms} SMs {device.l2_bytes >> 20} MiB"


def problem_text(problem: Problem) -> str:
    """All of a problem that a choice depends on: sizes, types, layouts, batch, and how far each operand is aligned.

    The number after an operand is the largest power of two up to 16 that divides the bytes between its rows and between
    its matrices and, for out, its address and the bytes of a row: what decides how memory is reached, and not how long
    a pitch is. Of a and b it is 128 where that divides them: no piece of a row lies across two lines then, and where
    one does other configs win (work.py). A column-major out is the kernel's row-major product. A product with an
    epilogue has a key of its own, which tells its steps and not how their arrays lie.
    """
    size, out_size = problem.dtype.size, problem.out_dtype.size
    problem = problem.row_major
    a = min(_line_alignment(stride * size) for stride in (problem.a_pitch, *problem.a_batch))
    b = min(_line_alignment(stride * size) for stride in (problem.b_pitch, *problem.b_batch))
    out_steps = (problem.out_pitch, problem.n, *problem.out_batch)
    out = min(problem.out_align_bytes, *(_alignment(step * out_size) for step in out_steps))
    sums = "" if problem.sums is sums_of(problem.dtype) else f" sums {problem.sums.name}"
    dims = zip(problem.batch, problem.a_batch, problem.b_batch, strict=True)
    batch = "".join(f"{extent}{'' if a else ' of one a'}{'' if b else ' of one b'} x " for extent, a, b in dims)
    return (
        f"{batch}{problem.m}x{problem.n}x{problem.k} {problem.dtype.name} {problem.out_dtype.name} {problem.layout} "
        f"a{a} b{b} out{out}{sums}"
        + ("" if problem.epilogue is None else f" then {problem.epilogue.with_gates_in_one}")
    )


def key_of(problem: Problem, device: Device, num_sms: int | None = None, reduction: Reduction = "fast") -> str:
    """The key of a problem on a device; naming all of its SMs is naming none."""
    sms = "all" if num_sms is None or num_sms == device.num_sms else num_sms
    order = "" if reduction == "fast" else f", {reduction}"
    return f"{device_text(device)}{_BETWEEN}{problem_text(problem)}{_BETWEEN}{sms} SMs{order}"


def _alignment(num_bytes: int) -> int:
    return min(num_bytes & -num_bytes, TMA_ALIGNMENT_BYTES) or TMA_ALIGNMENT_BYTES


def _line_alignment(num_bytes: int) -> int:
    return _alignment(num_bytes) if num_bytes % SWIZZLE_BYTES else SWIZZLE_BYTES


def _without_rows(key: bytes, rows: re.Match[bytes]) -> bytes:
    return key[: rows.start(1)] + key[rows.end(1) :]


# -- files -------------------------------------------------------------------------------------------------------------


class _Index:
    """The lines of one text by key, unread: parsing 10^4 of them at the first product would take 0.3 s."""

    def __init__(self, raw: bytes, name: str) -> None:
        self.name = name
        self.lines: dict[bytes, list[bytes]] = {}
        self._by_rows: dict[bytes, dict[int, bytes]] | None = None
        for whole in raw.split(b"\n"):
            if not whole:
                continue
            start = whole.rfind(_HEAD)  # the last: a writer that was stopped leaves a piece before another's line
            match = _KEY.match(whole, start) if start >= 0 else None
            if start != 0 or match is None or not whole.endswith(b"}"):
                _warn(name, f"{whole[:60]!r}{_PASSED}")
            if match is not None:
                self.lines.setdefault(match.group(1), []).append(whole[start:])

    def lookup(self, key: bytes) -> Record | None:
        """The last record of a key, unless it was forgotten after that."""
        for line in reversed(self.lines.get(key, ())):
            if _is_forgotten(line):
                return None
            try:
                return record_of(line.decode())
            except ValueError as error:
                _warn(self.name, f"{error}{_PASSED}")
        return None

    def neighbours(self, key: bytes) -> dict[int, bytes]:
        """The keys that differ from this one in m alone, by their m. The first time reads m of every key."""
        if self._by_rows is None:
            found: dict[bytes, dict[int, bytes]] = {}
            for known in self.lines:
                if rows := _ROWS.search(known):
                    found.setdefault(_without_rows(known, rows), {})[int(rows[1])] = known
            self._by_rows = found
        rows = _ROWS.search(key)
        return {} if rows is None else self._by_rows.get(_without_rows(key, rows), {})


@dataclass(frozen=True)
class Store:
    """One file of records, or the read-only texts of the package (`path` None and `texts` given)."""

    path: Path | None
    texts: tuple[tuple[str, bytes], ...] = ()

    def lookup(self, key: str) -> Record | None:
        """The record of this key that was written last, or None. Raises nothing: what cannot be read is told once.

        Cost: 33 us among 10^4 records, measured, 2-core x86-64, 2026-11-30; 21 ms for the first look-up, and for one
        after the file has changed, which read it.
        """
        index = self._index()
        return None if index is None else index.lookup(json.dumps(key).encode())

    def neighbours(self, key: str) -> dict[int, str]:
        """The keys of this file that differ in m alone, by their m; a key may be forgotten, or of a torn line."""
        index = self._index()
        found = {} if index is None else index.neighbours(json.dumps(key).encode())
        return {m: json.loads(known) for m, known in found.items()}

    def records(self) -> Iterator[Record]:
        """Every record that a lookup would find, in the order in which keys were first written."""
        index = self._index()
        for key in () if index is None else tuple(index.lines):
            if index is not None and (record := index.lookup(key)) is not None:
                yield record

    def append(self, line: str) -> None:
        """One more line, whole, and on disk when this returns.

        Raises: OSError: the file or its folder cannot be written.
        """
        if self.path is None:
            raise OSError("there is no home folder")
        if self.path.exists() and not self.path.is_file():
            raise OSError("it is no regular file")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with contextlib.suppress(OSError):  # a file system without locks: O_APPEND alone keeps lines whole there
                fcntl.flock(handle, fcntl.LOCK_EX)  # network file systems append by seek and write
            size = os.fstat(handle).st_size
            is_torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            raw = (("\n" if is_torn else "") + line + "\n").encode()
            if os.write(handle, raw) != len(raw):
                raise OSError("the disk is full")
            os.fsync(handle)
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)  # closing would not, where another thread has forked meanwhile
            os.close(handle)

    def _index(self) -> _Index | None:
        if self.texts:
            return _shipped_index(self.texts)
        return None if self.path is None else _indexes.of(self.path)


class _Indexes:
    """The index of every file that was read, as it was when its size, time or place on disk last changed.

    Without a lock: two threads that meet a new file both read it, and both find the same.
    """

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int, int], _Index]] = {}

    def of(self, path: Path) -> _Index | None:
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):  # a pipe would be read until somebody writes into it
                _warn(str(path), f"it cannot be read (it is no regular file); the model chooses; {_WORKS}")
                return None
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            known = self._known.get(path)
            if known is None or known[0] != stamp:
                known = self._known[path] = (stamp, _Index(path.read_bytes(), str(path)))
            return known[1]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            _warn(str(path), f"it cannot be read ({error.strerror}); the model chooses")
            return None

    def clear(self) -> None:
        self._known.clear()


_indexes = _Indexes()
_warned: set[str] = set()


def user() -> Store:
    """The user's file. Raises: UnsupportedError: the setting is no value of its kind."""
    return Store(settings.RECORDS.read())


@cache
def shipped() -> Store:
    """What the package brings: measured by the project, one file a kind of device."""
    folder = resources.files("tilewright") / "data" / "records"
    files = sorted((item for item in folder.iterdir() if item.name.endswith(".jsonl")), key=lambda item: item.name)
    return Store(None, tuple((item.name, item.read_bytes()) for item in files))


@cache
def _shipped_index(texts: tuple[tuple[str, bytes], ...]) -> _Index:
    return _Index(b"\n".join(raw for _, raw in texts), ", ".join(name for name, _ in texts))


def lookup(
    problem: Problem, device: Device, num_sms: int | None = None, reduction: Reduction = "fast"
) -> Record | None:
    """The record of this product on this device, the user's before the shipped one; None without one.

    With reduction "invariant" one that was measured so, else one whose config happens to add in that order.
    Asks no setting but the file's place: whether records are wanted, the caller knows.
    """
    order = order_for(reduction)
    for each in dict.fromkeys((reduction, "fast")):
        key = key_of(problem, device, num_sms, each)
        for store in (user(), shipped()):
            record = store.lookup(key)
            if record is not None and (order is None or order_of(record.config) == order):
                return record
    return None


def neighbours(
    problem: Problem, device: Device, num_sms: int | None = None, reduction: Reduction = "fast"
) -> list[tuple[int, Record]]:
    """The nearest records of this product with fewer and with more rows, as (m, record), the nearer first.

    Of two that are equally near, by the ratio of their rows, the one with more. `m` is that of the row-major product.
    Cost: 0.3 ms where there are 100 of them; the first time 23 ms of 10^4 records, whose keys it reads (2-core x86-64,
    2026-11-30).
    """
    key = key_of(problem, device, num_sms, reduction)
    stores = (shipped(), user())
    keys = {m: known for store in stores for m, known in store.neighbours(key).items()}
    own = problem.row_major.m
    sides = ([m for m in sorted(keys, reverse=True) if m < own], [m for m in sorted(keys) if m > own])
    found = []
    for side in sides:
        for m in side:
            other = lookup(dataclasses.replace(problem.row_major, m=m), device, num_sms, reduction)
            if other is not None:
                found.append((m, other))
                break
    return sorted(found, key=lambda each: (max(each[0], own) / min(each[0], own), -each[0]))


def append(record: Record) -> bool:
    """True when the record is in the user's file; False, and a RecordsWarning, when that cannot be written."""
    return _append(record.line())


def forget(key: str) -> bool:
    """True when the user's file says no more of this key; what is shipped then counts again."""
    return _append(json.dumps({"key": key, "schema": SCHEMA, "forgotten": True}))


def clear() -> None:
    """Drops what was read of files, and what was told about them."""
    _indexes.clear()
    _warned.clear()


def _append(line: str) -> bool:
    store = user()
    try:
        store.append(line)
    except OSError as error:
        reason = error.strerror or str(error)
        _warn(f"{store.path or '(none)'}", f"it cannot be written ({reason}); {_WORKS}", "write")
        return False
    return True


def _is_forgotten(line: bytes) -> bool:
    if b'"forgotten": true' not in line:
        return False
    try:
        fields = json.loads(line)
    except (RecursionError, ValueError):
        return False
    return isinstance(fields, dict) and fields.get("forgotten") is True


def _warn(name: str, reason: str, kind: str = "read") -> None:
    """One warning a process for each file and kind of trouble."""
    if f"{kind} {name}" in _warned:
        return
    _warned.add(f"{kind} {name}")
    warnings.warn(f"records in {name}: {reason}", RecordsWarning, stacklevel=2)
