// The emulator itself: built-ins against CUDA's definitions, the reports it makes, the helpers of kernel.cuh.
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <utility>
#include <vector>

#include "cuda/mma.cuh"
#include "tests/cuda/device_array.h"

namespace {

using namespace mezzo;
using Catch::Matchers::Contains;
using cuda::launch;
using test::DeviceArray;

constexpr unsigned all_lanes = 0xffffffffu;

// Runs a section under every kind of schedule, then restores the old one.
struct Schedule {
    unsigned old = emulation::options.schedule;
    explicit Schedule(unsigned schedule) { emulation::options.schedule = schedule; }
    ~Schedule() { emulation::options.schedule = old; }
};

struct Shuffled {
    int index, up, down, exclusive_or;
};
__global__ void shuffle_kernel(Shuffled* out, int argument, int width) {
    const int lane = int(threadIdx.x);
    out[lane].index = __shfl_sync(all_lanes, lane, argument, width);
    out[lane].up = __shfl_up_sync(all_lanes, lane, argument, width);
    out[lane].down = __shfl_down_sync(all_lanes, lane, argument, width);
    out[lane].exclusive_or = __shfl_xor_sync(all_lanes, lane, argument, width);
}

__global__ void vote_kernel(int* out, int first) {
    const int yes = int(threadIdx.x) >= first;
    const int count = __syncthreads_count(yes), all = __syncthreads_and(yes), any = __syncthreads_or(yes);
    const unsigned ballot = __ballot_sync(all_lanes, yes);
    if (threadIdx.x != 0) return;
    out[0] = count, out[1] = all, out[2] = any, out[3] = int(ballot);
}

__global__ void reduce_kernel(const float* x, double* out, std::int64_t n) {
    double sum = 0;
    float greatest = -INFINITY;
    for (std::int64_t i = cuda::first_item(); i < n; i += cuda::item_step()) {
        sum += x[i];
        greatest = cuda::Max()(greatest, x[i]);
    }
    sum = cuda::block_reduce(sum, 0.0, cuda::Sum());
    const double doubled =
        cuda::block_reduce(threadIdx.x == 0 ? 2 * sum : 0.0, 0.0, cuda::Sum());  // again at once
    greatest = cuda::block_reduce(greatest, -INFINITY, cuda::Max());
    const float least = cuda::block_reduce(greatest, INFINITY, cuda::Min());  // of equal values
    if (threadIdx.x != 0) return;
    atomicAdd(&out[0], doubled - sum);
    out[1 + 2 * blockIdx.x] = greatest;
    out[2 + 2 * blockIdx.x] = least;
}

// Transposes through static and dynamic shared memory, with 32 x 8 threads.
__global__ void transpose_kernel(const float* in, float* out, int rows, int columns) {
    MEZZO_SHARED(float, tile, [32][33]);
    MEZZO_DYN_SHARED(int, row_of);
    for (int y = int(threadIdx.y); y < 32; y += 8) {
        const int row = int(blockIdx.y) * 32 + y, column = int(blockIdx.x) * 32 + int(threadIdx.x);
        if (row < rows && column < columns) tile[y][threadIdx.x] = in[row * columns + column];
        if (threadIdx.x == 0) row_of[y] = row;
    }
    __syncthreads();
    for (int y = int(threadIdx.y); y < 32; y += 8) {
        const int column = int(blockIdx.x) * 32 + y, row = row_of[threadIdx.x];
        if (row < rows && column < columns) out[column * rows + row] = tile[threadIdx.x][y];
    }
}

// A sum that the block computes which finishes last.
__global__ void last_block_kernel(const float* x, float* partial, unsigned* ticket, float* out, int n) {
    MEZZO_SHARED(bool, is_last, );
    float sum = 0;
    for (std::int64_t i = cuda::first_item(); i < n; i += cuda::item_step()) sum += x[i];
    sum = cuda::block_reduce(sum, 0.0f, cuda::Sum());
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
        __threadfence();
        is_last = atomicAdd(ticket, 1u) == gridDim.x - 1;
        __threadfence();  // by the thread that saw the others' tickets; the barrier hands it on
    }
    __syncthreads();
    if (!is_last) return;
    sum = 0;
    for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) sum += partial[i];
    sum = cuda::block_reduce(sum, 0.0f, cuda::Sum());
    if (threadIdx.x != 0) return;
    *out = sum;
    atomicExch(ticket, 0u);  // a plain store would race with the other blocks' tickets
}

__global__ void atomics_kernel(int* values, unsigned* bits) {
    const int i = int(cuda::first_item());
    atomicMax(&values[0], i);
    atomicMin(&values[1], -i);
    atomicAdd(&values[2], 1);
    atomicOr(bits, 1u << i % 32);
    if (atomicCAS(&values[3], 0, i + 1) == 0) values[4] = i + 1;
    if (i == 5) values[5] = atomicExch(&values[6], 5);
}

