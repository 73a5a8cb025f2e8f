"""A plan's kernel on one device, and its packed calls by the addresses they were packed for.

Knows when a call must be checked (once for each triple of addresses) and how many are kept; knows nothing of arrays,
of the choice of a config, or of what a backend's handles are.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from tilewright.backends.base import Argument, Backend, Launch
from tilewright.errors import ConfigError, UnsupportedError
from tilewright.jit.source import Binary
from tilewright.layout import check_addresses, operands
from tilewright.problem import Problem

# A packed call is about 2 KB of host memory. One model's layers of one shape are hundreds of weights; all plans of a
# server that sees every batch size are thousands of calls: 16384 of them stay under 40 MB.
MAX_CALLS = 16384

# Compute capabilities with a family in the catalog. An exact list: sm_90a code runs on 9.0 and on nothing newer.
SUPPORTED_SMS: tuple[tuple[int, int], ...] = ((9, 0),)

Addresses = tuple[int, ...]


def check_supported(name: str, sm: tuple[int, int]) -> None:
    """Raises UnsupportedError for a device that no kernel family runs on, before anything is compiled for it."""
    if sm not in SUPPORTED_SMS:
        served = ", ".join(f"{major}.{minor}" for major, minor in SUPPORTED_SMS)
        raise UnsupportedError(
            asked=f"{name} with compute capability {sm[0]}.{sm[1]}",
            rule=f"kernels are written for compute capability {served} (wgmma and TMA)",
            works="use an H100, H200 or H20, or torch.matmul on this device",
        )


class Ledger:
    """All bound plans of one dispatcher: bounds their packed calls together, and drops their handles together."""

    def __init__(self) -> None:
        self._bound: weakref.WeakSet[BoundPlan] = weakref.WeakSet()
        self._num_calls = 0
        self._lock = threading.Lock()

    def add(self, bound: BoundPlan) -> None:
        with self._lock:
            self._bound.add(bound)

    def count_call(self) -> None:
        """Note one more packed call; at the limit all are forgotten, and each is packed again when it is next met."""
        with self._lock:
            self._num_calls += 1
            if self._num_calls < MAX_CALLS:
                return
            self._num_calls = 0
            for bound in self._bound:
                bound.calls.clear()

    def drop_handles(self) -> None:
        """Forget every call and kernel. Locks are new as well: in a forked child their holders do not exist."""
        self._lock = threading.Lock()
        self._num_calls = 0
        for bound in self._bound:
            bound.drop_handles()


class BoundPlan:
    """One plan on one device.

    `launch(call, stream)` enqueues what call_for() returned; on a hit of `calls` nothing else is needed.
    """

    def __init__(
        self,
        problem: Problem,
        ordinal: int,
        backend: Callable[[], Backend],
        binary: Callable[[], Binary],
        launch: Launch,
        arguments: tuple[Argument, ...],
        ledger: Ledger,
    ) -> None:
        self.problem = problem
        self.ordinal = ordinal
        self.calls: dict[Addresses, Any] = {}
        self.launch: Callable[[Any, int], None] = self._launch_first
        self._backend = backend
        self._binary = binary
        self._shape = launch
        self._arguments = arguments
        self._kernel: Any = None
        self._lock = threading.Lock()
        self._ledger = ledger
        ledger.add(self)

    def call_for(self, addresses: Addresses) -> Any:
        """The packed call for these addresses of a, b and out, checked and remembered.

        Raises: LayoutError: addresses that the kernel cannot serve. CompileError, DriverError: on the first use.
        Cost: the first one compiles or reads the cache and loads the kernel; each further one packs, about 10 us.
        """
        a, b, out = addresses
        check_addresses(self.problem, a, b, out)
        backend = self._backend()
        kernel = self._load(backend)
        call = backend.pack(kernel, self._shape, self._arguments, {"a": a, "b": b, "out": out})
        self._ledger.count_call()
        self.calls[addresses] = call
        return call

    def _load(self, backend: Backend) -> Any:
        if self._kernel is None:
            with self._lock:  # one thread compiles, the others of this plan wait for it
                if self._kernel is None:
                    self._kernel = backend.load(self._binary(), self.ordinal, self._shape)
                    self.launch = backend.launch
        return self._kernel

    def _launch_first(self, call: Any, stream: int) -> None:
        self._backend().launch(call, stream)

    def drop_handles(self) -> None:
        """Forget the kernel and the calls, which the backend is about to drop; the next call loads again."""
        self._lock = threading.Lock()
        self._kernel = None
        self.calls.clear()
        self.launch = self._launch_first


class EmptyPlan(BoundPlan):
    """A product without multiplications: no element to write, or zeros because k is 0. Loads and launches no kernel."""

    def call_for(self, addresses: Addresses) -> Any:
        """The memory to fill with zeros."""
        return operands(self.problem, *addresses)[2]

    def _launch_first(self, call: Any, stream: int) -> None:
        if not call.is_empty:
            self._backend().zero(call.address, call.pitch_bytes, call.row_bytes, call.num_rows, self.ordinal, stream)


def check_num_sms(num_sms: object, limit: int, config: str) -> int | None:
    """`num_sms` itself.

    Raises: ConfigError: no whole number from 1 to the device's SMs.
    """
    if num_sms is None:
        return None
    if isinstance(num_sms, bool) or not isinstance(num_sms, int) or not 1 <= num_sms <= limit:
        raise ConfigError(config, [f"num_sms = {num_sms!r} is not a whole number from 1 to {limit}, the device's SMs"])
    return num_sms
