"""The CUDA backend on a real device: what no stand-in can show."""

from __future__ import annotations

import threading

import pytest

from tilewright.backends.cuda import CudaBackend, backend
from tilewright.bench.verify import verify_without_torch
from tilewright.errors import TilewrightError
from tilewright.packing import packed

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cuda() -> CudaBackend:
    try:
        found = backend()
        if found.device(0).sm != (9, 0):
            pytest.skip(f"needs compute capability 9.0; this is {found.device(0)}")
    except TilewrightError as error:
        pytest.skip(f"no usable GPU: {error}")
    return found


def test_attributes_are_those_of_a_hopper(cuda: CudaBackend) -> None:
    device = cuda.device(0)
    assert device.smem_per_cta_bytes == 227 * 1024
    assert device.num_sms > 0


def test_small_product_of_whole_numbers_is_exact(cuda: CudaBackend) -> None:
    verdict = verify_without_torch(packed(130, 72, 200), kind="integer")
    assert verdict.ok, verdict


def test_thread_that_never_used_cuda_gets_the_right_product(cuda: CudaBackend) -> None:
    verdicts = []
    thread = threading.Thread(target=lambda: verdicts.append(verify_without_torch(packed(64, 64, 64))))
    thread.start()
    thread.join()
    assert verdicts[0].ok, verdicts[0]


def test_product_is_right_again_after_every_handle_was_dropped(cuda: CudaBackend) -> None:
    import tilewright  # here: the package's face is imported only where a GPU is

    tilewright.clear()
    verdict = verify_without_torch(packed(64, 64, 64), kind="integer")
    assert verdict.ok, verdict
