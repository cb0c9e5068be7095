// Functions that choose elements, and that write into chosen ones.
#include "tools/op_database/call.h"

namespace database {

Table indexing() {
    return {
        OP("index_select", {mz::index_select(c.x(), c.integer("dim", 1, 0), c.x(2))}),
        OP("gather", {mz::gather(c.x(), c.integer("dim", 1, 0), c.x(2))}),
        OP("scatter_add", {mz::scatter_add(c.x(), c.integer("dim", 1, 0), c.x(2), c.x(3))}),
        OP("masked_select", {mz::masked_select(c.x(), c.x(1))}),
        OP("nonzero", c.flag("as_tuple", 99)
                          ? mz::unbind(mz::nonzero(c.x().dim() ? c.x() : c.x().unsqueeze(0)), 1)
                          : Tensors{mz::nonzero(c.x())}),
        OP("argwhere", {mz::nonzero(c.x())}),
        OP("one_hot", {mz::one_hot(c.x(), c.integer("num_classes", 1, -1))}),
        OP("embedding", {mz::embedding(c.tensor("weight", 0), c.x(1), c.integer("padding_idx", 99, -1))}),
    };
}

}  // namespace database
