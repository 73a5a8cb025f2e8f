"""Golden vectors of what a warp, a CTA or a cluster does together: shuffles, votes, atomics, matrices, barriers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from golden.vector import Op, Vector, lanewise, random, words


def lane_words(name: str, num_slots: int, threads: int = 32) -> NDArray[np.uint32]:
    return random(name).integers(0, 2**32, (num_slots, threads), np.uint32)


def _shuffles() -> list[Vector]:
    slots = lane_words("shuffle", 3)
    slots[1] &= np.uint32(31)  # lanes and distances
    slots[2] = 5
    ops = []
    for mode in ("idx", "up", "down", "bfly"):
        for width in (32, 8):
            bound = (32 - width) << 8 | (0 if mode == "up" else 31)
            for slot, name in ((1, "own"), (2, "same")):
                text = (
                    f"{{.reg .pred p; .reg .b32 v, k; shfl.sync.{mode}.b32 v|p, %1, %2, {bound}, 0xffffffff; "
                    "selp.b32 k, 0x80000000, 0, p; xor.b32 %0, v, k;}}"
                ).replace("}}", "}")
                ops.append(Op(f"shfl.{mode}.{width}.{name}", "r", "rr", (0, slot), text=text))
    votes = lane_words("vote", 2)
    votes[0] = (votes[0] & 3 != 0).astype(np.uint32)
    votes[1] &= np.uint32(3)
    vote = "{{.reg .pred p, q; setp.ne.u32 p, %1, 0; vote.sync.{0}.pred q, p, 0xffffffff; selp.u32 %0, 1, 0, q;}}"
    vote_ops = [
        *[Op(f"vote.{m}", "r", "r", text=vote.format(m)) for m in ("all", "any", "uni")],
        Op(
            "vote.ballot",
            "r",
            "r",
            text="{.reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xffffffff;}",
        ),
        Op("match.any", "r", "r", (1,), text="match.any.sync.b32 %0, %1, 0xffffffff;"),
        Op(
            "elect",
            "r",
            "",
            text="{.reg .pred p; .reg .b32 l, k; elect.sync l|p, 0xffffffff; selp.u32 k, 256, 0, p; or.b32 %0, l, k;}",
        ),
        Op("activemask", "r", "", text="activemask.b32 %0;"),
        Op("laneid", "r", "", text="mov.u32 %0, %laneid;".replace("%l", "%%l")),
        Op("lanemask_lt", "r", "", text="mov.u32 %0, %%lanemask_lt;"),
    ]
    reduce_ops = [
        *[
            Op(f"redux.{o}.{t}", "r", "r", text=f"redux.sync.{o}.{t} %0, %1, 0xffffffff;")
            for o in ("add", "min", "max")
            for t in ("s32", "u32")
        ],
        *[Op(f"redux.{o}", "r", "r", text=f"redux.sync.{o}.b32 %0, %1, 0xffffffff;") for o in ("and", "or", "xor")],
    ]
    return [
        lanewise("shfl", ops, slots, family="warp"),
        lanewise("vote_match_elect", vote_ops, votes, family="warp"),
        lanewise("redux", reduce_ops, lane_words("redux", 1), family="warp"),
    ]


ATOMICS = """
    const uint32_t t = threadIdx.x;
    const uint32_t* given = reinterpret_cast<const uint32_t*>(in);
    uint32_t* result = reinterpret_cast<uint32_t*>(out);
    __shared__ uint32_t cells[32 * 2];
