// Size of the free lists in which a thread keeps destroyed objects for reuse, so that an op takes no memory
// from the heap.
#pragma once

namespace mezzo {

// None with AddressSanitizer, so that it finds uses of destroyed objects.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr int recycled_limit = 0;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
inline constexpr int recycled_limit = 0;
#else
inline constexpr int recycled_limit = 1024;
#endif
#else
inline constexpr int recycled_limit = 1024;
#endif

}  // namespace mezzo
