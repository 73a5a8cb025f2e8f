"""The same matmul on CuPy, JAX, DLPack and NumPy arrays: no copy, on the stream of their library.

python examples/other_arrays.py          # NumPy, in the emulator
python examples/other_arrays.py --gpu    # and whichever of CuPy, JAX and torch's DLPack there are
"""

from __future__ import annotations

import importlib.util
import sys

import ml_dtypes
import numpy as np

import tilewright


class Exported:
    """An array of any library, of which nothing is known but that it speaks DLPack."""

    def __init__(self, array: object) -> None:
        self._array = array

    def __dlpack__(self, **asked: object) -> object:
        return self._array.__dlpack__(**asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def main(words: list[str]) -> list[str]:
    """The libraries whose product was right."""
    on_gpu = "--gpu" in words
    size = 4096 if on_gpu else 64
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, (size, size)).astype(np.float16) for _ in range(2))
    expected = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)
    right = []

    def check(library: str, product: object) -> None:
        assert np.array_equal(np.asarray(product), expected), library
        right.append(library)

    if not on_gpu:
        check("NumPy", tilewright.matmul(a, b))  # the emulator runs the kernel's PTX on this CPU
        bf16 = tilewright.matmul(a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16))
        check("NumPy's bf16", bf16.astype(np.float16))
    if on_gpu and importlib.util.find_spec("cupy"):
        import cupy

        with cupy.cuda.Stream(non_blocking=True):  # the product runs there too
            check("CuPy", cupy.asnumpy(tilewright.matmul(cupy.asarray(a), cupy.asarray(b))))
    if on_gpu and importlib.util.find_spec("jax"):
        import jax.numpy as jnp

        check("JAX", tilewright.matmul(jnp.asarray(a), jnp.asarray(b)))  # outside of jit, which is not served
    if on_gpu and importlib.util.find_spec("torch"):
        import torch

        out = torch.empty(size, size, dtype=torch.float16, device="cuda")
        x, y = (Exported(torch.from_numpy(each).cuda()) for each in (a, b))
        tilewright.matmul(x, y, Exported(out))  # DLPack has no allocator: out is given
        check("DLPack", out.cpu().numpy())
    print("right:", ", ".join(right))
    return right


if __name__ == "__main__":
    main(sys.argv[1:])
