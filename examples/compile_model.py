"""torch.compile of a patched model: one graph for any number of tokens, with tilewright's ops in it.

python examples/compile_model.py          # a tiny MLP on the CPU, in the emulator
python examples/compile_model.py --gpu    # the MLP of Llama 3 8B, by Inductor
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from llama import MLP, TINY, Sizes, seeded

import tilewright


def main(words: list[str]) -> int:
    """How many graphs were compiled for three numbers of tokens."""
    on_gpu = "--gpu" in words
    device, sizes = ("cuda", Sizes()) if on_gpu else ("cpu", TINY)
    model = seeded(MLP, sizes, device)
    tilewright.torch.patch(model, emulates=not on_gpu)
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        compiler = torch._dynamo.lookup_backend("inductor" if on_gpu else "aot_eager")
        return compiler(graph, inputs)

    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    for tokens in (512, 1024, 777) if on_gpu else (32, 64, 40):
        x = torch.randn(tokens, sizes.width, device=device, dtype=torch.bfloat16)
        out = compiled(x)
        out.sum().backward()
        torch.testing.assert_close(out, model(x), rtol=2**-5, atol=2**-5)
    calls = [str(node.target) for node in graphs[0].graph.nodes if "tilewright" in str(node.target)]
    print(f"{len(graphs)} graph, with {', '.join(calls)}")
    return len(graphs)


if __name__ == "__main__":
    main(sys.argv[1:])
