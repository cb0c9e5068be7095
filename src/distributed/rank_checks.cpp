#include "distributed/rank_checks.h"

#include <algorithm>
#include <cstring>

#include "autograd/autocast_state.h"
#include "core/fnv1a.h"
#include "core/gradient/leaf_state.h"
#include "core/tensor_impl.h"
#include "mezzo/autograd.h"

namespace mezzo::distributed {

namespace {

std::uint64_t hash_of(const void* data, std::size_t bytes) {
    return fnv1a({static_cast<const char*>(data), bytes});
}

// Returns one number from each rank.
std::vector<std::uint64_t> gather(std::uint64_t mine, Call call, GroupImpl& group) {
    std::vector<std::uint64_t> all;
    for (const Record& record : exchange(group, {.call = call, .elements = std::int64_t(mine)}))
        all.push_back(std::uint64_t(record.elements));
    return all;
}

// Returns one text from each rank; their lengths may differ.
std::vector<std::string> gather_texts(const std::string& mine, Call call, GroupImpl& group) {
    const std::vector<std::uint64_t> sizes = gather(mine.size(), call, group);
    const std::size_t largest = std::size_t(*std::max_element(sizes.begin(), sizes.end()));
    std::string padded = mine, all(largest * sizes.size(), '\0');
    padded.resize(largest);
    group.run([&](Collectives& engine) {
        agree(engine, group, {.call = call});
        engine.all_gather(padded.data(), all.data(), largest);
    });
    std::vector<std::string> texts;
    for (std::size_t rank = 0; rank < sizes.size(); ++rank)
        texts.push_back(all.substr(rank * largest, std::size_t(sizes[rank])));
    return texts;
}

std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> lines;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = text.find('\n', at);
        lines.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    return lines;
}

std::string joined(const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    return text;
}

[[noreturn]] void fail_at_difference(const std::vector<std::string>& texts, const CommonLines& what) {
    const std::vector<std::string> first = split(texts[0]);
    std::size_t rank = 1;
    while (texts[rank] == texts[0]) ++rank;
    const std::vector<std::string> other = split(texts[rank]);
    std::size_t line = 0;
    while (line < first.size() && line < other.size() && first[line] == other[line]) ++line;
    const char* const nothing = "nothing more";
    fail(what.kind, what.op, ": ", line < first.size() ? first[line] : nothing, " on rank 0 and ",
         line < other.size() ? other[line] : nothing, " on rank ", rank, "; ", what.hint);
}

// Consecutive tensors are sent in one message of at most 25 MB; a larger tensor is a message of its own.
constexpr std::size_t message_bytes = 25 << 20;

std::size_t bytes_of(const Tensor& x) { return std::size_t(x.numel()) * size_of(x.dtype()); }

void broadcast_some(const Tensors& tensors, std::size_t bytes, GroupImpl& group) {
    std::vector<char> message(bytes);
    const bool root = group.place().rank == 0;
    std::size_t at = 0;
    for (const Tensor& x : tensors) {
        if (root && x.numel() != 0)
            std::memcpy(message.data() + at, raw(x.detach().contiguous().to(cpu_device)), bytes_of(x));
        at += bytes_of(x);
    }
    group.run([&](Collectives& engine) {
        agree(engine, group, {.call = Call::values, .elements = std::int64_t(bytes)});
        engine.broadcast(message.data(), bytes, 0);
    });
    at = 0;
    for (const Tensor& x : tensors) {
        if (!root && x.numel() != 0) {
            const Tensor values = empty(x.shape(), {.dtype = x.dtype()});
            std::memcpy(raw(values), message.data() + at, bytes_of(x));
            x.copy_(values);
        }
        at += bytes_of(x);
    }
}

class GroupConsensus final : public CaptureConsensus {
public:
    explicit GroupConsensus(const Group& group) : group_(group) {}
    StepAction agree(StepAction mine) override { return agree_on_step(mine, group_.impl()); }

private:
    const Group group_;
};

}  // namespace

void require_same_lines(const CommonLines& what, const std::vector<std::string>& lines, GroupImpl& group) {
    const std::string text = joined(lines);
    const std::vector<std::uint64_t> hashes = gather(hash_of(text.data(), text.size()), what.call, group);
    if (std::equal(hashes.begin() + 1, hashes.end(), hashes.begin())) return;
    fail_at_difference(gather_texts(text, what.call, group), what);
}