#define AT(i) (result + 32 * (i) + t)
#define G(op, type, constraint, old_type, i)                                                                   \\
    {                                                                                                          \\
        *AT(2 * (i)) = given[t];                                                                               \\
        old_type old, with = reinterpret_cast<const old_type*>(given)[32 + t];                                 \\
        asm volatile("atom.global." op "." type " %0, [%1], %2;"                                               \\
                     : "=" constraint(old) : "l"(AT(2 * (i))), constraint(with) : "memory");                   \\
        *reinterpret_cast<old_type*>(AT(2 * (i) + 1)) = old;                                                   \\
    }
    G("add", "u32", "r", uint32_t, 0)
    G("min", "s32", "r", uint32_t, 1)
    G("max", "u32", "r", uint32_t, 2)
    G("and", "b32", "r", uint32_t, 3)
    G("or", "b32", "r", uint32_t, 4)
    G("xor", "b32", "r", uint32_t, 5)
    G("exch", "b32", "r", uint32_t, 6)
    G("inc", "u32", "r", uint32_t, 7)
    G("dec", "u32", "r", uint32_t, 8)
    G("add", "f32", "f", float, 9)
    G("add.noftz", "f16x2", "r", uint32_t, 10)
    G("add.noftz", "bf16x2", "r", uint32_t, 11)
    {
        *AT(24) = given[t];
        uint32_t old;
        asm volatile("atom.global.cas.b32 %0, [%1], %2, %3;"
                     : "=r"(old) : "l"(AT(24)), "r"(t % 2 ? given[t] : given[t] + 1), "r"(given[32 + t]) : "memory");
        *AT(25) = old;
    }
    // Many lanes on one cell: only the sum has one answer.
    if (t < 2) result[32 * 26 + t] = 0, cells[t] = 0;
    __syncwarp();
    asm volatile("red.global.add.u32 [%0], %1;" ::"l"(result + 32 * 26), "r"(given[t]) : "memory");
    asm volatile("red.shared.add.u32 [%0], %1;" ::"r"(shared_address(cells)), "r"(given[t]) : "memory");
    asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(result + 32 * 26 + 1), "r"(given[t]) : "memory");
    asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(shared_address(cells + 1)), "r"(given[t] & given[32 + t])
                 : "memory");
    __syncwarp();
    if (t < 2) result[32 * 26 + 2 + t] = cells[t];
"""

WIDTHS = """
    const uint32_t t = threadIdx.x;
    __shared__ alignas(16) uint8_t block[32 * 16];
    uint32_t* result = reinterpret_cast<uint32_t*>(out) + t * 24;
    uint32_t a, b, c, d;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(in + 16 * t));
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 ::"r"(shared_address(block + 16 * t)), "r"(d), "r"(c), "r"(b), "r"(a) : "memory");
    __syncwarp();
    const uint32_t from = shared_address(block) + (t * 16 + 48) % 512;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2 + 8];" : "=r"(result[0]), "=r"(result[1]) : "r"(from));
    asm volatile("ld.shared.s8 %0, [%1];" : "=r"(result[2]) : "r"(from + 1));
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(result[3]) : "r"(from + 3));
    asm volatile("ld.shared.s16 %0, [%1];" : "=r"(result[4]) : "r"(from + 2));
    asm volatile("ld.shared.u16 %0, [%1];" : "=r"(result[5]) : "r"(from + 6));
    asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(result[6]) : "r"(from));
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(result[7]) : "l"(in + 4 * t));
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(result[8]) : "l"(in + 4 * t + 128));
    asm volatile("st.shared.u8 [%0], %1;" ::"r"(shared_address(block + 16 * t + 5)), "r"(a) : "memory");
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(shared_address(block + 16 * t + 8)), "h"((uint16_t)b) : "memory");
    const uint32_t next = shared_address(block + 16 * ((t + 1) % 32));
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(next), "r"(c), "r"(d) : "memory");
    __syncwarp();
    for (int i = 0; i < 4; ++i) result[12 + i] = reinterpret_cast<uint32_t*>(block)[4 * t + i];
    asm volatile("st.global.v2.u16 [%0], {%1, %2};" ::"l"(result + 20), "h"((uint16_t)a), "h"((uint16_t)b) : "memory");
