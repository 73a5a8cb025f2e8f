"""`tilewright show`: every layer of a kernel."""

from __future__ import annotations

import re

from command_line import printed, refused

from tilewright import device
from tilewright.cli import request, show
from tilewright.jit import build
from tilewright.jit.source import Source
from tilewright.packing import packed


def test_show_explains_by_default() -> None:
    assert "why" in printed("show", "4096", "4096", "4096")


def test_show_names_the_copies_of_rows_that_tma_cannot_read() -> None:
    assert "first      repack a and b" in printed("show", "255", "256", "255", "--contiguous")
    assert "repack" not in printed("show", "255", "256", "255")


def test_sass_holds_the_instructions_of_a_hopper_kernel() -> None:
    text = printed("show", "256", "256", "256", "--what", "sass")
    assert {"HGMMA", "UTMALDG", "UTMASTG", "STSM", "SYNCS"} <= set(re.findall(r"\b[A-Z]{4,}\b", text))


def test_an_out_that_tma_cannot_write_has_no_tma_store() -> None:
    text = printed("show", "256", "255", "256", "--what", "sass", "--instructions")
    assert "UTMALDG" in text
    assert "UTMASTG" not in text


def test_instructions_are_a_table_of_opcodes() -> None:
    text = printed("show", "256", "256", "256", "--what", "sass", "--instructions")
    assert re.search(r"HGMMA +\W +\d+", text)


def test_instructions_of_anything_but_sass_are_refused() -> None:
    assert "add --what sass" in refused("show", "64", "64", "64", "--instructions")


def test_show_ptx_prints_the_ptx_of_the_entry() -> None:
    text = printed("show", "64", "64", "64", "--what", "ptx")
    assert ".target sm_90a" in text
    assert ".entry hopper_gemm" in text
    assert "wgmma.mma_async" in text


def test_show_header_prints_the_rendered_constants() -> None:
    text = printed("show", "64", "64", "64", "--what", "header", "--config", "stages=3")
    assert "STAGES = 3;" in text


def test_show_source_is_one_text_that_compiles_alone_to_the_same_code() -> None:
    plan = request.plan(packed(64, 64, 64), device.preset("h200"))
    text = printed("show", "64", "64", "64", "--what", "source")
    assert "#include" not in text
    alone = Source(name="alone", text=text, headers=(), entry=plan.family.entry, arch=plan.device.arch)
    assert instructions_of(build.build(alone).ptx) == instructions_of(plan.binary.ptx)


def instructions_of(ptx: str) -> list[str]:
    """The lines of PTX up to the tables of line numbers, without the places that they refer to."""
    lines = ptx.split("\t.file")[0].splitlines()
    return [line for line in lines if not re.match(r"\s*(\.loc\b|//|\$L__(tmp|func))", line)]


def test_flattening_puts_each_header_once_where_it_is_first_needed() -> None:
    headers = (("a.cuh", '#pragma once\n#include "b.cuh"\nint a;'), ("b.cuh", "#pragma once\nint b;"))
    source = Source("unit", '#include "a.cuh"\n#include "b.cuh"\nint c;', headers, "entry", "sm_90a")
    text = show.flattened(source)
    assert [line for line in text.splitlines() if line.startswith("int")] == ["int b;", "int a;", "int c;"]


def test_an_invariant_product_is_shown_with_its_price() -> None:
    shown = printed("show", "8192", "8192", "8192", "--reduction", "invariant")
    assert re.search(r"^reduction  invariant: .*price by the model 1\.0\d\d times the fast choice's time", shown, re.M)
    assert "k-back-and-forth" not in shown.splitlines()[1]
    words = printed("show", "8192", "8192", "8192", "--reduction", "invariant", "--what", "config").split()
    assert "k_back_and_forth=False" in words
    assert "--reduction" in refused("show", "64", "64", "64", "--reduction", "exact")
