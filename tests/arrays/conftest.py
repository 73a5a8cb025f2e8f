"""Lets the tests of this folder use the stand-ins that lie beside it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import tilewright.dispatch  # noqa: E402, F401  # loads the modules that the tests reach through sys.modules