void require_same_values(const StateDict& tensors, GroupImpl& group) {
    const NoGrad plain;
    const NoAutocast as_they_are;
    std::vector<std::string> lines;
    for (const auto& [name, x] : tensors) {
        const Tensor here = x.detach().contiguous().to(cpu_device);
        const std::uint64_t digest = here.numel() == 0 ? 0 : hash_of(raw(here), bytes_of(here));
        lines.push_back(name + " " + mezzo::name(x.dtype()) + " " + mezzo::detail::text_of(x.shape()) +
                        " with digest " + std::to_string(digest));
    }
    require_same_lines(
        {.call = Call::same,
         .op = "require_same",
         .hint = "all ranks must have the same bits; an update that only some of them make, random numbers "
                 "of their own, or processors of another kind set them apart",
         .kind = ErrorKind::state},
        lines, group);
}

std::vector<OrderedLeaf> common_order(const std::vector<OrderedLeaf>& own,
                                      const std::vector<std::string>& names, bool& on_device,
                                      GroupImpl& group) {
    std::vector<std::string> lines(names.size());
    std::vector<std::uint64_t> code;  // the order as numbers
    for (std::size_t place = 0; place < names.size(); ++place) lines[place] = names[place] + ", frozen,";
    for (const OrderedLeaf& leaf : own) {
        lines[leaf.place] = names[leaf.place] + ", trained,";
        code.push_back(std::uint64_t(leaf.place) * 2 + leaf.adjoins);
    }
    require_same_lines(
        {.call = Call::layout, .op = "DataParallel", .hint = "requires_grad must be the same on all ranks"},
        lines, group);
    const std::uint64_t hash = hash_of(code.data(), code.size() * sizeof code[0]);
    std::vector<std::uint64_t> hashes;
    for (const Record& record :
         exchange(group, {.call = Call::layout, .flag = on_device, .elements = std::int64_t(hash)})) {
        hashes.push_back(std::uint64_t(record.elements));
        on_device = on_device && record.flag;
    }
    if (std::equal(hashes.begin() + 1, hashes.end(), hashes.begin())) return own;
    group.run([&](Collectives& engine) {
        agree(engine, group, {.call = Call::layout});
        engine.broadcast(code.data(), code.size() * sizeof code[0], 0);
    });
    std::vector<OrderedLeaf> order;
    for (const std::uint64_t number : code) order.push_back({std::uint32_t(number / 2), number % 2 != 0});
    return order;
}

void broadcast_values(const StateDict& tensors, GroupImpl& group) {
    const NoGrad plain;
    const NoAutocast as_they_are;
    Tensors some;
    std::size_t bytes = 0;
    for (const auto& [name, x] : tensors) {
        if (!some.empty() && bytes + bytes_of(x) > message_bytes) {
            broadcast_some(some, bytes, group);
            some.clear();
            bytes = 0;
        }
        some.push_back(x);
        bytes += bytes_of(x);
    }
    if (bytes != 0) broadcast_some(some, bytes, group);
}

std::vector<bool> parts_with_state(const BucketLayout& layout, const Tensors& leaves) {
    std::vector<bool> result;
    for (const BucketLayout::Entry& part : layout.parts) {
        const Ref<LeafState> state = LeafState::of(leaves[part.place]);
        result.push_back(state && state->reduced());
    }
    return result;
}

std::uint64_t digest_of(const std::vector<bool>& parts) {
    std::uint64_t digest = 0;
    for (std::size_t part = 0; part < parts.size(); ++part)
        if (parts[part]) digest = digest * 0x100000001b3u + part + 1;
    return digest;
}

ReducedStates reduced_states(const std::vector<Record>& all) {
    const auto same = [&](const Record& record) { return record.states == all[0].states; };
    if (!std::all_of(all.begin(), all.end(), same)) return ReducedStates::differ;
    return all[0].states == 0 ? ReducedStates::none : ReducedStates::same;
}

StepAction agree_on_step(StepAction mine, GroupImpl& group) {
    StepAction least = mine;
    for (const Record& record : exchange(group, {.call = Call::step, .elements = std::int64_t(mine)}))
        least = std::min(least, StepAction(record.elements));
    return least;
}

std::shared_ptr<CaptureConsensus> consensus_of(const Group& group) {
    std::weak_ptr<CaptureConsensus>& known = group.impl().consensus();
    std::shared_ptr<CaptureConsensus> consensus = known.lock();
    if (consensus == nullptr) known = consensus = std::make_shared<GroupConsensus>(group);
    return consensus;
}

}  // namespace mezzo::distributed
