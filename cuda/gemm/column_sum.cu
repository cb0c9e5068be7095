#include "cuda/gemm/column_sum.h"

#include <algorithm>

#include "cuda/reduce/ticket.cuh"

namespace mezzo::cuda {
namespace {

constexpr int warps = 8;
constexpr std::int64_t least_rows = 8;        // that a warp gets, where rows are split
constexpr std::int64_t largest_grid = 65535;  // of the second dimension
// Number of rows after which a partial sum is added to the total, so that rounding grows slowly.
constexpr std::int64_t chain = 256;

template <class T, int pack> __device__ void add(const T* p, Compute<T> (&sum)[pack]) {
    const auto values = *reinterpret_cast<const Vec<T, pack>*>(p);
    MEZZO_UNROLL
    for (int i = 0; i < pack; ++i) sum[i] += convert<Compute<T>>(values.v[i]);
}

// total = the sums of rows row, row + step, ... < rows of `pack` columns.
template <class T, int pack> __device__ void add_rows(const T* x, std::int64_t row, std::int64_t step,
                                                      std::int64_t rows, std::int64_t cols,
                                                      Compute<T> (&total)[pack]) {
    while (row < rows) {
        Compute<T> sum[pack] = {};
        const std::int64_t full = row + chain * step, stop = full < rows ? full : rows;
        for (; row < stop; row += step) add<T, pack>(x + row * cols, sum);
        MEZZO_UNROLL
        for (int i = 0; i < pack; ++i) total[i] += sum[i];
    }
}

// Block (t, s) sums part s of the rows of tile t, 32 packs of adjacent columns. With several parts the block
// that comes last adds them up in order. There are as many blocks as tiles and parts.
template <class T, int pack> __global__ void column_sum_kernel(const T* x, std::int64_t rows,
                                                               std::int64_t cols, Compute<T>* parts,
                                                               unsigned* tickets, AnyArray<Compute<T>> out) {
    using C = Compute<T>;
    MEZZO_SHARED(C, of_warps, [warps][32 * pack]);
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    const std::int64_t first = std::int64_t(blockIdx.x) * 32 * pack, column = first + lane * pack;
    C total[pack] = {};
    if (column < cols)
        add_rows<T, pack>(x + column, std::int64_t(blockIdx.y) * warps + warp,
                          std::int64_t(gridDim.y) * warps, rows, cols, total);
    MEZZO_UNROLL
    for (int i = 0; i < pack; ++i) of_warps[warp][lane * pack + i] = total[i];
    __syncthreads();
    for (int i = int(threadIdx.x); i < 32 * pack && first + i < cols; i += 32 * warps) {
        C sum = of_warps[0][i];
        for (int w = 1; w < warps; ++w) sum += of_warps[w][i];
        if (gridDim.y == 1)
            out.store(first + i, sum);
        else
            parts[std::int64_t(blockIdx.y) * cols + first + i] = sum;
    }
    if (gridDim.y == 1 || !last_of(tickets + blockIdx.x, gridDim.y)) return;
    for (int i = int(threadIdx.x); i < 32 * pack && first + i < cols; i += 32 * warps) {
        C sum = 0;
        for (unsigned s = 0; s < gridDim.y; ++s) sum += parts[std::int64_t(s) * cols + first + i];
        out.store(first + i, sum);
    }
}

template <class T, int pack>
void run(const T* x, std::int64_t rows, std::int64_t cols, const AnyArray<Compute<T>>& out) {
    const std::int64_t tiles = (cols + 32 * pack - 1) / (32 * pack), most = rows / (warps * least_rows);
    const std::int64_t wanted = grid_limit(32 * warps) / tiles;
    const std::int64_t splits = std::max<std::int64_t>(1, std::min({wanted, most, largest_grid}));
    const auto go = [&](Compute<T>* parts, unsigned* tickets) {
        launch(column_sum_kernel<T, pack>, {static_cast<unsigned>(tiles), static_cast<unsigned>(splits)},
               32 * warps, 0, x, rows, cols, parts, tickets, out);
    };
    if (splits == 1) return go(nullptr, nullptr);
    const Scratch parts(Device(DeviceType::cuda, current_device()),
                        splits * cols * std::int64_t(sizeof(Compute<T>)));
    const Tickets tickets(static_cast<int>(tiles));
    go(parts.as<Compute<T>>(), tickets.get());
}

}  // namespace

void sum_columns(const void* x, Dtype dtype, std::int64_t rows, std::int64_t cols, void* out,
                 Dtype out_dtype) {
    if (cols == 0) return;
    visit_dtype<Dtypes::floating>(dtype, [&]<class T>(std::type_identity<T>) {
        constexpr int wide = 16 / sizeof(T);
        const bool packs = cols % wide == 0 && reinterpret_cast<std::uintptr_t>(x) % 16 == 0;
        const AnyArray<Compute<T>> sums{out, out_dtype};
        if (packs)
            run<T, wide>(static_cast<const T*>(x), rows, cols, sums);
        else
            run<T, 1>(static_cast<const T*>(x), rows, cols, sums);
    });
}

}  // namespace mezzo::cuda
