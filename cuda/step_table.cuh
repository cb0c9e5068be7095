// Lists of parameters for the optimizer-step kernels. A list travels in the kernel's arguments, so that no
// table has to be copied to the device; its elements are dealt to the blocks in chunks, whatever the sizes of
// the parameters.
#pragma once

#include <span>

#include "cuda/elements.cuh"
#include "ops/kernels.h"

namespace mezzo::cuda {

inline constexpr unsigned step_block = 256;
inline constexpr std::int64_t step_chunk = 2048;  // elements, a multiple of 8
inline constexpr int table_params = 54;           // 3,904 bytes; kernel arguments are limited to 4 KiB

struct ParamTable {
    int count, first;                 // parameters, index of the first in the whole list
    std::uint32_t end[table_params];  // chunks before and including each parameter
    ParamRef params[table_params];

    __host__ __device__ std::uint32_t chunks() const { return count == 0 ? 0 : end[count - 1]; }
    // Blocks for a launch over all chunks: at least one, so that a list of empty parameters still runs.
    unsigned grid() const { return chunks() == 0 ? 1 : grid_for(chunks(), 1); }
    // The parameter whose chunk it is.
    __device__ int find(std::uint32_t chunk) const {
        int low = 0, high = count - 1;
        while (low < high) {
            const int middle = (low + high) / 2;
            if (chunk < end[middle])
                high = middle;
            else
                low = middle + 1;
        }
        return low;
    }
};

// Elements begin .. end of a parameter.
struct Chunk {
    int index;
    std::int64_t begin, end;
};

__device__ inline Chunk chunk_of(const ParamTable& table, std::uint32_t chunk) {
    const int index = table.find(chunk);
    const std::uint32_t before = index == 0 ? 0 : table.end[index - 1];
    const std::int64_t begin = std::int64_t(chunk - before) * step_chunk, numel = table.params[index].numel;
    return {index, begin, begin + step_chunk < numel ? begin + step_chunk : numel};
}

// run(table) for the list, cut into tables.
template <class Run> void for_tables(std::span<const ParamRef> params, const Run& run) {
    ParamTable table{};
    const auto flush = [&] {
        if (table.count > 0) run(static_cast<const ParamTable&>(table));
        table.first += table.count;
        table.count = 0;
    };
    constexpr std::int64_t most_chunks = 0x7fffffff;
    for (const ParamRef& p : params) {
        const std::int64_t chunks = (p.numel + step_chunk - 1) / step_chunk;
        check(chunks < most_chunks, ErrorKind::value, "optimizer step: a parameter of ", p.numel,
              " elements");
        if (table.count == table_params || table.chunks() + chunks > most_chunks) flush();
        table.end[table.count] = static_cast<std::uint32_t>(table.chunks() + chunks);
        table.params[table.count++] = p;
    }
    flush();
}

}  // namespace mezzo::cuda
