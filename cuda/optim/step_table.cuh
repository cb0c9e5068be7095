// Lists of parameters for the optimizer-step kernels. A list is passed in the kernel's arguments, so that no
// table has to be copied to the device. Its elements are divided among the blocks in chunks, whatever the
// sizes of the parameters. A block gets consecutive chunks, so that they belong to few parameters. Short
// lists are passed in a small table, because every byte of an argument is copied at each launch.
#pragma once

#include <span>

#include "cuda/elementwise/elements.cuh"
#include "cuda/reduce/ticket.cuh"
#include "kernels/step.h"

namespace mezzo::cuda {

inline constexpr unsigned step_block = 256;
inline constexpr std::int64_t step_chunk = 2048;  // elements, a multiple of 8

// Elements begin .. end of a parameter: adjacent chunks.
struct Chunks {
    int index;
    std::int64_t begin, end;
};

// A parameter as the kernels over gradients see it.
struct GradRef {
    void* grad;
    std::int64_t numel;
    std::uint32_t end;  // the number of chunks up to and including this parameter
    Dtype grad_dtype;
};
// A ParamRef in 72 bytes. A parameter has no 16-bit copy if it has a split master.
struct UpdateRef {
    void *param, *grad;
    void* state[max_optimizer_state];
    void* copy16;  // or ParamRef::low16, if `split`
    std::int64_t numel;
    float* step;
    std::uint32_t end;
    std::uint8_t group : 7;  // index into the groups of the table
    std::uint8_t split : 1;
    Dtype dtype, grad_dtype, copy16_dtype;
};

// An UpdateRef with state in less than 32 bits, or without.
struct NarrowRef : UpdateRef {
    std::int64_t first;  // ParamRef's, as `number` and `format`
    std::uint32_t number;
    StateFormat format[max_optimizer_state];
    bool narrow;  // any format is not `wide`
};

// A list of at most `capacity` entries, a piece of the whole list.
template <class Ref, int capacity_> struct StepList {
    static constexpr int capacity = capacity_;
    using Entry = Ref;
    int count, first;  // entries, index of the first in the whole list
    Ref entries[capacity];

    __host__ __device__ std::uint32_t chunks() const { return count == 0 ? 0 : entries[count - 1].end; }
    // Blocks for a launch over all chunks: at least one, so that a list of empty parameters still runs.
    unsigned grid() const { return chunks() == 0 ? 1 : grid_for(chunks(), 1); }
    // The entry to which a chunk belongs.
    __device__ int find(std::uint32_t chunk) const {
        int low = 0, high = count - 1;
        while (low < high) {
            const int middle = (low + high) / 2;
            if (chunk < entries[middle].end)
                high = middle;
            else
                low = middle + 1;
        }
        return low;
    }
};

__device__ inline std::int64_t numel_of(const GradRef& ref) { return ref.numel; }
__device__ inline std::int64_t numel_of(const UpdateRef& ref) { return ref.numel; }

// visit(chunks) for this block's share of the list, once for each parameter in it.
template <class List, class Visit> __device__ void for_chunks(const List& list, const Visit& visit) {
    const std::uint64_t chunks = list.chunks();
    const auto from = static_cast<std::uint32_t>(chunks * blockIdx.x / gridDim.x);
    const auto to = static_cast<std::uint32_t>(chunks * (blockIdx.x + 1) / gridDim.x);
    if (from == to) return;
    int index = list.find(from);
    for (std::uint32_t c = from; c < to;) {
        while (c >= list.entries[index].end) ++index;  // empty parameters have no chunk
        const std::uint32_t before = index == 0 ? 0 : list.entries[index - 1].end;
        const std::uint32_t stop = list.entries[index].end < to ? list.entries[index].end : to;
        const std::int64_t end = std::int64_t(stop - before) * step_chunk,
                           numel = numel_of(list.entries[index]);
        visit(Chunks{index, std::int64_t(c - before) * step_chunk, end < numel ? end : numel});
        c = stop;
    }
}

// Cuts a list of parameters into tables: the caller calls append() for each parameter and flush(list, true)
// at the end. run(last) is called for each table, when it is full or last.
template <class List, class Run> class Cutter {
public:
    explicit Cutter(const Run& run) : run_(run) {}
    // The new entry for p; `end` is set, the caller fills in the rest.
    typename List::Entry& append(const ParamRef& p, List& list) {
        constexpr std::int64_t most_chunks = 0x7fffffff;
        const std::int64_t chunks = (p.numel + step_chunk - 1) / step_chunk;
        check(chunks < most_chunks, ErrorKind::value, "optimizer step: a parameter of ", p.numel,
              " elements");
        if (list.count == List::capacity || list.chunks() + chunks > most_chunks) flush(list, false);
        const auto end = static_cast<std::uint32_t>(list.chunks() + chunks);
        auto& entry = list.entries[list.count++];
        entry.end = end;
        return entry;
    }
    void flush(List& list, bool last) {
        run_(last);
        list.first += list.count;
        list.count = 0;
    }

private:
    const Run& run_;
};

// Whether a kernel may have 32,764 bytes of parameters, as from CUDA 12.1 on, instead of 4,096.
#ifdef MEZZO_SMALL_PARAMETERS
inline constexpr bool large_parameters = false;
#elif defined(CUDART_VERSION)
inline constexpr bool large_parameters = CUDART_VERSION >= 12010;
#else
inline constexpr bool large_parameters = true;
#endif

using SmallGradTable = StepList<GradRef, 160>;
using LargeGradTable = StepList<GradRef, large_parameters ? 1350 : SmallGradTable::capacity>;

// run(table, last) for the gradients of the list, cut into tables; at least once.
template <class Table, class Run> void for_grad_tables_of(std::span<const ParamRef> params, const Run& run) {
    Table table{};
    const auto launch_table = [&](bool last) { run(static_cast<const Table&>(table), last); };
    Cutter<Table, decltype(launch_table)> cutter(launch_table);
    for (const ParamRef& p : params) {
        GradRef& entry = cutter.append(p, table);
        entry.grad = p.grad;
        entry.numel = p.numel;
        entry.grad_dtype = p.grad_dtype;
    }
    cutter.flush(table, true);
}

template <class Run> void for_grad_tables(std::span<const ParamRef> params, const Run& run) {
    if (params.size() <= SmallGradTable::capacity)
        for_grad_tables_of<SmallGradTable>(params, run);
    else
        for_grad_tables_of<LargeGradTable>(params, run);
}

// True in every thread of the block of a launch that comes last, which then sees all that the other blocks
// wrote. The ticket is 0 before and after the launch. All threads call it.
__device__ inline bool last_block(unsigned* ticket) { return last_of(ticket, gridDim.x); }

// The ticket of the current device, made at the first use. One is enough, because launches on the device's
// stream run one after the other.
unsigned* step_ticket();

}  // namespace mezzo::cuda
