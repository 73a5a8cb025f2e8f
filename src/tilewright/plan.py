"""A Plan: all of one product that does not depend on addresses, its steps and its reasons (explain.py).

Knows how a problem and a config become binaries, launches and arguments, in their order. How the config came to be
chosen, planning.py knows. Knows nothing of arrays beyond what Runner does; needs no GPU until run().
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

from tilewright import model
from tilewright.agreement import check_agrees
from tilewright.backends.base import Argument, Backend, HostBackend
from tilewright.backends.steps import Scratch, Step, Work
from tilewright.calls import BoundPlan, EmptyPlan, Ledger, Runner
from tilewright.choice import choose
from tilewright.config import Config
from tilewright.device import Device
from tilewright.emulated_time import LIMIT_S, affordable, emulated_s, too_long
from tilewright.epilogue_form import REDUCED, UP
from tilewright.errors import UnsupportedError
from tilewright.explain import Copies, Explanation, Sums
from tilewright.fusing import Fusing, folded_shape, rows_of
from tilewright.jit.build import build, warn_of_flaws
from tilewright.jit.source import Binary, Source
from tilewright.kernel_problem import ZEROS, has_no_sums, kernel_problem
from tilewright.kernels import catalog, product, repack, sums
from tilewright.kernels.family import Family, with_inputs_exchanged, with_operands_named
from tilewright.kernels.render import render
from tilewright.layout import out_shape, problem_of
from tilewright.model import Prediction
from tilewright.order import Reduction
from tilewright.problem import Problem
from tilewright.records import Record
from tilewright.tensor import Location, Rows, View


@cache
def host_backend() -> HostBackend:
    """The process's emulator, for arrays in host memory. Says so once: a result that came from a GPU and one that did
    not look the same.
    """
    from tilewright.backends.emulated import emulated  # here: products on a GPU never load the emulator

    backend = emulated(limit_s=LIMIT_S)
    warnings.warn(
        f"arrays in host memory are multiplied by the emulator: the PTX of {backend.model.name}'s kernel on this CPU; "
        "tilewright.Emulator also checks the kernel and does not say this",
        stacklevel=2,
    )
    return backend


def _served(source: Source) -> Binary:
    """The compiled unit, with a warning of its flaws: no product fails for eight bytes of spills."""
    binary = build(source)
    warn_of_flaws(binary)
    return binary


class Plan(Runner):
    """One product, planned: the kernel, how it is launched, and why. run(a, b, out) enqueues it.

    Holds no address and no stream, so it serves any arrays of its layout, on any device of its compute capability.
    """

    def __init__(
        self,
        problem: Problem,
        device: Device,
        family: Family,
        config: Config,
        *,
        why: str,
        num_sms: int | None,
        backend: Callable[[], Backend],
        ledger: Ledger,
        host: Callable[[], HostBackend] = host_backend,
        record: Record | None = None,
        use_records: bool = True,
        reduction: Reduction = "fast",
    ) -> None:
        """`use_records`: whether other choices that this plan tells of ask them, as its own did.

        Raises: ConfigError: the config cannot run the problem on the device; with every reason.
        """
        super().__init__(backend, host)
        self.problem = problem
        self.device = device
        self.family = family
        self.config = config
        self.why = why
        self.record = record
        self.num_sms = num_sms
        self.reduction = reduction
        self._use_records = use_records
        self._ledger = ledger
        ledger.add_runner(self)
        self._copied = () if problem.is_empty else config.copied(problem)
        self._kernel_problem = kernel_problem(problem, self._copied)
        config.check(self._kernel_problem, device)
        self.launch = family.launch(self._kernel_problem, config, device, num_sms)
        self.arguments = self._arguments(self._copied)
        self._binary: Binary | None = None
        self._repack_binary: Binary | None = None
        self._sums_binary: Binary | None = None
        self._by_place: dict[tuple[Location, tuple[int, ...]], BoundPlan] = {}

    @property
    def prediction(self) -> Prediction:
        """The model's time for this kernel, term by term; without the copies before it."""
        return model.predict(self.family, self._kernel_problem, self.config, self.device, self.num_sms)

    @property
    def binary(self) -> Binary:
        """The compiled kernel. Cost: the first use compiles it or reads the cache; no driver is needed.

        Raises: CompileError: it does not compile. Of one that spills, or whose wgmma ptxas serialised, a
        FlawedKernelWarning says so: another release of the compiler may do that to any kernel, and it is slower and not
        wrong.
        """
        if self._binary is None:
            self._binary = _served(render(self.family, self._kernel_problem, self.config, self.device))
        return self._binary

    @property
    def sources(self) -> tuple[Source, ...]:
        """The units of all its steps: what a machine without a compiler has to be given."""
        copying = (repack.source(self.problem, self.device),) if self._copied else ()
        return (*copying, *product.sources(self.family, self._kernel_problem, self.config, self.device))

    @property
    def repack_binary(self) -> Binary:
        """The compiled copy of operands, where there is one. Cost and what it raises: as `binary`."""
        if self._repack_binary is None:
            self._repack_binary = _served(repack.source(self.problem, self.device))
        return self._repack_binary

    @property
    def sums_binary(self) -> Binary:
        """The compiled sum of slices, where there are such. Cost and what it raises: as `binary`."""
        if self._sums_binary is None:
            self._sums_binary = _served(sums.source(self._kernel_problem, self.device))
        return self._sums_binary

    @property
    def copies(self) -> Copies | None:
        """The copy of operands before the product, where the problem needs one; with the model's time."""
        operands = self._copied
        if not operands:
            return None
        read_bytes, written_bytes = repack.moved_bytes(self.problem, operands)
        return Copies(
            operands=operands,
            reader=self.config.reader,
            launch=repack.launch(self.problem, operands, self.device, self.num_sms),
            read_bytes=read_bytes,
            written_bytes=written_bytes,
            scratch_bytes=Work(steps=(), scratch=self._copies_scratch(operands)).scratch_bytes,
            predicted_us=model.repack_us(self.problem, operands, self.device),
        )

    @property
    def sums(self) -> Sums | None:
        """What adds the slices up, where the config has some; with the model's time, which `prediction` contains."""
        if self.config.slices == 1:
            return None
        read_bytes, written_bytes = sums.moved_bytes(self._kernel_problem, self.config)
        return Sums(
            slices=self.config.slices,
            launch=sums.launch(self._kernel_problem, self.config, self.device, self.num_sms),
            read_bytes=read_bytes,
            written_bytes=written_bytes,
            predicted_us=model.sums_us(self._kernel_problem, self.config, self.device),
        )

    @property
    def work(self) -> Work:
        """What the product comes down to at the addresses that its problem expects."""
        return self.work_of(self._copied)

    def work_of(self, operands: tuple[str, ...]) -> Work:
        """What the product comes down to when these of "a" and "b" are copied first: the copies, the product, and the
        sums of its slices."""
        made = product.work(
            self.family,
            self._kernel_problem,
            self.config,
            self.device,
            self.num_sms,
            binaries=(lambda: self.binary, lambda: self.sums_binary),
            launch=self.launch,
            arguments=self.arguments if operands == self._copied else self._arguments(operands),
        )
        made = dataclasses.replace(made, cleared=self._cleared())
        if has_no_sums(self.problem):
            problem = self._kernel_problem
            num_bytes = max(problem.m, problem.n) * problem.a_pitch * problem.dtype.size
            zeros = (ZEROS, Rows(0, 1, num_bytes, num_bytes))
            return dataclasses.replace(made, scratch=(Scratch(ZEROS, num_bytes),), cleared=(zeros, *made.cleared))
        if not operands:
            return made
        launch = repack.launch(self.problem, operands, self.device, self.num_sms)
        copies = Step(
            name=f"repack {' and '.join(operands)}",
            binary=lambda: self.repack_binary,
            launch=launch,
            arguments=repack.arguments(self.problem, operands, launch),
        )
        scratch = (*self._copies_scratch(operands), *made.scratch)
        return dataclasses.replace(made, steps=(copies, *made.steps), scratch=scratch)

    def _cleared(self) -> tuple[tuple[str, Rows], ...]:
        """Arrays of an epilogue that are zeros before the kernel adds to them."""
        form = self.problem.epilogue
        arrays = () if form is None else form.arrays
        return tuple((name, rows_of(self.problem, array, 1, 0)) for name, kind, array in arrays if kind in REDUCED)

    def _copies_scratch(self, operands: tuple[str, ...]) -> tuple[Scratch, ...]:
        return tuple(Scratch(repack.scratch_name(each), repack.scratch_bytes(self.problem, each)) for each in operands)

    def _arguments(self, copied: tuple[str, ...]) -> tuple[Argument, ...]:
        """The kernel's arguments, operands named as the caller does; those that are copied first, as their copies."""
        problem = kernel_problem(self.problem, copied)
        arguments = self.family.arguments(problem, self.config, self.launch)
        if problem.out_major != self.problem.out_major:
            arguments = with_inputs_exchanged(arguments)
        names = {name: repack.scratch_name(name) for name in copied}
        if has_no_sums(self.problem):
            names = {"a": ZEROS, "b": ZEROS, UP: ZEROS}
        return with_operands_named(arguments, names)

    def explain(self) -> Explanation:
        """The choice and its reasons. Cost: that of `binary`, which the registers are read from."""
        prediction, resources, copies = self.prediction, self.binary.resources, self.copies
        total_us, terms, share = prediction.total_us, prediction.terms, prediction.roofline_share
        if copies is not None:
            total_us, terms = total_us + copies.predicted_us, (("repack", copies.predicted_us), *terms)
            share *= prediction.total_us / total_us
        fast, fast_why, price = self._price(prediction)
        return Explanation(
            problem=self.problem,
            device=self.device,
            kernel=self.family.name,
            config=self.config,
            why=self.why,
            launch=self.launch,
            waves=prediction.waves,
            registers=resources.registers,
            spill_bytes=resources.spill_store_bytes + resources.spill_load_bytes,
            predicted_us=total_us,
            terms=terms,
            bound=prediction.bound,
            roofline_share=share,
            record=self.record,
            reduction=self.reduction,
            fast=fast,
            fast_why=fast_why,
            price=price,
            copies=copies,
            sums=self.sums,
        )

    def _price(self, prediction: Prediction) -> tuple[Config | None, str, float]:
        """What would run were any order of summation allowed, why that, and how many times its time this takes, by the
        model."""
        if self.reduction == "fast":
            return None, "", 1.0
        use_records = self._use_records and not self.problem.is_empty
        fast = choose(self._kernel_problem, self.device, self.num_sms, use_records=use_records)
        other = model.predict(fast.family, self._kernel_problem, fast.config, self.device, self.num_sms)
        config = fast.config.replace(dependent_launch=self.config.dependent_launch)
        return config, fast.why if fast.record else "", prediction.total_us / other.total_us

    def bind(self, location: Location, shape: tuple[int, ...]) -> BoundPlan:
        """This plan for arrays there: on that GPU, or in the emulator for the host's. `shape` is that of out.

        Raises: UnsupportedError, ConfigError: the plan was made for another kind of device, or is too much work for the
        emulator.
        """
        bound = self._by_place.get((location, shape))
        if bound is None:
            backend: Callable[[], Backend] = self._host if location.kind == "host" else self._backend
            no_sums = has_no_sums(self.problem)
            kind = EmptyPlan if self.problem.is_empty and not no_sums else BoundPlan
            needs_bytes = (1, 1)  # any address of an empty a or b will do
            if not no_sums:
                needs_bytes = (self.config.needs_bytes(self.problem, "a"), self.config.needs_bytes(self.problem, "b"))
            if kind is BoundPlan:
                self._check_place(location)
            bound = self._by_place.setdefault(
                (location, shape),
                kind(
                    self.problem,
                    shape,
                    location.ordinal,
                    backend,
                    self.work_of,
                    self._ledger,
                    needs_bytes,
                ),
            )
        return bound

    def _check_place(self, location: Location) -> None:
        """Raises what bind() raises. The emulator is whatever device the plan was made for."""
        if location.kind == "host":
            limit_s, checks = self._host().limit_s, self._host().checks
            family = self.family.name
            seconds = emulated_s(self._kernel_problem, self.config, self.launch, family=family, checks=checks)
            if limit_s is not None and seconds > limit_s:
                smaller = affordable(self.problem, lambda each: self.emulated_s(each, checks=checks), limit_s)
                raise too_long(self.problem, seconds, limit_s, smaller)
            return
        device = self._backend().device(location.ordinal)
        catalog.check_supported(device)
        self.config.check(self._kernel_problem, device)

    def emulated_s(self, problem: Problem, *, checks: bool = False) -> float:
        """Seconds that the emulator takes for another product, with the config that it would get."""
        family, config, problem = self.family, self.config, kernel_problem(problem, self.config.copied(problem))
        if family is catalog.offered(self.device, problem):
            use_records, reduction = self._use_records, self.reduction
            config = choose(problem, self.device, self.num_sms, use_records=use_records, reduction=reduction).config
        launch = family.launch(problem, config, self.device, self.num_sms)
        return emulated_s(problem, config, launch, family=family.name, checks=checks)

    def _bind(self, a: View, b: View, out: View | None, fusing: Fusing | None) -> BoundPlan:
        """Raises: ShapeError, DTypeError, LayoutError: arrays of another layout than the plan's, another epilogue."""
        planned = self.problem
        out_dtype = None if out is not None else planned.out_dtype
        is_of_type = a.dtype.numpy == planned.dtype.numpy  # arrays of others are refused as they are
        inputs, sums = (planned.dtype, planned.sums) if is_of_type else (None, None)
        check_agrees(planned, problem_of(a, b, out, out_dtype, inputs, sums, fusing))
        return self.bind(a.location, folded_shape(out_shape(a.shape, b.shape), fusing))

    def __copy__(self) -> Plan:
        """The plan itself: it changes in nothing that a caller sees, and any number of threads may run it."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        """The plan itself, so that a model which holds one can be copied."""
        return self

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            asked="a pickled Plan",
            rule="a Plan holds kernels and locks of its process",
            works="pickle its problem, device, config and num_sms, and call tilewright.plan(problem, device=device, "
            "config=config, num_sms=num_sms) there",
        )

    def __str__(self) -> str:
        return f"{self.problem} on {self.device.name}: {self.family.name} {self.config}"

    __repr__ = __str__