"""


def _memory() -> list[Vector]:
    numbers = lane_words("atomics", 2)
    as_halves = random("atomics_halves").standard_normal((2, 64)).astype(np.float16).view(np.uint32)
    numbers[:, ::2] = as_halves[:, ::2]  # every other lane: finite in f16, so that sums are numbers
    return [
        Vector(name="atomics", family="memory", body=ATOMICS, input=words(numbers), output_bytes=4 * 32 * 27, block=32),
        Vector(
            name="load_store_widths",
            family="memory",
            body=WIDTHS,
            input=words(lane_words("widths", 4)),
            output_bytes=32 * 24 * 4,
            block=32,
        ),
    ]


def _matrices() -> list[Vector]:
    head = """
    __shared__ alignas(128) uint16_t tile[4096];
    const uint32_t t = threadIdx.x;
    for (int i = t; i < 4096; i += 32) tile[i] = hashed(i);
    __syncwarp();
    uint32_t r[4] = {0, 0, 0, 0};
    // Row addresses in no regular order; lanes that the form does not use give their own too.
    const uint32_t row = shared_address(tile) + 16 * (hashed(t + 77) % 512);
"""
    body, count = head, 0
    for num in (1, 2, 4):
        for trans in ("", ".trans"):
            registers = ", ".join(f"%{i}" for i in range(num))
            outs = ", ".join(f'"=r"(r[{i}])' for i in range(num))
            name = f"ldmatrix.sync.aligned.m8n8.x{num}{trans}.shared.b16"
            body += f'    asm volatile("{name} {{{registers}}}, [%{num}];" : {outs} : "r"(row));\n'
            for i in range(num):
                body += f"    reinterpret_cast<uint32_t*>(out)[{count} * 32 + t] = r[{i}];\n"
                count += 1
    load = Vector(name="ldmatrix", family="warp", body=body, input=words([0] * 16), output_bytes=128 * count, block=32)

    stores = """
    __shared__ alignas(128) uint16_t tile[6 * 384];
    const uint32_t t = threadIdx.x;
    for (int i = t; i < 6 * 384; i += 32) tile[i] = 0xBEEF;
    __syncwarp();
    uint32_t r[4];
    for (int i = 0; i < 4; ++i) r[i] = hashed(32 * i + t);
"""
    for index, (num, trans) in enumerate((n, t) for n in (1, 2, 4) for t in ("", ".trans")):
        registers = ", ".join(f"%{i + 1}" for i in range(num))
        ins = ", ".join(f'"r"(r[{i}])' for i in range(num))
        name = f"stmatrix.sync.aligned.m8n8.x{num}{trans}.shared.b16"
        row = f"shared_address(tile + {384 * index} + 8 * ((t * 13 + 5) % 32))"
        stores += f'    asm volatile("{name} [%0], {{{registers}}};" ::"r"({row}), {ins} : "memory");\n'
    stores += """    __syncwarp();
    for (int i = t; i < 6 * 384; i += 32) reinterpret_cast<uint16_t*>(out)[i] = tile[i];
"""
    store = Vector(name="stmatrix", family="warp", body=stores, input=words([0] * 16), output_bytes=6 * 768, block=32)
    move = lanewise(
        "movmatrix",
        [Op("movmatrix", "r", "r", text="movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;")],
        lane_words("movmatrix", 1),
        family="warp",
    )
    return [load, store, move]


CLUSTER = """
    __shared__ alignas(16) uint32_t cells[64];
    const uint32_t t = threadIdx.x, rank = cluster_rank(), peer = mapa(shared_address(cells), rank ^ 1);
    uint32_t* result = reinterpret_cast<uint32_t*>(out) + blockIdx.x * 256;
    cells[t] = hashed(t + 1000 * blockIdx.x);
    cells[32 + t] = 0;
    cluster_sync();
    uint32_t got;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(got) : "r"(peer + 4 * t) : "memory");
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(peer + 128 + 4 * ((t + 3) % 32)), "r"(got ^ t) : "memory");
    cluster_sync();
    asm volatile("red.shared::cluster.add.u32 [%0], %1;" ::"r"(mapa(shared_address(cells), 1)), "r"(t + rank)
                 : "memory");
    cluster_sync();
    result[t] = got;
    result[32 + t] = cells[t];
    result[64 + t] = cells[32 + t];
    if (t == 0) {
        asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(result[96]));
        asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(result[97]));
        asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(result[98]));
        asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(result[99]));
        asm volatile("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(result[100]));
        asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(result[101]) : "r"(peer));
        asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(result[102]) : "r"(shared_address(cells)));
        asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(result[103]));
    }
