"""Which of card x form x config are compiled to see that no kernel spills: some of all, in which any two still meet.

Of each config and card every so manieth form, from another one on with each card and config; and of each card and form
the config that has the most to hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.ampere_config import AmpereConfig
from tilewright.device import Device
from tilewright.problem import Problem

Legal = Mapping[tuple[int, int], Sequence[AmpereConfig]]  # by numbers of card and form


def drawn(legal: Legal, cards: Sequence[Device], forms: Sequence[Problem], step: int) -> set[tuple[int, int, int]]:
    """(card, form, number of the config in numbered())."""
    numbers = numbered(legal)
    found = set()
    for card in range(len(cards)):
        for config, number in numbers.items():
            own = [form for form in range(len(forms)) if config in legal[card, form]]
            first = (number + card) % min(step, len(own)) if own else 0
            found |= {(card, form, number) for form in own[first::step]}
    found |= {(card, form, numbers[widest(configs, forms[form])]) for (card, form), configs in legal.items()}
    return found


def numbered(legal: Legal) -> dict[AmpereConfig, int]:
    """Every config that is legal anywhere, and its number."""
    return {config: number for number, config in enumerate(dict.fromkeys(c for row in legal.values() for c in row))}


def widest(configs: Sequence[AmpereConfig], problem: Problem) -> AmpereConfig:
    """The config with the most registers of sums and fragments a thread."""
    return max(configs, key=lambda each: each.sum_registers(problem) + each.fragment_registers)


def check_covers(found: set[tuple[int, int, int]], legal: Legal) -> None:
    """Asserts that each config meets each card that can hold it, and each form each card."""
    numbers = numbered(legal)
    for (card, form), configs in legal.items():
        assert configs
        assert any((card, form, numbers[config]) in found for config in configs)
        assert {numbers[config] for config in configs} <= {number for at, _, number in found if at == card}
