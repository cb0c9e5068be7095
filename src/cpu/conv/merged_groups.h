// Convolutions whose groups have few channels, as convolutions of fewer groups for tiles: some neighbouring
// groups become one, whose weight is zero between the channels of different groups.
#pragma once

#include "cpu/buffer.h"
#include "cpu/conv/window_product.h"

namespace mezzo::cpu {

// A product of merged groups.
class MergedProduct {
public:
    explicit MergedProduct(const WindowProduct& p);

    // Whether the groups are merged. If not, `product` is p.
    bool merges() const { return product.groups < p_.groups; }
    // Whether all elements of the windows' source are finite: others times zero are NaN.
    bool exact() const;
    // Copies the weight, before `product` is used.
    void set_weight();

    WindowProduct product;

private:
    const WindowProduct& p_;
    Buffer weight_;
};

// A weight gradient of merged groups: [outputs, taps, channels of a merged group], of which split_merged()
// takes what belongs to the groups of p. It is p if the groups are not merged.
WindowGradient merged_gradient(const WindowGradient& p);
// to [outputs, taps, channels of a group of p] = the parts of `merged`'s result `sums`.
void split_merged(const WindowGradient& p, const WindowGradient& merged, const float* sums, float* to);

}  // namespace mezzo::cpu
