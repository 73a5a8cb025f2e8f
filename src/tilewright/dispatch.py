"""matmul(a, b) and plan(a, b): the doors through which arrays come in.

Knows which plan serves which arrays and owns all plans of the process; what a plan is, plan.py knows, and how a call
runs, calls.py.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, overload

from tilewright import device as devices
from tilewright import dtypes
from tilewright.arrays.registry import common_adapter
from tilewright.arrays.untraced import untraced
from tilewright.backends.base import Backend, HostBackend
from tilewright.calls import BoundPlan, Ledger, Runner, fusing_of, views_of
from tilewright.config import Config
from tilewright.device import Device
from tilewright.dtypes import DType, DTypeLike
from tilewright.epilogue_steps import Epilogue, Step, as_epilogue
from tilewright.errors import UnsupportedError
from tilewright.fusing import Fusing, folded_shape
from tilewright.layout import out_shape, problem_of
from tilewright.order import Reduction, checked_reduction
from tilewright.packing import packed_form
from tilewright.plan import Plan, host_backend
from tilewright.planning import ConfigChanges, checked_changes, checked_flag, plan_problem
from tilewright.problem import Problem
from tilewright.tensor import View

MAX_CHOICES = 64  # configs, SM counts and reductions that callers name themselves, each with plans of its own
FAST: Reduction = "fast"


_dispatchers: weakref.WeakSet[Dispatcher] = weakref.WeakSet()  # all of this process, for a child that is forked


class _Products(Runner):
    """All products with one choice of config and num_sms, each layout with a plan that is made when it is first met."""

    def __init__(
        self,
        owner: Dispatcher,
        config: ConfigChanges | None,
        num_sms: int | None,
        use_records: bool = True,
        reduction: Reduction = FAST,
        inputs: DType | None = None,
        sums: DType | None = None,
        out_dtype: DType | None = None,
    ) -> None:
        super().__init__(owner.backend, owner.host)
        owner._ledger.add_runner(self)
        self._owner = owner
        self._config = config
        self._num_sms = num_sms
        self._use_records = use_records
        self._reduction = reduction
        self._inputs = inputs
        self._sums = sums
        self._out_dtype = out_dtype

    def _bind(self, a: View, b: View, out: View | None, fusing: Fusing | None) -> BoundPlan:
        plan = self._owner.plan_views(
            a,
            b,
            out,
            self._out_dtype,
            self._config,
            self._num_sms,
            self._use_records,
            self._reduction,
            self._inputs,
            self._sums,
            fusing,
        )
        return plan.bind(a.location, folded_shape(out_shape(a.shape, b.shape), fusing))


class Dispatcher:
    """The plans of one backend. The process has one on the CUDA driver; a test makes its own on whatever it likes.

    `make_backend` is called at the first product, never before; `host` at the first one of NumPy arrays.
    """

    def __init__(self, make_backend: Callable[[], Backend], host: Callable[[], HostBackend] = host_backend) -> None:
        self._make_backend = make_backend
        self.host = host
        self._live: Backend | None = None
        self._ledger = Ledger()
        self._chosen: dict[Hashable, _Products] = {}
        self._products = _Products(self, None, None)
        self._lock = threading.Lock()
        _dispatchers.add(self)

    @untraced
    def matmul(
        self,
        a: Any,
        b: Any,
        out: Any | None = None,
        *,
        out_dtype: DTypeLike | None = None,
        config: ConfigChanges | None = None,
        num_sms: int | None = None,
        use_records: bool = True,
        reduction: Reduction = FAST,
        inputs: DTypeLike | None = None,
        sums: DTypeLike | None = None,
        epilogue: Step | Epilogue | None = None,
    ) -> Any:
        """The matrix product a x b, as torch.matmul; enqueued on the current stream of their device.

        Arrays of bf16 or fp16 are multiplied with fp32 sums; of int8 with int32 sums, which wrap past 2^31; of fp32
        with `inputs` "tf32" alone: each element is rounded to 11 bits first, a relative error up to 2^-11, and sums are
        fp32. `sums` "fp16" of fp16 arrays: sums are rounded to fp16 with every 16 products, and infinite past 65504.
        `out_dtype` of a fresh out, or the type of a given one: bf16, fp16 or fp32 of any of these inputs (fp16 or fp32
        of sums in fp16; of int8 int32). 16 bits are rounded to nearest even, once; fp16 is infinite from 65520 on.
        `config` is a Config, or changes by field name to the one of record (tilewright.tune) or else of the model;
        `num_sms` leaves the other SMs free for something else. `use_records` False: no record is asked.
        `reduction` "invariant": the bits of a row of out depend on its row of a and on b alone, not on the other rows,
        on how many there are, on `num_sms` or on the batch; plan().explain() prints what that costs. "fast": each shape
        has its own order of summation. Either gives the same bits in every run.
        `epilogue`: values of tilewright.epilogue in their order, such as Alpha(0.5) | Bias(b) | Gelu(): what becomes of
        the sums, in fp32, before they are rounded once to the type of out; of int8 and of sums in fp16 there is none. A
        gated one halves the columns of out.
        Shapes: a (..., m, k), b (..., k, n), out (..., m, n), unasked in the inputs' dtype; batches are broadcast, and
        a vector (k,) on either side is a row or a column that out lacks. Of each matrix one of its two dimensions is
        contiguous. Where rows or matrices of a or b do not start at multiples of 16 bytes, or rows
        overlap or are expanded, that operand is copied first, into scratch of the arrays' library; few tiles with a
        long k may be summed in slices there, and a second kernel adds them up; else it is one launch.
        Raises: ShapeError, DTypeError, LayoutError, UnsupportedError: arrays that are not served. ConfigError: a config
        that cannot run, with every reason. All before any launch.
        Cost: the first call of a layout chooses and compiles, 0.2 to 4 s; later ones a few microseconds.
        """
        if (
            config is None
            and num_sms is None
            and use_records is True
            and reduction is FAST  # what a literal is
            and inputs is sums is out_dtype is None
        ):
            return self._products.run(a, b, out, epilogue=epilogue)
        flag = checked_flag("use_records", use_records)
        products = self._products_of(config, num_sms, flag, reduction, (inputs, sums, out_dtype))
        return products.run(a, b, out, epilogue=epilogue)

    @overload
    def plan(
        self,
        a: Problem,
        b: None = None,
        out: None = None,
        *,
        device: str | Device = "h200",
        config: ConfigChanges | None = None,
        num_sms: int | None = None,
        use_records: bool = True,
        reduction: Reduction = FAST,
        epilogue: Step | Epilogue | None = None,
    ) -> Plan: ...
    @overload
    def plan(
        self,
        a: Any,
        b: Any,
        out: Any | None = None,
        *,
        out_dtype: DTypeLike | None = None,
        config: ConfigChanges | None = None,
        num_sms: int | None = None,
        use_records: bool = True,
        reduction: Reduction = FAST,
        inputs: DTypeLike | None = None,
        sums: DTypeLike | None = None,
        epilogue: Step | Epilogue | None = None,
    ) -> Plan: ...
    @untraced
    def plan(
        self,
        a: Any,
        b: Any = None,
        out: Any | None = None,
        *,
        out_dtype: DTypeLike | None = None,
        device: str | Device | None = None,
        config: ConfigChanges | None = None,
        num_sms: int | None = None,
        use_records: bool = True,
        reduction: Reduction = FAST,
        inputs: DTypeLike | None = None,
        sums: DTypeLike | None = None,
        epilogue: Step | Epilogue | None = None,
    ) -> Plan:
        """The plan of a product: plan(a, b) for arrays on a GPU, plan(problem, device="h200") with no GPU at all.

        `device` is a preset's name or a Device and goes with a Problem; arrays know theirs. `config`, `num_sms`,
        `use_records`, `reduction`, `inputs`, `sums` and `epilogue` are those of matmul(); run() is given an epilogue of
        the same form. With a Problem, names of element types may stand for its arrays: epilogue=Bias("bf16").
        Raises: what matmul() raises; UnsupportedError: a device without kernels, or an argument of the other form.
        Cost: microseconds to milliseconds; the kernel is compiled when it is first needed.
        """
        use_records = checked_flag("use_records", use_records)
        if epilogue is not None and not as_epilogue(epilogue).steps:
            epilogue = None
        if isinstance(a, Problem):
            if any(each is not None for each in (b, out, out_dtype, inputs, sums)):
                raise UnsupportedError(
                    asked="a plan of a Problem with b, out, out_dtype, inputs or sums",
                    rule="a Problem holds all of them",
                    works="pass plan(problem, device=...) or plan(a, b, out)",
                )
            if epilogue is not None:
                a = dataclasses.replace(a, epilogue=packed_form(epilogue, a.m, a.n, a.batch))
            return self._plan_problem(a, _device_of(device), config, num_sms, use_records, reduction)
        if device is not None:
            raise UnsupportedError(
                asked=f"a plan of arrays for {device}",
                rule="arrays are planned for the device that holds them",
                works="leave device out, or pass a Problem",
            )
        adapter = common_adapter(a, b, out)
        views = views_of(self.backend, adapter, a, b, out)
        fusing = None if epilogue is None else fusing_of(self.backend, adapter, as_epilogue(epilogue))
        wanted = None if out_dtype is None else dtypes.by_name(out_dtype)
        return self.plan_views(*views, wanted, config, num_sms, use_records, reduction, inputs, sums, fusing)

    @untraced
    def plan_views(
        self,
        a: View,
        b: View,
        out: View | None,
        out_dtype: DType | None,
        config: ConfigChanges | None,
        num_sms: int | None,
        use_records: bool = True,
        reduction: Reduction = FAST,
        inputs: DTypeLike | None = None,
        sums: DTypeLike | None = None,
        fusing: Fusing | None = None,
    ) -> Plan:
        """The plan for arrays of this layout on the device that holds them."""
        problem = problem_of(a, b, out, out_dtype, inputs, sums, fusing)
        backend = self.host() if a.location.kind == "host" else self.backend()
        return self._plan_problem(problem, backend.device(a.location.ordinal), config, num_sms, use_records, reduction)

    def _plan_problem(
        self,
        problem: Problem,
        device: Device,
        config: ConfigChanges | None,
        num_sms: int | None,
        use_records: bool,
        reduction: Reduction,
    ) -> Plan:
        return plan_problem(
            problem,
            device,
            backend=self.backend,
            ledger=self._ledger,
            host=self.host,
            config=config,
            num_sms=num_sms,
            use_records=use_records,
            reduction=reduction,
        )

    def backend(self) -> Backend:
        """The backend, made on first use.

        Raises: DriverError, UnsupportedError: what keeps the machine from running anything.
        """
        if self._live is None:
            self._live = self._make_backend()
        return self._live

    def device_of(self, ordinal: int) -> Device:
        """The GPU with this ordinal, as a value.

        Raises: DriverError, UnsupportedError: no driver, no such GPU.
        """
        return self.backend().device(ordinal)

    def clear(self) -> None:
        """Drop every plan that matmul remembers, and every kernel and context; later calls make them anew.

        Not while another thread is inside matmul or run: it may be launching what this unloads.
        """
        self._products.forget()
        self._chosen.clear()
        self._ledger.drop_handles()
        if self._live is not None:
            self._live.clear()

    def forget_choices(self) -> None:
        """Drop which plan serves which arrays, so that new records are asked; kernels and callers' plans stay."""
        self._products.forget()
        self._chosen.clear()

    def forget_after_fork(self) -> None:
        """In a forked child: its parent's handles mean nothing here, and nobody is left to release a lock."""
        self._lock = threading.Lock()
        self._live = None
        self._products.forget()
        self._chosen.clear()
        self._ledger.renew_locks()
        self._ledger.drop_handles()

    def _products_of(
        self,
        config: ConfigChanges | None,
        num_sms: int | None,
        use_records: bool,
        reduction: Reduction,
        types: tuple[DTypeLike | None, ...],
    ) -> _Products:
        """The plans of a choice that the caller named. `types`: of inputs, sums and out."""
        reduction = checked_reduction(reduction)
        kinds = tuple(None if each is None else dtypes.by_name(each) for each in types)
        if config is None and num_sms is None and use_records and reduction == FAST and kinds == (None, None, None):
            return self._products
        named = _named_values(checked_changes(config))
        words = tuple(each and each.name for each in kinds)
        choice = (named, type(num_sms), num_sms, use_records, reduction, words)
        try:
            found = self._chosen.get(choice)
        except TypeError:  # a value that cannot be a key is no legal value either: planning refuses it with a reason
            return _Products(self, config, num_sms, use_records, reduction, *kinds)
        if found is None:
            with self._lock:
                if len(self._chosen) >= MAX_CHOICES:
                    self._chosen.clear()
                made = _Products(self, config, num_sms, use_records, reduction, *kinds)
                found = self._chosen.setdefault(choice, made)
        return found


