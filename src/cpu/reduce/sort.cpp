// Sorting by keys: unsigned integers in the order of the elements, so that NaN, signed zeros and the
// direction need no special cases. Equal keys keep their order.
#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "core/visit_dtype.h"
#include "cpu/elementwise/strided.h"
#include "cpu/kernels.h"
#include "kernels/sort.h"

namespace mezzo {
namespace {

using namespace cpu;

// The type to compare elements in: 16-bit types are float, small integers int32.
template <class T> auto comparable(T x) {
    if constexpr (is_storage_type<T>)
        return float(x);
    else if constexpr (std::is_integral_v<T> && sizeof(T) < 4)
        return std::int32_t(x);
    else
        return x;
}

template <class T> using KeyOf =
    std::conditional_t<sizeof(comparable(T())) == 8, std::uint64_t, std::uint32_t>;

template <class K, class V> K key_of(V x) {
    constexpr K sign = K(1) << (sizeof(K) * 8 - 1);
    if constexpr (std::is_floating_point_v<V>) {
        if (x != x) return std::numeric_limits<K>::max();
        const K bits = std::bit_cast<K>(x == V(0) ? V(0) : x);
        return bits & sign ? ~bits : bits | sign;
    } else {
        return K(x) ^ sign;
    }
}

template <class K> struct Entry {
    K key;
    std::int64_t position;
};

template <class K> bool operator<(const Entry<K>& a, const Entry<K>& b) {
    return a.key != b.key ? a.key < b.key : a.position < b.position;
}

// Entries that come in the order of their positions. Long lines take one pass per byte in which keys differ,
// short ones a comparison sort.
template <class K> void sort_entries(std::vector<Entry<K>>& entries, std::vector<Entry<K>>& other) {
    if (entries.size() < 512) {
        std::sort(entries.begin(), entries.end());
        return;
    }
    other.resize(entries.size());
    K any = 0, all = ~K(0);
    for (const Entry<K>& e : entries) {
        any |= e.key;
        all &= e.key;
    }
    for (unsigned shift = 0; shift < sizeof(K) * 8; shift += 8) {
        const auto digit = [shift](K key) { return std::size_t(key >> shift & K(255)); };
        if (digit(any) == digit(all)) continue;
        std::size_t place[256] = {}, next = 0;
        for (const Entry<K>& e : entries) ++place[digit(e.key)];
        for (std::size_t& p : place) next += std::exchange(p, next);
        for (const Entry<K>& e : entries) other[place[digit(e.key)]++] = e;
        entries.swap(other);
    }
}

constexpr std::int64_t long_line = 65536;  // entries that exceed the L2 cache

// Sorts words by their `high` bits above the `low` ones, 11 bits at a time; each pass keeps the order of
// equal digits. Returns the memory with the result: `words`, or `other` of the same size.
std::uint64_t* radix_sort(std::uint64_t* words, std::uint64_t* other, std::int64_t n, int low, int high) {
    constexpr int widest = 11;
    const int passes = (high + widest - 1) / widest, bits = passes ? (high + passes - 1) / passes : 0;
    for (int pass = 0; pass < passes; ++pass) {
        std::size_t place[1 << widest] = {}, next = 0;
        const auto digit = [shift = low + pass * bits, mask = (1u << bits) - 1](std::uint64_t word) {
            return std::size_t(word >> shift) & mask;
        };
        for (std::int64_t j = 0; j < n; ++j) ++place[digit(words[j])];
        for (std::size_t& p : place) next += std::exchange(p, next);
        for (std::int64_t j = 0; j < n; ++j) other[place[digit(words[j])]++] = words[j];
        std::swap(words, other);
    }
    return words;
}

// Writes the first k positions of a long line in order, `step` apart. Sorts words of the difference of a key
// from the least, and the position; returns false if they do not fit.
template <class K, class F>
bool sort_words(std::int64_t length, std::int64_t k, const F& key, std::int64_t* to, std::int64_t step) {
    const Tensor memory = empty({2, length}, {.dtype = int64});
    auto* const words = reinterpret_cast<std::uint64_t*>(memory->bytes());
    K least = std::numeric_limits<K>::max(), most = 0;
    for (std::int64_t j = 0; j < length; ++j) {
        const K own = key(j);
        words[j] = own;
        least = std::min(least, own);
        most = std::max(most, own);
    }
    const int low = std::bit_width(std::uint64_t(length - 1)), high = std::bit_width(K(most - least));
    if (low + high > 64) return false;
    for (std::int64_t j = 0; j < length; ++j) words[j] = (words[j] - least) << low | std::uint64_t(j);
    const std::uint64_t* const sorted = radix_sort(words, words + length, length, low, high);
    const std::uint64_t positions = (std::uint64_t(1) << low) - 1;
    for (std::int64_t j = 0; j < k; ++j) to[j * step] = std::int64_t(sorted[j] & positions);
    return true;
}

// Keeps the k entries in front of the others, in order.
template <class K> void keep_first(std::vector<Entry<K>>& entries, std::int64_t k) {
    const auto middle = entries.begin() + k;
    if (middle != entries.end()) std::nth_element(entries.begin(), middle - 1, entries.end());
    entries.erase(middle, entries.end());
}

// The first k > 0 of key(0) to key(length - 1), in order. Keys behind the k-th of those seen before, nearly
// all of a long line, are passed over: next(j, last) is j or a later index such that no element between is in
// front of element `last`. A few entries are always in order; of more the k-th is searched now and then.
template <class K, class F, class N> void select_first(std::vector<Entry<K>>& entries, std::int64_t length,
                                                       std::int64_t k, const F& key, const N& next) {
    constexpr std::int64_t few = 16;
    const auto most = std::size_t(std::min(length, 2 * k + 64));
    entries.clear();
    K limit = std::numeric_limits<K>::max();
    std::int64_t last = -1;  // the k-th
    for (std::int64_t j = 0; j < length; ++j) {
        if (last >= 0 && (j = next(j, last)) == length) break;
        const Entry<K> entry{key(j), j};
        if (last >= 0 && entry.key >= limit) continue;
        if (k <= few) {
            if (std::int64_t(entries.size()) < k) entries.push_back(entry);
            std::size_t at = entries.size() - 1;
            for (; at > 0 && entry < entries[at - 1]; --at) entries[at] = entries[at - 1];
            entries[at] = entry;
            if (std::int64_t(entries.size()) < k) continue;
        } else {
            entries.push_back(entry);
            if (entries.size() < most) continue;
            keep_first(entries, k);
        }
        limit = entries.back().key;
        last = entries.back().position;
    }
    if (k <= few) return;
    keep_first(entries, k);
    std::sort(entries.begin(), entries.end());
}

// The first index from j on, or n, whose element may be in front of element `last` of x.
template <class T> std::int64_t next_in_front(const T* x, std::int64_t step, std::int64_t j, std::int64_t n,
                                              std::int64_t last, bool descending) {
    constexpr std::int64_t block = 64;  // elements that are compared together
    const auto limit = comparable(x[last * step]);
    const auto behind = [&](auto v) { return descending ? v <= limit : v >= limit; };
    for (const std::int64_t end = std::min(n, j + block); j < end; ++j)
        if (!behind(comparable(x[j * step]))) return j;
    if constexpr (std::is_floating_point_v<T>)
        while (step == 1 && j + block <= n &&
               behind((descending ? real_loops<T>().max : real_loops<T>().min)(x + j, block)))
            j += block;
    while (j < n && behind(comparable(x[j * step]))) ++j;
    return j;
}

constexpr std::int64_t short_line = 16;

// Writes the positions of all elements of a short line in order: each to the index that is the number of
// elements in front of it. No branch depends on elements.
template <class F> void order_short(std::int64_t length, const F& key, std::int64_t* to) {
    std::uint64_t keys[short_line];
    for (std::int64_t j = 0; j < length; ++j) keys[j] = std::uint64_t(key(j)) << 32 | std::uint64_t(j);
    for (std::int64_t j = 0; j < length; ++j) {
        std::int64_t place = 0;
        for (std::int64_t i = 0; i < length; ++i) place += keys[i] < keys[j];
        to[place] = j;
    }
}

// Writes the positions of the first k elements of each line along dim.
template <class T>
void order(const Tensor& x, std::int64_t dim, bool descending, std::int64_t k, const Tensor& y) {
    using K = KeyOf<T>;
    const Lines lines(x->shape.size() == 0 ? Shape{1} : x->shape, dim);
    const std::int64_t outer = lines.outer, length = lines.length, inner = lines.inner;
    const T* const from = reinterpret_cast<const T*>(x->bytes());
    auto* const to = reinterpret_cast<std::int64_t*>(y->bytes());
    parallel_for(outer * inner, grain / 16 / (length + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
        std::vector<Entry<K>> entries, other;
        for (std::int64_t line = begin; line < end; ++line) {
            const std::int64_t o = line / inner, i = line % inner;
            const auto key = [&](std::int64_t j) {
                const K up = key_of<K>(comparable(from[(o * length + j) * inner + i]));
                return descending ? K(~up) : up;
            };
            if (k == 0) continue;
            if constexpr (sizeof(K) == 4)
                if (length <= short_line) {
                    std::int64_t positions[short_line];
                    order_short(length, key, positions);
                    for (std::int64_t j = 0; j < k; ++j) to[(o * k + j) * inner + i] = positions[j];
                    continue;
                }
            if (3 * k < length) {
                select_first(entries, length, k, key, [&](std::int64_t j, std::int64_t last) {
                    return next_in_front(from + o * length * inner + i, inner, j, length, last, descending);
                });
            } else if (length >= long_line && sort_words<K>(length, k, key, to + o * k * inner + i, inner)) {
                continue;
            } else {
                entries.resize(std::size_t(length));
                for (std::int64_t j = 0; j < length; ++j) entries[std::size_t(j)] = {key(j), j};
                sort_entries(entries, other);
            }
            for (std::int64_t j = 0; j < k; ++j)
                to[(o * k + j) * inner + i] = entries[std::size_t(j)].position;
        }
    });
}

// The number of elements of a sorted row for which before() holds: a prefix. Without branches on elements, so
// that the searches for several values overlap.
template <class T, class F> std::int64_t length_of_prefix(const T* row, std::int64_t n, const F& before) {
    const T* base = row;
    while (n > 1) {
        const std::int64_t half = n / 2;
        base += before(base[half - 1]) ? half : 0;
        n -= half;
    }
    return base - row + (n == 1 && before(*base) ? 1 : 0);
}

template <class T> void search(const Tensor& sorted, const Tensor& values, bool right, const Tensor& y) {
    using K = KeyOf<T>;
    const std::int64_t n = sorted->shape.back(), m = values->shape.size() ? values->shape.back() : 1;
    const bool shared = sorted->shape.size() == 1;
    const T *const rows = reinterpret_cast<const T*>(sorted->bytes()), *const v = reinterpret_cast<const T*>(
                                                                           values->bytes());
    auto* const to = reinterpret_cast<std::int64_t*>(y->bytes());
    parallel_for(values->numel, grain / 16, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const T* const row = shared ? rows : rows + i / m * n;
            const auto value = comparable(v[i]);
            if (value != value)  // NaN is behind all numbers
                to[i] = right ? n : length_of_prefix(row, n, [&](T e) {
                    return key_of<K>(comparable(e)) < key_of<K>(value);
                });
            else if (right)
                to[i] = length_of_prefix(row, n, [&](T e) { return comparable(e) <= value; });
            else
                to[i] = length_of_prefix(row, n, [&](T e) { return comparable(e) < value; });
        }
    });
}

}  // namespace

namespace cpu_kernels {

void argsort(In in, const kernels::ArgSort& at, Out out) {
    if (out[0]->numel == 0) return;
    visit_dtype(in[0]->dtype, [&]<class T>(std::type_identity<T>) {
        order<T>(in[0], at.dim, at.descending, in[0]->shape[int(at.dim)], out[0]);
    });
}

void topk(In in, const kernels::TopK& at, Out out) {
    if (out[0]->numel == 0) return;
    visit_dtype(in[0]->dtype,
                [&]<class T>(std::type_identity<T>) { order<T>(in[0], at.dim, at.largest, at.k, out[0]); });
}

void searchsorted(In in, const kernels::SearchSorted& at, Out out) {
    visit_dtype(in[0]->dtype,
                [&]<class T>(std::type_identity<T>) { search<T>(in[0], in[1], at.right, out[0]); });
}

constinit const KernelList sort_list = kernel_list<argsort, topk, searchsorted>;

}  // namespace cpu_kernels
}  // namespace mezzo