"""

BARRIER = """
    __shared__ alignas(8) uint64_t barrier[2];
    const uint32_t t = threadIdx.x, b = shared_address(barrier);
    uint32_t* result = reinterpret_cast<uint32_t*>(out);
    if (t == 0) {
        mbarrier_init(b, 3);
        mbarrier_init(b + 8, 1);
        auto test = [&](uint32_t at, uint32_t parity) {
            uint32_t done;
            asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                         : "=r"(done) : "r"(at), "r"(parity) : "memory");
            return done;
        };
        uint64_t state;
        uint32_t pending;
        int n = 0;
        result[n++] = test(b, 0);
        result[n++] = test(b, 1);
        for (int i = 0; i < 5; ++i) {
            asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(b) : "memory");
            asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(pending) : "l"(state));
            result[n++] = pending;
            result[n++] = test(b, 0);
            result[n++] = test(b, 1);
        }
        asm volatile("mbarrier.arrive_drop.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(b) : "memory");
        result[n++] = test(b, 1);
        for (int i = 0; i < 2; ++i) {  // two arrivals make a phase now
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
            result[n++] = test(b, 0);
        }
        asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 32;" ::"r"(b + 8) : "memory");
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b + 8) : "memory");
        result[n++] = test(b + 8, 0);
        asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 32;" ::"r"(b + 8) : "memory");
        result[n++] = test(b + 8, 0);
    }
"""

ST_ASYNC = """
    __shared__ alignas(16) uint32_t cells[64];
    __shared__ alignas(8) uint64_t barrier;
    const uint32_t t = threadIdx.x, rank = cluster_rank(), own = shared_address(&barrier);
    cells[t] = cells[32 + t] = 0xEEEEEEEE;
    if (t == 0) {
        mbarrier_init(own, 1);
        mbarrier_arrive_expect_tx(own, 32 * 4 + 8 * 16);
    }
    cluster_sync();
    const uint32_t peer = mapa(shared_address(cells), rank ^ 1), signal = mapa(own, rank ^ 1);
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
                 ::"r"(peer + 4 * (31 - t)), "r"(hashed(t + 100 * rank)), "r"(signal) : "memory");
    if (t < 8)
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
                     ::"r"(peer + 128 + 16 * t), "r"(t), "r"(rank), "r"(hashed(t)), "r"(7), "r"(signal) : "memory");
    const uint32_t done = mbarrier_wait(own, 0);
    uint32_t* result = reinterpret_cast<uint32_t*>(out) + blockIdx.x * 96;
    result[t] = cells[t];
    result[32 + t] = cells[32 + t];
    result[64 + t] = done;
    cluster_sync();
"""


def _together() -> list[Vector]:
    nothing = words([0] * 16)
    counts = Vector(name="mbarrier_counts", family="cluster", body=BARRIER, input=nothing, output_bytes=128, block=32)
    pairs = [("cluster_shared", CLUSTER, 4096), ("st_async", ST_ASYNC, 4 * 384)]
    return [
        counts,
        *[
            Vector(
                name=name, family="cluster", body=body, input=nothing, output_bytes=size, grid=4, cluster=2, block=32
            )
            for name, body, size in pairs
        ],
    ]


VECTORS: list[Vector] = [*_shuffles(), *_memory(), *_matrices(), *_together()]
