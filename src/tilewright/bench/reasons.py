"""What the rows of one shape say about why it is slow: the first thing to look at, not the last word.

Knows rows alone: the distance to the floor, the choice, the waves of tiles. What was tried is for people to write down.
"""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]

POOR_CHOICE = 1.02  # times as fast as the model's choice, from where on a record is worth a word
FEW_WAVES = 8.0  # of more the unfinished last one is less than an eighth


def reason(own: Row, baseline: Row | None, untuned: Row | None) -> str:
    """The facts in a sentence. `own`: the row of what is shipped; `untuned`: that of the model's choice, if timed.

    A fact that a row does not hold is left out.
    """
    found = [_noise(own), _bound(own, baseline), _waves(own), _choice(own, untuned)]
    return "; ".join(fact for fact in found if fact)


def _noise(own: Row) -> str:
    """Whether the quartiles of the ratio hold 1: then neither is faster."""
    lower, upper = own.get("ratio_lower"), own.get("ratio_upper")
    if lower is None or upper is None or not lower <= 1.0 <= upper:
        return ""
    return f"no difference: quartiles {lower:.3f} .. {upper:.3f}"


def _bound(own: Row, baseline: Row | None) -> str:
    """How much of the floor each reaches, and which floor it is."""
    share = own.get("share_of_floor")
    if share is None:
        return ""
    theirs = None if baseline is None else baseline.get("share_of_floor")
    beside = "" if theirs is None else f", cuBLAS {theirs:.2f}"
    return f"{own.get('bound') or 'its'} floor: {share:.2f} of it{beside}"


def _waves(own: Row) -> str:
    """SMs that have nothing to do: in the only wave of tiles, or in the last one of a few."""
    ctas, num_sms, waves = own.get("ctas"), own.get("num_sms"), own.get("waves")
    if not ctas or not num_sms or not waves:
        return ""
    if ctas < num_sms:
        return f"{ctas} CTAs for {num_sms} SMs"
    return f"{waves:.2f} waves of tiles" if waves <= FEW_WAVES else ""


def _choice(own: Row, untuned: Row | None) -> str:
    """Whether the choice is a record's, and how far the model's was off."""
    if untuned is own:
        return "untuned"
    if untuned is None or not untuned.get("median_us"):
        return "from records"
    gain = untuned["median_us"] / own["median_us"]
    return f"from records, {gain:.2f} x the model's choice" if gain >= POOR_CHOICE else "from records, as the model's"
