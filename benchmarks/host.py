"""What a call from PyTorch costs the host before it returns, beside torch's own, and whether calls leave memory behind.

    PYTHONPATH=src python benchmarks/host.py                # on a GPU: 20 s
    PYTHONPATH=src python benchmarks/host.py --leaks        # 10^5 calls as well: 10 s more
    PYTHONPATH=src python benchmarks/host.py --into OUT/torch_host.json   # and rows for tools/publish_rows.py
    PYTHONPATH=src python benchmarks/host.py --stub         # without one: Python's part, with nothing launched

Two bars: without gradients at most 1.25 times torch's call; with them, or through torch.library, at most 2 times. Each
round times all ways in a new order; a ratio is the median over rounds of ours over torch's of the same round. With
--stub torch computes on the CPU, and nothing is comparable but our own ways among each other. Prints rows as JSON
lines; ends with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import tilewright
from tilewright.device import preset
from tilewright.dispatch import Dispatcher
from tilewright.timing import host_cost_us

T = tilewright.torch
OPS = torch.ops.tilewright
SIZE = 128  # the GPU waits for the host
AROUND, THROUGH = 1.25, 2.0

# name -> (torch's way, its bar)
BARS: dict[str, tuple[str, float]] = {
    "tilewright.matmul": ("torch.mm", AROUND),
    "tilewright.torch.mm": ("torch.mm", AROUND),
    "tilewright.torch.linear": ("F.linear", AROUND),
    "tilewright.torch.linear with bias": ("F.linear with bias", AROUND),
    "Linear under no_grad": ("nn.Linear under no_grad", AROUND),
    "torch.ops.tilewright.matmul": ("torch.mm", THROUGH),
    "torch.ops.tilewright.linear": ("F.linear", THROUGH),
    "linear that records a gradient": ("F.linear that records a gradient", THROUGH),
    "torch.ops.tilewright.linear that records": ("F.linear that records a gradient", THROUGH),
    "Linear that records gradients": ("nn.Linear that records gradients", THROUGH),
    "Linear forward and backward": ("nn.Linear forward and backward", THROUGH),
}


def ways(device: str, layer: Any) -> dict[str, Callable[[], Any]]:
    """Every way of a call, by name. `layer` is a torch.nn.Linear that was patched."""
    kind = {"device": device, "dtype": torch.bfloat16}
    x, w, bias = torch.randn(SIZE, SIZE, **kind), torch.randn(SIZE, SIZE, **kind), torch.randn(SIZE, **kind)
    b, wanted = w.t(), torch.randn(SIZE, SIZE, **kind).requires_grad_()
    theirs = torch.nn.Linear(SIZE, SIZE, **kind)
    linear = torch.nn.functional.linear
    grad = torch.randn(SIZE, SIZE, **kind)

    def without_gradients(call: Callable[..., Any]) -> Callable[[], Any]:
        def run() -> None:
            with torch.no_grad():
                call(x)

        return run

    return {
        "torch.mm": lambda: torch.mm(x, b),
        "tilewright.matmul": lambda: tilewright.matmul(x, b),
        "tilewright.torch.mm": lambda: T.mm(x, b),
        "torch.ops.tilewright.matmul": lambda: OPS.matmul.default(x, b),
        "F.linear": lambda: linear(x, w),
        "F.linear with bias": lambda: linear(x, w, bias),
        "tilewright.torch.linear": lambda: T.linear(x, w),
        "tilewright.torch.linear with bias": lambda: T.linear(x, w, bias),
        "torch.ops.tilewright.linear": lambda: OPS.linear.default(x, w),
        "nn.Linear under no_grad": without_gradients(theirs),
        "Linear under no_grad": without_gradients(layer),
        "F.linear that records a gradient": lambda: linear(x, wanted),
        "linear that records a gradient": lambda: T.linear(x, wanted),
        "torch.ops.tilewright.linear that records": lambda: OPS.linear.default(x, wanted),
        "nn.Linear that records gradients": lambda: theirs(x),
        "Linear that records gradients": lambda: layer(x),
        "nn.Linear forward and backward": lambda: theirs(x).backward(grad),
        "Linear forward and backward": lambda: layer(x).backward(grad),
    }


def rows(calls: dict[str, Callable[[], Any]], synchronize: Callable[[], Any], rounds: int) -> Iterator[dict[str, Any]]:
    """Of each way its median microseconds; of ours also the ratio to torch's, and the bar."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = random.Random(0)
    for index in range(rounds + 1):
        for name in order.sample(list(calls), len(calls)):
            cost_us = host_cost_us(calls[name], synchronize, repeats=2, calls=100)
            if index:
                times[name].append(cost_us)
    for name, costs in times.items():
        row: dict[str, Any] = {"way": name, "median_us": round(statistics.median(costs), 2)}
        if name in BARS:
            theirs, bar = BARS[name]
            ratio = statistics.median(ours / torchs for ours, torchs in zip(costs, times[theirs], strict=True))
            row |= {"over": theirs, "ratio": round(ratio, 2), "bar": bar}
        yield row


