"""Buffers, streams, events and graphs against a stand-in driver."""

from __future__ import annotations

import numpy as np
import pytest
from fake_driver import HOPPER, CUresult, FakeDriver, context

from tilewright.backends.cuda import CudaBackend
from tilewright.backends.memory import Buffer
from tilewright.backends.stream import Stream
from tilewright.errors import DriverError


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver([HOPPER, HOPPER])


@pytest.fixture
def backend(driver: FakeDriver) -> CudaBackend:
    return CudaBackend(driver)


def test_what_is_written_is_read_back(backend: CudaBackend) -> None:
    values = np.arange(12, dtype=np.int16).reshape(3, 4)
    with Buffer.allocate(backend, 24) as buffer:
        buffer.write(values)
        assert (buffer.read((3, 4), np.int16) == values).all()


def test_pieces_are_written_and_read_at_their_places_and_none_past_the_end(backend: CudaBackend) -> None:
    values = np.arange(8, dtype=np.uint8)
    with Buffer.allocate(backend, 24) as buffer:
        for index in range(3):
            buffer.write(values + index, 8 * index)
        assert (buffer.read((8,), np.uint8, 16) == values + 2).all()
        with pytest.raises(ValueError, match="24 bytes from byte 17 on"):
            buffer.write(values, 17)
        with pytest.raises(ValueError, match="from byte 20 on"):
            buffer.read((8,), np.uint8, 20)


def test_fill_covers_odd_sizes_to_the_last_byte(backend: CudaBackend) -> None:
    with Buffer.allocate(backend, 11) as buffer:
        buffer.fill(0xA5A5A5A5)
        assert (buffer.read((11,), np.uint8) == 0xA5).all()


def test_more_bytes_than_the_buffer_has_are_refused(backend: CudaBackend) -> None:
    with Buffer.allocate(backend, 8) as buffer, pytest.raises(ValueError, match=r"16 bytes .* buffer of 8 bytes"):
        buffer.write(np.zeros(16, np.uint8))


def test_strided_values_are_refused(backend: CudaBackend) -> None:
    with Buffer.allocate(backend, 64) as buffer, pytest.raises(ValueError, match="strided"):
        buffer.write(np.zeros((4, 4), np.uint8)[:, ::2])


def test_memory_is_given_back_once_and_also_after_an_error(driver: FakeDriver, backend: CudaBackend) -> None:
    with pytest.raises(RuntimeError), Buffer.allocate(backend, 8) as buffer:
        raise RuntimeError
    buffer.free()
    assert len(driver.asked("cuMemFree")) == 1
    assert not driver.memory


def test_memory_is_allocated_in_its_devices_context(driver: FakeDriver, backend: CudaBackend) -> None:
    driver.make_current(0)
    Buffer.allocate(backend, 8, ordinal=1)
    assert driver.asked("cuCtxPushCurrent") == [(context(1),)]
    assert driver.cuCtxGetCurrent()[1] == context(0)


def test_capture_returns_a_graph_that_replays(driver: FakeDriver, backend: CudaBackend) -> None:
    with Stream(backend) as stream:
        ran = []
        graph = stream.capture(lambda: ran.append(1))
        stream.replay(graph)
        stream.replay(graph)
        assert ran == [1]
    names = [name for name, _ in driver.calls]
    assert names.count("cuGraphLaunch") == 2
    assert names.count("cuGraphDestroy") == names.count("cuGraphExecDestroy") == names.count("cuStreamDestroy") == 1


def test_failed_capture_leaves_the_stream_usable(driver: FakeDriver, backend: CudaBackend) -> None:
    def enqueue() -> None:
        raise KeyError("candidate")

    stream = Stream(backend)
    with pytest.raises(KeyError):
        stream.capture(enqueue)
    assert len(driver.asked("cuStreamEndCapture")) == 1


def test_capture_that_the_driver_refuses_is_a_driver_error(driver: FakeDriver, backend: CudaBackend) -> None:
    driver.refuse["cuStreamEndCapture"] = [CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED]
    with pytest.raises(DriverError, match="STREAM_CAPTURE_UNSUPPORTED"):
        Stream(backend).capture(lambda: None)


def test_elapsed_time_is_in_microseconds_and_uses_the_events_up(driver: FakeDriver, backend: CudaBackend) -> None:
    stream = Stream(backend)
    assert stream.elapsed_us(stream.record(), stream.record()) == 1500.0
    assert len(driver.asked("cuEventDestroy")) == len(driver.asked("cuEventCreate")) == 2


def test_closing_a_stream_of_a_lost_device_hides_no_earlier_error(driver: FakeDriver, backend: CudaBackend) -> None:
    driver.refuse["cuStreamSynchronize"] = [CUresult.CUDA_ERROR_ILLEGAL_ADDRESS]
    with pytest.raises(KeyError, match="first"), Stream(backend):
        raise KeyError("first")
