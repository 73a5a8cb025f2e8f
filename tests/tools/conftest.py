"""The tool that a file of tests is of: tools/fit_model.py for test_fit_model.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).parent.parent.parent / "tools"


@pytest.fixture(scope="module")
def tool(request: pytest.FixtureRequest) -> ModuleType:
    name = request.path.stem.removeprefix("test_")
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
