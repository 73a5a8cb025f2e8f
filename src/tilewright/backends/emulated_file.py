"""Any kernel in the emulator: a PTX text, and a launch description in TOML that says what it is launched with.

    entry = "scale"                       # may be left out where the module has one entry
    grid = 4                              # or [4, 2, 1]; block and cluster alike
    block = 128
    smem_bytes = 0                        # dynamic shared memory
    parameters = [{ buffer = "x" }, { value = 2.5 }, { map = "x", box = [64, 8], swizzle_bytes = 128 }]

    [buffers.x]
    dtype = "f32"
    shape = [64, 64]                      # as in NumPy: rows first
    init = "normal"                       # zeros, ones, iota, integers, normal, nan, or a number
    seed = 1
    # file = "x.npy"                      # in place of shape and init; relative to this file

A map's extents are those of its buffer, innermost first, and its pitches those of contiguous rows, unless `extents` and
`pitches_bytes` are given. Knows no CUDA and no products.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tilewright.emulator import tiled
from tilewright.emulator.memory import GlobalMemory
from tilewright.emulator.ptx import parse
from tilewright.emulator.run import MAX_BLOCKS, Grid, Report, Width, run
from tilewright.emulator.schedule import Policy
from tilewright.errors import LayoutError, UnsupportedError

Array = NDArray[Any]

# The names of tensor maps' elements, and what stores them here.
DTYPES: dict[str, Any] = {
    "u8": np.uint8, "s8": np.int8, "u16": np.uint16, "s16": np.int16, "u32": np.uint32, "s32": np.int32,
    "u64": np.uint64, "s64": np.int64, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32,
    "f64": np.float64, "tf32": np.float32, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
INITS = ("zeros", "ones", "iota", "integers", "normal", "nan")
MAX_BUFFER_BYTES = 1 << 30  # of one buffer: a slip of the pen in a shape must not take the machine's memory

_KEYS = {"entry", "grid", "block", "cluster", "smem_bytes", "registers", "parameters", "buffers"}
_BUFFER_KEYS = {"dtype", "shape", "init", "seed", "file"}
_PARAMETER_KEYS = {
    "buffer": {"buffer", "offset"},
    "value": {"value"},
    "map": {"map", "box", "swizzle_bytes", "extents", "pitches_bytes", "fill_nan"},
}


@dataclass(frozen=True, kw_only=True)
class LaunchFile:
    """A launch as its file says it. `buffers` are made; a run writes into them."""

    path: Path
    entry: str
    grid: Grid
    buffers: dict[str, Array]
    dtypes: dict[str, str]
    parameters: tuple[dict[str, Any], ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(values.nbytes for values in self.buffers.values())

    def run(
        self,
        ptx: str,
        *,
        checks: bool = True,
        schedule: Policy = "lazy",
        seed: int = 0,
        width: Width | None = None,
        banks: bool = True,
        max_blocks: int = MAX_BLOCKS,
        progress: Callable[[int, int], None] | None = None,
    ) -> Report:
        """Runs the entry of the PTX on the buffers, which it writes.

        Raises: EmulationError: the PTX is malformed, does not fit the launch, or broke a rule. UnsupportedError: the
        file names no entry and the module has several.
        """
        memory = GlobalMemory()
        addresses = {name: memory.add(name, values) for name, values in self.buffers.items()}
        values = [self._value(parameter, addresses) for parameter in self.parameters]
        return run(
            ptx,
            self.entry or self._only_entry(ptx),
            self.grid,
            values,
            memory,
            checks=checks,
            schedule=schedule,
            seed=seed,
            width=width,
            banks=banks,
            max_blocks=max_blocks,
            progress=progress,
        )

    def _only_entry(self, ptx: str) -> str:
        entries = list(parse(ptx).entries)
        if len(entries) != 1:
            raise self._refusal("entry", f"the module has {', '.join(entries) or 'none'}", "name one: entry = ...")
        return entries[0]

    def _value(self, parameter: dict[str, Any], addresses: dict[str, int]) -> Any:
        if "value" in parameter:
            return parameter["value"]
        if "buffer" in parameter:
            return addresses[parameter["buffer"]] + parameter.get("offset", 0)
        name = parameter["map"]
        values, shape = self.buffers[name], self.buffers[name].shape
        pitches = [values.strides[axis] for axis in range(len(shape) - 2, -1, -1)]
        tensor_map = tiled.TiledMap(
            address=addresses[name],
            element=self.dtypes[name] if self.dtypes[name] in tiled.ELEMENT_BYTES else f"u{8 * values.itemsize}",
            extents=tuple(parameter.get("extents", shape[::-1])),
            pitches_bytes=tuple(parameter.get("pitches_bytes", pitches)),
            box=tuple(parameter["box"]),
            swizzle_bytes=parameter.get("swizzle_bytes", 0),
            fill_nan=parameter.get("fill_nan", False),
        )
        return tiled.encode(tensor_map)

    def _refusal(self, what: str, rule: str, works: str) -> UnsupportedError:
        return refusal(self.path, what, rule, works)


def refusal(path: Path, what: str, rule: str, works: str) -> UnsupportedError:
    """The refusal of something in a launch description."""
    return UnsupportedError(asked=f"{what} in {path}", rule=rule, works=works)


def read(path: Path) -> LaunchFile:
    """The launch in a TOML file.

    Raises: UnsupportedError: no readable file, no TOML, or a key or value that has no meaning; with what would.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # adds which file
        raise refusal(path, "the launch", str(error), "see `tilewright emulate --help`") from error
    _only(path, "the launch", table, _KEYS)
    for key in ("grid", "block"):
        if key not in table:
            raise refusal(path, f"a launch without {key}", "a launch has a grid and a block", f"write {key} = 1")
    buffers: dict[str, Array] = {}
    dtypes: dict[str, str] = {}
    for name, entry in _table(path, "buffers", table.get("buffers", {})).items():
        described = _table(path, f"buffers.{name}", entry)
        _only(path, f"buffers.{name}", described, _BUFFER_KEYS)
        dtypes[name], buffers[name] = _buffer(path, name, described)
    return LaunchFile(
        path=path,
        entry=str(table.get("entry", "")),
        grid=Grid(
            grid=_extent(path, "grid", table["grid"]),
            block=_extent(path, "block", table["block"]),
            cluster=_extent(path, "cluster", table.get("cluster", 1)),
            smem_bytes=_whole(path, "smem_bytes", table.get("smem_bytes", 0)),
            registers=_whole(path, "registers", table.get("registers", 0)),
        ),
        buffers=buffers,
        dtypes=dtypes,
        parameters=tuple(_parameter(path, position, entry, buffers) for position, entry in _listed(path, table)),
    )


