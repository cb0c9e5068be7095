// Annotations of fibers for the sanitizers. TSan sees each fiber as a thread, and no order
// between fibers but the edges that the kernel asked for. each switch of stacks is announced to ASan.
#pragma once

#if defined(__has_feature)
#define MEZZO_HAS_FEATURE(x) __has_feature(x)
#else
#define MEZZO_HAS_FEATURE(x) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || MEZZO_HAS_FEATURE(address_sanitizer)
#define MEZZO_ASAN 1
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__SANITIZE_THREAD__) || MEZZO_HAS_FEATURE(thread_sanitizer)
#define MEZZO_TSAN 1
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char*, int);
void AnnotateIgnoreReadsEnd(const char*, int);
void AnnotateIgnoreWritesBegin(const char*, int);
void AnnotateIgnoreWritesEnd(const char*, int);
}
#endif

namespace mezzo::emulation {

// The engine's own bookkeeping must not look like a race of the kernel: TSan ignores accesses inside this
// scope.
struct Hidden {
#ifdef MEZZO_TSAN
    Hidden() {
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    }
    ~Hidden() {
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
#else
    Hidden() {}
#endif
    Hidden(const Hidden&) = delete;
    Hidden& operator=(const Hidden&) = delete;
};

// Happens-before edges through the address p.
inline void release_edge([[maybe_unused]] void* p) {
#ifdef MEZZO_TSAN
    __tsan_release(p);
#endif
}
inline void acquire_edge([[maybe_unused]] void* p) {
#ifdef MEZZO_TSAN
    __tsan_acquire(p);
#endif
}

}  // namespace mezzo::emulation
