// Grids, element access and sums of the batch normalisation kernels. An image is a matrix [rows, channels];
// adjacent threads read adjacent channels. A block takes a tile of channels and a part of the rows; how the
// image is cut depends on its shape only, so that sums have the same bits every time.
#pragma once

#include "cuda/elementwise/elements.cuh"
#include "cuda/reduce/ticket.cuh"

namespace mezzo::cuda {

inline constexpr unsigned channels_block = 256;

// Eight adjacent elements per access of a dtype that is known when the kernel is compiled.
template <class T> struct Packed {
    using C = float;
    static constexpr int width = 8;
    T* p;

    __device__ void load(std::int64_t i, float (&values)[width]) const {
        for (int j = 0; j < width; j += step) {
            const auto v = *reinterpret_cast<const Vec<T, step>*>(p + i + j);
            for (int k = 0; k < step; ++k) values[j + k] = to_float(v.v[k]);
        }
    }
    __device__ void store(std::int64_t i, const float (&values)[width]) const {
        for (int j = 0; j < width; j += step) {
            Vec<T, step> v;
            for (int k = 0; k < step; ++k) v.v[k] = from_float<T>(values[j + k]);
            *reinterpret_cast<Vec<T, step>*>(p + i + j) = v;
        }
    }

private:
    static constexpr int step = 16 / sizeof(T);
};
// One element per access, of any floating dtype.
template <class Acc> struct Single {
    using C = Acc;
    static constexpr int width = 1;
    void* p;
    Dtype dtype;
    __device__ void load(std::int64_t i, C (&values)[width]) const { values[0] = load_as<C>(p, dtype, i); }
    __device__ void store(std::int64_t i, const C (&values)[width]) const {
        store_as(p, dtype, i, values[0]);
    }
};

// Loads neighbouring elements of an array of coefficients or sums, from an index that is a multiple of their
// number.
template <int width, class C> __device__ void load_row(const C* p, std::int64_t i, C (&values)[width]) {
    if constexpr (width == 8) {
        const auto low = *reinterpret_cast<const Vec<C, 4>*>(p + i),
                   high = *reinterpret_cast<const Vec<C, 4>*>(p + i + 4);
        for (int k = 0; k < 4; ++k) {
            values[k] = low.v[k];
            values[k + 4] = high.v[k];
        }
    } else {
        for (int k = 0; k < width; ++k) values[k] = p[i + k];
    }
}

// Sets values to 0 where the bits of elements i, i + 1, … are not set.
template <int width, class C>
__device__ void apply_bits(const std::uint8_t* bits, std::int64_t i, C (&values)[width]) {
    if (bits == nullptr) return;
    const unsigned word = unsigned(bits[i / 8]) >> (i % 8);
    for (int k = 0; k < width; ++k) values[k] = word >> k & 1u ? values[k] : C(0);
}

struct ChannelGrid {
    std::int64_t rows, channels;
    int lanes;  // threads of a block along the channels; the others take other rows
    std::int64_t tiles, parts, part_rows;

