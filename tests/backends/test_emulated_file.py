"""Launch descriptions: what they say, what is refused with its place, and what a run of one does."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tilewright.backends import emulated_file
from tilewright.errors import EmulationError, LayoutError, UnsupportedError

SCALE = """\
.version 8.7
.target sm_90a
.address_size 64
.visible .entry scale(.param .u64 x, .param .f32 factor)
{
.reg .b32 %r<4>;
.reg .b64 %rd<4>;
.reg .f32 %f<4>;
ld.param.u64 %rd1, [x];
ld.param.f32 %f1, [factor];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd2, %r1, 4;
add.s64 %rd1, %rd1, %rd2;
ld.global.f32 %f2, [%rd1];
mul.f32 %f2, %f2, %f1;
st.global.f32 [%rd1], %f2;
ret;
}
"""
LOAD = """\
.version 8.7
.target sm_90a
.address_size 64
.visible .entry load(.param .align 64 .b8 map[128], .param .u64 out)
{
.reg .pred %p<4>;
.reg .b32 %r<8>;
.reg .b64 %rd<8>;
.shared .align 1024 .b8 tile[1024];
.shared .align 8 .b8 barrier[8];
mov.b64 %rd1, map;
cvta.param.u64 %rd1, %rd1;
mov.u32 %r1, tile;
mov.u32 %r2, barrier;
mov.u32 %r3, %tid.x;
setp.ne.u32 %p1, %r3, 0;
@%p1 bra WAIT;
mbarrier.init.shared::cta.b64 [%r2], 1;
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 512;
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd1, {0, 0}], [%r2];
WAIT:
bar.sync 0;
TRY:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;
@!%p2 bra TRY;
ld.param.u64 %rd2, [out];
shl.b32 %r4, %r3, 4;
add.u32 %r5, %r1, %r4;
ld.shared.v2.b64 {%rd3, %rd4}, [%r5];
mul.wide.u32 %rd5, %r3, 16;
add.s64 %rd2, %rd2, %rd5;
st.global.v2.b64 [%rd2], {%rd3, %rd4};
ret;
}
"""
TOML = """\
grid = 1
block = 32
parameters = [{ buffer = "x" }, { value = 2.5 }]

[buffers.x]
dtype = "f32"
shape = [32]
init = "iota"
"""


def written(folder: Path, text: str = TOML) -> Path:
    path = folder / "launch.toml"
    path.write_text(text)
    return path


def test_a_launch_runs_on_its_buffers_and_is_reported(tmp_path: Path) -> None:
    launch = emulated_file.read(written(tmp_path))
    report = launch.run(SCALE)
    assert (launch.buffers["x"] == np.arange(32) * 2.5).all()
    assert report.findings == ()
    assert report.instructions["mul.f32"] == 1
    assert launch.num_bytes == 128


def test_an_offset_moves_a_pointer_and_the_end_of_the_buffer_holds(tmp_path: Path) -> None:
    text = TOML.replace('{ buffer = "x" }', '{ buffer = "x", offset = 4 }')
    launch = emulated_file.read(written(tmp_path, text))
    with pytest.raises(EmulationError, match="4 bytes past the end of buffer 'x'"):
        launch.run(SCALE)


def test_a_map_is_of_its_buffer_and_tma_loads_by_it(tmp_path: Path) -> None:
    text = """
