"""Golden vectors: compiles their kernels here, runs them on an H200, keeps what they wrote.

    python benchmarks/golden.py build --into .golden                    no GPU needed: NVRTC makes the cubins
    python benchmarks/golden.py record --from .golden --into OUT        on the GPU: OUT/golden.npz
    python benchmarks/golden.py unpack OUT/golden.npz                   one small file a vector, beside the tests
    python benchmarks/golden.py verify                                  on the GPU: the same bytes again?

The machine with the GPU needs numpy, ml_dtypes and cuda-bindings, and no compiler where `.golden` came with it; else
verify builds it first. Vectors run one after another in a
child process; one that ends with an error ends the child, and a new one takes the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "emulator"), str(ROOT / "src")]

from golden.compare import differences  # noqa: E402  the folders above hold them
from golden.vector import ENTRY, UNTOUCHED, Map, Vector  # noqa: E402
from golden.vectors import ALL, BY_NAME  # noqa: E402

DATA = ROOT / "tests" / "emulator" / "golden" / "data"
CHILD_SECONDS = 60
MAX_FILE_BYTES = 16384

TENSOR_TYPES = {
    "u8": "UINT8",
    "u16": "UINT16",
    "u32": "UINT32",
    "s32": "INT32",
    "u64": "UINT64",
    "s64": "INT64",
    "f16": "FLOAT16",
    "f32": "FLOAT32",
    "f64": "FLOAT64",
    "bf16": "BFLOAT16",
    "tf32": "TFLOAT32",
    "f32_ftz": "FLOAT32_FTZ",
    "tf32_ftz": "TFLOAT32_FTZ",
}


# -- here: compile -----------------------------------------------------------------------------------------------------


def build(into: Path, names: Sequence[str]) -> int:
    from golden.compiled import compiled  # here: the machine with the GPU has no compiler

    chosen = [BY_NAME[name] for name in names] or ALL
    start = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        binaries = dict(zip(chosen, pool.map(compiled, chosen), strict=True))
    into.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {"compiler": np.array(binaries[chosen[0]].compiler)}
    for vector, binary in binaries.items():
        arrays[f"{vector.name}.cubin"] = np.frombuffer(binary.cubin, np.uint8)
        arrays[f"{vector.name}.digest"] = np.array(vector.digest)
    np.savez_compressed(into / "cubins.npz", **arrays)
    print(f"{len(binaries)} cubins in {into / 'cubins.npz'} after {time.perf_counter() - start:.1f} s")
    return 0


# -- on the GPU: a child that runs vectors -----------------------------------------------------------------------------


class CallError(Exception):
    """A driver call that did not succeed; str() is the status's name."""