    __host__ __device__ std::int64_t rows_of(std::int64_t part) const {
        const std::int64_t left = rows - part * part_rows;
        return left < part_rows ? left : part_rows;
    }
};

// Grid for `width` channels per thread.
inline ChannelGrid channel_grid(std::int64_t rows, std::int64_t channels, int width) {
    ChannelGrid s{rows, channels, 1, 0, 0, 0};
    // Eight packs are at least the 128 bytes of a memory transaction; more would leave fewer threads to each
    // channel when the parts are added up.
    const int most_lanes = width == 1 ? 32 : 8;
    while (s.lanes < most_lanes && s.lanes * width < channels) s.lanes *= 2;
    const std::int64_t tile = s.lanes * width, ways = channels_block / s.lanes;
    s.tiles = (channels + tile - 1) / tile;
    // About 256 blocks, if each thread gets four rows then: more parts take longer to add up.
    const std::int64_t wanted = 256 / s.tiles, most = rows / (4 * ways);
    std::int64_t parts = wanted < most ? wanted : most;
    parts = parts < 1 ? 1 : parts;
    s.part_rows = (rows + parts - 1) / parts;
    s.part_rows = s.part_rows < 1 ? 1 : s.part_rows;
    s.parts = rows == 0 ? 1 : (rows + s.part_rows - 1) / s.part_rows;
    return s;
}
inline dim3 parts_grid(const ChannelGrid& s) { return dim3(unsigned(s.tiles), unsigned(s.parts)); }
// Grid for kernels without sums: eight rows per thread.
inline dim3 rows_grid(const ChannelGrid& s) {
    const std::int64_t rows = channels_block / s.lanes * 8, wanted = (s.rows + rows - 1) / rows,
                       most = grid_limit(channels_block) / s.tiles, limit = most < 1 ? 1 : most;
    return dim3(unsigned(s.tiles), unsigned(wanted < limit ? wanted : limit));
}

// Rows of which a thread of a kernel with sums has the loads in flight.
inline constexpr int rows_in_flight = 4;

// This thread's first channel, and its index among the threads that take other rows of the same channels.
template <int width> struct ChannelPosition {
    std::int64_t channel;
    int way, ways;
    __device__ explicit ChannelPosition(const ChannelGrid& s)
        : channel((blockIdx.x * std::int64_t(s.lanes) + threadIdx.x % unsigned(s.lanes)) * width),
          way(int(threadIdx.x) / s.lanes),
          ways(int(channels_block) / s.lanes) {}
};

// Adds up the values of all threads that have the same channels; the threads of way 0 get the sums.
template <int count, class C> __device__ void add_ways(C (&values)[count], int lanes) {
    MEZZO_SHARED(C, shared, [count][channels_block]);
    for (int k = 0; k < count; ++k) shared[k][threadIdx.x] = values[k];
    for (unsigned distance = channels_block / 2; distance >= unsigned(lanes); distance /= 2) {
        __syncthreads();
        if (threadIdx.x < distance)
            for (int k = 0; k < count; ++k) shared[k][threadIdx.x] += shared[k][threadIdx.x + distance];
    }
    __syncthreads();
    for (int k = 0; k < count; ++k) values[k] = shared[k][threadIdx.x];
}

// Work of a thread in the last block of a tile: its channel of the tile, and the parts that it adds up. Each
// channel has `ways` threads; the thread of way 0 finishes it.
template <int width> struct Finisher {
    int tile, way, ways;
    std::int64_t channel;
    __device__ explicit Finisher(const ChannelGrid& s)
        : tile(s.lanes * width),
          way(int(threadIdx.x) / tile),
          ways(int(channels_block) / tile),
          channel(blockIdx.x * std::int64_t(tile) + threadIdx.x % unsigned(tile)) {}
    // The sum of term(part) over all parts, in every thread of the channel. All threads call it.
    template <class C, class Term>
    __device__ C sum(const ChannelGrid& s, const Term& term, std::type_identity<C>) const {
        constexpr int loads = 8;  // in flight
        C total[1] = {0};
        for (std::int64_t part = way; channel < s.channels && part < s.parts; part += loads * ways) {
            C terms[loads];
            MEZZO_UNROLL
            for (int u = 0; u < loads; ++u)
                terms[u] = part + u * ways < s.parts ? term(part + u * ways) : C(0);
            MEZZO_UNROLL
            for (int u = 0; u < loads; ++u) total[0] += terms[u];
        }
        MEZZO_SHARED(C, of_channel, [channels_block]);
        add_ways(total, tile);
        if (way == 0) of_channel[threadIdx.x] = total[0];
        __syncthreads();
        return of_channel[threadIdx.x % unsigned(tile)];
    }
};

// Partial sums in memory: vector v of part p.
template <class C> struct PartSums {
    C* p;
    std::int64_t vectors, channels;
    __device__ C& at(std::int64_t part, int vector, std::int64_t channel) const {
        return p[(part * vectors + vector) * channels + channel];
    }
};

// Whether an image can be read eight elements at a time: its channels, and where it begins.
template <class T> bool packed_fits(std::int64_t channels, std::initializer_list<Tensor> images) {
    if (channels % Packed<T>::width != 0) return false;
    for (const Tensor& x : images)
        if (x.defined() && x.numel() != 0 &&
            (x.dtype() != dtype_of<T>() || reinterpret_cast<std::uintptr_t>(raw(x)) % 16 != 0))
            return false;
    return true;
}
template <class T> Packed<T> packed(const Tensor& x) {
    return {x.defined() && x.numel() != 0 ? static_cast<T*>(raw(x)) : nullptr};
}
template <class C> Single<C> single(const Tensor& x) {
    return x.defined() && x.numel() != 0 ? Single<C>{raw(x), x.dtype()} : Single<C>{nullptr, float32};
}
// run(image_of) with packed() or single(), whichever suits all images.
template <class Run>
void with_access(std::int64_t channels, std::initializer_list<Tensor> images, const Run& run) {
    const auto try_packed = [&]<class T>(std::type_identity<T>) {
        if (!packed_fits<T>(channels, images)) return false;
        run([](const Tensor& x) { return packed<T>(x); });
        return true;
    };
    if (try_packed(std::type_identity<float16_t>()) || try_packed(std::type_identity<bfloat16_t>()) ||
        try_packed(std::type_identity<float>()))
        return;
    ComputeKind kind = ComputeKind::float32;
    for (const Tensor& x : images)
        if (x.defined()) kind = wider(kind, x.dtype());
    if (kind == ComputeKind::float64)
        run([](const Tensor& x) { return single<double>(x); });
    else
        run([](const Tensor& x) { return single<float>(x); });
}

}  // namespace mezzo::cuda
