// Regions of memory that tile() prefetches while it computes (isa_tables.h). Only for code that is compiled
// once; vector.h says why.
#pragma once

#include <algorithm>

#include "cpu/isa/isa_tables.h"

namespace mezzo::cpu {

// A region of `runs` runs of `bytes` bytes, each `pitch` bytes behind the one before.
inline Prefetch::Region region_of(const void* start, std::int64_t pitch, std::int64_t runs,
                                  std::int64_t bytes) {
    return {static_cast<const char*>(start), pitch, runs, (bytes + 63) / 64};
}

// The region of a block of an operand: `width` rows of op(A) or columns of op(B), `k` long.
inline Prefetch::Region region_of(const Operand& x, std::int64_t width, std::int64_t k) {
    const auto size = std::int64_t(size_of(x.type));
    return region_of(x.data, x.ld * size, x.along_k ? width : k, (x.along_k ? k : width) * size);
}

// Part `part` of `parts` of a region.
inline Prefetch::Region part_of(Prefetch::Region region, std::int64_t part, std::int64_t parts) {
    const std::int64_t begin = region.runs * part / parts, end = region.runs * (part + 1) / parts;
    region.start += begin * region.pitch;
    region.runs = end - begin;
    return region;
}

// Appends a region, unless there is nothing in it, or no room for it.
inline void add(Prefetch& ahead, const Prefetch::Region& region) {
    const bool room = ahead.count < Prefetch::most;
    if (room && region.start != nullptr && region.runs > 0 && region.lines > 0)
        ahead.regions[ahead.count++] = region;
}

// Spreads all lines evenly over so many slots: many at once would wait for each other, and tile() for them.
inline void set_pace(Prefetch& ahead, std::int64_t slots) {
    std::int64_t lines = 0;
    for (int i = 0; i < ahead.count; ++i) lines += ahead.regions[i].runs * ahead.regions[i].lines;
    ahead.pace = int(std::clamp<std::int64_t>(
        (lines * Prefetch::slots + slots - 1) / std::max<std::int64_t>(slots, 1), 0, Prefetch::slots));
}

}  // namespace mezzo::cpu
