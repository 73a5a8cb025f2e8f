"""How long a kernel should take, from counts, rates and energy: what matmul chooses by when nothing has been measured.

A family is a generator of candidates; the choice is the cheapest by this model. Every term can be printed. Knows
nothing of plans or drivers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from tilewright.ampere_config import AmpereConfig
from tilewright.ampere_work import ampere_work_of
from tilewright.config import Config
from tilewright.device import Device
from tilewright.errors import ConfigError, ShapeError, UnsupportedError
from tilewright.kernels import repack, sums
from tilewright.kernels.catalog import SUPPORTED_SMS, offered
from tilewright.kernels.family import Family
from tilewright.order import Reduction, order_for
from tilewright.problem import Problem
from tilewright.rates import energy_share, tensor_flops_per_cycle
from tilewright.tiling import MAX_TILES
from tilewright.work import EARLY_US, RAMP_US, TENSOR_PJ, Wave, Work, clock_ghz_of, work_of

# The copy of operands: first bytes from memory and the last written, and of DRAM's rate what reads and writes together
# reach, which is that of a copy of 2 GiB (the table of ceilings). Measured, H200, 2026-11-30, cold, commit f23e8be:
# 4.07 us at 1023^3, 4.49 at 1025^3, 6.75 at 1535^3, 7.35 at 1537^3, 10.50 at 2047^3, 11.21 at 2049^3, 35.27 at 4095^3
# and 36.57 at 4096 x 4096 x 4097; these give 4.24, 4.24, 6.91, 6.92, 10.65, 10.67, 36.33 and 36.35: within 6 %, root
# mean square 4 %. Least squares of the relative errors has 1.46 and 0.842.
_REPACK_RAMP_US = 1.4
_REPACK_RATE = 0.84
# From the start of the kernel that adds slices to its first sums: the end of the kernel before it, two ways to the L2
# and back. A judgement, not measured.
_SUMS_LATENCY_US = 0.8
# Candidates within this of the fastest are equal to the model; the first of them in the family's order is taken. Large
# tiles that are 1 % apart by the clock are 0.2 % apart here: 256x192 and 256x200 at 4096^3 (H200, 2026-11-30).
_INDIFFERENCE = 0.001


@dataclass(frozen=True)
class Prediction:
    """What the model expects of one kernel that runs back to back.

    Units: microseconds, GHz, watts. `terms` are the times that each resource would take alone at that clock; `total_us`
    is launch and ramp and the slowest of the rest. `waves` is tiles a CTA before rounding up. `roofline_share` is the
    floor (floor_us) over the total.
    """

    total_us: float
    terms: tuple[tuple[str, float], ...]
    bound: str
    waves: float
    grid: int
    roofline_share: float
    clock_ghz: float
    power_w: float

    def __str__(self) -> str:
        terms = ", ".join(f"{name} {value:.1f}" for name, value in self.terms)
        return (
            f"{self.total_us:.1f} us, bound by {self.bound} ({terms} us), {self.waves:.2f} waves of {self.grid} CTAs, "
            f"{self.clock_ghz:.2f} GHz and {self.power_w:.0f} W, {self.roofline_share:.0%} of the roofline"
        )


@dataclass(frozen=True)
class Choice:
    """The config that the model takes, and why."""

    family: Family
    config: Config
    prediction: Prediction
    why: str
    considered: int


@dataclass(frozen=True)
class Ranked:
    """One of the model's fastest configs. `order` is its place in the families' order, which breaks ties everywhere."""

    family: Family
    config: Config
    prediction: Prediction
    order: int


def predict(family: Family, problem: Problem, config: Config, device: Device, num_sms: int | None = None) -> Prediction:
    """The time of one launch among many of the same, at the clock that the power limit leaves.

    Worked example, 8192^3 bf16 on an h200 with 128x256 tiles: 64 x 32 tiles on 132 CTAs are 15.5 waves, so 16 tiles a
    CTA; a tile has 128 k steps of 1024 tensor cycles and 2138 cycles to store: 2.13 million cycles, 1214 us at 1.755
    GHz. That would draw more than 700 W; at 1.34 GHz, which keeps to them, it takes 1597 us.
    """
    return _predict(family, problem, config, device, num_sms, floor_us(problem, device))


def _predict(
    family: Family, problem: Problem, config: Config, device: Device, num_sms: int | None, least_us: float
) -> Prediction:
    """predict(), of a product whose floor is known: it is the same for all of hundred configs."""
    if config.slices > 1 and not problem.batch:
        sliced = _predict(family, config.sliced(problem), config, device, num_sms, least_us)
        return _with_sums(sliced, problem, config, device, least_us)
    problem = config.computed(problem)
    launch = family.launch(problem, config, device, num_sms)
    ramp_us = RAMP_US
    if isinstance(config, AmpereConfig):
        work = ampere_work_of(problem, config, device, launch.grid)
    else:
        work = work_of(problem, config, device, launch.grid)
        ramp_us -= EARLY_US if config.starts_early else 0.0
    fixed_us = device.launch_us + ramp_us
    clock_ghz = clock_ghz_of(work, device, fixed_us)
    times = work.times_us(device, clock_ghz)
    bound = max(times, key=lambda name: times[name])
    if times[bound] < fixed_us:
        bound = "latency"
    total_us = fixed_us + work.total_us(device, clock_ghz)
    return Prediction(
        total_us=total_us,
        terms=(("launch", device.launch_us), ("ramp", ramp_us), *times.items()),
        bound=bound,
        waves=config.num_tiles(problem) * config.split_k / launch.grid,
        grid=launch.grid,
        roofline_share=least_us / total_us,
        clock_ghz=clock_ghz,
        power_w=work.power_w(total_us, clock_ghz),
    )


def repack_us(problem: Problem, operands: repack.Operands, device: Device) -> float:
    """Microseconds of the copy of these operands before the product: a launch, a way to memory and back, and its bytes.

    Worked example: 4095^3 bf16 with odd rows, both operands: 4 x 33.5 MB at 0.84 of the h200's 4666 GB/s are 34.2 us.
    """
    moved_us = sum(repack.moved_bytes(problem, operands)) / (_REPACK_RATE * device.dram_gbps) / 1e3
    return device.launch_us + _REPACK_RAMP_US + moved_us


def sums_us(problem: Problem, config: Config, device: Device) -> float:
    """Microseconds of the kernel that adds the slices, behind the product's: a launch, the first bytes, then all of
    them through the L2.

    Worked example, (256, 256, 65536) bf16 in 32 slices: 8.4 MB read and 0.1 MB written at the h200's 7920 GB/s are 1.1
    us, with 1.5 us before them 2.6.
    """
    return device.launch_us + _SUMS_LATENCY_US + sum(sums.moved_bytes(problem, config)) / device.l2_gbps / 1e3


def _with_sums(sliced: Prediction, problem: Problem, config: Config, device: Device, least_us: float) -> Prediction:
    """The time of the slices' product, and of adding them up."""
    adding_us = sums_us(problem, config, device)
    total_us = sliced.total_us + adding_us
    return dataclasses.replace(
        sliced,
        total_us=total_us,
        terms=(*sliced.terms, ("sums", adding_us)),
        bound=sliced.bound if adding_us < sliced.total_us / 2 else "sums",
        roofline_share=least_us / total_us,
    )


