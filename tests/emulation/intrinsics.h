// The CUDA keywords and built-in functions kernels use, for compilers that are not nvcc.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "tests/emulation/engine.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

// Each takes its call site, so that a report can name it and different barriers differ.
#define MEZZO_SITE mezzo::emulation::Site site = mezzo::emulation::Site::current()

namespace mezzo::emulation {

inline int barrier(int predicate, Engine::Vote vote, Site site) {
    return Engine::get().barrier(predicate, vote, site);
}

}  // namespace mezzo::emulation

inline void __syncthreads(MEZZO_SITE) {
    mezzo::emulation::barrier(0, mezzo::emulation::Engine::Vote::all, site);
}
inline int __syncthreads_and(int predicate, MEZZO_SITE) {
    return mezzo::emulation::barrier(predicate, mezzo::emulation::Engine::Vote::all, site);
}
inline int __syncthreads_or(int predicate, MEZZO_SITE) {
    return mezzo::emulation::barrier(predicate, mezzo::emulation::Engine::Vote::any, site);
}
inline int __syncthreads_count(int predicate, MEZZO_SITE) {
    return mezzo::emulation::barrier(predicate, mezzo::emulation::Engine::Vote::count, site);
}

// The only warp call that orders memory.
inline void __syncwarp(unsigned mask = ~0u, MEZZO_SITE) {
    int slot = 0;
    mezzo::emulation::Engine::get().collective(mask, "__syncwarp", site, true, &slot, [](void**) {});
}

inline unsigned __ballot_sync(unsigned mask, int predicate, MEZZO_SITE) {
    struct Slot {
        int in;
        unsigned out;
    } slot{predicate, 0};
    mezzo::emulation::Engine::get().collective(mask, "__ballot_sync", site, false, &slot, [](void** lanes) {
        unsigned result = 0;
        for (int i = 0; i < 32; ++i)
            if (lanes[i] != nullptr && static_cast<Slot*>(lanes[i])->in != 0) result |= 1u << i;
        for (int i = 0; i < 32; ++i)
            if (lanes[i] != nullptr) static_cast<Slot*>(lanes[i])->out = result;
    });
    return slot.out;
}
inline int __any_sync(unsigned mask, int predicate, MEZZO_SITE) {
    return __ballot_sync(mask, predicate, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, MEZZO_SITE) {
    return __ballot_sync(mask, predicate, site) == mask;
}

namespace mezzo::emulation {

enum class Shuffle { index, up, down, exclusive_or };

template <class T> struct ShuffleSlot {
    T in, out;
    int source;
    bool bad;
};

// The lane a shuffle reads, by the rules of the CUDA programming guide ("Warp Shuffle Functions").
inline int shuffle_source(int lane, int argument, int width, Shuffle how) {
    const int low = lane & ~(width - 1), high = low + width - 1;
    switch (how) {
        case Shuffle::index:
            return low + (argument & (width - 1));
        case Shuffle::up:
            return lane - argument < low ? lane : lane - argument;
        case Shuffle::down:
            return lane + argument > high ? lane : lane + argument;
        case Shuffle::exclusive_or:
            return (lane ^ argument) > high ? lane : lane ^ argument;
    }
    return lane;
}

template <class T>
T shuffle(unsigned mask, T value, int argument, int width, Shuffle how, const char* what, Site site) {
    static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8));
    Engine& engine = Engine::get();
    ShuffleSlot<T> slot{value, value, shuffle_source(int(engine.lane()), argument, width, how), false};
    engine.collective(mask, what, site, false, &slot, [](void** lanes) {
        for (int i = 0; i < 32; ++i) {
            auto* own = static_cast<ShuffleSlot<T>*>(lanes[i]);
            if (own == nullptr) continue;
            const auto* other = static_cast<ShuffleSlot<T>*>(lanes[own->source]);
            if (other != nullptr)
                own->out = other->in;
            else
                own->bad = true;
        }
    });
    if (slot.bad)
        engine.fail(
            std::string(what) + ": reads lane " + std::to_string(slot.source) + ", which is not in the mask",
            site);
    return slot.out;
}

}  // namespace mezzo::emulation

#define MEZZO_SHUFFLE(name, how)                                                                       \
    template <class T> T name(unsigned mask, T value, int argument, int width = 32, MEZZO_SITE) {      \
        return mezzo::emulation::shuffle(mask, value, argument, width, mezzo::emulation::Shuffle::how, \
                                         #name, site);                                                 \
    }
MEZZO_SHUFFLE(__shfl_sync, index)
MEZZO_SHUFFLE(__shfl_up_sync, up)
MEZZO_SHUFFLE(__shfl_down_sync, down)
MEZZO_SHUFFLE(__shfl_xor_sync, exclusive_or)
#undef MEZZO_SHUFFLE

// Fences and atomics; relaxed, as on the device.
inline void __threadfence() { mezzo::emulation::Engine::get().fence(); }
inline void __threadfence_block() { __threadfence(); }

namespace mezzo::emulation {

template <class T> std::atomic_ref<T> atomic_at(T* p) {
#ifdef MEZZO_TSAN
    Engine::get().atomic(p);
#endif
    return std::atomic_ref<T>(*p);
}

template <class T, class F> T atomic_update(T* p, F next) {
    auto value = atomic_at(p);
    T old = value.load(std::memory_order_relaxed);
    while (!value.compare_exchange_weak(old, next(old), std::memory_order_relaxed)) {
    }
    return old;
}

}  // namespace mezzo::emulation

template <class T> T atomicAdd(T* p, std::type_identity_t<T> v) {
    static_assert(sizeof(T) >= 4 && (std::is_floating_point_v<T> || std::is_unsigned_v<T> || sizeof(T) == 4),
                  "CUDA has no atomicAdd of this type");
    return mezzo::emulation::atomic_at(p).fetch_add(v, std::memory_order_relaxed);
}
template <class T> T atomicExch(T* p, std::type_identity_t<T> v) {
    return mezzo::emulation::atomic_at(p).exchange(v, std::memory_order_relaxed);
}
template <class T> T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> v) {
    mezzo::emulation::atomic_at(p).compare_exchange_strong(expected, v, std::memory_order_relaxed);
    return expected;
}
template <class T> T atomicMax(T* p, std::type_identity_t<T> v) {
    static_assert(std::is_integral_v<T>, "CUDA has atomicMax of integers only");
    return mezzo::emulation::atomic_update(p, [v](T old) { return std::max(old, v); });
}
template <class T> T atomicMin(T* p, std::type_identity_t<T> v) {
    static_assert(std::is_integral_v<T>, "CUDA has atomicMin of integers only");
    return mezzo::emulation::atomic_update(p, [v](T old) { return std::min(old, v); });
}
template <class T> T atomicOr(T* p, std::type_identity_t<T> v) {
    return mezzo::emulation::atomic_at(p).fetch_or(v, std::memory_order_relaxed);
}

inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(std::uint64_t(a) * b >> 32); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(unsigned(x)); }
inline int __ffs(int x) { return x != 0 ? std::countr_zero(unsigned(x)) + 1 : 0; }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
template <class T> T __ldg(const T* p) { return *p; }
[[noreturn]] inline void __trap(MEZZO_SITE) { mezzo::emulation::Engine::get().fail("__trap", site); }
#undef MEZZO_SITE
