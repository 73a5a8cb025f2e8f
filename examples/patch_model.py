"""One line makes a model's linear layers tilewright's: outputs and gradients are torch's but for rounding.

python examples/patch_model.py          # a tiny block on the CPU, in the emulator
python examples/patch_model.py --gpu    # a block of Llama 3 8B
"""

from __future__ import annotations

import sys

import torch
from llama import TINY, Block, Sizes, seeded

import tilewright


def main(words: list[str]) -> float:
    """The largest difference of an output or gradient, relative to its largest value."""
    on_gpu = "--gpu" in words
    device, sizes, shape = ("cuda", Sizes(), (2, 2048)) if on_gpu else ("cpu", TINY, (1, 32))
    model = seeded(Block, sizes, device)
    x = torch.randn(*shape, sizes.width, device=device, dtype=torch.bfloat16)

    def step() -> list[torch.Tensor]:
        model.zero_grad()
        out = model(x)
        out.float().square().mean().backward()
        return [out.detach(), *(parameter.grad for parameter in model.parameters())]

    theirs = step()
    print(tilewright.torch.patch(model, emulates=not on_gpu))  # emulates: only because there is no GPU here
    ours = step()
    tilewright.torch.unpatch(model)  # the very modules, as before
    worst = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(ours, theirs, strict=True))
    print(f"largest difference of outputs and gradients: {worst:.4f} of the largest value")
    return worst


if __name__ == "__main__":
    main(sys.argv[1:])
