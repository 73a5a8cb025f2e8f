"""One launch of a plan's kernel on constant operands, for a profiler to look on. Imports no torch, which ncu would wait
for."""

from __future__ import annotations

import contextlib

from tilewright.plan import Plan

ONES = 0x3F803F80  # two bf16: traffic and bank conflicts do not depend on the values
NAN_WORD = 0x7FC07FC0  # two bf16 NaNs


def operand_bytes(plan: Plan) -> dict[str, int]:
    """Bytes of all that the plan's kernel reads and writes, by the operands' names: the sums of slices too."""
    found = {name: plan.problem.extent_bytes[name] for name in ("a", "b", "out")}
    return found | {scratch.name: scratch.num_bytes for scratch in plan.work.scratch}


def launched(plan: Plan) -> None:
    """Launches the plan's kernel once, without copies of operands first and without what adds slices up.

    Raises: DriverError, CompileError: it cannot be launched. Cost: the operands' bytes on device 0.
    """
    from tilewright.backends.cuda import backend  # the driver, without which operand_bytes() is known
    from tilewright.backends.memory import Buffer

    cuda = backend()
    kernel = cuda.load(plan.binary, 0, plan.launch)
    with contextlib.ExitStack() as stack:
        addresses = {}
        for operand, num_bytes in operand_bytes(plan).items():
            buffer = stack.enter_context(Buffer.allocate(cuda, num_bytes))
            buffer.fill(ONES if operand in ("a", "b") else NAN_WORD)
            addresses[operand] = buffer.address
        cuda.launch(cuda.pack(kernel, plan.launch, plan.arguments, addresses), 0)
        with cuda.on(0):
            cuda.call("cuCtxSynchronize")