template <class T> __global__ void convert_kernel(const T* in, float* to, T* back, int n) {
    for (std::int64_t i = cuda::first_item(); i < n; i += cuda::item_step()) {
        to[i] = cuda::to_float(in[i]);
        back[i] = cuda::from_float<T>(to[i]);
    }
}

__global__ void half_block_barrier_kernel() {
    if (threadIdx.x < 32) __syncthreads();
}
__global__ void two_barriers_kernel() {
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
}
__global__ void divergent_shuffle_kernel(int* out) {
    if (threadIdx.x % 32 < 16) out[0] = __shfl_down_sync(all_lanes, 1, 1);
}
__global__ void outside_mask_kernel(int* out) {
    if (threadIdx.x % 32 < 16) out[0] = __shfl_xor_sync(0xffffu, 1, 16);
}
// Reads shared memory while an asynchronous copy is under way, and after the wait for it.
__global__ void copy_kernel(const std::uint16_t* in, std::uint16_t* out, bool wait) {
    MEZZO_SHARED(std::uint16_t, tile, [32][8]);
    const unsigned lane = threadIdx.x;
    for (int i = 0; i < 8; ++i) tile[lane][i] = 7;
    cuda::copy_async(tile[lane], in + lane * 8);
    cuda::copy_async_commit();
    out[lane] = tile[lane][0];
    if (!wait) return;
    cuda::copy_async_wait<0>();
    out[32 + lane] = tile[lane][0];
}
__global__ void misaligned_copy_kernel(const std::uint16_t* in) {
    MEZZO_SHARED(std::uint16_t, tile, [16]);
    cuda::copy_async(tile, in + 1);
}
__global__ void misaligned_matrix_kernel() {
    MEZZO_SHARED(std::uint16_t, tile, [32][9]);
    cuda::load_matrices(tile[threadIdx.x]);
}
__global__ void not_in_mask_kernel() { __syncwarp(1u); }
__global__ void big_shared_kernel() {
    MEZZO_SHARED(float, big, [13000]);
    if (threadIdx.x == 0) big[0] = 1;
}
__global__ void dynamic_kernel(float* out) {
    MEZZO_DYN_SHARED(float, s);
    if (threadIdx.x == 0) out[0] = s[0];
}
__global__ void fill_kernel(float* x, std::int64_t n) {
    for (std::int64_t i = cuda::first_item(); i < n; i += cuda::item_step()) x[i] = float(i);
}

}  // namespace

TEST_CASE("emulator: shuffles of every width", "[emulation]") {
    const int width = GENERATE(2, 4, 8, 16, 32), argument = GENERATE(0, 1, 3, 16, 31);
    const DeviceArray<Shuffled> out(32);
    launch(shuffle_kernel, 1, 32, 0, out.data(), argument, width);
    const auto got = out.host();
    for (int lane = 0; lane < 32; ++lane) {
        const int low = lane / width * width, high = low + width - 1;
        const Shuffled s = got[std::size_t(lane)];
        REQUIRE(s.index == low + argument % width);
        REQUIRE(s.up == (lane - argument >= low ? lane - argument : lane));
        REQUIRE(s.down == (lane + argument <= high ? lane + argument : lane));
        REQUIRE(s.exclusive_or == ((lane ^ argument) <= high ? lane ^ argument : lane));
    }
}

TEST_CASE("emulator: votes", "[emulation]") {
    const Schedule schedule(GENERATE(0u, 1u, 7u));
    const int first = GENERATE(0, 20, 64);
    const DeviceArray<int> out(4);
    launch(vote_kernel, 1, 64, 0, out.data(), first);
    REQUIRE(out.host() ==
            std::vector<int>{64 - first, first == 0, first < 64, int(first >= 32 ? 0u : all_lanes << first)});
}

TEST_CASE("emulator: block reductions", "[emulation]") {
    const Schedule schedule(GENERATE(0u, 1u, 7u));
    const unsigned block = GENERATE(32u, 64u, 256u, 1024u);
    std::vector<float> x(5000);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = float(i % 101) - 50;
    double want = 0;
    for (float v : x) want += v;
    const DeviceArray<float> on_x(x);
    const DeviceArray<double> out(std::vector<double>(7));
    launch(reduce_kernel, 3, block, 0, on_x.data(), out.data(), 5000);
    const auto got = out.host();
    REQUIRE(got[0] == want);
    for (std::size_t b = 1; b < 7; ++b) REQUIRE(got[b] == 50);
}

