// Calls that the lanes of a warp make together, and barriers.
#include <cstring>

#include <fmt/format.h>

#include "tests/emulation/truncated_sum.h"
#include "tests/ptx/half.h"
#include "tests/ptx/lanes.h"

namespace mezzo::ptx {
namespace {

// shfl: d|p, a, b, c, mask. c has the clamp in its low bits and the segment above.
template <bool by_index> void shuffle(Warp& w, const Instruction& i, u32 mask) {
    const u32 *const a = w.reg<u32>(i.operands[2]), *const b = w.reg<u32>(i.operands[3]),
                     *const c = w.reg<u32>(i.operands[4]);
    u32 result[warp_size];
    u32 valid = 0;
    each_lane(mask, [&](u32 l) {
        const u32 own = b[l] & 31, clamp = c[l] & 31, segment = c[l] >> 8 & 31;
        const u32 lowest = l & segment, highest = lowest | (clamp & ~segment);
        u32 from = by_index ? lowest | (own & ~segment) : l ^ own;
        const bool inside = from <= highest;
        if (!inside) from = l;
        if ((mask >> from & 1) == 0)
            fault(w, i, l, fmt::format("shuffle reads lane {}, which takes no part", from));
        result[l] = a[from];
        valid |= u32(inside) << l;
    });
    u32* const d = w.reg<u32>(i.operands[0]);
    each_lane(mask, [&](u32 l) { d[l] = result[l]; });
    set_bits(w.predicate(i.operands[1]), valid, mask);
}

void ballot(Warp& w, const Instruction& i, u32 mask) {
    const u32 votes = w.predicate(i.operands[1]) & mask;
    u32* const d = w.reg<u32>(i.operands[0]);
    each_lane(mask, [=](u32 l) { d[l] = votes; });
}

void warp_barrier(Warp& w, const Instruction& i, u32 mask) {
    if (mask != w.exist)
        fault(w, i, u32(std::countr_zero(mask)), "bar.warp.sync of a part of the warp is not supported");
    ++w.epoch;
}

void trap(Warp& w, const Instruction& i, u32 mask) { fault(w, i, u32(std::countr_zero(mask)), "trap"); }

// ldmatrix of four 8 x 8 matrices, whose rows the lanes name.
template <bool transposed> void load_matrices(Warp& w, const Instruction& i, u32) {
    constexpr unsigned row_bytes = 16;
    u16 rows[warp_size][8];
    for (u32 l = 0; l < warp_size; ++l) {
        const u64 base = i.wide_address ? w.reg<u64>(i.operands[0])[l] : w.reg<u32>(i.operands[0])[l];
        std::memcpy(rows[l], shared_bytes(w, i, {l, base + u64(i.immediate), row_bytes, false}), row_bytes);
    }
    for (u32 m = 0; m < 4; ++m)
        for (u32 l = 0; l < warp_size; ++l) {
            const u32 r = l / 4, c = l % 4 * 2;
            const u32 low = transposed ? rows[m * 8 + c][r] : rows[m * 8 + r][c];
            const u32 high = transposed ? rows[m * 8 + c + 1][r] : rows[m * 8 + r][c + 1];
            w.reg<u32>(i.operands[1 + m])[l] = low | high << 16;
        }
}

struct Tiles {
    f32 a[16][16], b[8][16], sums[16][8];
};

// Rows and columns of fragments, as the PTX manual has them for m16n8k16 and m16n8k8.
template <f32 (*decode)(u16), int depth> void read_fragments(Warp& w, const Instruction& i, Tiles& tiles) {
    constexpr int a = 4, b = a + depth / 4, c = b + depth / 8;  // the first operands, behind those of d
    const auto half_of = [&](int operand, u32 lane, int half) {
        return decode(u16(w.reg<u32>(i.operands[operand])[lane] >> 16 * half));
    };
    for (u32 l = 0; l < warp_size; ++l) {
        const u32 group = l / 4, in_group = l % 4;
        for (int e = 0; e < depth / 2; ++e) {
            const u32 row = (e / 2) % 2 == 0 ? group : group + 8,
                      column = in_group * 2 + u32(e % 2) + (e >= 4 ? 8 : 0);
            tiles.a[row][column] = half_of(a + e / 2, l, e % 2);
        }
        for (int e = 0; e < depth / 4; ++e)
            tiles.b[group][in_group * 2 + u32(e % 2) + (e >= 2 ? 8 : 0)] = half_of(b + e / 2, l, e % 2);
        for (int e = 0; e < 4; ++e)
            tiles.sums[e < 2 ? group : group + 8][in_group * 2 + u32(e % 2)] =
                w.reg<f32>(i.operands[c + e])[l];
    }
}

// mma.sync. Products of 16-bit values are exact in float64, and sums of 16 of them nearly.
template <f32 (*decode)(u16), int depth> void multiply_matrices(Warp& w, const Instruction& i, u32) {
    Tiles tiles;
    read_fragments<decode, depth>(w, i, tiles);
    for (int r = 0; r < 16; ++r)
        for (int n = 0; n < 8; ++n) {
            f32& sum = tiles.sums[r][n];
            const f32 *const x = tiles.a[r], *const y = tiles.b[n];
            if (options.truncated_sums) {
                if (depth == 16) sum = emulation::truncated_sum(sum, x + 8, y + 8);
                sum = emulation::truncated_sum(sum, x, y);
                continue;
            }
            f64 exact = sum;
            for (int k = 0; k < depth; ++k) exact += f64(x[k]) * y[k];
            sum = f32(exact);
        }
    for (u32 l = 0; l < warp_size; ++l)
        for (int e = 0; e < 4; ++e)
            w.reg<f32>(i.operands[e])[l] = tiles.sums[e < 2 ? l / 4 : l / 4 + 8][l % 4 * 2 + u32(e % 2)];
}

struct WarpTable : TableWriter {
    void warp_call(const std::string& name, Execute execute, std::vector<u8> bytes, int mask_operand = -1) {
        table[name] = {execute, std::move(bytes), Flow::warp_sync, std::int8_t(mask_operand), Vote::none};
    }
    void barrier(const std::string& name, std::vector<u8> bytes, Vote vote) {
        table[name] = {nullptr, std::move(bytes), Flow::block_sync, -1, vote};
    }
};

}  // namespace

void add_warp_opcodes(Opcodes& table) {
    WarpTable add{{table}};
    add.warp_call("shfl.sync.bfly.b32", &shuffle<false>, {4, 0, 4, 4, 4, 4}, 5);
    add.warp_call("shfl.sync.idx.b32", &shuffle<true>, {4, 0, 4, 4, 4, 4}, 5);
    add.warp_call("vote.sync.ballot.b32", &ballot, {4, 0, 4}, 2);
    add.warp_call("bar.warp.sync", &warp_barrier, {4}, 0);
    add.warp_call("ldmatrix.sync.aligned.m8n8.x4.shared.b16", &load_matrices<false>, {});
    add.warp_call("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", &load_matrices<true>, {});
    const std::vector<u8> fragments(14, 4);  // d, a, b, c
    add.warp_call("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", &multiply_matrices<&from_half, 16>,
                  fragments);
    add.warp_call("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", &multiply_matrices<&from_bfloat, 16>,
                  fragments);
    add.warp_call("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", &multiply_matrices<&from_half, 8>,
                  std::vector<u8>(11, 4));
    add.raw("trap", &trap, {});
    add.barrier("bar.sync", {4}, Vote::none);
    add.barrier("bar.red.popc.u32", {4, 4, 0}, Vote::count);
    add.barrier("bar.red.or.pred", {0, 4, 0}, Vote::any);
    add.barrier("bar.red.and.pred", {0, 4, 0}, Vote::all);
}

const Opcodes& opcodes() {
    static const Opcodes table = [] {
        Opcodes made;
        add_integer_opcodes(made);
        add_float_opcodes(made);
        add_conversion_opcodes(made);
        add_memory_opcodes(made);
        add_warp_opcodes(made);
        return made;
    }();
    return table;
}

}  // namespace mezzo::ptx
