"""The warm path: from arrays to a packed call by two look-ups, and what is kept so that two are enough.

A Runner maps the metadata of arrays to a BoundPlan, a kernel on one device; the BoundPlan maps their addresses to a
packed call. A hit of both proves that this very call was checked before. A product of several launches with scratch
between them takes a longer way, behind the second look-up's miss. Knows nothing of configs or kernels, nor of what a
backend's handles are.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from tilewright.arrays.base import ADDRESS_MASK, UNKNOWN_ORDINAL, Adapter, asking
from tilewright.arrays.registry import BY_TYPE, adapter_of, common_adapter
from tilewright.arrays.untraced import untraced
from tilewright.backends.base import Backend, HostBackend
from tilewright.backends.steps import Work, clear
from tilewright.epilogue_form import WRITTEN, takes_array
from tilewright.epilogue_steps import Epilogue, as_epilogue
from tilewright.errors import UnsupportedError
from tilewright.fusing import Fusing
from tilewright.layout import check_addresses, check_out_address, copied, operands, row_major_strides
from tilewright.problem import Problem
from tilewright.tensor import Location, View

# A packed call is about 2 KB of host memory. One model's layers of one shape are hundreds of weights, and a server that
# sees every batch size has thousands of plans: 16384 calls over all of them stay under 40 MB.
MAX_CALLS = 16384

MAX_BOUND = 4096  # layouts that one runner remembers

Addresses = tuple[int, ...]


class Ledger:
    """All bound plans of one dispatcher: bounds their packed calls together, and drops their handles together."""

    def __init__(self) -> None:
        self._bound: weakref.WeakSet[BoundPlan] = weakref.WeakSet()
        self._runners: weakref.WeakSet[Runner] = weakref.WeakSet()  # those that callers keep as well
        self._num_calls = 0
        self._lock = threading.Lock()

    def add(self, bound: BoundPlan) -> None:
        with self._lock:
            self._bound.add(bound)

    def add_runner(self, runner: Runner) -> None:
        with self._lock:
            self._runners.add(runner)

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
        """Forget every call and every kernel."""
        with self._lock:
            self._num_calls = 0
            for bound in self._bound:
                bound.drop_handles()

    def renew_locks(self) -> None:
        """In a forked child: the threads that may have held the locks do not exist."""
        self._lock = threading.Lock()
        for bound in self._bound:
            bound.lock = threading.Lock()
        for runner in self._runners:
            runner.renew_lock()


class _Loaded(NamedTuple):
    """What a product comes down to, and the kernel of each step."""

    work: Work
    kernels: tuple[Any, ...]


class BoundPlan:
    """One plan on one device, for an out of one shape.

    `launch(call, stream)` enqueues what call_for() returned; after a hit of `calls` nothing else is needed. What is not
    there, enqueue() serves: calls that are met for the first time, and those of several steps, which never are.
    `work(operands)` is what the product comes down to when these of a and b are copied first; `needs_bytes` of
    a and of b say when they are (layout.copied).
    """

    def __init__(
        self,
        problem: Problem,
        out_shape: tuple[int, ...],
        ordinal: int,
        backend: Callable[[], Backend],
        work: Callable[[tuple[str, ...]], Work],
        ledger: Ledger,
        needs_bytes: tuple[int, int],
    ) -> None:
        self.problem = problem
        self.needs_bytes = needs_bytes
        self.out_shape = out_shape
        self.out_strides = row_major_strides(out_shape)
        self.out_dtype = problem.out_dtype
        self.ordinal = ordinal
        form = problem.epilogue
        self.names = ("a", "b", "out", *(form.names if form is not None else ()))
        self.num_numbers = 0 if form is None else len(form.numbers)
        # (a, b, out and what an epilogue needs) -> one packed call; (the same, scratch) -> one for each step
        self.calls: dict[Addresses, Any] = {}
        self.launch: Callable[[Any, int], None] = self._launch_unloaded
        self.lock = threading.Lock()
        self._backend = backend
        self._work = work
        self._loaded: dict[tuple[str, ...], _Loaded] = {}
        self._ledger = ledger
        ledger.add(self)

    def enqueue(self, addresses: Addresses, adapter: Adapter, stream: int) -> None:
        """Enqueue the product at addresses that `calls` does not have, with scratch from the adapter's allocator.

        Raises: what call_for() raises, and what the allocator raises.
        Cost: that of call_for(), once. Of several steps each time an allocation and a launch more, about 6 us.
        """
        first = copied(self.needs_bytes, addresses[0], addresses[1])
        if (loaded := self._loaded.get(first)) is None:
            self._check(addresses)  # before anything is compiled
            loaded = self._load(first)
        if not loaded.work.scratch:
            if loaded.work.cleared:
                self._enqueue_steps(loaded, addresses, 0, stream)
            else:
                self.launch(self.call_for(addresses), stream)
            return
        num_bytes = loaded.work.scratch_bytes
        held = adapter.scratch(num_bytes, self.ordinal)
        if held is not None:  # and is held until the last step is enqueued: then the stream's order protects it
            self._enqueue_steps(loaded, addresses, held[1], stream)
            return
        backend = self._backend()
        base = backend.allocate(num_bytes, self.ordinal, stream)
        try:
            self._enqueue_steps(loaded, addresses, base, stream)
        finally:
            backend.free(base, self.ordinal, stream)

    def call_for(self, addresses: Addresses) -> Any:
        """The packed call for these addresses of a, b and out, and what an epilogue needs, checked and remembered. Of a
        product that is one step.

        Raises: LayoutError: addresses that the kernel cannot serve. CompileError, DriverError: on the first use.
        Cost: the first one compiles or reads the cache and loads the kernel; each further one packs, about 10 us.
        """
        self._check(addresses)
        loaded = self._loaded.get(()) or self._load(())
        (call,) = self._pack(loaded, addresses, 0)
        self._remember(addresses, call)
        return call

    def _enqueue_steps(self, loaded: _Loaded, addresses: Addresses, base: int, stream: int) -> None:
        """The steps of a product with scratch at `base`."""
        key = (*addresses, base)
        calls = self.calls.get(key)
        if calls is None:
            self._check(addresses)
            calls = self._pack(loaded, addresses, base)
            self._remember(key, calls)
        if loaded.work.cleared:
            clear(self._backend(), loaded.work, self._named(loaded, addresses, base), self.ordinal, stream)
        for call in calls:
            self.launch(call, stream)

    def _check(self, addresses: Addresses) -> None:
        """Raises LayoutError: addresses that no kernel of the problem can serve."""
        check_addresses(self.problem, *addresses[: len(self.names) - self.num_numbers])

    def _named(self, loaded: _Loaded, addresses: Addresses, base: int) -> dict[str, int]:
        """What the steps' arguments call each address and number."""
        return {**dict(zip(self.names, addresses, strict=True)), **loaded.work.scratch_addresses(base)}

    def _pack(self, loaded: _Loaded, addresses: Addresses, base: int) -> tuple[Any, ...]:
        named = self._named(loaded, addresses, base)
        backend = self._backend()
        return tuple(
            backend.pack(kernel, step.launch, step.arguments, named)
            for kernel, step in zip(loaded.kernels, loaded.work.steps, strict=True)
        )

    def _remember(self, key: Addresses, packed: Any) -> None:
        self._ledger.count_call()
        self.calls[key] = packed

    def _load(self, copied: tuple[str, ...]) -> _Loaded:
        with self.lock:  # one thread compiles, the others of this plan wait for it
            found = self._loaded.get(copied)
            if found is None:
                backend, work = self._backend(), self._work(copied)
                kernels = tuple(backend.load(step.binary(), self.ordinal, step.launch) for step in work.steps)
                found = self._loaded[copied] = _Loaded(work, kernels)
                self.launch = backend.launch
        return found

    def _launch_unloaded(self, call: Any, stream: int) -> None:
        """What `launch` is until the backend is there."""
        self._backend().launch(call, stream)

    def drop_handles(self) -> None:
        """Forget the kernel and the calls, which the backend is about to drop; the next call loads again."""
        with self.lock:
            self._loaded.clear()
            self.calls.clear()
            self.launch = self._launch_unloaded


