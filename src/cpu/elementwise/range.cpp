// Counts inf, NaN and zero in a tensor, finds its largest finite magnitude, and its exponents. Magnitudes are
// compared as integers, which have the same order.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <vector>

#include "core/visit_dtype.h"
#include "cpu/elementwise/strided.h"
#include "cpu/kernels.h"
#include "kernels/range.h"

namespace mezzo {
namespace {

using namespace cpu;

template <std::size_t bytes> struct BitsOf;
template <> struct BitsOf<2> { using type = std::int16_t; };
template <> struct BitsOf<4> { using type = std::int32_t; };
template <> struct BitsOf<8> { using type = std::int64_t; };

template <class T> using Bits = typename BitsOf<sizeof(T)>::type;

template <class T> T value_of(Bits<T> bits) { return std::bit_cast<T>(bits); }
template <class T> Bits<T> infinity_of() {
    return std::bit_cast<Bits<T>>(T(std::numeric_limits<float>::infinity()));
}

template <class T> struct Found {
    Bits<T> largest = 0;  // of the finite magnitudes
    std::int64_t infs = 0, nans = 0, zeros = 0;

    void add(const Found& other) {
        largest = std::max(largest, other.largest);
        infs += other.infs;
        nans += other.nans;
        zeros += other.zeros;
    }
};

// The bits without the sign.
template <class T> Bits<T> magnitude(const T* x) {
    Bits<T> bits;
    std::memcpy(&bits, x, sizeof bits);
    return Bits<T>(bits & std::numeric_limits<Bits<T>>::max());
}

template <class T> double to_double(T x) {
    if constexpr (is_storage_type<T>)
        return double(static_cast<float>(x));
    else
        return double(x);
}

// Counts the elements that are not finite, in a chunk that has some.
template <class T> void count_each(const T* x, std::int64_t n, Found<T>& found) {
    const Bits<T> infinity = infinity_of<T>();
    for (std::int64_t i = 0; i < n; ++i) {
        const Bits<T> m = magnitude(x + i);
        if (m < infinity)
            found.largest = std::max(found.largest, m);
        else
            ++(m == infinity ? found.infs : found.nans);
    }
}

template <class T> void scan(const T* x, std::int64_t n, Found<T>& found) {
    constexpr int lanes = 64 / sizeof(T);
    Bits<T> largest[lanes] = {}, zeros[lanes] = {};
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes)
        for (int l = 0; l < lanes; ++l) {
            const Bits<T> m = magnitude(x + i + l);
            largest[l] = largest[l] < m ? m : largest[l];
            zeros[l] = Bits<T>(zeros[l] + (m == 0));
        }
    for (int l = 0; i < n; ++i, ++l) {
        const Bits<T> m = magnitude(x + i);
        largest[l] = std::max(largest[l], m);
        zeros[l] = Bits<T>(zeros[l] + (m == 0));
    }
    const Bits<T> top = *std::max_element(largest, largest + lanes);
    for (const Bits<T> count : zeros) found.zeros += count;
    if (top < infinity_of<T>())
        found.largest = std::max(found.largest, top);
    else
        count_each(x, n, found);
}

void range_statistics(In in, const kernels::RangeStatistics&, Out out) {
    visit_dtype<Dtypes::floating>(in[0].dtype(), [&]<class T>(std::type_identity<T>) {
        const T* const x = static_cast<const T*>(raw(in[0]));
        Found<T> all;
        std::mutex mutex;
        parallel_for(in[0].numel(), grain, [&](std::int64_t begin, std::int64_t end) {
            Found<T> own;
            for (std::int64_t i = begin; i < end; i += chunk) scan(x + i, std::min(end - i, chunk), own);
            const std::lock_guard lock(mutex);
            all.add(own);
        });
        double* const result = static_cast<double*>(raw(out[0]));
        result[0] = std::max(result[0], to_double(value_of<T>(all.largest)));
        result[1] += double(all.infs);
        result[2] += double(all.nans);
        result[3] += double(all.zeros);
    });
}

// The exponent of a finite number that is not zero.
int exponent_of(double x) {
    const int biased = int(std::bit_cast<std::uint64_t>(x) >> 52 & 0x7ff);
    return biased != 0 ? biased - 1023 : std::ilogb(x);
}

void exponent_counts(In in, const kernels::ExponentCounts&, Out out) {
    using kernels::ExponentCounts;
    auto* const result = static_cast<std::int64_t*>(raw(out[0]));
    std::fill(result, result + ExponentCounts::bins, 0);
    visit_dtype<Dtypes::floating>(in[0].dtype(), [&]<class T>(std::type_identity<T>) {
        const T* const x = static_cast<const T*>(raw(in[0]));
        std::mutex mutex;
        parallel_for(in[0].numel(), grain, [&](std::int64_t begin, std::int64_t end) {
            std::vector<std::int64_t> own(ExponentCounts::bins, 0);
            for (std::int64_t i = begin; i < end; ++i) {
                const double value = to_double(x[i]);
                if (value != 0 && std::isfinite(value))
                    ++own[std::size_t(exponent_of(value) - ExponentCounts::lowest)];
            }
            const std::lock_guard lock(mutex);
            for (int k = 0; k < ExponentCounts::bins; ++k) result[k] += own[std::size_t(k)];
        });
    });
}

}  // namespace

namespace cpu_kernels {

constinit const KernelList range_list = kernel_list<exponent_counts, range_statistics>;

}  // namespace cpu_kernels
}  // namespace mezzo
