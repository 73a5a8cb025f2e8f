"""config.py: the fields of a config, as they are given, changed and kept."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from tilewright import device
from tilewright.config import Config
from tilewright.errors import ConfigError
from tilewright.packing import packed

H200 = device.preset("h200")
PROBLEM = packed(4096, 4096, 4096)


def test_whole_numbers_of_numpy_are_whole_numbers_and_its_others_are_not() -> None:
    config = Config(tile_n=np.int64(192), stages=np.uint8(4), group_m=np.int32(8))
    assert config == Config(tile_n=192, stages=4, group_m=8)
    assert [type(getattr(config, name)) for name in ("tile_n", "stages", "group_m")] == [int] * 3
    assert Config().replace(tile_n=np.int16(192)).violations(PROBLEM, H200) == ()
    assert json.loads(json.dumps(dataclasses.asdict(config)))["tile_n"] == 192
    for wrong in (np.float32(192), np.array([192, 8]), np.bool_(True), True):
        assert "is not a whole number" in Config(tile_n=wrong).violations(PROBLEM, H200)[0]


def test_an_unknown_field_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="tile_q is no field; fields are tile_m, tile_n"):
        Config().replace(tile_q=3)