class EmptyPlan(BoundPlan):
    """A product without multiplications: no element to write, or zeros because k is 0. Loads and launches no kernel."""

    def enqueue(self, addresses: Addresses, adapter: Adapter, stream: int) -> None:
        """Enqueue the zeros. Nothing is read, so nothing is copied. Raises: what call_for() raises."""
        self.launch(self.call_for(addresses), stream)

    def call_for(self, addresses: Addresses) -> Any:
        """The memory to fill with zeros.

        Raises: LayoutError: an out with elements at an address where it cannot be.
        """
        memory = operands(self.problem, *addresses[:3])[2]
        if not memory.is_empty:
            check_out_address(self.problem, memory.address)
        return memory

    def _launch_unloaded(self, call: Any, stream: int) -> None:
        if not call.is_empty:
            for rows in call.matrices():
                self._backend().zero(
                    rows.address, rows.pitch_bytes, rows.row_bytes, rows.num_rows, self.ordinal, stream
                )


class Runner(ABC):
    """Runs products, each by the bound plan of its arrays' layout. Any number of threads may run one Runner.

    `backend` gives the one of arrays on GPUs, `host` that of arrays in host memory; each is asked when it is needed.
    """

    def __init__(self, backend: Callable[[], Backend], host: Callable[[], HostBackend]) -> None:
        self._bound: dict[Hashable, BoundPlan] = {}
        self._lock = threading.Lock()
        self._backend = backend
        self._host = host

    @untraced
    def run(self, a: Any, b: Any, out: Any | None = None, *, epilogue: Any | None = None) -> Any:
        """out = a x b on the arrays' device and their library's current stream; returns out before it is written (of
        JAX when it is).

        `epilogue`: values of tilewright.epilogue, applied to the sums before they are rounded.

        Shapes: a (..., m, k) or (k,), b (..., k, n) or (k,), out as matmul makes it, fresh in the library of a where
        none is given.
        Raises: ShapeError, DTypeError, LayoutError, UnsupportedError: arrays that are not served, before any launch.
        Cost: under 4 us over the backend's own launch for torch tensors that were met before.
        """
        if epilogue is not None:
            return self._run_fused(epilogue if type(epilogue) is Epilogue else as_epilogue(epilogue), a, b, out)
        kind = type(a)
        adapter = BY_TYPE.get(kind)
        if adapter is None:
            adapter_of(a, "a")
            return self.run(a, b, out)  # anew: a compiler that followed to here is out of the way by now
        if type(b) is not kind or (out is not None and type(out) is not kind):
            adapter = common_adapter(a, b, out)  # a look-up a type: arrays of several types, and types not met before
        key, addresses, stream = adapter.describe(a, b, out)
        waits = False
        if stream is not None:
            waits = adapter.waits
            if not adapter.names_device:
                key = (key, *(ordinal_of(self._backend(), address) for address in addresses))
        bound = self._bound.get(key)
        if bound is None:
            bound = self._admit(key, adapter, a, b, out)
        if out is None:
            out, address = adapter.empty(bound.out_shape, bound.out_strides, bound.out_dtype, bound.ordinal)
            addresses = (*addresses, address)
            written = None  # nobody has seen it before
        else:
            written = adapter.written
        call = bound.calls.get(addresses)
        if stream is None:
            stream = adapter.stream(bound.ordinal)
        if call is None:
            bound.enqueue(addresses, adapter, stream)
        else:
            bound.launch(call, stream)
        if written is not None:
            written((out,))
        if waits:
            self._backend().wait(stream, bound.ordinal)
        return out

    @untraced
    def _run_fused(self, epilogue: Epilogue, a: Any, b: Any, out: Any | None) -> Any:
        """run() with an epilogue: its arrays are a part of the layout, their addresses and its numbers of the call."""
        if not epilogue.steps:
            return self.run(a, b, out)
        kind = type(a)
        adapter = BY_TYPE.get(kind)
        if adapter is None:
            adapter_of(a, "a")
            return self._run_fused(epilogue, a, b, out)  # as run() does
        if type(b) is not kind or (out is not None and type(out) is not kind):
            adapter = common_adapter(a, b, out)
        key, addresses, stream = adapter.describe(a, b, out)
        facts: list[Hashable] = [key]
        further: list[int] = []
        written: list[Any] = []
        has_numbers = False
        for step in epilogue.steps:
            if step.number is not None:
                has_numbers = True
            if (array := step.array) is None:
                facts += (step.kind, step.option)
                continue
            is_written = step.kind in WRITTEN
            name = f"the array of {step.kind}"
            if type(array) is not kind and BY_TYPE.get(type(array)) is not adapter:
                _check_library(adapter, adapter_of(array, name), name)
            fact, address, own_stream = adapter.described(array, name, is_written)
            if own_stream is not None:
                _check_stream(stream, own_stream, name)
            facts += (step.kind, step.option, fact, address & ADDRESS_MASK)
            further.append(address)
            if is_written:
                written.append(array)
        key = tuple(facts)
        if stream is not None and not adapter.names_device:
            key = (key, *(ordinal_of(self._backend(), address) for address in (*addresses, *further)))
        bound = self._bound.get(key)
        if bound is None:
            bound = self._admit(key, adapter, a, b, out, epilogue)
        if out is None:
            out, address = adapter.empty(bound.out_shape, bound.out_strides, bound.out_dtype, bound.ordinal)
            addresses = (*addresses, address)
        else:
            written.append(out)
        addresses = (*addresses, *further, *epilogue.numbers) if has_numbers else (*addresses, *further)
        call = bound.calls.get(addresses)
        if stream is None:
            stream = adapter.stream(bound.ordinal)
        if call is None:
            bound.enqueue(addresses, adapter, stream)
        else:
            bound.launch(call, stream)
        if written and adapter.written is not None:
            adapter.written(tuple(written))
        if adapter.waits:
            self._backend().wait(stream, bound.ordinal)
        return out

    def _admit(
        self,
        key: Hashable,
        adapter: Adapter,
        a: Any,
        b: Any,
        out: Any | None,
        epilogue: Epilogue | None = None,
    ) -> BoundPlan:
        """The bound plan of a layout that is met for the first time. One thread at a time; nothing is compiled here."""
        with self._lock:
            found = self._bound.get(key)
            if found is None:
                views = views_of(self._backend, adapter, a, b, out)
                fusing = None if epilogue is None else fusing_of(self._backend, adapter, epilogue)
                found = self._bind(*views, fusing)
                if len(self._bound) >= MAX_BOUND:
                    del self._bound[next(iter(self._bound))]
                self._bound[key] = found
        return found

    @abstractmethod
    def _bind(self, a: View, b: View, out: View | None, fusing: Fusing | None) -> BoundPlan:
        """The bound plan for arrays of this layout, and an epilogue's.

        Raises: ShapeError, DTypeError, LayoutError, UnsupportedError, ConfigError: none can serve them.
        """

    def forget(self) -> None:
        """Drop what was remembered of layouts."""
        self._bound.clear()

    def renew_lock(self) -> None:
        """In a forked child: the thread that may have held the lock does not exist."""
        self._lock = threading.Lock()


