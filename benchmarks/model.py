"""A decoder block of Llama 3 8B and a training run of its MLPs: torch against the same model patched, on a GPU.

    PYTHONPATH=src python benchmarks/model.py                 # on an H200: under 120 s
    PYTHONPATH=src python benchmarks/model.py --into OUT/model.json   # and rows for tools/publish_rows.py
    PYTHONPATH=src python benchmarks/model.py --tiny          # on the CPU, in the emulator: whether it runs

Random weights, bf16. The block: 2 x 2048 tokens, forward and backward, eager and compiled, and forward alone; both
models take turns, and a ratio is the median over rounds of torch's time over ours of the same round. The run: two MLPs
with residuals, 4096 rows, 50 steps of AdamW, from the same weights on the same data: torch, tilewright, torch with its
rows in another order, which sums the same numbers otherwise, and torch that computes in float32 with the same bf16
weights and optimizer: how far from that each is, is what rounding does. Peaks are of both models together, in the run
with the gradients that the one before has left.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tilewright

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))  # whose model this is

from llama import MLP, TINY, Block, Sizes, seeded

ROUNDS, REPEATS = 7, 5
STEPS, RATE = 50, 3e-4
INSIDE = "torch eager, float32 inside"
Row = dict[str, Any]


class Residuals(nn.Module):
    """MLPs one behind the other, each beside its input."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(sizes.width) for _ in range(2))
        self.mlps = nn.ModuleList(MLP(sizes) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for norm, mlp in zip(self.norms, self.mlps, strict=True):
            x = x + mlp(norm(x))
        return x


class InFloat32(nn.Module):
    """A model of bf16 weights whose activations, sums and gradients are float32; only its result is rounded."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        weights = {name: parameter.float() for name, parameter in self.model.named_parameters()}
        return torch.func.functional_call(self.model, weights, x.float()).to(x.dtype)


def pair(kind: type[nn.Module], sizes: Sizes, device: str) -> dict[str, nn.Module]:
    """The same weights twice: torch's, and patched."""
    models = {name: seeded(kind, sizes, device) for name in ("torch", "tilewright")}
    report = tilewright.torch.patch(models["tilewright"], emulates=device == "cpu")
    if report.kept:
        raise SystemExit(str(report))
    return models


# -- the block ---------------------------------------------------------------------------------------------------------


def block_rows(sizes: Sizes, shape: tuple[int, int], device: str, rounds: int, compiles: bool) -> Iterator[Row]:
    """Of each mode and pass: milliseconds of both, the ratio, peaks; and how far outputs and gradients are apart."""
    models = pair(Block, sizes, device)
    x = torch.randn(*shape, sizes.width, device=device, dtype=torch.bfloat16)
    grad = torch.randn_like(x)
    for mode in ("eager", "compiled") if compiles else ("eager",):
        torch._dynamo.reset()
        run = {name: model if mode == "eager" else torch.compile(model) for name, model in models.items()}
        backward = {name: _backward(run[name], x, grad) for name in run}
        forward = {name: _forward(run[name], x) for name in run}
        apart = _apart(*(backward[name]() for name in ("tilewright", "torch")))
        for what, calls in (("forward and backward", backward), ("forward", forward))[: 2 if mode == "eager" else 1]:
            times: dict[str, list[float]] = {name: [] for name in calls}
            peaks: dict[str, int] = {}
            for index in range(rounds + 1):
                for name, call in sorted(calls.items(), reverse=bool(index % 2)):
                    ms, peak = _timed(call, device)
                    peaks[name] = peak
                    if index:
                        times[name].append(ms)
            ratios = [theirs / ours for theirs, ours in zip(times["torch"], times["tilewright"], strict=True)]
            yield {
                "part": "block",
                "mode": mode,
                "pass": what,
                "torch_ms": round(statistics.median(times["torch"]), 4),
                "tilewright_ms": round(statistics.median(times["tilewright"]), 4),
                "ratio": round(statistics.median(ratios), 4),
                "least": round(min(ratios), 4),
                "most": round(max(ratios), 4),
                "torch_peak_mib": peaks["torch"] >> 20,
                "tilewright_peak_mib": peaks["tilewright"] >> 20,
                "apart": apart,
            }


def _forward(model: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], list[Tensor]]:
    def run() -> list[Tensor]:
        with torch.no_grad():
            return [model(x)]

    return run


def _backward(model: Any, x: Tensor, grad: Tensor) -> Callable[[], list[Tensor]]:
    def run() -> list[Tensor]:
        model.zero_grad()
        out = model(x)
        out.backward(grad)
        return [out.detach(), *(parameter.grad for parameter in model.parameters())]

    return run


