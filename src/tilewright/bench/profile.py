"""One kernel under Nsight Compute: a plan or a rung of a ladder, launched once in a child, as one row of counters.

The row holds what was asked, so that a file of rows can be compared again with no GPU. profile_counts.py has the
emulator's side, profile_report.py what the two say of each other.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from tilewright.ampere_config import AmpereConfig
from tilewright.backends.base import Backend
from tilewright.backends.emulated import emulated
from tilewright.bench import counters
from tilewright.bench.children import run_limited, write_rows
from tilewright.bench.ladder import PRODUCTION, named, occupancy_pct, rung_plan
from tilewright.bench.profile_counts import extent_of, small_plan, small_problems
from tilewright.config import changes_from
from tilewright.device import Device, preset
from tilewright.dispatch import Dispatcher
from tilewright.errors import ShapeError, UnsupportedError
from tilewright.kernels.ampere import AMPERE
from tilewright.packing import packed
from tilewright.plan import Plan
from tilewright.problem import Problem

Row = dict[str, Any]

KIND = "profile"  # of the row, and of counters.METRICS
LIMIT_S = 120.0  # ncu starts in about 5 s and repeats a launch of up to 60 ms some thirty times


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is profiled, in words and numbers that a row can hold: a product, and a rung or changes of the choice.

    `config` are KEY=VALUE words; `batch` as packed() takes it.
    """

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    out_dtype: str | None = None
    sums: str | None = None
    a_major: str = "k"
    b_major: str = "k"
    out_major: str = "n"
    batch: tuple[int, ...] = ()
    contiguous: bool = False
    rung: str | None = None
    family: str | None = None  # "ampere": its kernel, on a Hopper GPU too; its own config with the changes of `config`
    config: tuple[str, ...] = ()
    num_sms: int | None = None
    reduction: str = "fast"

    @classmethod
    def of_row(cls, row: Row) -> Asked:
        """What a row says was asked. Raises: UnsupportedError: it says nothing of that."""
        found = row.get("asked")
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(found, dict) or not {"m", "n", "k"} <= set(found) <= names:
            raise UnsupportedError(
                asked="the product of a row",
                rule='a row of `tilewright profile` has "asked", with m, n, k and what else was said',
                works="give rows that `tilewright profile --into FILE` wrote, or ncu's CSV with the sizes in words",
            )
        lists = {name: found[name] for name in ("batch", "config") if name in found}
        if not all(isinstance(value, list | tuple) for value in lists.values()):
            raise UnsupportedError(
                asked=f"a row with {' and '.join(f'{name} = {value!r}' for name, value in lists.items())}"[:120],
                rule="both are lists, of sizes and of KEY=VALUE words",
                works="give rows that `tilewright profile --into FILE` wrote",
            )
        return cls(**found | {name: tuple(value) for name, value in lists.items()})

    @property
    def problem(self) -> Problem:
        """Of freshly allocated matrices. Raises: ShapeError, LayoutError, DTypeError: see packed(); and of no size."""
        if 0 in (self.m, self.n, self.k, *self.batch):
            raise ShapeError(
                asked=f"counters of a product of {self.m} x {self.n} x {self.k}, batch {self.batch}",
                rule="without elements there is no k tile to count",
                works="sizes from 1",
            )
        return packed(
            self.m,
            self.n,
            self.k,
            dtype=self.dtype,
            out_dtype=self.out_dtype,
            sums=self.sums,
            a_major=cast(Literal["k", "m"], self.a_major),
            b_major=cast(Literal["k", "n"], self.b_major),
            out_major=cast(Literal["n", "m"], self.out_major),
            batch=self.batch,
            padded=not self.contiguous,
        )

    def plan(self, device: Device, backend: Callable[[], Backend]) -> Plan:
        """What is launched. Raises: ConfigError: it cannot run. UnsupportedError: `rung` is no single rung."""
        if self.family not in (None, AMPERE.name):
            raise UnsupportedError(
                asked=f"family {self.family!r}",
                rule=f"only {AMPERE.name!r} runs on devices that are offered another",
                works="leave it out: each device has its own family",
            )
        changes = changes_from(self.config) or None
        if self.rung is not None and named(self.rung) != (PRODUCTION,):
            return rung_plan(self.rung, self.problem, device, backend, changes=changes, num_sms=self.num_sms)
        config = AmpereConfig().replace(**changes or {}) if self.family == AMPERE.name else changes
        reduction = cast(Literal["fast", "invariant"], self.reduction)
        return Dispatcher(backend).plan(
            self.problem, device=device, config=config, num_sms=self.num_sms, reduction=reduction
        )

    def emulated_plan(self, device: str | Device) -> Plan:
        """The same for the emulator. Raises: as plan()."""
        chip = emulated(device)
        return self.plan(chip.model, lambda: chip)

    def __str__(self) -> str:
        rung = f"{self.rung or self.family} " if self.rung or self.family else ""
        return f"{rung}{self.problem}" + "".join(f" {word}" for word in self.config)


