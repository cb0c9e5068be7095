// An intrusive reference-counted pointer: T has `std::atomic<std::uint32_t> refs` and dispose(T*) frees it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace mezzo {

// An object's first and last reference are known to one thread only, so they need no locked instruction.
inline void add_reference(std::atomic<std::uint32_t>& refs) noexcept {
    if (refs.load(std::memory_order_relaxed) == 0)
        refs.store(1, std::memory_order_relaxed);
    else
        refs.fetch_add(1, std::memory_order_relaxed);
}
// True when that was the last reference; the count may then read 1 or 0.
inline bool drop_reference(std::atomic<std::uint32_t>& refs) noexcept {
    return refs.load(std::memory_order_acquire) == 1 || refs.fetch_sub(1, std::memory_order_acq_rel) == 1;
}

template <class T> class Ref {
public:
    Ref() = default;
    Ref(std::nullptr_t) {}
    explicit Ref(T* p) : p_(p) { acquire(); }
    Ref(const Ref& other) : p_(other.p_) { acquire(); }
    Ref(Ref&& other) noexcept : p_(std::exchange(other.p_, nullptr)) {}
    Ref& operator=(Ref other) noexcept {
        std::swap(p_, other.p_);
        return *this;
    }
    ~Ref() {
        if (p_ && drop_reference(p_->refs)) dispose(p_);
    }
    T* get() const { return p_; }
    T* operator->() const { return p_; }
    T& operator*() const { return *p_; }
    explicit operator bool() const { return p_ != nullptr; }
    friend bool operator==(const Ref& a, const Ref& b) { return a.p_ == b.p_; }

private:
    void acquire() {
        if (p_) add_reference(p_->refs);
    }
    T* p_ = nullptr;
};

}  // namespace mezzo
