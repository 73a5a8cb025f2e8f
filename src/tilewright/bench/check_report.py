"""The rows of checked products -> one a config, and the lines of their tables. Makes no measurement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tilewright.bench.tables import ORIGIN, caption, layout_of, markdown

Row = dict[str, Any]

_CHECK_HEAD = ("products", "sizes", "elements", "exact", "wrong", "largest error / bound")


_CHECK_MEANING = (
    "Every element against float64 from the rounded inputs; `exact` products are of whole numbers and must be equal "
    "bit for bit. A product is wrong when one element is past its bound or unwritten, or one around `out` has changed."
)


def condensed(rows: Sequence[Row]) -> list[Row]:
    """The check rows with one row a config in the place of one a product; rows that are so already stay as they are.

    Units: `worst` is the largest error over its own bound; `wrong`, `unwritten` and `damaged` count elements;
    `not_ok` products; `refused` maps the sentence of a refusal to the products that met it.
    """
    checked = [row for row in rows if row.get("kind") == "check"]
    configs = dict.fromkeys(row["config"] for row in checked if "products" not in row)
    own = {config: [row for row in checked if row["config"] == config] for config in configs}
    return [row for row in checked if "products" in row] + [_condensed(config, own[config]) for config in configs]


def _condensed(config: str, rows: Sequence[Row]) -> Row:
    refusals = [row for row in rows if _is_refusal(row)]
    ran = [row for row in rows if not _is_refusal(row)]
    varied = ("case", "m", "n", "k", "out_pitch", "out_offset", "status", "why", "max_error", "first_wrong")
    facts = {name: value for name, value in rows[0].items() if name in ORIGIN}
    return facts | {
        "kind": "check",
        "config": config,
        "products": len(ran),
        "not_ok": sum(row["status"] != "ok" for row in ran),
        "exact": sum(row["data"] == "integer" for row in ran),
        **{name: sum(row.get(name) or 0 for row in ran) for name in ("elements", "wrong", "unwritten", "damaged")},
        "worst": max((row.get("worst") or 0.0 for row in ran), default=0.0),
        "layouts": sorted({layout_of(row) for row in ran}),
        "shapes": [list(shape) for shape in dict.fromkeys((row["m"], row["n"], row["k"]) for row in ran)],
        "refused": dict(Counter(row.get("why", "") for row in refusals)),
        "failed": [{name: row.get(name) for name in varied} for row in ran if row["status"] != "ok"],
    }


def _is_refusal(row: Row) -> bool:
    """Whether nothing was launched, since the config cannot run that product; the row says why."""
    return row["status"] == "skipped" or str(row.get("why", "")).startswith("ConfigError")


def check_table(rows: Sequence[Row]) -> str:
    """One line a config: products and elements checked, how many wrong, the largest error over its bound."""
    checked = [row for row in condensed(rows) if row["products"]]
    lines = [(row["config"], *_check_cells([row])) for row in checked]
    return markdown(("config", *_CHECK_HEAD), lines) + caption(checked, _CHECK_MEANING)


def checked_table(rows: Sequence[Row]) -> str:
    """One line for all configs together."""
    checked = [row for row in condensed(rows) if row["products"]]
    lines = [(str(len(checked)), *_check_cells(checked))] if checked else []
    return markdown(("configs", *_CHECK_HEAD), lines) + caption(checked, _CHECK_MEANING)


def _check_cells(rows: Sequence[Row]) -> tuple[str, ...]:
    return (
        f"{sum(row['products'] for row in rows):,}",
        str(len({tuple(shape) for row in rows for shape in row["shapes"]})),
        f"{sum(row['elements'] for row in rows):,}",
        f"{sum(row['exact'] for row in rows):,}",
        str(sum(row["not_ok"] for row in rows)),
        f"{max(row['worst'] for row in rows):.3f}",
    )


def repeats_table(rows: Sequence[Row]) -> str:
    """One line a config: how many products were run how often, and how many of the runs differed from their first."""
    own = [row for row in rows if row.get("kind") == "repeats" and "differing" in row]
    lines = []
    for config in dict.fromkeys(row["config"] for row in own):
        ran = [row for row in own if row["config"] == config]
        sizes = dict.fromkeys(f"{row['m']} x {row['n']} x {row['k']}" for row in ran)
        lines.append(
            (
                config,
                str(len(ran)),
                f"{sum(row['repeats'] for row in ran):,}",
                str(sum(row["differing"] for row in ran)),
                ", ".join(sizes),
            )
        )
    meaning = "Each run starts from poison, in and around `out`, and is compared with the first run bit for bit."
    return markdown(("config", "products", "repeats", "differ", "M x N x K"), lines) + caption(own, meaning)


TABLES = {"check": check_table, "checked": checked_table, "repeats": repeats_table}
