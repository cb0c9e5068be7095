// Whether a faster way to compute the same may be taken.
#pragma once

#include "mezzo/cpp20.h"

#include <concepts>
#include <cstdint>

#pragma GCC visibility push(default)

namespace mezzo {

// The choice for one fast path:
//   automatic  it is used on a device that has proven it: where it would be used for the first time, it is
//              compared with the plain path on a small problem, which takes milliseconds. If they differ, or the
//              fast path fails, the plain path is used and a log sink (mezzo/log.h) is told the reason. The
//              verdict is kept in the user's cache folder, for this model of GPU, driver, library and version of
//              mezzo (docs/cuda.md, "Proof on first use").
//   on         it is used, without a proof.
//   off        the plain path is used.
// true and false stand for on and off.
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
