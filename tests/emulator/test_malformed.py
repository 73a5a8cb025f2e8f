"""Text that was damaged anywhere is run or refused with a typed error, never with a fault from the depths."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from tilewright.emulator.memory import GlobalMemory
from tilewright.emulator.run import Grid, run
from tilewright.errors import EmulationError
from tilewright.jit.build import build
from tilewright.jit.source import Source

EXAMPLE = Path(__file__).parents[2] / "examples" / "emulate" / "reverse.cu"
SEEDS = 400


def damaged(text: str, seed: int) -> str:
    """The text with up to three of its words dropped, moved, misspelled or cut off."""
    choose = random.Random(seed)
    words = text.split(" ")
    for _ in range(choose.randint(1, 3)):
        at = choose.randrange(len(words))
        match choose.randrange(5):
            case 0:
                words[at] = ""
            case 1:
                words[at] = words[choose.randrange(len(words))]
            case 2:
                place = choose.randrange(len(words[at]) + 1)
                words[at] = words[at][:place] + choose.choice("{}[],;.%@!|0x9-r") + words[at][place:]
            case 3:
                words[at] = words[at].upper()
            case 4:
                words = words[: max(at, 1)]
    return " ".join(words)


def test_a_damaged_module_runs_or_is_refused() -> None:
    text = build(Source("reverse", EXAMPLE.read_text(), (), "reverse", "sm_90a")).ptx
    refused = 0
    for seed in range(SEEDS):
        memory = GlobalMemory()
        address = memory.add("x", np.zeros(128, np.float32))
        try:
            run(
                damaged(text, seed),
                "reverse",
                Grid(grid=1, block=32),
                [address],
                memory,
                checks=True,
                max_blocks=10_000,
            )
        except EmulationError:
            refused += 1
    assert SEEDS // 2 < refused < SEEDS


@pytest.mark.parametrize("statement", ["bra;", "bra %r1;", "bra 3;"])
def test_a_branch_without_a_label_is_refused_with_its_line(statement: str) -> None:
    text = f".version 8.7\n.target sm_90a\n.visible .entry k()\n{{\n.reg .b32 %r<2>;\n{statement}\nret;\n}}\n"
    with pytest.raises(EmulationError, match=r"no label|expected") as raised:
        run(text, "k", Grid(grid=1, block=32), [], GlobalMemory())
    assert raised.value.line == 6