@untraced
def views_of(
    backend: Callable[[], Backend], adapter: Adapter, a: Any, b: Any, out: Any | None
) -> tuple[View, View, View | None]:
    """The operands' metadata, each with the memory that holds it.

    Raises: UnsupportedError: an array in host memory, but for NumPy's; and what the adapter raises.
    """
    return (
        _located(backend, adapter, adapter.view(a, "a"), "a"),
        _located(backend, adapter, adapter.view(b, "b"), "b"),
        None if out is None else _located(backend, adapter, adapter.view(out, "out", is_written=True), "out"),
    )


@untraced
def fusing_of(backend: Callable[[], Backend], adapter: Adapter, epilogue: Epilogue) -> Fusing:
    """An epilogue with its arrays' metadata.

    Raises: UnsupportedError: an array of another library, or in host memory but for NumPy's; what the adapter raises.
    """
    views = []
    for step in epilogue.steps:
        if takes_array(step.kind, step.option):  # None in place of one is refused as an array
            array, name = step.array, f"the array of {step.kind}"
            _check_library(adapter, adapter_of(array, name), name)
            view = adapter.view(array, name, step.kind in WRITTEN)
            views.append(_located(backend, adapter, view, name))
    return Fusing(epilogue.structure, tuple(views))


def _check_library(adapter: Adapter, other: Adapter, name: str) -> None:
    if other is not adapter:
        raise UnsupportedError(
            asked=f"a of {adapter.library} and {name} of {other.library}",
            rule="the operands of one product belong to one library, whose stream orders them",
            works=f"convert it, for example with from_dlpack of {adapter.library}",
        )