def floor_us(problem: Problem, device: Device) -> float:
    """Microseconds that no kernel can beat: all tensor cores, the fewest bytes, at the clock that their power leaves.

    From the same clock, rates and energies as every prediction, so that none beats it. Worked example: 8192^3 on an
    h200 takes 1316 us, 836 TFLOPS at 1.55 GHz; a loop of wgmmas that reads no memory sustains 857 (2026-11-29).
    """
    if problem.is_empty:
        return 0.0
    cycles = problem.flops / (tensor_flops_per_cycle(problem, device) * device.num_sms)
    work = Work(
        waves=(Wave(1, cycles, cycles, 0.0, 0.0, 0.0, problem.min_bytes),),
        last_store_cycles=0.0,
        fill_bytes=0.0,
        l2_bytes=0.0,
        dram_bytes=problem.min_bytes,
        flops=problem.flops,
        pj_per_flop=TENSOR_PJ * energy_share(problem),
    )
    return max(work.times_us(device, clock_ghz_of(work, device, 0.0)).values())


def best(problem: Problem, device: Device, num_sms: int | None = None, reduction: Reduction = "fast") -> Choice:
    """The config to run without tuning; with reduction "invariant" of those that add in the one order (order.py).

    Raises: UnsupportedError: no production family serves the device. ShapeError: more tiles than a schedule counts.
    ConfigError: none of its configs fits the problem.
    """
    candidates = _candidates(problem, device, num_sms, reduction)
    fastest = min(prediction.total_us for _, _, prediction in candidates)
    family, config, prediction = next(
        choice for choice in candidates if choice[2].total_us <= fastest * (1 + _INDIFFERENCE)
    )
    return Choice(
        family=family,
        config=config,
        prediction=prediction,
        why=(
            f"the model's fastest of {len(candidates)} configs is {fastest:.1f} us; this is the first in the family's "
            f"order within {_INDIFFERENCE:.1%} of it"
        ),
        considered=len(candidates),
    )


