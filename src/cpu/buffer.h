// Scratch memory that a thread keeps from call to call, so that small products allocate nothing.
#pragma once

#include <cstdint>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace mezzo::cpu {

// Grows, never shrinks; 64-byte aligned. Growing drops the contents.
class Buffer {
public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { release(); }

    // At least `count` elements of T, not initialised.
    template <class T> T* get(std::int64_t count) {
        const auto bytes = static_cast<std::size_t>(count) * sizeof(T);
        if (bytes > capacity_) grow(bytes);
        return static_cast<T*>(data_);
    }

private:
    static constexpr std::size_t huge_page = std::size_t(1) << 21;

    void grow(std::size_t bytes) {
        release();
        const bool huge = bytes >= huge_page;  // fewer TLB misses in packed panels
        alignment_ = huge ? huge_page : 64;
        const std::size_t unit = huge ? huge_page : 4096;
        bytes = (bytes + unit - 1) / unit * unit;
        data_ = ::operator new(bytes, std::align_val_t(alignment_));
        capacity_ = bytes;
#ifdef MADV_HUGEPAGE
        if (huge) madvise(data_, bytes, MADV_HUGEPAGE);
#endif
    }

    void release() {
        if (data_ != nullptr) ::operator delete(data_, std::align_val_t(alignment_));
        data_ = nullptr;
        capacity_ = 0;
    }

    void* data_ = nullptr;
    std::size_t capacity_ = 0, alignment_ = 64;
};

}  // namespace mezzo::cpu
