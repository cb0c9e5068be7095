// Converts allocation errors of containers to Error(memory).
#pragma once

#include <new>
#include <stdexcept>

#include "mezzo/error.h"

namespace mezzo {

// Returns make(). Throws Error(memory) if a container in it throws std::bad_alloc or std::length_error;
// `wanted` ends the message, such as "for 9000000000000 indices".
template <class Make, class... Wanted>
auto or_memory_error(const char* op, const Make& make, const Wanted&... wanted) -> decltype(make()) {
    try {
        return make();
    } catch (const std::bad_alloc&) {
    } catch (const std::length_error&) {
    }
    fail(ErrorKind::memory, op, ": there is too little memory ", wanted...);
}

}  // namespace mezzo
