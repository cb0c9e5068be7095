// Sums over many ranges of k. Only for code that is compiled once; vector.h says why.
#pragma once

#include <cstdint>

#include "cpu/buffer.h"

namespace mezzo::cpu {

// Adds up many ranges of k in groups of about as many ranges as there are groups, so that the longest chain
// of float32 additions grows with the square root of k.
class RangeGroups {
public:
    // Ranges of a group; 1: they are added up one by one.
    static std::int64_t length(std::int64_t ranges) {
        std::int64_t group = 1;
        while (ranges > 16 && group * group < ranges) ++group;
        return group;
    }
    // `size` sums are added up, in memory of `totals`.
    RangeGroups(std::int64_t ranges, std::int64_t size, Buffer& totals)
        : ranges_(ranges), size_(size), group_(length(ranges)) {
        if (group_ > 1) totals_ = totals.get<float>(size);
    }
    // Called before range r > 0 adds to the sums. Returns whether the range overwrites them instead, because
    // they have been added to the totals.
    bool begins(std::int64_t r, float* sums) {
        if (group_ == 1 || r % group_ != 0) return false;
        const bool last = r + group_ >= ranges_, first = r == group_;
        for (std::int64_t i = 0; i < size_; ++i) {
            const float total = first ? sums[i] : totals_[i] + sums[i];
            (last ? sums : totals_)[i] = total;
        }
        return !last;
    }

private:
    std::int64_t ranges_, size_, group_;
    float* totals_ = nullptr;
};

}  // namespace mezzo::cpu
