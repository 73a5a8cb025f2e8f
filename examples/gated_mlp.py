"""Activations that cost no kernel of their own: an MLP whose swiglu is trained, and an epilogue of bias and gelu.

python examples/gated_mlp.py          # tiny, on the CPU, in the emulator
python examples/gated_mlp.py --gpu    # an MLP of Llama 3 8B
"""

from __future__ import annotations

import sys

import ml_dtypes
import torch
from llama import MLP, TINY, Sizes, seeded
from torch import Tensor, nn

import tilewright
from tilewright.epilogue import Bias, Gelu


class GatedMLP(nn.Module):
    """The MLP's weights, those of gate and up one above the other: one product makes both and gates them."""

    def __init__(self, mlp: MLP) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.cat((mlp.gate.weight, mlp.up.weight)).detach())
        self.down = nn.Parameter(mlp.down.weight.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        h = tilewright.torch.gated_linear(x, self.gate_up, activation="silu", split="halves")
        return tilewright.torch.linear(h, self.down)


def main(words: list[str]) -> float:
    """The largest difference of an output or gradient from torch's, relative to its largest value."""
    device, sizes, rows = ("cuda", Sizes(), 4096) if "--gpu" in words else ("cpu", TINY, 8)
    theirs = seeded(MLP, sizes, device)
    ours = GatedMLP(theirs)
    x = torch.randn(rows, sizes.width, device=device, dtype=torch.bfloat16)
    for mlp in (theirs, ours):
        mlp.out = mlp(x)
        mlp.out.float().square().mean().backward()
    pairs = [
        (ours.out.detach(), theirs.out.detach()),
        (ours.gate_up.grad, torch.cat((theirs.gate.weight.grad, theirs.up.weight.grad))),
        (ours.down.grad, theirs.down.weight.grad),
    ]

    weight, bias = theirs.up.weight.detach(), torch.randn(sizes.inner, device=device, dtype=torch.bfloat16)
    a, b, vector = (t if t.is_cuda else t.float().numpy().astype(ml_dtypes.bfloat16) for t in (x, weight, bias))
    found = tilewright.matmul(a, b.T, epilogue=Bias(vector) | Gelu())  # of arrays of any library, without gradients
    found = found if x.is_cuda else torch.from_numpy(found.astype("float32"))
    pairs.append((found, nn.functional.gelu(nn.functional.linear(x, weight, bias))))

    worst = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
    print(f"largest difference of outputs and gradients: {worst:.4f} of the largest value")
    return worst


if __name__ == "__main__":
    main(sys.argv[1:])
