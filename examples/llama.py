"""A decoder block as Llama 3 has it, in plain PyTorch: nothing here knows tilewright."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    """Widths of one block; by default those of Llama 3 8B."""

    width: int = 4096
    heads: int = 32
    kv_heads: int = 8
    inner: int = 14336


TINY = Sizes(width=64, heads=4, kv_heads=2, inner=128)


class MLP(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate = nn.Linear(sizes.width, sizes.inner, bias=False)
        self.up = nn.Linear(sizes.width, sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.head = sizes.width // sizes.heads
        self.query = nn.Linear(sizes.width, sizes.heads * self.head, bias=False)
        self.key = nn.Linear(sizes.width, sizes.kv_heads * self.head, bias=False)
        self.value = nn.Linear(sizes.width, sizes.kv_heads * self.head, bias=False)
        self.out = nn.Linear(sizes.heads * self.head, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        query, key, value = (
            layer(x).view(batch, tokens, -1, self.head).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        query, key = rotated(query), rotated(key)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, -1))


class Block(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.RMSNorm(sizes.width), nn.RMSNorm(sizes.width)
        self.attention, self.mlp = Attention(sizes), MLP(sizes)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))


def rotated(x: Tensor) -> Tensor:
    """Rotary position embedding of (batch, heads, tokens, head), pairs being the two halves of a head."""
    half = x.shape[-1] // 2
    frequencies = 500000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.outer(torch.arange(x.shape[-2], device=x.device, dtype=torch.float32), frequencies)
    first, second = x.float().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


def seeded(kind: type[nn.Module], sizes: Sizes, device: str, seed: int = 0) -> nn.Module:
    """A module of bf16 with the same random weights each time."""
    torch.manual_seed(seed)
    with torch.device(device):
        return kind(sizes).to(torch.bfloat16)
