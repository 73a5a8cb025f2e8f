"""The real child where there is no GPU; what it does with one, test_tune_on_gpu.py shows."""

from __future__ import annotations

import os
import pickle

import pytest

from tilewright import device
from tilewright.backends.steps import Built, Scratch, Step, Work
from tilewright.config import Config
from tilewright.jit.source import Binary, Resources
from tilewright.kernels.hopper import HOPPER
from tilewright.packing import packed
from tilewright.tuning.child import Job
from tilewright.tuning.worker import Worker, WorkerLostError


def test_the_child_says_why_it_has_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with Worker() as worker, pytest.raises(WorkerLostError) as caught:
        worker.ask("facts", limit_s=60.0)
    assert caught.value.how == "died"
    assert "cuInit" in caught.value.text or "cuDevice" in caught.value.text or "device 0" in caught.value.text
    assert not worker.is_running


def test_a_program_that_is_no_child_is_told_with_its_last_words() -> None:
    with Worker(command=("sh", "-c", "echo out of luck; exit 3")) as worker, pytest.raises(WorkerLostError) as caught:
        worker.ask("facts", limit_s=60.0)
    assert (caught.value.how, caught.value.text) == ("died", "the process ended with status 3; out of luck")


def test_a_worker_leaves_no_open_files_and_no_process_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  of this process
    for _ in range(3):
        with Worker(command=("true",)) as worker, pytest.raises(WorkerLostError):
            worker.ask("facts", limit_s=60.0)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize("changes", [{}, {"dtype": "fp16", "out_dtype": "fp32", "b_major": "n"}, {"n": 255}], ids=str)
def test_a_job_and_its_problem_travel(changes: dict[str, object]) -> None:
    problem = packed(**({"m": 256, "n": 256, "k": 512} | changes))  # type: ignore[arg-type]
    assert problem.dtype.numpy.itemsize == 2  # fills what it caches
    launch = HOPPER.launch(problem, Config(), device.preset("h200"))
    binary = Binary(
        "d", "n", "e", "sm_90a", "c", b"cubin", "ptx", "log", Resources(168, 0, 0, 0, 0, 16), (), 0.0, False
    )
    step = Step(
        name="hopper", binary=Built(binary), launch=launch, arguments=HOPPER.arguments(problem, Config(), launch)
    )
    job = Job(3, Work(steps=(step,), scratch=(Scratch("scratch_slices", 4096),)))
    assert pickle.loads(pickle.dumps((problem, job))) == (problem, job)
