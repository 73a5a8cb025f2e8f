"""The one-way rules of the house, read from the imports and includes themselves, each shown to catch a break."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "tilewright"
ROOT = Path(__file__).parents[1] / "src" / PACKAGE

# The floors, lowest first. A room (a module or a folder of the package) imports itself and rooms of lower floors.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("settings", "dtypes", "device", "disassemble"),
    ("epilogue_form", "tma", "integers"),
    ("problem", "tensor", "batching", "jit", "emulator", "epilogue_steps"),
    ("epilogue", "packing", "fusing", "tiling"),
    ("check",),
    ("legality",),
    ("config", "layout", "arrays", "backends", "host_operands"),
    ("occupancy", "rates"),
    ("order", "ampere_config"),
    ("kernels", "calls", "records", "work"),
    ("ampere_work", "kernel_problem"),
    ("model", "timing", "emulated_time", "explain", "agreement"),
    ("choice",),
    ("plan",),
    ("planning",),
    ("dispatch", "doctor"),
    ("tuning",),
    ("frontends", "bench", "emulation"),
    ("cli",),
    ("__main__",),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

# Rooms that see less than all of the lower floors.
ONLY: dict[str, frozenset[str]] = {
    "emulator": frozenset({"errors", "dtypes"}),
    "jit": frozenset({"errors", "settings"}),
}

# Outside modules and the only files, or folders, that may import them.
DOORS: dict[str, tuple[str, ...]] = {
    "cuda.bindings.driver": ("backends/cuda.py",),
    "cuda.bindings.nvml": ("backends/nvml.py",),
    "cuda.bindings.nvrtc": ("jit/nvrtc.py",),
    "cuda.bindings.runtime": (),
    "torch": ("frontends/", "bench/"),
    "jax": ("frontends/", "bench/"),
    "cupy": ("frontends/", "bench/"),
    "typer": ("cli/",),
}

# The files that may import the emulator: the backend, and the one that runs PTX of others.
EMULATOR_DOORS = ("backends/emulated.py", "backends/emulated_file.py")

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]*)"|<([^>]*)>)', re.MULTILINE)
_ENTRY = re.compile(r'^[ \t]*extern[ \t]+"C"', re.MULTILINE)
RENDERED = frozenset({"config.cuh", "fused.cuh", "wgmma_mma_async.cuh"})


def imports_of(path: Path, root: Path) -> Iterator[str]:
    """Every module that the file imports, anywhere in it, by its full name; `from x import y` yields x and x.y."""
    package = (PACKAGE, *path.relative_to(root).with_suffix("").parts)[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, node.module) if node.module else base)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def room_of(module: str, root: Path) -> str | None:
    """The room of a module of the package; None for outside modules, the face, and names that are no modules."""
    parts = module.split(".")
    if parts[0] != PACKAGE or len(parts) == 1:
        return None
    is_room = parts[1] in FLOOR_OF or (root / f"{parts[1]}.py").exists() or (root / parts[1]).is_dir()
    return parts[1] if is_room else None


def broken_rules(root: Path) -> list[str]:
    """Every import and include that the rules forbid, one sentence each."""
    found = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name != "__init__.py":  # the face names what it shows
            found += _broken_by(name, set(imports_of(path, root)), root)
    for path in sorted((root / "kernels" / "cuda").rglob("*.cu*")):
        found += _broken_by_device_code(path, root / "kernels" / "cuda")
    return found


def _broken_by(name: str, imported: set[str], root: Path) -> list[str]:
    own = name.split("/")[0].removesuffix(".py")
    if own not in FLOOR_OF:
        return [f"{name} is in a room without a floor"]
    found = []
    for module in sorted(imported):
        room = room_of(module, root)
        if room is not None and room != own:
            if room == "emulator" and name not in EMULATOR_DOORS:
                found.append(f"{name} imports {module}; the emulator's only doors are {', '.join(EMULATOR_DOORS)}")
            elif own in ONLY and room not in ONLY[own]:
                found.append(f"{name} imports {module}; {own} sees only {', '.join(sorted(ONLY[own]))}")
            elif FLOOR_OF.get(room, len(FLOORS)) >= FLOOR_OF[own]:
                found.append(f"{name} imports {module}, which is not below it")
        for outside, doors in DOORS.items():
            is_it = module == outside or module.startswith(outside + ".")
            if is_it and not any(name == door or (door.endswith("/") and name.startswith(door)) for door in doors):
                found.append(f"{name} imports {module}; only {', '.join(doors) or 'nobody'} may")
    return found


def _broken_by_device_code(path: Path, cuda: Path) -> list[str]:
    name, text = path.relative_to(cuda).as_posix(), path.read_text(encoding="utf-8")
    found = []
    for quoted, angled in _INCLUDE.findall(text):
        if angled or not (quoted in RENDERED or (cuda / quoted).is_file()):
            found.append(f"{name} includes {quoted or f'<{angled}>'}, which is no file of kernels/cuda")
    entries = len(_ENTRY.findall(text))
    if entries != (1 if name.endswith(".cu") else 0):
        found.append(f'{name} has {entries} extern "C" entries')
    return found


def test_the_package_keeps_every_one_way_rule():
    assert broken_rules(ROOT) == []


def test_every_room_has_a_floor():
    rooms = {path.stem if path.is_file() else path.name for path in ROOT.iterdir() if not path.name.startswith("__")}
    assert rooms - FLOOR_OF.keys() - {"py", "data"} == set()


GOOD_TREE = {
    "errors.py": "",
    "dtypes.py": "from tilewright.errors import DTypeError\n",
    "emulator/run.py": "from tilewright import dtypes\n",
    "jit/build.py": "from tilewright.jit import nvrtc\n",
    "jit/nvrtc.py": "def f():\n    from cuda.bindings import nvrtc\n",
    "backends/cuda.py": "from cuda.bindings import driver\n",
    "backends/emulated.py": "from tilewright.emulator import run\n",
    "kernels/render.py": "from tilewright.jit.build import build\n",
    "plan.py": "from .kernels import render\n",
    "bench/suite.py": "import torch\n",
    "cli/__init__.py": "import typer\n",
    "kernels/cuda/base.cuh": "#pragma once\n",
    "kernels/cuda/ptx/copy.cuh": '#include "base.cuh"\n',
    "kernels/cuda/gemm.cu": '#include "config.cuh"\n#include "ptx/copy.cuh"\nextern "C" __global__ void gemm() {}\n',
}

BREAKS = {
    "a floor imports a higher one": ("dtypes.py", "from tilewright.plan import Plan\n", "not below it"),
    "a floor imports its neighbour": ("device.py", "import tilewright.dtypes\n", "not below it"),
    "an import inside a function counts": ("errors.py", "def f():\n    import tilewright.dtypes\n", "not below it"),
    "a relative import counts": ("jit/cache.py", "from ..plan import Plan\n", "jit sees only"),
    "the emulator imports a device": (
        "emulator/run.py",
        "from tilewright.device import Device\n",
        "emulator sees only",
    ),
    "jit imports kernels": ("jit/build.py", "from tilewright.kernels.render import render\n", "jit sees only"),
    "somebody else opens the emulator": ("plan.py", "from tilewright.emulator.run import run\n", "only doors"),
    "somebody else opens the driver": ("plan.py", "import cuda.bindings.driver as d\n", "only backends/cuda.py"),
    "somebody else opens NVML": ("timing.py", "from cuda.bindings import nvml\n", "only backends/nvml.py"),
    "somebody else opens NVRTC": (
        "jit/build.py",
        "from cuda.bindings.nvrtc import nvrtcVersion\n",
        "only jit/nvrtc.py",
    ),
    "somebody opens the CUDA runtime": ("backends/cuda.py", "from cuda.bindings import runtime\n", "only nobody"),
    "an adapter imports its library": ("arrays/torch.py", "import torch\n", "only frontends/, bench/"),
    "a floor imports cupy": ("arrays/cupy.py", "from cupy import ndarray\n", "only frontends/, bench/"),
    "a plan imports typer": ("plan.py", "import typer\n", "only cli/"),
    "a room without a floor": ("utils.py", "", "without a floor"),
    "device code includes the toolkit": ("kernels/cuda/base.cuh", "#include <cuda_fp16.h>\n", "no file of"),
    "device code includes a stranger": ("kernels/cuda/base.cuh", '#include "cuda_bf16.h"\n', "no file of"),
    "a unit has two entries": ("kernels/cuda/gemm.cu", 'extern "C" void f();\nextern "C" void g();\n', "2 extern"),
    "a unit has no entry": ("kernels/cuda/gemm.cu", "__global__ void gemm() {}\n", "0 extern"),
    "a header has an entry": ("kernels/cuda/base.cuh", 'extern "C" void f();\n', "1 extern"),
}


def _plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_a_tree_that_keeps_the_rules_is_passed(tmp_path: Path):
    assert broken_rules(_plant(tmp_path, GOOD_TREE)) == []


@pytest.mark.parametrize("case", BREAKS)
def test_a_planted_break_is_found(tmp_path: Path, case: str):
    name, text, words = BREAKS[case]
    found = broken_rules(_plant(tmp_path, {**GOOD_TREE, name: text}))
    assert any(words in sentence for sentence in found), found
    assert all(sentence.startswith(name.removeprefix("kernels/cuda/")) for sentence in found), found


def _loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sorted(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_importing_the_package_loads_no_cuda_no_array_library_and_no_command_line():
    loaded = _loaded_by("import tilewright")
    assert not loaded & {"cuda", "torch", "cupy", "jax", "typer", "rich", "numpy", "ml_dtypes"}
    assert {name for name in loaded if name.startswith(PACKAGE)} == {PACKAGE}


def test_naming_everything_on_the_face_opens_no_driver_no_compiler_and_no_torch():
    loaded = _loaded_by("from tilewright import *; import tilewright; tilewright.plan, tilewright.matmul")
    assert not loaded & {"torch", "cupy", "jax", "typer", "rich", "cuda.bindings.driver", "cuda.bindings.nvrtc"}
    assert not loaded & {"tilewright.backends.cuda", "tilewright.cli", "tilewright.emulator"}