def _check_stream(stream: int | None, own: int | None, name: str) -> None:
    """Raises UnsupportedError for an array that names another stream than a, b and out do."""
    if own is not None and own != stream:
        raise UnsupportedError(
            asked=f"{name} on stream {own}, and a, b and out on stream {stream}",
            rule="the operands of one product are ordered by one stream",
            works="make them on one stream, or synchronise and export them anew",
        )


def _located(backend: Callable[[], Backend], adapter: Adapter, view: View, name: str) -> View:
    if view.location.kind != "cuda":
        if adapter.is_emulated:
            return view
        # Not emulated: on a machine with a GPU a tensor left on the CPU is a mistake, not a wish for the emulator.
        raise UnsupportedError(
            asked=f"{name} on {view.location}",
            rule="kernels read and write the GPU's memory",
            works=(f"pass {asking(name, '.cuda()')}" if adapter.library == "torch" else f"copy {name} to the GPU")
            + "; NumPy arrays run in the emulator",
        )
    if view.location.ordinal != UNKNOWN_ORDINAL:
        return view
    location = Location("cuda", ordinal_of(backend(), view.address))
    return View(view.address, view.shape, view.strides, view.dtype, location)


def ordinal_of(backend: Backend, address: int) -> int:
    """The device that holds the address, by asking the driver.

    Raises: DriverError: no memory that the driver knows.
    """
    if address == 0:  # an array without elements may have no memory to ask about, and none is going to be read
        return 0
    return backend.ordinal_of(address)
