"""The door to matplotlib, the `report` extra: no measurement needs it. Knows nothing of what is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tilewright.errors import UnsupportedError


def drawing(path: Path) -> tuple[Any, Any]:
    """matplotlib and its pyplot, for files and no screen.

    Raises: UnsupportedError: matplotlib is not installed; the sentence names `path`, the plot that was wanted.
    """
    try:
        import matplotlib  # see above
    except ImportError as error:
        raise UnsupportedError(
            asked=f"a plot at {path}",
            rule="plots are drawn by matplotlib, which is not installed",
            works="pip install 'tilewright[report]'; the rows and the table are written without it",
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return matplotlib, pyplot