def ranked(
    problem: Problem,
    device: Device,
    count: int,
    num_sms: int | None = None,
    reduction: Reduction = "fast",
    *,
    with_trials: bool = False,
) -> list[Ranked]:
    """The `count` fastest configs by the model, fastest first, all different; equals in the family's order.

    `with_trials`: of those too that only a tuner looks at, which come last in the order. Raises: what best() raises.
    """
    found: dict[tuple[str, Config], Ranked] = {}
    candidates = _candidates(problem, device, num_sms, reduction, with_trials=with_trials)
    for order, (family, config, prediction) in enumerate(candidates):
        found.setdefault((family.name, config), Ranked(family, config, prediction, order))
    return sorted(found.values(), key=lambda each: each.prediction.total_us)[:count]


def _candidates(
    problem: Problem, device: Device, num_sms: int | None, reduction: Reduction, *, with_trials: bool = False
) -> list[tuple[Family, Config, Prediction]]:
    """Every config of the device's family that fits, in the family's order. Raises: what best() raises.

    Where one order of summation is asked for, each config is given it, and those that are not legal then are left out.
    """
    least_us = floor_us(problem, device)
    family = offered(device, problem)
    found = [
        (family, config, _predict(family, problem, config, device, num_sms, least_us))
        for config in (() if family is None else _space(family, problem, device, reduction, with_trials))
        if family is not None and (num_sms is None or config.cluster <= num_sms)
    ]
    if not found:
        raise _no_candidate(family, problem, device)
    return found


def _space(
    family: Family, problem: Problem, device: Device, reduction: Reduction, with_trials: bool
) -> Iterator[Config]:
    """What the family offers; with one order of summation what of it, given that order, is legal, each once."""
    offers = chain(family.space(problem, device), family.trials(problem, device) if with_trials else ())
    order = order_for(reduction)
    if order is None:
        yield from offers
        return
    given = dict.fromkeys(order.of(offered) for offered in offers)
    yield from (config for config in given if not config.violations(problem, device))


def _no_candidate(family: Family | None, problem: Problem, device: Device) -> Exception:
    if family is None:
        return UnsupportedError(
            asked=f"a product on {device.name} (compute capability {device.sm[0]}.{device.sm[1]})",
            rule=f"kernels are written for compute capability {', '.join(f'{x}.{y}' for x, y in SUPPORTED_SMS)}",
            works="run on a GPU of one of these, or plan for one of the presets",
        )
    reasons: Iterable[str] = family.config.violations(problem, device)
    if family.config.has_too_many_tiles(problem):
        return ShapeError(
            asked=f"{problem.num_matrices} x a product of {problem.m} x {problem.n}"
            if problem.batch
            else f"a product of {problem.m} x {problem.n}",
            rule=f"it has {MAX_TILES} tiles or more with every tile of the family, and the schedule counts fewer",
            works="split the product along m or n",
        )
    return ConfigError(str(family.config), list(reasons))
