// Computes a gradient element by element, and its column sums (the gradient of a bias), in one launch: the
// inputs of the gradient are read once, and the result is not read again.
#pragma once

#include <algorithm>
#include <optional>

#include "cuda/elementwise/packs.cuh"
#include "cuda/reduce/ticket.cuh"

namespace mezzo::cuda {

constexpr int gradient_warps = 8;

// Outputs: the gradient [rows, cols] and, unless `sums` is null, its column sums. The rows are split into
// parts; parts [splits, cols] and a ticket per tile of columns are null where one part is all.
template <class T> struct GradientSums {
    T* gradient;
    Compute<T>*sums, *parts;
    unsigned* tickets;
    std::int64_t rows, cols, splits;
};

// Adds up what the warps of the block have, and where this block is the tile's last, the parts, in order.
template <class T, int pack> __device__ void add_up_columns(const GradientSums<T>& to, std::int64_t item,
                                                            const Compute<T> (&total)[pack]) {
    using C = Compute<T>;
    MEZZO_SHARED(C, of_warps, [gradient_warps][32 * pack]);
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    const std::int64_t split = item % to.splits, first = item / to.splits * 32 * pack;
    const int width = to.cols - first < 32 * pack ? int(to.cols - first) : 32 * pack;
    for (int i = 0; i < pack; ++i) of_warps[warp][lane * pack + i] = total[i];
    __syncthreads();
    C* const into = (to.splits == 1 ? to.sums : to.parts + split * to.cols) + first;
    for (int i = int(threadIdx.x); i < width; i += 32 * gradient_warps) {
        C sum = of_warps[0][i];
        for (int w = 1; w < gradient_warps; ++w) sum += of_warps[w][i];
        into[i] = sum;
    }
    __syncthreads();  // the next item writes of_warps
    if (to.splits == 1 || !last_of(to.tickets + item / to.splits, unsigned(to.splits))) return;
    for (int i = int(threadIdx.x); i < width; i += 32 * gradient_warps) {
        C sum = 0;
        for (std::int64_t s = 0; s < to.splits; ++s) sum += to.parts[s * to.cols + first + i];
        to.sums[first + i] = sum;
    }
}

// A block takes 32 packs of adjacent columns, one per lane, and a part of the rows. source.load(row, column,
// values) computes `pack` adjacent elements. The sums are those of the rounded elements, as a separate pass
// would compute them.
template <class T, int pack, class Source>
__device__ void write_gradient_and_sums(const Source& source, const GradientSums<T>& to) {
    using C = Compute<T>;
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    const std::int64_t tiles = (to.cols + 32 * pack - 1) / (32 * pack);
    const std::int64_t part = (to.rows + to.splits - 1) / to.splits;
    for (std::int64_t item = blockIdx.x; item < tiles * to.splits; item += gridDim.x) {
        const std::int64_t begin = item % to.splits * part;
        const std::int64_t end = begin + part < to.rows ? begin + part : to.rows;
        const std::int64_t column = item / to.splits * 32 * pack + lane * pack;
        C total[pack] = {};
        // The loads of several rows are in flight together.
        constexpr int unroll = 4;
        for (std::int64_t row = begin + warp; column < to.cols && row < end; row += unroll * gradient_warps) {
            C values[unroll][pack];
            MEZZO_UNROLL
            for (int u = 0; u < unroll; ++u)
                if (row + u * gradient_warps < end) source.load(row + u * gradient_warps, column, values[u]);
            MEZZO_UNROLL
            for (int u = 0; u < unroll; ++u) {
                if (row + u * gradient_warps >= end) break;
                Vec<T, pack> result;
                MEZZO_UNROLL
                for (int i = 0; i < pack; ++i) {
                    result.v[i] = convert<T>(values[u][i]);
                    total[i] += convert<C>(result.v[i]);
                }
                store_vec(to.gradient + (row + u * gradient_warps) * to.cols + column, result);
            }
        }
        if (to.sums != nullptr) add_up_columns<T, pack>(to, item, total);
    }
}

// Calls launch(to, grid) with a split of the rows that fills the device, for blocks of 32 * gradient_warps.
template <class T, int pack, class Launch>
void split_rows(T* gradient, void* sums, std::int64_t rows, std::int64_t cols, const Launch& launch) {
    using C = Compute<T>;
    const std::int64_t tiles = (cols + 32 * pack - 1) / (32 * pack), most = rows / (gradient_warps * 8);
    const std::int64_t wanted = grid_limit(32 * gradient_warps) / tiles;
    GradientSums<T> to{gradient, static_cast<C*>(sums), nullptr, nullptr, rows, cols, 1};
    to.splits = std::max<std::int64_t>(1, std::min(wanted, most));
    std::optional<Scratch> parts;
    std::optional<Tickets> tickets;
    if (sums != nullptr && to.splits > 1) {
        to.parts = parts
                       .emplace(Device(DeviceType::cuda, current_device()),
                                to.splits * cols * std::int64_t(sizeof(C)))
                       .template as<C>();
        to.tickets = tickets.emplace(static_cast<int>(tiles)).get();
    }
    launch(to, grid_for(tiles * to.splits, 1));
}

}  // namespace mezzo::cuda