def profiled(
    asked: Asked, device: str, *, run: counters.Run = run_limited, limit_s: float = LIMIT_S, ncu: str | None = None
) -> Row:
    """The row of one launch on GPU 0, which is of the kind `device`, counted by ncu.

    Raises: UnsupportedError: there is no ncu, it may not count, is too old, or saw no launch; with what would work.
    Cost: about 15 s, `limit_s` at most.
    """
    plan = asked.emulated_plan(device)  # what cannot be launched anywhere is refused before ncu starts
    if (ncu or shutil.which("ncu")) is None:
        raise _refusal(asked, "Nsight Compute (ncu) is not on the PATH", "install Nsight Compute")

    def program(log: Path) -> list[str]:
        what = json.dumps(dataclasses.asdict(asked))
        return [sys.executable, "-m", "tilewright.bench.profile", what, "--log", str(log)]

    refused: set[str] = set()
    try:
        child = counters.of_child(KIND, program, run, limit_s, refused)
    except OSError as missing:
        raise _refusal(asked, f"ncu could not be started: {missing}", "install Nsight Compute") from missing
    if child.launch is None:
        raise _refusal(asked, *counters.reason(child.status))
    row = _row(asked, device, plan, child.launch, "ncu")
    return row | {"not_known_to_ncu": sorted(refused), "facts": child.row.get("facts", {})}


def row_of_csv(asked: Asked, text: str, where: str, device: str) -> Row:
    """The row of what ncu wrote with `--csv --page raw`: the last launch of the kernel that is asked for.

    Raises: UnsupportedError: no launch of that kernel, or of another number of CTAs.
    """
    plan = asked.emulated_plan(device)
    launches = counters.parsed(text)
    own = [launch for launch in launches if launch.kernel == plan.binary.entry]
    if not own:
        seen = ", ".join(dict.fromkeys(launch.kernel for launch in launches))
        rule, works = counters.reason(text.strip()[-400:])
        raise UnsupportedError(
            asked=f"{asked} from {where}",
            rule=f"it has no launch of {plan.binary.entry}" + (f", but of {seen}" if seen else f": {rule}"),
            works="name the rung or the product that was launched" if seen else works,
        )
    return _row(asked, device, plan, own[-1], where)


def emulated_row(asked: Asked, device: str) -> Row:
    """A row without counters, for the emulator's alone. Raises: ConfigError: it cannot run."""
    asked.emulated_plan(device)
    return {"kind": KIND, "status": "emulated", "asked": dataclasses.asdict(asked), "preset": device, "counted": {}}


def rows_of_file(text: str, where: str) -> list[Row]:
    """The rows that `--into` wrote. Raises: UnsupportedError: the file is another."""
    try:
        content = json.loads(text)
        rows = [row for row in (content["rows"] if isinstance(content, dict) else content) if row["kind"] == KIND]
    except (ValueError, KeyError, TypeError):
        rows = []
    for row in rows:
        counted = row.get("counted")
        if not (isinstance(counted, dict) and all(isinstance(value, int | float | None) for value in counted.values())):
            raise UnsupportedError(
                asked=f"counters {repr(counted)[:60]} of a row of {where}",
                rule='"counted" holds a number for each counter, or null where ncu has none',
                works="give what `tilewright profile --into FILE` wrote",
            )
    if not rows:
        raise UnsupportedError(
            asked=f"rows of {where}",
            rule=f'it is no JSON document with rows of the kind "{KIND}"',
            works="give what `tilewright profile --into FILE` wrote, or ncu's CSV under a name that ends in .csv",
        )
    return rows