def _apart(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest difference of any of the tensors, relative to its root mean square."""
    worst = max(
        float((a.float() - b.float()).abs().max() / b.float().square().mean().sqrt())
        for a, b in zip(ours, theirs, strict=True)
    )
    return round(worst, 4)


def _timed(call: Callable[[], Any], device: str) -> tuple[float, int]:
    """Milliseconds a call, and the most bytes of device memory that were held meanwhile."""
    if device == "cpu":
        start_s = time.perf_counter()
        call()
        return 1000 * (time.perf_counter() - start_s), 0
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(REPEATS):
        call()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / REPEATS, torch.cuda.max_memory_allocated()


# -- the training run --------------------------------------------------------------------------------------------------


def training_rows(sizes: Sizes, rows: int, device: str, steps: int, compiles: bool) -> Iterator[Row]:
    """Of each run its time, peak memory and losses; then how far losses are from torch's eager ones, and rounding's."""
    torch.manual_seed(1)
    x = torch.randn(rows, sizes.width, device=device, dtype=torch.bfloat16)
    target = torch.randn_like(x)
    order = torch.randperm(rows, device=device)
    found: dict[str, list[float]] = {}
    for mode in ("eager", "compiled") if compiles else ("eager",):
        for name, model in pair(Residuals, sizes, device).items():
            torch._dynamo.reset()
            run = model if mode == "eager" else torch.compile(model)
            _losses(run, x, target, 2)  # compiles; and from the same weights again:
            model.load_state_dict(seeded(Residuals, sizes, device).state_dict())
            yield from _training_row(found, f"{name} {mode}", run, x, target, steps)
    model = seeded(Residuals, sizes, device)
    yield from _training_row(found, "torch eager, other order", model, x[order], target[order], steps)
    yield from _training_row(found, INSIDE, InFloat32(seeded(Residuals, sizes, device)), x, target, steps)
    yield {
        "part": "training",
        "run": "losses beside torch eager's, and beside those of float32",
        "apart": _apart_from(found, "torch eager"),
        "off": _apart_from(found, INSIDE),
    }


def _apart_from(found: dict[str, list[float]], name: str) -> dict[str, float]:
    """The largest relative distance of a loss of each run from this one's of the same step."""
    reference = found[name]
    return {
        other: round(max(abs(loss / own - 1) for loss, own in zip(losses, reference, strict=True)), 6)
        for other, losses in found.items()
        if other != name
    }


def _training_row(
    found: dict[str, list[float]], name: str, model: Any, x: Tensor, target: Tensor, steps: int
) -> Iterator[Row]:
    is_on_gpu = x.is_cuda
    if is_on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    start_s = time.perf_counter()
    found[name] = _losses(model, x, target, steps)
    row = {"part": "training", "run": name, "ms_a_step": round(1000 * (time.perf_counter() - start_s) / steps, 3)}
    if is_on_gpu:
        row["peak_mib"] = torch.cuda.max_memory_allocated() >> 20
    yield row | {"losses": [round(loss, 5) for loss in found[name]]}


def _losses(model: Any, x: Tensor, target: Tensor, steps: int) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=x.is_cuda)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(x) - target).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def facts(words: list[str], device: str) -> Row:
    """What the file says of the machine, the compiler of the kernels, and this command."""
    from tilewright.backends.cuda import backend
    from tilewright.bench import facts

    command = {"command": " ".join(["benchmarks/model.py", *words])}
    if device == "cpu":
        return facts.emulator_facts() | command
    x = torch.empty(128, 128, device=device, dtype=torch.bfloat16)
    return facts.facts(backend()) | {"compiler": tilewright.plan(x, x.t()).binary.compiler} | command


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="on the CPU, in the emulator")
    parser.add_argument("--part", choices=("block", "training", "all"), default="all")
    parser.add_argument("--eager", action="store_true", help="compile nothing")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--into", type=Path, help="file for facts and rows, written anew with each row")
    options = parser.parse_args(words)
    device, sizes, shape = ("cpu", TINY, (1, 32)) if options.tiny else ("cuda", Sizes(), (2, 2048))
    compiles = not options.eager

    def rows() -> Iterator[Row]:
        if options.part != "training":
            yield from block_rows(sizes, shape, device, options.rounds, compiles)
        if options.part != "block":
            yield from training_rows(sizes, shape[0] * shape[1], device, options.steps, compiles)

    told = facts(sys.argv[1:] if words is None else words, device) if options.into else {}
    found: list[Row] = []
    start_s = time.perf_counter()
    for row in rows():
        found.append(row | {"after_s": round(time.perf_counter() - start_s, 1)})
        print(json.dumps(found[-1]), flush=True)
        if options.into:  # a run that is stopped leaves what it had
            options.into.parent.mkdir(parents=True, exist_ok=True)
            options.into.write_text(json.dumps({"facts": told, "rows": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