class Device:
    """The driver, just enough of it to run one vector after another."""

    def __init__(self) -> None:
        from cuda.bindings import driver  # here: compiling needs no driver

        self.driver = driver
        self.call("cuInit", 0)
        self.device = self.call("cuDeviceGet", 0)
        context = self.call("cuDevicePrimaryCtxRetain", self.device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> Any:
        status, *results = getattr(self.driver, name)(*arguments)
        if int(status):
            raise CallError(status.name)
        return results[0] if results else None

    def describe(self) -> str:
        name = self.call("cuDeviceGetName", 128, self.device).split(b"\0")[0].decode()
        return f"{name}, driver for CUDA {self.call('cuDriverGetVersion')}"

    @contextlib.contextmanager
    def memory(self, content: np.ndarray[Any, Any]) -> Iterator[int]:
        """Device memory that holds the bytes."""
        pointer = self.call("cuMemAlloc", content.size)
        try:
            self.call("cuMemcpyHtoD", pointer, content.ctypes.data, content.size)
            yield int(pointer)
        finally:
            with contextlib.suppress(CallError):  # a dead context frees nothing
                self.call("cuMemFree", pointer)

    def tensor_map(self, spec: Map, base: int) -> bytes:
        d = self.driver
        rank = len(spec.extents)
        swizzle = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}[spec.swizzle_bytes]
        fill = "NAN_REQUEST_ZERO_FMA" if spec.fill_nan else "NONE"
        encoded = self.call(
            "cuTensorMapEncodeTiled",
            getattr(d.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{TENSOR_TYPES[spec.element]}"),
            rank,
            base + spec.offset_bytes,
            [d.cuuint64_t(extent) for extent in spec.extents],
            # One dimension has no pitch, but an empty array is an invalid value to the driver.
            [d.cuuint64_t(pitch) for pitch in spec.pitches_bytes or (16,)],
            [d.cuuint32_t(size) for size in spec.box],
            [d.cuuint32_t(1)] * rank,
            d.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(d.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"),
            d.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
            getattr(d.CUtensorMapFloatOOBfill, f"CU_TENSOR_MAP_FLOAT_OOB_FILL_{fill}"),
        )
        return ctypes.string_at(encoded.getPtr(), 128)

    def run(self, vector: Vector, cubin: bytes) -> np.ndarray[Any, Any]:
        """What the vector's kernel leaves in `out`. Raises: CallError."""
        library = self.call("cuLibraryLoadData", cubin, [], [], 0, [], [], 0)
        kernel = self.call("cuLibraryGetKernel", library, ENTRY.encode())
        result = np.full(vector.output_bytes, UNTOUCHED, np.uint8)
        with self.memory(vector.input) as given, self.memory(result) as out:
            maps = [self.tensor_map(spec, {"in": given, "out": out}[spec.buffer]) for spec in vector.maps]
            block = ctypes.create_string_buffer(128 * (len(maps) + 2))
            start = -(-ctypes.addressof(block) // 64) * 64  # a tensor map is 64-byte aligned
            for index, raw in enumerate(maps):
                ctypes.memmove(start + 128 * index, raw, 128)
            pointers = (ctypes.c_uint64(given), ctypes.c_uint64(out))
            addresses = [ctypes.addressof(p) for p in pointers] + [start + 128 * i for i in range(len(maps))]
            parameters = (ctypes.c_void_p * len(addresses))(*addresses)
            self.call("cuLaunchKernelEx", self._config(vector), kernel, ctypes.addressof(parameters), 0)
            self.call("cuCtxSynchronize")
            self.call("cuMemcpyDtoH", result.ctypes.data, out, result.size)
        self.call("cuLibraryUnload", library)
        return result

    def _config(self, vector: Vector) -> Any:
        d = self.driver
        config = d.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = vector.grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = vector.block, 1, 1
        config.sharedMemBytes = vector.smem_bytes
        if vector.cluster > 1:
            attribute = d.CUlaunchAttribute()
            attribute.id = d.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            attribute.value.clusterDim.x = vector.cluster
            attribute.value.clusterDim.y = 1
            attribute.value.clusterDim.z = 1
            config.attrs, config.numAttrs = [attribute], 1
        return config


def child(source: Path, result: Path, names: Sequence[str]) -> int:
    """Runs the vectors in order until one fails; prints each name before it runs."""
    cubins = np.load(source)
    device = Device()
    arrays: dict[str, Any] = {"device": np.array(device.describe())}
    for name in names:
        print(name, flush=True)
        try:
            arrays[f"{name}.output"] = device.run(BY_NAME[name], cubins[f"{name}.cubin"].tobytes())
            arrays[f"{name}.status"] = np.array("")
        except CallError as error:
            arrays[f"{name}.status"] = np.array(str(error))
            break
    np.savez_compressed(result, **arrays)
    return 0


def run_all(source: Path, names: Sequence[str]) -> dict[str, Any]:
    """Outputs and statuses of all vectors, in as many children as it takes."""
    found: dict[str, Any] = {}
    left = list(names)
    with tempfile.TemporaryDirectory() as folder:
        while left:
            result = Path(folder) / "part.npz"
            result.unlink(missing_ok=True)
            command = [sys.executable, __file__, "child", "--from", str(source), "--into", str(result), *left]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_SECONDS)
                begun, trouble = done.stdout.split(), f"exit {done.returncode}: {done.stderr.strip()[-400:]}"
            except subprocess.TimeoutExpired as late:
                output = late.stdout or b""
                begun = (output.decode() if isinstance(output, bytes) else output).split()
                trouble = f"no end within {CHILD_SECONDS} s"
            if result.exists():
                with np.load(result) as part:
                    found |= {key: part[key] for key in part.files}
            if not begun:
                raise SystemExit(f"the child did not start: {trouble}")
            if f"{begun[-1]}.status" not in found:
                found[f"{begun[-1]}.status"] = np.array(trouble)
            missing = [name for name in begun if f"{name}.status" not in found]  # a killed child saved nothing
            left = missing + left[len(begun) :]
    return found


def record(source: Path, into: Path, names: Sequence[str]) -> int:
    cubins = np.load(source / "cubins.npz")
    chosen = list(names) or [v.name for v in ALL]
    for name in chosen:
        if str(cubins[f"{name}.digest"]) != BY_NAME[name].digest:
            raise SystemExit(f"{name} was changed after it was compiled; build again")
    start = time.perf_counter()
    found = run_all(source / "cubins.npz", chosen)
    for name in chosen:
        found[f"{name}.digest"] = cubins[f"{name}.digest"]
        found[f"{name}.input"] = BY_NAME[name].input
    found["compiler"] = cubins["compiler"]
    into.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(into / "golden.npz", **found)
    odd = {n: s for n in chosen if (s := str(found[f"{n}.status"])) != BY_NAME[n].error}
    seconds = time.perf_counter() - start
    print(f"{len(chosen)} vectors on {found['device']} in {seconds:.1f} s; unexpected: {odd or 'none'}")
    return 1 if odd else 0


def unpack(file: Path) -> int:
    """One small file a vector; those that failed in a way they should not are left out."""
    DATA.mkdir(exist_ok=True)
    total, kept = 0, 0
    with np.load(file) as found:
        names = [key.removesuffix(".status") for key in found.files if key.endswith(".status")]
        for name in names:
            status = str(found[f"{name}.status"])
            if name not in BY_NAME or status != BY_NAME[name].error:
                print(f"left out: {name}: {status}")
                continue
            fields = {
                key: found[f"{name}.{key}"]
                for key in ("input", "output", "status", "digest")
                if f"{name}.{key}" in found.files
            }
            target = DATA / f"{name}.npz"
            np.savez_compressed(target, device=found["device"], compiler=found["compiler"], **fields)
            if target.stat().st_size > MAX_FILE_BYTES:
                raise SystemExit(f"{target} has {target.stat().st_size} bytes, more than {MAX_FILE_BYTES}")
            total, kept = total + target.stat().st_size, kept + 1
    print(f"{kept} vectors, {total} bytes in {DATA}")
    return 0


def stale(source: Path, names: Sequence[str]) -> list[str]:
    """Vectors whose cubin is missing or is of another text."""
    file = source / "cubins.npz"
    if not file.exists():
        return list(names)
    with np.load(file) as cubins:
        have = {name: str(cubins[f"{name}.digest"]) for name in names if f"{name}.digest" in cubins.files}
    return [name for name in names if have.get(name) != BY_NAME[name].digest]


def verify(source: Path, names: Sequence[str]) -> int:
    """Whether the GPU at hand writes the recorded bytes again. Builds what is missing, if the compiler is there."""
    chosen = [name for name in (names or BY_NAME) if (DATA / f"{name}.npz").exists()]
    if stale(source, chosen):
        build(source, ())
    found = run_all(source / "cubins.npz", chosen)
    failed, bounded = 0, 0
    for name in chosen:
        vector, status = BY_NAME[name], str(found[f"{name}.status"])
        with np.load(DATA / f"{name}.npz") as recorded:
            wrong = [f"status {status!r}"] if status != str(recorded["status"]) else []
            if not wrong and not vector.error:
                got, want = found[f"{name}.output"], recorded["output"]
                wrong = differences(vector, got, want)
                if not wrong and (got != want).any():
                    bounded += 1
                    print(f"{name}: other bytes than recorded, within its tolerance")
        if wrong:
            failed += 1
            print(f"{name}: {'; '.join(wrong)}")
    print(f"{len(chosen) - failed} of {len(chosen)} vectors agree with their recording, {bounded} not in every bit")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("build", "record", "verify", "unpack", "child"))
    parser.add_argument("names", nargs="*", help="vectors, all of them when none is named; for unpack the file")
    parser.add_argument("--from", dest="source", type=Path, default=Path(".golden"), help="the folder that build made")
    parser.add_argument("--into", type=Path, default=Path(".golden"), help="the folder to write to")
    given = parser.parse_intermixed_args()
    if given.command == "build":
        return build(given.into, given.names)
    if given.command == "record":
        return record(given.source, given.into, given.names)
    if given.command == "verify":
        return verify(given.source, given.names)
    if given.command == "unpack":
        return unpack(Path(given.names[0]))
    return child(given.source, given.into, given.names)


if __name__ == "__main__":
    sys.exit(main())