def leaks(layer: Any, device: str, calls: int = 100_000) -> dict[str, Any]:
    """What so many calls with fresh tensors add to this process and to the device, after a fifth of as many."""
    x = torch.randn(SIZE, SIZE, device=device, dtype=torch.bfloat16)

    def run(count: int) -> tuple[int, int]:
        for _ in range(count):
            layer(x.clone())
        gc.collect()
        held = torch.cuda.memory_allocated() if device == "cuda" else 0
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, held

    (host_before, device_before), (host, held) = run(calls // 5), run(calls)
    return {"calls": calls, "host_kib": host - host_before, "device_bytes": held - device_before}


def facts(words: list[str], device: str) -> dict[str, Any]:
    """What the file says of the machine, the compiler of the kernels, and this command."""
    from tilewright.backends.cuda import backend
    from tilewright.bench import facts

    command = {"command": " ".join(["benchmarks/host.py", *words])}
    if device == "cpu":
        return facts.emulator_facts() | command
    x = torch.empty(SIZE, SIZE, device=device, dtype=torch.bfloat16)
    return facts.facts(backend()) | {"compiler": tilewright.plan(x, x.t()).binary.compiler} | command


class Stub:
    """A backend that launches nothing: what is left is the host's own work in Python."""

    name = "stub"

    def device(self, ordinal: int) -> Any:
        return preset("h200")

    def load(self, *_: Any) -> None: ...
    def pack(self, *_: Any) -> object:
        return self

    def launch(self, call: Any, stream: int) -> None: ...
    def clear(self) -> None: ...


@contextmanager
def stubbed() -> Iterator[None]:
    """CPU tensors are taken for a GPU's, and their products are not computed."""
    from unittest import mock

    from tilewright.arrays.torch import TorchAdapter
    from tilewright.frontends.torch import eager, products
    from tilewright.tensor import Location, View

    seen = TorchAdapter.view

    def view(self: Any, array: Any, name: str, is_written: bool = False) -> View:
        found = seen(self, array, name)
        return View(found.address, found.shape, found.strides, found.dtype, Location("cuda", 0))

    def empty(self: Any, shape: Any, strides: Any, dtype: Any, ordinal: int) -> Any:
        array = torch.empty(shape, dtype=self._dtypes[dtype.name])
        return array, array.data_ptr()

    dispatcher = Dispatcher(Stub)  # type: ignore[arg-type]  # as much of a backend as a launch needs
    with (
        mock.patch.multiple(TorchAdapter, view=view, empty=empty, stream=lambda self, ordinal: 0),
        mock.patch.multiple(eager, is_on_gpu=lambda _: True),
        mock.patch.multiple(products, is_on_gpu=lambda _: True, dispatch=dispatcher),
        mock.patch.object(tilewright, "matmul", dispatcher.matmul),
        mock.patch("tilewright.plan.build", return_value=None),
        mock.patch("tilewright.plan.warn_of_flaws"),
    ):
        yield


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stub", action="store_true", help="no GPU: nothing is launched")
    parser.add_argument("--leaks", action="store_true", help="10^5 calls more, and what they leave behind")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--into", type=Path, help="file for facts and rows")
    options = parser.parse_args(words)
    device = "cpu" if options.stub else "cuda"
    layer = torch.nn.Linear(SIZE, SIZE, device=device, dtype=torch.bfloat16)
    T.patch(layer, emulates=options.stub)
    missed = []
    if options.stub:
        torch.set_num_threads(1)
        with stubbed():
            found = [*rows(ways(device, layer), lambda: None, options.rounds)]
            found += [leaks(layer, device)] if options.leaks else []
    else:
        found = [*rows(ways(device, layer), torch.cuda.synchronize, options.rounds)]
        found += [leaks(layer, device)] if options.leaks else []
        missed = [row["way"] for row in found if row.get("ratio", 0) > row.get("bar", 0)]
    for row in found:
        print(json.dumps(row))
    if options.into:
        told = facts(sys.argv[1:] if words is None else words, device)
        options.into.parent.mkdir(parents=True, exist_ok=True)
        options.into.write_text(json.dumps({"facts": told, "rows": found}, indent=1) + "\n")
    if missed:
        print(f"over their bar: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
