"""Emulator: a GPU that is not there, on this CPU, with the choices that a check of a kernel needs.

A Dispatcher of its own on an emulated backend, so that nothing about it is ambient: `tilewright.matmul` on NumPy arrays
takes the same road with the defaults and without checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from tilewright.device import Device
from tilewright.dispatch import FAST, Dispatcher
from tilewright.dtypes import DType, DTypeLike
from tilewright.emulated_time import LIMIT_S
from tilewright.epilogue_steps import Epilogue, Step
from tilewright.errors import UnsupportedError
from tilewright.order import Reduction
from tilewright.plan import Plan
from tilewright.planning import ConfigChanges
from tilewright.problem import Problem

if TYPE_CHECKING:
    from tilewright.backends.emulated import Finding, Policy, Report, Width


class Emulator:
    """Runs products of NumPy arrays as `device` would: the PTX of its kernel, instruction by instruction.

    `checks`: races, missing fences and the rest of the memory model are looked for, and what is found raises; about
    three times as long. `schedule`: when asynchronous work takes effect: "lazy" as late as can be, "eager" at once,
    "random" at any time, with vectors interleaved and waits failing at random, by `seed`. `width`: threads that run as
    one vector, "warp" to "grid"; None: as many as converge. `banks`: bank conflicts are counted. `limit_s`: estimated
    seconds past which a product is refused; None: never. `max_blocks`: blocks of instructions without progress after
    which a kernel is taken for endless; None: a million. `exact_sums`: tensor cores round bit for bit as the H200's do
    (16-bit types), not as float32 sums do; slower. `progress(done, total)` hears of finished CTAs.

    One Emulator is for one thread: `report` and `findings` are of its last launch.
    """

    def __init__(
        self,
        device: str | Device = "h200",
        *,
        checks: bool = True,
        schedule: Policy = "lazy",
        seed: int = 0,
        width: Width | None = None,
        banks: bool = False,
        limit_s: float | None = LIMIT_S,
        max_blocks: int | None = None,
        exact_sums: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Raises: UnsupportedError: no such preset, or a seed or limit that is none."""
        if type(seed) is not int or seed < 0:
            raise UnsupportedError(
                asked=f"an Emulator with seed = {seed!r}",
                rule="a seed is a whole number from 0 up",
                works="pass seed=0",
            )
        if limit_s is not None and (not isinstance(limit_s, int | float) or limit_s != limit_s):
            raise UnsupportedError(
                asked=f"an Emulator with limit_s = {limit_s!r}",
                rule="a limit is a number of seconds",
                works="pass limit_s=60, or None for no limit",
            )
        from tilewright.backends.emulated import emulated  # here: naming the class loads no emulator

        self._backend = emulated(
            device,
            checks=checks,
            schedule=schedule,
            seed=seed,
            width=width,
            banks=banks,
            limit_s=limit_s,
            exact_sums=exact_sums,
            progress=progress,
            **({} if max_blocks is None else {"max_blocks": max_blocks}),
        )
        self._dispatcher = Dispatcher(_no_gpu, lambda: self._backend)

    @property
    def device(self) -> Device:
        """The device that is emulated."""
        return self._backend.model

    @property
    def report(self) -> Report | None:
        """What the last launch did, where it came to its end."""
        return self._backend.report

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the checks found in the last launch, also where an error stopped it."""
        return self._backend.findings

    def matmul(
        self,
        a: Any,
        b: Any,
        out: Any | None = None,
        *,
        out_dtype: DTypeLike | None = None,
        config: ConfigChanges | None = None,
        num_sms: int | None = None,
        reduction: Reduction = FAST,
        inputs: DTypeLike | None = None,
        sums: DTypeLike | None = None,
        epilogue: Step | Epilogue | None = None,
    ) -> Any:
        """The product a x b of NumPy arrays, as tilewright.matmul; written when this returns.

        Raises: EmulationError: the kernel broke a rule: the first finding of the checks, or what stopped the run.
        UnsupportedError: it would take longer than `limit_s`. And what tilewright.matmul raises.
        """
        return self._dispatcher.matmul(
            a,
            b,
            out,
            out_dtype=out_dtype,
            config=config,
            num_sms=num_sms,
            reduction=reduction,
            inputs=inputs,
            sums=sums,
            epilogue=epilogue,
        )

    def plan(
        self,
        a: Any,
        b: Any = None,
        out: Any | None = None,
        *,
        out_dtype: str | DType | None = None,
        config: ConfigChanges | None = None,
        num_sms: int | None = None,
        reduction: Reduction = FAST,
        inputs: DTypeLike | None = None,
        sums: DTypeLike | None = None,
        epilogue: Step | Epilogue | None = None,
    ) -> Plan:
        """The plan of a product on the emulated device, of arrays or of a Problem; its run() runs here."""
        if isinstance(a, Problem):
            return self._dispatcher.plan(
                a, device=self.device, config=config, num_sms=num_sms, reduction=reduction, epilogue=epilogue
            )
        return self._dispatcher.plan(
            a,
            b,
            out,
            out_dtype=out_dtype,
            config=config,
            num_sms=num_sms,
            reduction=reduction,
            inputs=inputs,
            sums=sums,
            epilogue=epilogue,
        )


def _no_gpu() -> NoReturn:
    raise UnsupportedError(
        asked="arrays on a GPU in the emulator",
        rule="it reads and writes the memory of this process",
        works="pass NumPy arrays (bf16: ml_dtypes.bfloat16), or call tilewright.matmul",
    )
