#include "distributed/bucket_layout.h"

#include <algorithm>

#include "core/round_up.h"

namespace mezzo::distributed {

namespace {

constexpr std::int64_t alignment = 256;       // bytes
constexpr std::int64_t padding_of_rank = 64;  // elements

// A bucket that still takes leaves.
struct Open {
    BucketLayout layout;
    std::int64_t end = 0;  // elements
    // index of its last leaf in the order
    std::size_t last = 0;
    // the first bucket of its dtype and device
    bool first = true;
};

std::int64_t aligned(const Open& open) {
    return round_up(open.end, alignment / std::int64_t(size_of(open.layout.dtype)));
}

BucketLayout closed(Open& open, int ranks) {
    open.layout.flags = aligned(open);
    open.layout.elements =
        round_up(open.layout.flags + std::int64_t(open.layout.parts.size()), ranks * padding_of_rank);
    return open.layout;
}

Open& open_for(std::vector<Open>& all, const LeafKind& leaf) {
    for (Open& open : all)
        if (open.layout.dtype == leaf.dtype && open.layout.device == leaf.device) return open;
    return all.emplace_back(Open{.layout = {.dtype = leaf.dtype, .device = leaf.device}});
}

}  // namespace

std::vector<BucketLayout> lay_out(const std::vector<OrderedLeaf>& order, const std::vector<LeafKind>& leaves,
                                  const BucketSizes& sizes) {
    std::vector<Open> all, full;
    for (std::size_t i = 0; i < order.size(); ++i) {
        const LeafKind& leaf = leaves[order[i].place];
        Open& open = open_for(all, leaf);
        const bool adjoins = order[i].adjoins && !open.layout.parts.empty() && open.last + 1 == i;
        const std::int64_t limit = open.first ? sizes.first_bytes : sizes.bytes;
        const std::int64_t bytes = (aligned(open) + leaf.numel) * std::int64_t(size_of(leaf.dtype));
        if (!adjoins && !open.layout.parts.empty() && bytes > limit) {
            full.push_back(open);
            open = {.layout = {.dtype = leaf.dtype, .device = leaf.device}, .first = false};
        }
        const std::int64_t offset = adjoins ? open.end : aligned(open);
        open.layout.parts.push_back({order[i].place, offset});
        open.end = offset + leaf.numel;
        open.last = i;
    }
    full.insert(full.end(), all.begin(), all.end());
    std::sort(full.begin(), full.end(), [](const Open& a, const Open& b) { return a.last < b.last; });
    std::vector<BucketLayout> result;
    for (Open& bucket : full) result.push_back(closed(bucket, sizes.ranks));
    return result;
}

}  // namespace mezzo::distributed
