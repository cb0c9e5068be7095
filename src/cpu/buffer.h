// Scratch memory that a thread reuses from call to call, so that small products allocate nothing.
#pragma once

#include <cstdint>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace mezzo::cpu {

// A buffer that grows and never shrinks; 4096-byte aligned. Growing drops the contents.
class Buffer {
public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { release(); }

    // At least `count` elements of T, not initialised, and 64 bytes that a kernel may read behind them: the
    // rest of a last vector.
    template <class T> T* get(std::int64_t count) {
        const auto bytes = static_cast<std::size_t>(count) * sizeof(T) + 64;
        if (bytes > capacity_) grow(bytes);
        return static_cast<T*>(data_);
    }

private:
    static constexpr std::size_t page = 4096, huge_page = std::size_t(1) << 21;

    void grow(std::size_t bytes) {
        release();
        const std::size_t unit = bytes >= huge_page ? huge_page : page;
        bytes = (bytes + unit - 1) / unit * unit;
        data_ = bytes >= own_pages ? map(bytes, unit) : ::operator new(bytes, std::align_val_t(page));
        capacity_ = bytes;
    }

    void release() {
        if (data_ == nullptr) return;
        if (capacity_ >= own_pages)
            unmap(data_, capacity_);
        else
            ::operator delete(data_, std::align_val_t(page));
        data_ = nullptr;
        capacity_ = 0;
    }

#ifdef __linux__
    // A buffer of at least this size has pages of its own, which are returned to the system when it is
    // destroyed; malloc would keep them.
    static constexpr std::size_t own_pages = 16 * page;

    // `bytes` is a multiple of `unit`, the result's alignment.
    static void* map(std::size_t bytes, std::size_t unit) {
        const std::size_t spare = unit - page;
        void* const p =
            mmap(nullptr, bytes + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        const auto start = reinterpret_cast<std::uintptr_t>(p), begin = (start + spare) / unit * unit;
        if (begin != start) munmap(p, begin - start);
        if (const std::size_t rest = start + spare - begin; rest != 0)
            munmap(reinterpret_cast<void*>(begin + bytes), rest);
#ifdef MADV_HUGEPAGE
        if (unit == huge_page) madvise(reinterpret_cast<void*>(begin), bytes, MADV_HUGEPAGE);
#endif
        return reinterpret_cast<void*>(begin);  // on huge pages packed panels cause fewer TLB misses
    }
    static void unmap(void* p, std::size_t bytes) { munmap(p, bytes); }
#else
    static constexpr std::size_t own_pages = SIZE_MAX;
    static void* map(std::size_t, std::size_t) { return nullptr; }
    static void unmap(void*, std::size_t) {}
#endif

    void* data_ = nullptr;
    std::size_t capacity_ = 0;
};

}  // namespace mezzo::cpu
