"""Loads the modules that the tests of this folder reach through sys.modules."""

from __future__ import annotations

import tilewright.dispatch  # noqa: F401
