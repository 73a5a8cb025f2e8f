"""`import tilewright` shows its names, loads each when it is used, and keeps `plan` a function."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tilewright


def test_every_name_of_the_face_is_there():
    for name in tilewright.__all__:
        assert getattr(tilewright, name) is not None
    assert set(dir(tilewright)) == set(tilewright.__all__)


def test_every_lazy_name_is_declared_for_type_checkers():
    text = Path(tilewright.__file__).read_text(encoding="utf-8")
    declared = text.partition("if TYPE_CHECKING:")[2].partition("__version__")[0]
    for name in tilewright.__all__:
        assert name == "__version__" or name in declared


def test_torch_is_the_frontend_and_a_star_import_does_not_take_its_name():
    pytest.importorskip("torch")
    code = "import torch; from tilewright import *; import tilewright; print(torch.__name__, tilewright.torch.__name__)"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert shown == "torch tilewright.frontends.torch\n"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'mutmal'"):
        _ = tilewright.mutmal


@pytest.mark.parametrize(
    "first", ["from tilewright.plan import Plan", "import tilewright.plan", "import tilewright.dispatch", "pass"]
)
def test_plan_is_the_function_whatever_was_imported_first(first):
    code = f"{first}\nimport tilewright\nprint(tilewright.plan(tilewright.packed(64, 64, 64)).problem)"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert shown == "64x64x64 bf16 -> bf16 TN\n"


def test_the_version_is_that_of_the_project_file():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project.get("version", tilewright.__version__) == tilewright.__version__
