// Emulation of the instructions that cuda/mma.cuh wraps: register layouts as in the PTX manual
// ("Warp-level matrix instructions", "Data movement and conversion instructions: cp.async").
#pragma once

#include "tests/emulation/intrinsics.h"
#include "tests/emulation/truncated_sum.h"

namespace mezzo::emulation {

// cp.async at both extremes of what the device may do: the destination turns to NaN at once, the earliest
// moment it may be written, and gets the data in the wait that covers it, the latest.
inline void copy_async(void* to, const void* from, std::size_t bytes, std::size_t from_bytes,
                       Site site = Site::current()) {
    if ((reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) % bytes != 0)
        Engine::get().fail("cp.async: misaligned address", site);
    std::memset(to, 0xFF, bytes);
    Hidden hidden;
    Engine::get().copies().back().push_back({to, from, from_bytes, bytes - from_bytes, site});
}
inline void copy_async_commit() {
    Hidden hidden;
    Engine::get().copies().emplace_back();
}
// Does all groups but the last `pending`. The accesses are the calling thread's, and the sanitizers see them.
inline void copy_async_wait(std::size_t pending) {
    std::vector<AsyncCopy> due;
    {
        Hidden hidden;
        auto& groups = Engine::get().copies();  // the last one is still open
        while (groups.size() > pending + 1) {
            due.insert(due.end(), groups.front().begin(), groups.front().end());
            groups.erase(groups.begin());
        }
    }
    for (const AsyncCopy& copy : due) {
        std::memcpy(copy.to, copy.from, copy.bytes);
        std::memset(static_cast<char*>(copy.to) + copy.bytes, 0, copy.zeros);
    }
}

// ldmatrix .x4: lane l names row l % 8 of matrix l / 8; every lane gets two adjacent elements of each.
inline void load_matrices(const void* row, bool transposed, std::uint32_t (&result)[4],
                          Site site = Site::current()) {
    struct Slot {
        std::uint16_t row[8];
        std::uint32_t* result;
        bool transposed;
    } slot;
    if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) Engine::get().fail("ldmatrix: misaligned row", site);
    std::memcpy(slot.row, row, sizeof slot.row);
    slot.result = result;
    slot.transposed = transposed;
    Engine::get().collective(~0u, "ldmatrix", site, false, &slot, [](void** lanes) {
        const auto lane = [&](int i) { return static_cast<Slot*>(lanes[i]); };
        for (int i = 0; i < 32; ++i) {
            const int a = i / 4, b = i % 4 * 2;
            for (int m = 0; m < 4; ++m) {
                const bool t = lane(i)->transposed;
                const std::uint32_t low = t ? lane(m * 8 + b)->row[a] : lane(m * 8 + a)->row[b];
                const std::uint32_t high = t ? lane(m * 8 + b + 1)->row[a] : lane(m * 8 + a)->row[b + 1];
                lane(i)->result[m] = low | high << 16;
            }
        }
    });
}

// One element of a b + sum, 16 terms.
inline float sum_of_products(float sum, const float (&left)[16], const float (&right)[16]) {
    if (options.tensor_sums == TensorSums::truncated)
        return truncated_sum(truncated_sum(sum, left + 8, right + 8), left, right);
    for (int k = 0; k < 16; ++k) sum += left[k] * right[k];
    return sum;
}

// mma.sync.m16n8k16.row.col with 16-bit operands of type T: d += a b in float.
template <class T> void multiply_add_16x8x16(float (&d)[4], const std::uint32_t (&a)[4],
                                             const std::uint32_t (&b)[2], Site site = Site::current()) {
    struct Slot {
        const std::uint32_t *a, *b;
        float* d;
    } slot{a, b, d};
    Engine::get().collective(~0u, "mma.sync", site, false, &slot, [](void** lanes) {
        const auto element = [](const std::uint32_t* registers, int e) {
            return float(T::from_bits(std::uint16_t(registers[e / 2] >> 16 * (e % 2))));
        };
        float rows[16][16], columns[8][16];
        for (int i = 0; i < 32; ++i) {
            const auto* lane = static_cast<Slot*>(lanes[i]);
            for (int e = 0; e < 8; ++e)
                rows[i / 4 + e / 2 % 2 * 8][i % 4 * 2 + e % 2 + e / 4 * 8] = element(lane->a, e);
            for (int e = 0; e < 4; ++e) columns[i / 4][i % 4 * 2 + e % 2 + e / 2 * 8] = element(lane->b, e);
        }
        for (int i = 0; i < 32; ++i)
            for (int e = 0; e < 4; ++e) {
                float& sum = static_cast<Slot*>(lanes[i])->d[e];
                sum = sum_of_products(sum, rows[i / 4 + e / 2 * 8], columns[i % 4 * 2 + e % 2]);
            }
    });
}

}  // namespace mezzo::emulation
