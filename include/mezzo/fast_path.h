// Setting for an optimized kernel: off, on, or automatic (checked once on this device).
//
//   set_flash_attention(FastPath::off);
//   cuda::set_gemm_options({.fuse_layers = true});  // without a self-check
#pragma once

#include "mezzo/cpp20.h"

#include <concepts>
#include <cstdint>

#pragma GCC visibility push(default)

namespace mezzo {

// Choice between an optimized kernel (fast path) and the reference implementation:
//   automatic  uses the fast path if it passes a self-check on the device. The first use compares it with the
//              reference on a small problem, which takes milliseconds. If they differ, or the fast path
//              fails, the reference is used and the reason is reported to the log sink (mezzo/log.h). The
//              result is cached in the user's cache folder for this model of GPU, driver, library and version
//              of mezzo (docs/internals/cuda.md, "Self-check on first use").
//   on         uses the fast path without a self-check.
//   off        uses the reference.
// true and false convert to on and off.
class FastPath {
public:
    enum Choice : std::uint8_t { automatic, on, off };

    constexpr FastPath(Choice choice = automatic) : choice_(choice) {}
    constexpr FastPath(std::same_as<bool> auto use) : choice_(use ? on : off) {}

    [[nodiscard]] constexpr Choice choice() const { return choice_; }
    friend constexpr bool operator==(FastPath, FastPath) = default;

private:
    Choice choice_;
};

// "automatic", "on" or "off".
[[nodiscard]] const char* name(FastPath path);

}  // namespace mezzo

#pragma GCC visibility pop