TEST_CASE("emulator: two-dimensional blocks, static and dynamic shared memory", "[emulation]") {
    const Schedule schedule(GENERATE(0u, 1u, 7u));
    const int rows = 45, columns = 70;
    std::vector<float> x(std::size_t(rows * columns));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = float(i);
    const DeviceArray<float> in(x), out(x.size());
    launch(transpose_kernel, dim3(3, 2), dim3(32, 8), 32 * sizeof(int), in.data(), out.data(), rows, columns);
    const auto got = out.host();
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < columns; ++j) REQUIRE(got[std::size_t(j * rows + i)] == float(i * columns + j));
}

TEST_CASE("emulator: last block done", "[emulation]") {
    const Schedule schedule(GENERATE(0u, 1u, 7u));
    const DeviceArray<float> x(std::vector<float>(1000, 2.0f)), partial(16), out(1);
    const DeviceArray<unsigned> ticket(std::vector<unsigned>{0});
    launch(last_block_kernel, 5, 64, 0, x.data(), partial.data(), ticket.data(), out.data(), 1000);
    REQUIRE(out.host()[0] == 2000);
    REQUIRE(ticket.host()[0] == 0);
}

TEST_CASE("emulator: atomics", "[emulation]") {
    const DeviceArray<int> values(std::vector<int>(7));
    const DeviceArray<unsigned> bits(std::vector<unsigned>{0});
    launch(atomics_kernel, 2, 64, 0, values.data(), bits.data());
    const auto got = values.host();
    REQUIRE(got[0] == 127);
    REQUIRE(got[1] == -127);
    REQUIRE(got[2] == 128);
    REQUIRE(got[3] == got[4]);
    REQUIRE(got[3] != 0);
    REQUIRE(got[5] == 0);
    REQUIRE(got[6] == 5);
    REQUIRE(bits.host()[0] == all_lanes);
}

TEMPLATE_TEST_CASE("emulator: 16-bit types through float", "[emulation]", float16_t, bfloat16_t) {
    std::vector<TestType> all;
    for (unsigned bits = 0; bits < 65536; ++bits) all.push_back(TestType::from_bits(std::uint16_t(bits)));
    const DeviceArray<TestType> in(all), back(all.size());
    const DeviceArray<float> to(all.size());
    launch(convert_kernel<TestType>, cuda::grid_for(65536), 256, 0, in.data(), to.data(), back.data(), 65536);
    const auto as_float = to.host();
    const auto returned = back.host();
    for (std::size_t i = 0; i < all.size(); ++i) {
        if (std::isnan(as_float[i])) continue;
        REQUIRE(std::bit_cast<unsigned>(as_float[i]) == std::bit_cast<unsigned>(float(all[i])));
        REQUIRE(returned[i].bits == all[i].bits);
    }
}

TEST_CASE("emulator: conversions between element types", "[emulation]") {
    REQUIRE(cuda::convert<bool>(float16_t(0.5f)));
    REQUIRE(cuda::convert<bool>(-0.0) == false);
    REQUIRE(cuda::convert<std::int64_t>(bfloat16_t(-3.0f)) == -3);
    REQUIRE(float(cuda::convert<float16_t>(std::int64_t(2049))) == 2048);
    REQUIRE(cuda::convert<double>(true) == 1);
}

TEST_CASE("emulator: reports name the kernel's mistake", "[emulation]") {
    const DeviceArray<int> out(1);
    const DeviceArray<float> x(1);
    REQUIRE_THROWS_WITH(launch(half_block_barrier_kernel, 1, 64, 0),
                        Contains("deadlock") && Contains("32 thread(s), first 0, waits in __syncthreads") &&
                            Contains("32 thread(s), first 32, returned"));
    REQUIRE_THROWS_WITH(launch(two_barriers_kernel, 1, 64, 0), Contains("divergent __syncthreads"));
    REQUIRE_THROWS_WITH(launch(divergent_shuffle_kernel, 1, 32, 0, out.data()),
                        Contains("deadlock") && Contains("__shfl_down_sync"));
    REQUIRE_THROWS_WITH(launch(outside_mask_kernel, 1, 32, 0, out.data()),
                        Contains("__shfl_xor_sync: reads lane"));
    REQUIRE_THROWS_WITH(launch(not_in_mask_kernel, 1, 32, 0), Contains("not in its own mask"));
    REQUIRE_THROWS_WITH(launch(big_shared_kernel, 1, 32, 0), Contains("more shared memory"));
    REQUIRE_THROWS_WITH(launch(dynamic_kernel, 1, 32, 228 << 10, x.data()), Contains("dynamic shared"));
    REQUIRE_THROWS_WITH(launch(not_in_mask_kernel, 1, 1025, 0), Contains("block size"));
    // and it works again
    launch(fill_kernel, 1, 32, 0, x.data(), 1);
    REQUIRE(x.host()[0] == 0);
}

