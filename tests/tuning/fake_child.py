"""A child of the tuner with a pretended device, started as `python fake_child.py SCRIPT FD ORDINAL`.

SCRIPT is JSON. By the kernel's tile, stages and cluster: "us", its time; "acts", what it does when it is checked
("wrong", "die", "fault", "hang", "refuse"); "acts_at", what it does at which of its samples. "noise": the relative
deviation of all times. The requests are appended to "log".
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tilewright.errors import DriverError, UnsupportedError
from tilewright.tuning.child import Job, serve


class FakeBench:
    """The Bench protocol without a device."""

    def __init__(self, script: dict[str, Any]) -> None:
        self.script = script
        self.names: dict[int, str] = {}
        self.samples: dict[int, int] = {}

    def note(self, text: str) -> None:
        with Path(self.script["log"]).open("a") as log:
            log.write(f"{os.getpid()} {text}\n")

    def facts(self) -> dict[str, str]:
        return {"driver": "13.0"}

    def open(self, problem: Any, seed: int) -> int:
        self.note(f"open {problem}")
        if self.script.get("no_device"):
            raise DriverError("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")
        return 2

    def check(self, job: Job) -> str:
        name = name_of_kernel(job.work.steps[0].binary().name)
        self.note(f"check {name}")
        match self.script["acts"].get(name):
            case "wrong":
                return "whole numbers: WRONG: 3 of 4096 elements"
            case "die":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "fault":
                raise DriverError("cuEventSynchronize", "CUDA_ERROR_ILLEGAL_INSTRUCTION", "illegal instruction")
            case "hang":
                signal.pause()
            case "refuse":
                raise UnsupportedError("a kernel", "another device", "none")
        return ""

    def arm(self, job: Job) -> None:
        self.names[job.runner] = name_of_kernel(job.work.steps[0].binary().name)
        self.note(f"arm {name_of_kernel(job.work.steps[0].binary().name)}")

    def sample(self, runner: int) -> float:
        name = self.names[runner]
        self.note(f"sample {name}")
        count = self.samples[runner] = self.samples.get(runner, 0) + 1
        act, at = self.script["acts_at"].get(name, ("", 0))
        if count == at:
            if act == "die":
                print("the driver's last words", flush=True)
                os._exit(7)
            signal.pause()
        noise = random.Random(f"{runner} {count}").gauss(0, self.script.get("noise", 0.0))
        return float(self.script["us"].get(name, 100.0)) * (1 + noise)


def name_of_kernel(unit: str) -> str:
    """tile_m x tile_n, the stages and the cluster of a kernel, from its unit's name: `64x64s12c1x1`."""
    found = re.search(r"_(\d+x\d+)x\d+_(s\d+)_.*_(c\d+x\d+)_", unit)
    assert found is not None
    return "".join(found.groups())


if __name__ == "__main__":
    connection = Connection(int(sys.argv[2]))
    connection.send(("ok", "ready"))
    serve(connection, FakeBench(json.loads(sys.argv[1])))
