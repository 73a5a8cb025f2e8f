"""A decoding step captured once and replayed: no host work is left between its kernels.

python examples/cuda_graph.py --gpu    # a block of Llama 3 8B, one token
python examples/cuda_graph.py          # the same step without a graph, tiny, in the emulator: graphs are a GPU's
"""

from __future__ import annotations

import sys

import torch
from llama import TINY, Block, Sizes, seeded

import tilewright


def main(words: list[str]) -> torch.Tensor:
    """The output for the second input."""
    on_gpu = "--gpu" in words
    device, sizes = ("cuda", Sizes()) if on_gpu else ("cpu", TINY)
    model = seeded(Block, sizes, device).requires_grad_(False)
    tilewright.torch.patch(model, emulates=not on_gpu)
    x, second = (torch.randn(1, 1, sizes.width, device=device, dtype=torch.bfloat16) for _ in range(2))
    out = model(x)  # compiles the kernels; a capture would do that too, while nothing waits for it
    if not on_gpu:
        return model(second)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(x)
    x.copy_(second)  # a graph reads the memory that it was captured with
    graph.replay()
    assert torch.equal(out, model(second))
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for name, run in (("eager", lambda: model(x)), ("graph", graph.replay)):
        start.record()
        for _ in range(100):
            run()
        stop.record()
        stop.synchronize()
        print(f"{name}: {start.elapsed_time(stop) * 10:.1f} us a step")
    return out


if __name__ == "__main__":
    main(sys.argv[1:])