TEST_CASE("emulator: asynchronous copies arrive in the wait, and misuse is reported", "[emulation]") {
    const DeviceArray<std::uint16_t> in(std::vector<std::uint16_t>(256, 5)), out(64);
    launch(copy_kernel, 1, 32, 0, in.data(), out.data(), true);
    std::vector<std::uint16_t> expected(32, 0xFFFF);
    expected.resize(64, 5);
    CHECK(out.host() == expected);
    REQUIRE_THROWS_WITH(launch(copy_kernel, 1, 32, 0, in.data(), out.data(), false),
                        Contains("returned without waiting") && Contains("emulation_test.cpp"));
    REQUIRE_THROWS_WITH(launch(misaligned_copy_kernel, 1, 32, 0, in.data()), Contains("misaligned address"));
    REQUIRE_THROWS_WITH(launch(misaligned_matrix_kernel, 1, 32, 0), Contains("misaligned row"));
}

TEST_CASE("emulator: shared and new device memory hold NaN", "[emulation]") {
    const DeviceArray<float> x(2);
    REQUIRE(std::isnan(x.host()[1]));
    launch(fill_kernel, 1, 32, 0, x.data(), 2);
    launch(dynamic_kernel, 1, 32, 4, x.data());
    REQUIRE(std::isnan(x.host()[0]));
}

TEST_CASE("emulator: memory runs out, launches are counted, empty grids run nothing", "[emulation]") {
    REQUIRE(cuda::device_malloc(emulation::options.device_memory + 1) == nullptr);
    const DeviceArray<float> x(std::vector<float>{7});
    const auto before = cuda::counters();
    launch(fill_kernel, cuda::grid_for(0), 32, 0, x.data(), 1);
    REQUIRE(cuda::counters().launches == before.launches);
    REQUIRE(x.host()[0] == 7);
    launch(fill_kernel, cuda::grid_for(1), 32, 0, x.data(), 1);
    REQUIRE(cuda::counters().launches == before.launches + 1);
    REQUIRE(cuda::counters().host_syncs == before.host_syncs + 1);
    cuda::Event start, end;
    start.record();
    end.record();
    REQUIRE(end.elapsed_ms(start) >= 0);
}

TEST_CASE("emulator: launch sizes", "[emulation]") {
    REQUIRE(cuda::grid_for(1, 256) == 1);
    REQUIRE(cuda::grid_for(257, 256) == 2);
    REQUIRE(cuda::grid_for(1 << 30, 256) == cuda::grid_limit(256));
    REQUIRE(cuda::block_for(1) == 32);
    REQUIRE(cuda::block_for(33) == 64);
    REQUIRE(cuda::block_for(10000) == 256);
}

TEST_CASE("emulator: grids of a GPU with many multiprocessors", "[emulation]") {
    const unsigned old = std::exchange(emulation::options.multiprocessors, 132u);
    const unsigned wide = cuda::grid_for(1 << 30, 256), small = cuda::grid_for(1 << 30, 32);
    const int told = cuda::device_info(0).multiprocessors;
    emulation::options.multiprocessors = old;
    CHECK(wide == 132 * 8);
    CHECK(small == 132 * 32);
    CHECK(told == 132);
}

TEST_CASE("emulator: sums of Tensor Cores, cut off and in another order", "[emulation]") {
    const float one = std::ldexp(1.0f, -24), ones[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const auto sums = [&](float start, const float(&terms)[16]) {
        const auto old = std::exchange(emulation::options.tensor_sums, emulation::TensorSums::in_order);
        const float in_order = emulation::sum_of_products(start, terms, ones);
        emulation::options.tensor_sums = emulation::TensorSums::truncated;
        const float truncated = emulation::sum_of_products(start, terms, ones);
        emulation::options.tensor_sums = old;
        return std::vector<float>{in_order, truncated};
    };
    // Seven half units of 1 are three units; one at a time each is rounded away.
    CHECK(sums(1, {one, one, one, one, one, one, one}) == std::vector<float>{1, 1 + 6 * one});
    // Three quarters of a unit are rounded up, but cut to a half, and that to nothing.
    CHECK(sums(1, {1.5f * one}) == std::vector<float>{1 + 2 * one, 1});
    CHECK(sums(-1, {-1.5f * one}) == std::vector<float>{-1 - 2 * one, -1});
    // The second group comes first: 2^24 has gone when 1 is added.
    CHECK(sums(-16777216, {1, 0, 0, 0, 0, 0, 0, 0, 16777216, 1}) == std::vector<float>{2, 2});
    CHECK(sums(16777216, {-16777216, 1, 0, 0, 0, 0, 0, 0, 1}) == std::vector<float>{2, 1});
    CHECK(sums(INFINITY, {1}) == std::vector<float>{INFINITY, INFINITY});
    CHECK(std::isnan(sums(INFINITY, {-INFINITY})[1]));
    CHECK(sums(0, {}) == std::vector<float>{0, 0});
}
