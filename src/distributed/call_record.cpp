#include "distributed/call_record.h"

#include <iterator>
#include <string>

#include "mezzo/error.h"

namespace mezzo::distributed {
namespace {

// A damaged record, or one of a later version, may hold any number: such a call has the name "an unknown
// call".
const char* name(Call call) {
    constexpr const char* names[] = {"all_reduce_",
                                     "all_gather",
                                     "broadcast_",
                                     "mean",
                                     "weight",
                                     "barrier",
                                     "all",
                                     "any",
                                     "DataParallel's comparison of the models",
                                     "DataParallel's layout of the buckets",
                                     "DataParallel's broadcast of rank 0's values",
                                     "DataParallel's reduction",
                                     "shard()",
                                     "a sharded optimizer's step",
                                     "a sharded optimizer's exchange of parts",
                                     "a sharded optimizer's load_state_dict",
                                     "SyncBatchNorm's statistics",
                                     "SyncBatchNorm's gradient",
                                     "require_same",
                                     "a captured step's call"};
    static_assert(std::size(names) == std::size_t(Call::step) + 1);
    return std::size_t(call) < std::size(names) ? names[std::size_t(call)] : "an unknown call";
}

const char* text_of(Dtype dtype) {
    return std::size_t(dtype) < std::size_t(dtype_count) ? mezzo::name(dtype) : "an unknown dtype";
}

bool has_tensor(Call call) { return call < Call::weight; }
bool has_number(Call call) {
    return call == Call::weight || call == Call::model || call == Call::same || call == Call::layout ||
           call == Call::load || call == Call::moments || call == Call::step;
}

std::string text_of(const Record& record) {
    std::string text = name(record.call);
    if (record.call == Call::bucket) text += " of bucket " + std::to_string(record.root) + ",";
    if (has_tensor(record.call) || record.call == Call::bucket)
        text += (record.call == Call::bucket ? " " : " of ") + std::to_string(record.elements) +
                " elements of " + text_of(record.dtype);
    if (record.call == Call::all_reduce) text += std::string(" by ") + distributed::name(record.op);
    if (record.call == Call::broadcast) text += " from rank " + std::to_string(record.root);
    if (record.call == Call::shard || record.call == Call::update)
        text += " of " + std::to_string(record.elements) + " parameters";
    if (record.call == Call::values || record.call == Call::parts)
        text += " of " + std::to_string(record.elements) + " bytes";
    return text;
}

void compare(const std::vector<Record>& all) {
    for (std::size_t r = 1; r < all.size(); ++r) {
        const Record &a = all[0], &b = all[r];
        const bool numbers = has_number(a.call) || a.elements == b.elements;
        if (a.call == b.call && a.dtype == b.dtype && a.op == b.op && a.root == b.root && numbers &&
            a.shape == b.shape && a.ticket == b.ticket)
            continue;
        const bool same_call = a.call == b.call && a.op == b.op && a.root == b.root && a.ticket == b.ticket;
        const ErrorKind kind = !same_call           ? ErrorKind::state
                               : a.dtype != b.dtype ? ErrorKind::dtype
                                                    : ErrorKind::shape;
        const std::string in_call = " as its call " + std::to_string(b.ticket);
        const char* const other = a.call == Call::bucket  ? " of another DataParallel"
                                  : a.call >= Call::shard ? ", but others"
                                                          : " in another shape";
        fail(kind, name(a.call), ": rank 0 has ", text_of(a), " as its call ", a.ticket, ", rank ", r,
             " has ", text_of(b), in_call, text_of(a) == text_of(b) && a.ticket == b.ticket ? other : "",
             "; all ranks must make the same calls in the same order, with equal shapes and dtypes");
    }
}

}  // namespace

std::vector<Record> agree(Collectives& engine, const GroupImpl& group, Record mine) {
    mine.ticket = group.running();
    std::vector<Record> all(std::size_t(group.place().size), mine);
    engine.all_gather(&mine, all.data(), sizeof(Record));
    compare(all);
    return all;
}

std::vector<Record> exchange(GroupImpl& group, const Record& mine) {
    std::vector<Record> all;
    group.run([&](Collectives& engine) { all = agree(engine, group, mine); });
    return all;
}

}  // namespace mezzo::distributed