def _device_of(device: object) -> Device:
    """The device that a Problem is planned for.

    Raises: UnsupportedError: neither a preset's name nor a Device: an ordinal names no kind of GPU.
    """
    if device is None:
        return devices.preset("h200")
    if isinstance(device, str):
        return devices.preset(device)
    if not isinstance(device, Device):
        raise UnsupportedError(
            asked=f"device {device!r}",
            rule=f"a Problem is planned for a Device, or for one of the presets {', '.join(devices.PRESETS)}",
            works="pass device='h200', or plan(a, b) with arrays on the GPU",
        )
    return device


def _named_values(config: ConfigChanges | None) -> Hashable:
    """A key for the config. With the values' types: True and 1 are equal and not equally legal."""
    if config is None:
        return None
    if isinstance(config, Config):
        values = tuple(getattr(config, name) for name in config.__dataclass_fields__)
        return type(config), values, tuple(map(type, values))
    return tuple((name, type(value), value) for name, value in config.items())


def _cuda_backend() -> Backend:
    from tilewright.backends import cuda  # here: planning and refusing must work on a machine without the bindings

    return cuda.backend()


def _forget_after_fork() -> None:
    for dispatcher in _dispatchers:
        dispatcher.forget_after_fork()


os.register_at_fork(after_in_child=_forget_after_fork)
_process = Dispatcher(_cuda_backend)

matmul = _process.matmul
plan = _process.plan
device_of = _process.device_of
backend = _process.backend
clear = _process.clear
forget_choices = _process.forget_choices
