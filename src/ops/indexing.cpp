// x[{...}]: each entry is a view of one dimension.
#include "ops/common.h"

namespace mezzo {

namespace {

// Entries that take a dimension of x.
int dimensions_of(std::initializer_list<Index> entries) {
    int count = 0;
    for (const Index& entry : entries)
        count += entry.kind() == Index::Kind::number || entry.kind() == Index::Kind::range;
    return count;
}

int ellipses_of(std::initializer_list<Index> entries) {
    int count = 0;
    for (const Index& entry : entries) count += entry.kind() == Index::Kind::dots;
    return count;
}

}  // namespace

Tensor Tensor::operator[](std::initializer_list<Index> entries) const {
    check_defined("index", *this);
    const int named = dimensions_of(entries), own = dim();
    check(named <= own, ErrorKind::shape, "index: ", named, " entries for the ", own, " dimensions of ",
          shape());
    check(ellipses_of(entries) <= 1, ErrorKind::shape, "index: more than one ellipsis");
    Tensor result = *this;
    int at = 0;     // the dimension of the result for the next entry
    int taken = 0;  // the same of x, for errors
    for (const Index& entry : entries) switch (entry.kind()) {
            case Index::Kind::number: {
                const std::int64_t i = entry.integer(), n = result.size(at);
                check(i >= -n && i < n, ErrorKind::shape, "index: ", i, " is out of range for dimension ",
                      taken, " of ", shape(), "; it must be in [", -n, ", ", n, ")");
                result = result.select(at, i);
                ++taken;
                break;
            }
            case Index::Kind::range:
                result = result.slice(at, entry.slice().start, entry.slice().stop, entry.slice().step);
                ++at, ++taken;
                break;
            case Index::Kind::dots:
                at += own - named;
                taken += own - named;
                break;
            case Index::Kind::axis:
                result = result.unsqueeze(at++);
                break;
        }
    return result;
}

}  // namespace mezzo
