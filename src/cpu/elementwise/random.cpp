// Random numbers from Philox streams (core/philox.h maps elements to bits) and dropout.
#include <cmath>

#include "core/philox.h"
#include "cpu/elementwise/strided.h"
#include "cpu/kernels.h"
#include "kernels/random.h"

namespace mezzo {
namespace {

using namespace cpu;

// The words of `count` blocks from the stream's block `first` on. A chunk of elements needs at most chunk / 4
// blocks.
struct Words {
    alignas(64) std::uint32_t word[chunk];
    Words(const RandomState& stream, std::int64_t first, std::int64_t count) {
        active_loops().philox_blocks(word, stream.seed, stream.offset + std::uint64_t(first), count);
    }
};

// Calls body(begin, n) like for_chunks(), but chunks begin at multiples of `chunk`, and so with a Philox
// block.
template <class F> void for_chunks_of_words(std::int64_t total, const F& body) {
    parallel_for((total + chunk - 1) / chunk, grain / chunk / 2, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first * chunk; i < last * chunk && i < total; i += chunk)
            body(i, total - i < chunk ? total - i : chunk);
    });
}

// y[i] = element(word i) with elements of type T.
template <class T, class F> void from_words(const RandomState& stream, const Tensor& y, const F& element) {
    const Sink sink(y, dtype_of<T>());
    for_chunks_of_words(y->numel, [&](std::int64_t begin, std::int64_t n) {
        const Words words(stream, begin / 4, (n + 3) / 4);
        Chunk buffer;
        for (std::int64_t i = 0; i < n; ++i) buffer.as<T>()[i] = element(words.word[i]);
        sink.store(begin, n, buffer.bytes);
    });
}

// low + word * range / 2^32 in integers, for any range below 2^64.
std::int64_t scaled(std::int64_t low, std::uint64_t range, std::uint32_t word) {
    const std::uint64_t product = (range >> 32) * word + ((range & 0xffffffffu) * word >> 32);
    return std::int64_t(std::uint64_t(low) + product);
}

template <class T> void normal(const kernels::RandomNormal& at, const Tensor& y) {
    const Sink sink(y, dtype_of<T>());
    for_chunks_of_words(y->numel, [&](std::int64_t begin, std::int64_t n) {
        const Words words(at.stream, begin / 4, (n + 3) / 4);
        alignas(64) float standard[chunk];
        active_loops().box_muller(standard, words.word, (n + 1) / 2);
        Chunk buffer;
        for (std::int64_t i = 0; i < n; ++i) buffer.as<T>()[i] = T(at.mean) + T(at.stddev) * T(standard[i]);
        sink.store(begin, n, buffer.bytes);
    });
}

}  // namespace

namespace cpu_kernels {

void random_uniform(In, const kernels::RandomUniform& at, Out out) {
    with_real(out[0]->dtype, [&]<class T>(T) {
        const T low = T(at.low), width = T(at.high) - T(at.low);
        const T limit = T(kernels::uniform_limit(at, out[0]->dtype));
        from_words<T>(at.stream, out[0], [=](std::uint32_t word) {
            const T value = low + T(philox_uniform(word)) * width;
            return value < limit ? value : limit;
        });
    });
}

void random_normal(In, const kernels::RandomNormal& at, Out out) {
    with_real(out[0]->dtype, [&]<class T>(T) { normal<T>(at, out[0]); });
}

void random_int(In, const kernels::RandomInt& at, Out out) {
    const std::int64_t low = at.low;
    const std::uint64_t range = std::uint64_t(at.high) - std::uint64_t(low);
    from_words<std::int64_t>(at.stream, out[0], [=](std::uint32_t word) { return scaled(low, range, word); });
}

void dropout(In in, const kernels::Dropout& at, Out out) {
    const Tensor &x = in[0], &y = out[0];
    const auto threshold = std::uint32_t(std::lround(at.p * 65536.0));
    const double scale = at.p < 1 ? 1 / (1 - at.p) : 0;
    with_real(promote(x->dtype, y->dtype), [&]<class T>(T) {
        const Source source(x, y->shape, dtype_of<T>());
        const Sink sink(y, dtype_of<T>());
        for_chunks_of_words(y->numel, [&](std::int64_t begin, std::int64_t n) {
            const Words words(at.stream, begin / 8, (n + 7) / 8);
            Chunk buffer;
            const T* from = source.template read_as<T>(begin, n, buffer);
            T* to = sink.template open_as<T>(begin, buffer);
            if constexpr (std::is_same_v<T, float>)
                active_loops().dropout(to, from, words.word, n, threshold, float(scale));
            else
                for (std::int64_t i = 0; i < n; ++i) {
                    const std::uint32_t half = words.word[i / 2] >> (i % 2 * 16) & 0xffffu;
                    to[i] = half >= threshold ? from[i] * scale : 0;
                }
            sink.finish(begin, n, buffer);
        });
    });
}

constinit const KernelList random_list = kernel_list<random_uniform, random_normal, random_int, dropout>;

}  // namespace cpu_kernels
}  // namespace mezzo
