"""A training loop on tilewright, with the weights' gradients collected in fp32 over several backwards.

python examples/train.py          # a tiny MLP on the CPU, in the emulator
python examples/train.py --gpu    # the MLP of Llama 3 8B
"""

from __future__ import annotations

import sys

import torch
from llama import MLP, TINY, Sizes, seeded

import tilewright


def main(words: list[str], steps: int = 4, micro_batches: int = 2) -> list[float]:
    """The loss of each step."""
    on_gpu = "--gpu" in words
    device, sizes, rows = ("cuda", Sizes(), 4096) if on_gpu else ("cpu", TINY, 32)
    model = seeded(MLP, sizes, device)
    tilewright.torch.patch(model, accumulates=True, emulates=not on_gpu)
    for weight in model.parameters():  # with accumulates, backward adds to these and leaves .grad alone
        weight.main_grad = torch.zeros_like(weight, dtype=torch.float32)
    x = torch.randn(rows, sizes.width, device=device, dtype=torch.bfloat16)
    target = torch.randn_like(x)
    losses = []
    for _ in range(steps):
        loss = torch.zeros((), device=device)
        for x_part, target_part in zip(x.chunk(micro_batches), target.chunk(micro_batches), strict=True):
            part = (model(x_part) - target_part).float().square().mean() / micro_batches
            part.backward()
            loss += part.detach()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.5 * weight.main_grad.to(weight.dtype)
                weight.main_grad.zero_()
        losses.append(float(loss))
    print("losses:", " ".join(f"{loss:.4f}" for loss in losses))
    return losses


if __name__ == "__main__":
    main(sys.argv[1:])