grid = 1
block = 32
parameters = [{ map = "x", box = [32, 8] }, { buffer = "out" }]
[buffers.x]
dtype = "bf16"
shape = [16, 64]
init = "normal"
[buffers.out]
dtype = "bf16"
shape = [8, 32]
init = "nan"
"""
    launch = emulated_file.read(written(tmp_path, text))
    assert np.isnan(launch.buffers["out"].astype(np.float32)).all()
    report = launch.run(LOAD)
    assert (launch.buffers["out"] == launch.buffers["x"][:8, :32]).all()
    assert [(pattern.uses, "box 32x8 of bf16" in pattern.what) for pattern in report.patterns] == [(1, True)]
    assert (
        "4 times" in report.patterns[0].verdict
    )  # 64-byte rows without a swizzle: 8 rows take half of the banks twice


@pytest.mark.parametrize("init", [*emulated_file.INITS, "3", "0.5"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "e4m3", "u8"])
def test_every_beginning_of_every_kind_of_element_is_made(tmp_path: Path, init: str, dtype: str) -> None:
    quoted = init if init[0].isdigit() else f'"{init}"'
    text = TOML.replace('dtype = "f32"', f'dtype = "{dtype}"').replace('init = "iota"', f"init = {quoted}\nseed = 4")
    values = emulated_file.read(written(tmp_path, text)).buffers["x"]
    assert values.dtype == np.dtype(emulated_file.DTYPES[dtype])
    assert values.flags.c_contiguous


def test_a_buffer_may_come_from_a_file_and_is_saved_as_one(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.arange(32.0))
    text = TOML.replace('shape = [32]\ninit = "iota"', 'file = "in.npy"')
    launch = emulated_file.read(written(tmp_path, text))
    launch.run(SCALE)
    (path,) = emulated_file.save(tmp_path / "after", launch.buffers)
    assert (np.load(path) == np.arange(32) * 2.5).all()


def test_elements_that_numpy_lacks_are_saved_as_float32(tmp_path: Path) -> None:
    (path,) = emulated_file.save(tmp_path, {"x": np.ones(3, ml_dtypes.bfloat16)})
    assert np.load(path).dtype == np.float32


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="name a folder that you can write"):
        emulated_file.save(written(tmp_path), {"x": np.zeros(3)})


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("grid = 1\n", "", "a launch without grid"),
        ("grid = 1", "grid = 1\nblocks = 2", "'blocks' of the launch.*keys are block, buffers"),
        ("grid = 1", "grid = -1", "grid = -1.*whole number"),
        ("grid = 1", "grid = = 1", "Invalid value"),
        ("block = 32", 'block = "32"', "block = '32'"),
        ("parameters = [", "parameters = 3 #", "parameters.*a list"),
        ('{ buffer = "x" }', '{ pointer = "x" }', "parameter 0.*one of buffer, value, map"),
        ('{ buffer = "x" }', '{ buffer = "y" }', "parameter 0 of 'y'.*buffers are x"),
        ('{ buffer = "x" }', '{ map = "x" }', "a map has a box"),
        ("{ value = 2.5 }", '{ value = "2.5" }', "a value is a number"),
        ('"f32"', '"float"', "dtype 'float' of buffers.x.*use one of u8"),
        ("[32]", "[0]", "from 1 to"),
        ("[32]", "[1000000, 1000000]", "from 1 to"),
        ('"iota"', '"random"', "init 'random'.*zeros"),
        ('shape = [32]\ninit = "iota"', 'file = "none.npy"', "file of buffers.x.*none.npy"),
    ],
)
def test_what_a_launch_file_may_not_say_is_refused_with_its_place(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    assert old in TOML
    path = written(tmp_path, TOML.replace(old, new))
    with pytest.raises(UnsupportedError, match=words) as raised:
        emulated_file.read(path)
    assert str(path) in str(raised.value)


def test_a_missing_launch_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="No such file"):
        emulated_file.read(tmp_path / "none.toml")


def test_a_module_of_two_entries_needs_the_name_of_one(tmp_path: Path) -> None:
    launch = emulated_file.read(written(tmp_path))
    both = SCALE + SCALE.split(".address_size 64\n")[1].replace("entry scale", "entry other")
    with pytest.raises(UnsupportedError, match="the module has scale, other"):
        launch.run(both)
    emulated_file.read(written(tmp_path, 'entry = "other"\n' + TOML)).run(both)


def test_wrong_parameters_name_how_many_the_entry_has(tmp_path: Path) -> None:
    launch = emulated_file.read(written(tmp_path, TOML.replace(", { value = 2.5 }", "")))
    with pytest.raises(EmulationError, match="1 parameters where the entry has 2"):
        launch.run(SCALE)