def told(plan: Plan) -> Row:
    """What is known of the kernel without counting. Units: per cent of an SM's warps; bytes; k tiles of all tiles."""
    problem, extent = plan.problem, extent_of(plan)
    return {
        "entry": plan.binary.entry,
        "family": plan.family.name,
        "plan": str(plan),
        "grid": plan.launch.grid,
        "block": plan.launch.block,
        "registers": plan.binary.resources.registers,
        "k_tiles": extent.k_tiles + extent.narrow_k_tiles,
        "occupancy_pct": occupancy_pct(plan),
        "once_read_bytes": problem.input_bytes,
        "once_written_bytes": problem.out_bytes,
    }


def _row(asked: Asked, device: str, plan: Plan, launch: counters.Launched, where: str) -> Row:
    """Raises: UnsupportedError: the launch has another number of CTAs than the plan."""
    if launch.grid not in (None, plan.launch.grid):
        raise UnsupportedError(
            asked=f"{asked} on {device} beside the counters of {where}",
            rule=f"the launch of {launch.kernel} there has {launch.grid} CTAs, of this product {plan.launch.grid}",
            works="give the size, the config and the --device that were launched",
        )
    counted = counters.columns(KIND, launch.values)
    if not any(value is not None for value in counted.values()):
        raise UnsupportedError(
            asked=f"{asked} beside the counters of {where}",
            rule=f"the launch of {launch.kernel} has none of the {len(counted)} counters that are compared",
            works="run `tilewright profile` where the GPU is, or ncu with `--set full --csv --page raw`",
        )
    return {"kind": KIND, "status": "ok", "asked": dataclasses.asdict(asked), "preset": device, "counted": counted}


def _refusal(asked: Asked, rule: str, works: str) -> UnsupportedError:
    return UnsupportedError(
        asked=f"the counters of {asked}",
        rule=rule,
        works=f"{works}; --emulated prints the emulator's counts alone, --from FILE reads what ncu wrote elsewhere",
    )


def launched_rows(asked: Asked) -> Iterator[Row]:
    """In the child: one launch. Raises: DriverError, ConfigError, CompileError: it cannot be launched."""
    from tilewright.backends.cuda import backend  # the driver, which the parent never opens
    from tilewright.bench.facts import facts
    from tilewright.bench.launched import launched

    cuda = backend()
    plan = asked.plan(cuda.device(0), backend)
    launched(plan)
    told = facts(cuda) | {"compiler": plan.binary.compiler}
    yield {"entry": plan.binary.entry, "status": "launched", "facts": told}


def main(words: Sequence[str] | None = None) -> int:
    """The child's command line. `--build DIR` compiles what it and the emulator load, for another machine."""
    parser = argparse.ArgumentParser(prog="tilewright.bench.profile", description=__doc__.splitlines()[0])
    parser.add_argument("asked", help="an Asked as JSON")
    parser.add_argument("--build", type=Path, metavar="DIR")
    parser.add_argument("--log", type=Path, default=Path("/dev/stdout"))
    options = parser.parse_args(words)
    asked = Asked.of_row({"asked": json.loads(options.asked)})
    if options.build:
        from tilewright.jit.build import build_into  # the compiler, which the child does not need

        chip = emulated(preset("h200"))
        plan = asked.plan(chip.model, lambda: chip)
        plans = [plan, *(small_plan(plan, problem, chip) for problem in small_problems(plan))]
        units = {unit.digest(""): unit for each in plans for unit in each.sources}
        build_into(list(units.values()), options.build, refuse=True)
        return 0
    return write_rows(launched_rows(asked), options.log)


if __name__ == "__main__":
    sys.exit(main())
