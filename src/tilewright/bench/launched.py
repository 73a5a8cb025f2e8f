"""One launch of a plan's kernel on constant operands, for a profiler to look on. Imports no torch, which ncu would wait
for."""

from __future__ import annotations

import contextlib

from tilewright.backends.cuda import backend
from tilewright.backends.memory import Buffer
from tilewright.plan import Plan

ONES = 0x3F803F80  # two bf16: traffic and bank conflicts do not depend on the values
NAN_WORD = 0x7FC07FC0  # two bf16 NaNs


def launched(plan: Plan) -> None:
    """Launches the plan's kernel once, without copies of operands first and without what adds slices up.

    Raises: DriverError, CompileError: it cannot be launched. Cost: the operands' bytes on device 0.
    """
    cuda = backend()
    kernel = cuda.load(plan.binary, 0, plan.launch)
    problem = plan.problem
    sizes = {name: problem.extent_bytes[name] for name in ("a", "b", "out")}
    sizes |= {scratch.name: scratch.num_bytes for scratch in plan.work.scratch}  # the sums of slices
    with contextlib.ExitStack() as stack:
        addresses = {}
        for operand, num_bytes in sizes.items():
            buffer = stack.enter_context(Buffer.allocate(cuda, num_bytes))
            buffer.fill(ONES if operand in ("a", "b") else NAN_WORD)
            addresses[operand] = buffer.address
        cuda.launch(cuda.pack(kernel, plan.launch, plan.arguments, addresses), 0)
        with cuda.on(0):
            cuda.call("cuCtxSynchronize")
