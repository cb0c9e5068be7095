// Functions that choose elements, and that write into chosen ones.
#include "tools/op_database/call.h"

namespace database {

namespace {

mz::ScatterReduction reduction(const std::string& word) {
    const std::map<std::string, mz::ScatterReduction> all{
        {"sum", mz::ScatterReduction::sum},   {"add", mz::ScatterReduction::sum},
        {"prod", mz::ScatterReduction::prod}, {"multiply", mz::ScatterReduction::prod},
        {"mean", mz::ScatterReduction::mean}, {"amax", mz::ScatterReduction::amax},
        {"amin", mz::ScatterReduction::amin}};
    const auto found = all.find(word);
    if (found == all.end()) throw NotHere("reduction " + word);
    return found->second;
}

Tensor scatter(const Call& c) {
    const Tensor index = c.x(2);
    const Tensor source = c.is_tensor("src", 3) ? c.x(3) : Tensor();
    if (c.has("reduce", 99)) {
        const Tensor values =
            source.defined() ? source
                             : mz::full(index.shape(), c.scalar("value", 3, 0), {.dtype = c.x().dtype()});
        return mz::scatter_reduce(c.x(), c.integer("dim", 1, 0), index, values,
                                  reduction(c.text("reduce", 99, "")));
    }
    return source.defined() ? mz::scatter(c.x(), c.integer("dim", 1, 0), index, source)
                            : mz::scatter(c.x(), c.integer("dim", 1, 0), index, c.scalar("value", 3, 0));
}

// Python's brackets.
std::vector<mz::Index> entries(const Call& c, const Json& value) {
    const auto one = [&](const Json& entry) -> mz::Index {
        if (entry.is_null()) return mz::newaxis;
        if (entry.is_boolean()) throw NotHere("a boolean as index");
        if (entry.is_number_integer()) return entry.get<std::int64_t>();
        if (entry.is_object() && entry.contains("ellipsis")) return mz::ellipsis;
        if (entry.is_object() && entry.contains("slice")) {
            const Json& s = entry.at("slice");
            const std::int64_t step = s[2].is_null() ? 1 : s[2].get<std::int64_t>();
            return mz::Slice(s[0].is_null() ? 0 : s[0].get<std::int64_t>(),
                             s[1].is_null() ? mz::Slice::to_end : s[1].get<std::int64_t>(), step);
        }
        if (entry.is_array()) {
            std::vector<std::int64_t> list;
            for (const Json& i : entry) {
                if (!i.is_number_integer() || i.is_boolean())
                    throw NotHere("a list that is no list of numbers");
                list.push_back(i.get<std::int64_t>());
            }
            return Tensor::from(list, {std::int64_t(list.size())});
        }
        return c.tensor(entry);
    };
    std::vector<mz::Index> result;
    if (value.is_array())
        for (const Json& entry : value) result.push_back(one(entry));
    else
        result.push_back(one(value));
    return result;
}

}  // namespace

Table indexing() {
    return {
        OP("index_select", {mz::index_select(c.x(), c.integer("dim", 1, 0), c.x(2))}),
        OP("gather", {mz::gather(c.x(), c.integer("dim", 1, 0), c.x(2))}),
        OP("scatter_add", {mz::scatter_add(c.x(), c.integer("dim", 1, 0), c.x(2), c.x(3))}),
        OP("__getitem__", {mz::index(c.x(), entries(c, c.json("", 1)))}),
        OP("index_put", {mz::index_put(c.x(), entries(c, c.json("indices", 1)), c.x(2),
                                       {.accumulate = c.flag("accumulate", 3)})}),
        OP("scatter", {scatter(c)}),
        OP("scatter_reduce", {mz::scatter_reduce(c.x(), c.integer("dim", 1, 0), c.x(2), c.x(3),
                                                 reduction(c.text("reduce", 4, "sum")),
                                                 {.include_self = c.flag("include_self", 5, true)})}),
        OP("index_copy", {mz::index_copy(c.x(), c.integer("dim", 1, 0), c.x(2), c.x(3))}),
        OP("index_add",
           {mz::index_add(c.x(), c.integer("dim", 1, 0), c.x(2), c.x(3), c.scalar("alpha", 99, 1))}),
        OP("index_fill", {mz::index_fill(c.x(), c.integer("dim", 1, 0), c.x(2),
                                         c.is_tensor("value", 3) ? mz::Scalar(c.x(3).item<double>())
                                                                 : c.scalar("value", 3, 0))}),
        OP("index_reduce", {mz::index_reduce(c.x(), c.integer("dim", 1, 0), c.x(2), c.x(3),
                                             reduction(c.text("reduce", 4, "")),
                                             {.include_self = c.flag("include_self", 99, true)})}),
        OP("masked_scatter", {mz::masked_scatter(c.x(), c.x(1), c.x(2))}),
        OP("take_along_dim", {c.has("dim", 2) ? mz::take_along_dim(c.x(), c.x(1), c.integer("dim", 2, 0))
                                              : mz::take_along_dim(c.x(), c.x(1))}),
        OP("take", {mz::take(c.x(), c.x(1))}),
        OP("put", {mz::put(c.x(), c.x(1), c.x(2), {.accumulate = c.flag("accumulate", 3)})}),
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