def _only(path: Path, what: str, table: dict[str, Any], known: set[str]) -> None:
    for key in table:
        if key not in known:
            raise refusal(path, f"{key!r} of {what}", "no such key", f"keys are {', '.join(sorted(known))}")


def _table(path: Path, what: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refusal(path, f"{what} = {value!r}", "it is a table", f"write [{what}] and its keys below")
    return value


def _listed(path: Path, table: dict[str, Any]) -> list[tuple[int, Any]]:
    listed = table.get("parameters", [])
    if not isinstance(listed, list):
        raise refusal(path, "parameters", "they are a list in the entry's order", "write parameters = [{ value = 1 }]")
    return list(enumerate(listed))


def _whole(path: Path, what: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise refusal(path, f"{what} = {value!r}", "it is a whole number from 0 up", f"write {what} = 0")
    return value


def _extent(path: Path, what: str, value: Any) -> tuple[int, ...]:
    return tuple(_whole(path, what, each) for each in (value if isinstance(value, list) else [value]))


def _parameter(path: Path, position: int, entry: Any, buffers: dict[str, Array]) -> dict[str, Any]:
    what = f"parameter {position}"
    kind = next((kind for kind in _PARAMETER_KEYS if isinstance(entry, dict) and kind in entry), None)
    if kind is None:
        raise refusal(path, f"{what} = {entry!r}", f"it is one of {', '.join(_PARAMETER_KEYS)}", '{ buffer = "x" }')
    _only(path, what, entry, _PARAMETER_KEYS[kind])
    if kind == "value" and not isinstance(entry["value"], (int, float)):
        raise refusal(path, f"{what} = {entry!r}", "a value is a number", "{ value = 1 }")
    if kind != "value" and entry[kind] not in buffers:
        raise refusal(path, f"{what} of {entry[kind]!r}", f"buffers are {', '.join(buffers) or 'none'}", "name one")
    if kind == "map":
        if "box" not in entry:
            raise refusal(path, what, "a map has a box, innermost extent first", "add box = [64, 8]")
        for key in ("box", "extents", "pitches_bytes"):
            if key in entry:
                _extent(path, f"{key} of {what}", entry[key])
    return dict(entry)


def _buffer(path: Path, name: str, entry: dict[str, Any]) -> tuple[str, Array]:
    """(element type, contiguous array) of a buffer."""
    what = f"buffers.{name}"
    dtype = entry.get("dtype")
    if dtype not in DTYPES:
        raise refusal(path, f"dtype {dtype!r} of {what}", "it has no meaning here", f"use one of {', '.join(DTYPES)}")
    if "file" in entry:
        source = path.parent / str(entry["file"])
        try:
            values = np.load(source, allow_pickle=False)
        except (OSError, ValueError) as error:  # adds which buffer
            raise refusal(path, f"file of {what}", str(error), "save it with numpy.save") from error
        return dtype, np.array(values, DTYPES[dtype], order="C")
    shape = _extent(path, f"shape of {what}", entry.get("shape", []))
    if not shape or not 0 < int(np.prod(shape)) * np.dtype(DTYPES[dtype]).itemsize <= MAX_BUFFER_BYTES:
        rule = f"a buffer has from 1 to {MAX_BUFFER_BYTES} bytes"
        raise refusal(path, f"shape {list(shape)} of {what}", rule, "write shape = [64, 64]")
    return dtype, _initial(path, what, shape, DTYPES[dtype], entry)


def _initial(path: Path, what: str, shape: tuple[int, ...], dtype: Any, entry: dict[str, Any]) -> Array:
    init = entry.get("init", "zeros")
    generator = np.random.default_rng(_whole(path, f"seed of {what}", entry.get("seed", 0)))
    size = int(np.prod(shape))
    if init == "nan":  # every bit set: NaN in a float format, -1 or the largest number in the others
        bits = np.full(size * np.dtype(dtype).itemsize, 0xFF, np.uint8)
        return np.asarray(bits.view(dtype).reshape(shape))
    if isinstance(init, (int, float)) and not isinstance(init, bool):
        return np.asarray(np.full(shape, init).astype(dtype))
    makers: dict[str, Callable[[], Array]] = {
        "zeros": lambda: np.zeros(shape),
        "ones": lambda: np.ones(shape),
        "iota": lambda: np.arange(size).reshape(shape),
        "integers": lambda: generator.integers(-3, 4, shape),
        "normal": lambda: generator.standard_normal(shape),
    }
    if init not in makers:
        raise refusal(path, f"init {init!r} of {what}", "it has no meaning here", f"use a number or {', '.join(INITS)}")
    with np.errstate(over="ignore", invalid="ignore"):
        made: Array = makers[init]().astype(dtype)
    return made


def save(folder: Path, buffers: dict[str, Array]) -> list[Path]:
    """Each buffer as NAME.npy in the folder, made when absent; types that NumPy does not have as float32.

    Raises: LayoutError: the folder cannot be written.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, values in buffers.items():
            plain = values if values.dtype.isbuiltin == 1 else values.astype(np.float32)
            written.append(folder / f"{name}.npy")
            np.save(written[-1], plain)
    except OSError as error:
        raise LayoutError(
            asked=f"buffers in {folder}", rule=str(error), works="name a folder that you can write"
        ) from error
    return written
