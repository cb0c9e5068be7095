// Float8 codes of a matrix and of its transposed, and their scales.
#include <algorithm>

#include "cuda/gemm/device.cuh"
#include "cuda/gemm/fp8.h"
#include "cuda/reduce/ticket.cuh"
#include "kernels/fp8.h"

namespace mezzo::cuda {
namespace {

using kernels::fp8_block;

constexpr unsigned threads = 256;
constexpr int most_parts = 1024;  // blocks that search for the largest magnitude
constexpr int tile = 64;
constexpr int code_pack = 16;  // codes of a column or block that a thread writes together

template <class T, int pack> __device__ float largest_of(const Vec<T, pack>& v, float top) {
    MEZZO_UNROLL
    for (int i = 0; i < pack; ++i) top = Max()(std::fabs(to_float(v.v[i])), top);
    return top;
}

// The largest magnitude of each block's elements.
template <class T, int pack> __global__ void largest_kernel(const T* x, std::int64_t n, float* parts) {
    float top = 0;
    const auto* const packs = reinterpret_cast<const Vec<T, pack>*>(x);
    for (std::int64_t i = first_item(); i < n / pack; i += item_step()) top = largest_of(packs[i], top);
    top = block_reduce(top, 0.0f, Max());
    if (threadIdx.x == 0) parts[blockIdx.x] = top;
}

// NaN for what is not finite.
template <class Code> __device__ Code code_of(float x, float scale, float largest) {
    const float y = x * (std::isfinite(x) ? scale : 0.0f);
    return from_float<Code>(y < -largest ? -largest : y > largest ? largest : y);
}

template <class Code, class T, int pack>
__device__ Vec<Code, pack> codes_of(const Vec<T, pack>& v, float scale, float largest) {
    Vec<Code, pack> codes;
    MEZZO_UNROLL
    for (int i = 0; i < pack; ++i) codes.v[i] = code_of<Code>(to_float(v.v[i]), scale, largest);
    return codes;
}

// Takes the tiles of a matrix one after another: load(r, c, i) for each pack of elements, at (r, c) in the
// tile and with index i in the matrix, then store(row, column) of the tile's first element.
template <int pack, class Load, class Store>
__device__ void for_tiles(std::int64_t rows, std::int64_t cols, const Load& load, const Store& store) {
    const std::int64_t across = (cols + tile - 1) / tile, tiles = across * ((rows + tile - 1) / tile);
    for (std::int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        const std::int64_t row = t / across * tile, column = t % across * tile;
        for (int item = int(threadIdx.x); item < tile * tile / pack; item += int(threads)) {
            const int r = item / (tile / pack), c = item % (tile / pack) * pack;
            if (row + r < rows && column + c < cols) load(r, c, (row + r) * cols + column + c);
        }
        __syncthreads();
        store(row, column);
        __syncthreads();
    }
}

// Writes the codes of one tile, from shared memory, as rows of the transposed matrix.
template <class Code> __device__ void store_columns(const QuantizeArguments& q,
                                                    const Code (&codes)[tile][tile + 4], std::int64_t row,
                                                    std::int64_t column) {
    constexpr int packs = tile / code_pack;
    auto* const to = static_cast<Code*>(q.transposed);
    for (int item = int(threadIdx.x); item < tile * packs; item += int(threads)) {
        const int c = item / packs, r = item % packs * code_pack;
        if (column + c >= q.cols || row + r >= q.rows) continue;
        Code* const line = to + (column + c) * q.rows + row + r;
        if (q.rows % code_pack == 0) {
            Vec<Code, code_pack> values;
            MEZZO_UNROLL
            for (int i = 0; i < code_pack; ++i) values.v[i] = codes[r + i][c];
            *reinterpret_cast<Vec<Code, code_pack>*>(line) = values;
        } else {
            for (int i = 0; i < code_pack && row + r + i < q.rows; ++i) line[i] = codes[r + i][c];
        }
    }
}

// Tiles of 64 x 64 codes. Each block first reduces the parts of the maximum to the scale.
template <class T, class Code, int pack>
__global__ void code_kernel(QuantizeArguments q, const float* parts, int count, float largest) {
    MEZZO_SHARED(Code, codes, [tile][tile + 4]);
    float top = 0;
    for (int i = int(threadIdx.x); i < count; i += int(threads)) top = Max()(parts[i], top);
    top = block_reduce(top, 0.0f, Max());
    const bool first = blockIdx.x == 0 && threadIdx.x == 0;
    if (first && q.own != nullptr) *q.own = top;
    if (q.history != nullptr && *q.history > 0) top = *q.history;
    const float scale = kernels::fp8_scale(top, largest, q.exact, q.factor);
    if (first) *q.scale = scale, *q.inverse = 1 / scale;
    const auto* const x = static_cast<const T*>(q.x);
    const auto load = [&](int r, int c, std::int64_t at) {
        const auto made = codes_of<Code>(*reinterpret_cast<const Vec<T, pack>*>(x + at), scale, largest);
        if (q.codes != nullptr) *reinterpret_cast<Vec<Code, pack>*>(static_cast<Code*>(q.codes) + at) = made;
        MEZZO_UNROLL
        for (int i = 0; i < pack; ++i) codes[r][c + i] = made.v[i];
    };
    for_tiles<pack>(q.rows, q.cols, load, [&](std::int64_t row, std::int64_t column) {
        if (q.transposed != nullptr) store_columns(q, codes, row, column);
    });
}

// A warp takes one row after another: its largest magnitude, then its codes.
template <class T, class Code, int pack> __global__ void row_code_kernel(QuantizeArguments q, float largest) {
    const std::int64_t packs = q.cols / pack;
    const int lane = int(threadIdx.x) % 32;
    const std::int64_t first = std::int64_t(blockIdx.x) * (threads / 32) + threadIdx.x / 32;
    for (std::int64_t row = first; row < q.rows; row += std::int64_t(gridDim.x) * (threads / 32)) {
        const auto* const x =
            reinterpret_cast<const Vec<T, pack>*>(static_cast<const T*>(q.x) + row * q.cols);
        float top = 0;
        for (std::int64_t i = lane; i < packs; i += 32) top = largest_of(x[i], top);
        const float scale = kernels::fp8_scale(warp_reduce(top, Max()), largest, q.exact, q.factor);
        if (lane == 0) q.scale[row] = scale, q.inverse[row] = 1 / scale;
        auto* const to = reinterpret_cast<Vec<Code, pack>*>(static_cast<Code*>(q.codes) + row * q.cols);
        for (std::int64_t i = lane; i < packs; i += 32) to[i] = codes_of<Code>(x[i], scale, largest);
    }
}

// Codes and scale of a block of the elements get(0), get(1), ...
template <class Code, class Get>
__device__ void store_block(const BlockCodes& to, std::int64_t block, float largest, const Get& get) {
    float top = 0;
    MEZZO_UNROLL
    for (int i = 0; i < fp8_block; ++i) top = Max()(std::fabs(get(i)), top);
    const float scale = kernels::fp8_scale(top, largest, false, 1);
    to.scale[block] = scale;
    static_cast<float8_e8m0fnu_t*>(to.inverse)[block] = from_float<float8_e8m0fnu_t>(1 / scale);
    auto* const codes = static_cast<Vec<Code, code_pack>*>(to.codes) + block * (fp8_block / code_pack);
    MEZZO_UNROLL
    for (int first = 0; first < fp8_block; first += code_pack) {
        Vec<Code, code_pack> made;
        MEZZO_UNROLL
        for (int i = 0; i < code_pack; ++i) made.v[i] = code_of<Code>(get(first + i), scale, largest);
        codes[first / code_pack] = made;
    }
}

// Tiles of 64 x 64 elements, which have whole blocks of rows and of columns. Half of the threads take blocks
// of rows, one each, the others blocks of columns. The blocks of a warp are neighbours across their length.
template <class T, class Code, int pack> __global__ void block_kernel(BlockArguments q, float largest) {
    MEZZO_SHARED(T, values, [tile][tile + 4 / sizeof(T)]);
    const auto* const x = static_cast<const T*>(q.x);
    const int line = int(threadIdx.x) % tile, first = int(threadIdx.x) / tile % 2 * fp8_block;
    const bool takes_rows = threadIdx.x < threads / 2;
    const auto load = [&](int r, int c, std::int64_t at) {
        const auto from = *reinterpret_cast<const Vec<T, pack>*>(x + at);
        MEZZO_UNROLL
        for (int i = 0; i < pack; ++i) values[r][c + i] = from.v[i];
    };
    for_tiles<pack>(q.rows, q.cols, load, [&](std::int64_t row, std::int64_t column) {
        if (takes_rows && q.matrix.codes != nullptr && row + line < q.rows && column + first < q.cols)
            store_block<Code>(q.matrix, ((row + line) * q.cols + column + first) / fp8_block, largest,
                              [&](int i) { return to_float(values[line][first + i]); });
        if (!takes_rows && q.transposed.codes != nullptr && column + line < q.cols && row + first < q.rows)
            store_block<Code>(q.transposed, ((column + line) * q.rows + row + first) / fp8_block, largest,
                              [&](int i) { return to_float(values[first + i][line]); });
    });
}

// Blocks of a kernel that takes tiles of a matrix.
unsigned tile_grid(std::int64_t rows, std::int64_t cols) {
    const std::int64_t tiles = (rows + tile - 1) / tile * ((cols + tile - 1) / tile);
    return unsigned(std::min(tiles, std::int64_t(grid_limit(threads))));
}

template <class T, class Code, int pack> void run_blocks(const BlockArguments& q) {
    launch(block_kernel<T, Code, pack>, tile_grid(q.rows, q.cols), threads, 0, q,
           static_cast<float>(dtype_info(q.dtype).max));
}

template <class T, class Code, int pack> void run(const QuantizeArguments& q) {
    const auto largest = static_cast<float>(dtype_info(q.dtype).max);
    if (q.by_row)
        return launch(row_code_kernel<T, Code, pack>, grid_for(q.rows, threads / 32), threads, 0, q, largest);
    const std::int64_t n = q.rows * q.cols;
    const unsigned blocks = std::min(grid_for((n / pack + 3) / 4, threads), unsigned(most_parts));
    const Scratch parts(Device(DeviceType::cuda, current_device()), most_parts * std::int64_t(sizeof(float)));
    launch(largest_kernel<T, pack>, blocks, threads, 0, static_cast<const T*>(q.x), n, parts.as<float>());
    launch(code_kernel<T, Code, pack>, tile_grid(q.rows, q.cols), threads, 0, q, parts.as<float>(),
           int(blocks), largest);
}

// Calls f with the types of the elements of x and of the codes, and with the elements that a thread reads
// together.
template <class T, class Code, int pack> struct Variant {};
template <class Arguments, class F> void visit(const Arguments& q, const F& f) {
    visit_dtype<Dtypes::up_to_32bit>(q.x_type, [&]<class T>(std::type_identity<T>) {
        constexpr int wide = 16 / sizeof(T);
        const bool packs = q.cols % wide == 0 && reinterpret_cast<std::uintptr_t>(q.x) % 16 == 0;
        if (q.dtype == float8_e4m3fn)
            packs ? f(Variant<T, float8_e4m3fn_t, wide>()) : f(Variant<T, float8_e4m3fn_t, 1>());
        else
            packs ? f(Variant<T, float8_e5m2_t, wide>()) : f(Variant<T, float8_e5m2_t, 1>());
    });
}

// Sums that another product has made of the codes, with the factors, bias and activation.
__global__ void scale_kernel(Gemm g, const float* sums) {
    for (std::int64_t i = first_item(); i < g.m * g.n; i += item_step()) {
        const std::int64_t row = i / g.n, column = i % g.n, at = row * g.ldc + column;
        float value = sums[i];
        if (g.scales != Granularity::block32) {
            const bool by_row = g.scales == Granularity::row;
            const float a = static_cast<const float*>(g.a_scale)[by_row ? row : 0],
                        b = static_cast<const float*>(g.b_scale)[by_row ? column : 0];
            value *= a < b ? a : b;
            value *= a < b ? b : a;
        }
        if (g.bias != nullptr) value += load<float>(g.bias, g.bias_type, column);
        if (g.pre_activation != nullptr) store(g.pre_activation, g.c_type, at, value);
        store(g.c, g.c_type, at, activate(g.activation, value));
    }
}

__device__ void store_tiled(const TiledScales& s, std::int64_t byte) {
    const std::int64_t index = byte / 512, at = byte % 512, across = (s.blocks + 3) / 4;
    const std::int64_t row = index / across * 128 + at / 4 % 4 * 32 + at / 16,
                       block = index % across * 4 + at % 4;
    const bool inside = row < s.rows && block < s.blocks;
    static_cast<std::uint8_t*>(s.tiled)[byte] =
        inside ? static_cast<const std::uint8_t*>(s.plain)[row * s.blocks + block] : std::uint8_t(0);
}

__global__ void tile_kernel(TiledScales a, std::int64_t bytes_of_a, TiledScales b, std::int64_t bytes) {
    for (std::int64_t i = first_item(); i < bytes; i += item_step())
        i < bytes_of_a ? store_tiled(a, i) : store_tiled(b, i - bytes_of_a);
}

// Codes may be rounded beyond the largest number of float32.
template <class Code> __global__ void dequantize_kernel(const Code* codes, const float8_e8m0fnu_t* factors,
                                                        std::int64_t n, float* to) {
    for (std::int64_t i = first_item(); i < n; i += item_step()) {
        const float code = to_float(codes[i]), x = code * to_float(factors[i / fp8_block]);
        to[i] = !std::isfinite(code) ? x : x < -FLT_MAX ? -FLT_MAX : x > FLT_MAX ? FLT_MAX : x;
    }
}

}  // namespace

void tile_scales(const TiledScales& a, const TiledScales& b) {
    const std::int64_t of_a = tiled_scale_bytes(a.rows, a.blocks),
                       bytes = of_a + tiled_scale_bytes(b.rows, b.blocks);
    launch(tile_kernel, grid_for(bytes), 256, 0, a, of_a, b, bytes);
}

void dequantize_blocks(const void* codes, Dtype dtype, const void* factors, std::int64_t n, float* to) {
    const auto run = [&]<class Code>(std::type_identity<Code>) {
        launch(dequantize_kernel<Code>, grid_for(n), 256, 0, static_cast<const Code*>(codes),
               static_cast<const float8_e8m0fnu_t*>(factors), n, to);
    };
    dtype == float8_e4m3fn ? run(std::type_identity<float8_e4m3fn_t>())
                           : run(std::type_identity<float8_e5m2_t>());
}

void scale_sums(const Gemm& g, const float* sums) {
    launch(scale_kernel, grid_for(g.m * g.n), 256, 0, g, sums);
}

void quantize_codes(const QuantizeArguments& q) {
    visit(q, [&]<class T, class Code, int pack>(Variant<T, Code, pack>) { run<T, Code, pack>(q); });
}

void quantize_blocks(const BlockArguments& q) {
    visit(q, [&]<class T, class Code, int pack>(Variant<T, Code, pack>) { run_blocks<T, Code, pack>(q); });
}

}  // namespace mezzo::cuda
