#include "distributed/gather_shards.h"

#include <algorithm>

#include "autograd/autocast_state.h"
#include "core/fnv1a.h"
#include "core/round_up.h"
#include "core/tensor_impl.h"
#include "distributed/perform.h"
#include "mezzo/autograd.h"
#include "mezzo/ops.h"

namespace mezzo::distributed {

namespace {

constexpr std::int64_t alignment = 64;            // bytes: a message ends between two elements of any dtype
constexpr std::int64_t message_bytes = 16 << 20;  // of all ranks together

// The part of a partial tensor that stands for a part of its parameter.
optim::LocalShard stored_part(const optim::PartialTensor& partial, const optim::LocalShard& part) {
    const std::int64_t units = (part.count + partial.elements - 1) / partial.elements;
    return {part.begin / partial.elements * partial.stored, units * partial.stored};
}

// A shard of a tensor, and its offset in the stream of its rank's shards.
struct Piece {
    Tensor elements;  // 1-dim
    std::int64_t at, bytes;
};

struct Stream {
    std::vector<Piece> pieces;
    std::int64_t bytes = 0;
};

Stream stream_of(int rank, const std::vector<optim::PartialTensor>& tensors, const Partition& partition) {
    Stream stream;
    for (const optim::PartialTensor& partial : tensors) {
        const Tensor& tensor = partial.tensor;
        const optim::LocalShard part = stored_part(partial, partition.part(partial.slot, rank));
        if (part.count == 0) continue;
        const std::int64_t bytes = part.count * std::int64_t(size_of(tensor.dtype()));
        stream.pieces.push_back({tensor.detach().reshape({-1}).slice(0, part.begin, part.begin + part.count),
                                 stream.bytes, bytes});
        stream.bytes += round_up(bytes, alignment);
    }
    return stream;
}

// Calls copy(elements of a piece, their part of the message) for bytes [from, to) of a stream. The message
// begins at byte `at` of `memory`.
template <class Copy> void for_each_piece(const Stream& stream, std::int64_t from, std::int64_t to,
                                          const Tensor& memory, std::int64_t at, const Copy& copy) {
    auto piece = std::partition_point(stream.pieces.begin(), stream.pieces.end(),
                                      [&](const Piece& p) { return p.at + p.bytes <= from; });
    for (; piece != stream.pieces.end() && piece->at < to; ++piece) {
        const Dtype dtype = piece->elements.dtype();
        const auto size = std::int64_t(size_of(dtype));
        const std::int64_t begin = std::max(from, piece->at), end = std::min(to, piece->at + piece->bytes);
        const std::int64_t count = (end - begin) / size;
        const Tensor message = make_tensor(memory->storage, {count}, {1}, (at + begin - from) / size, dtype);
        const std::int64_t first = (begin - piece->at) / size;
        copy(piece->elements.slice(0, first, first + count), message);
    }
}

std::uint64_t hash_of(const std::vector<optim::PartialTensor>& tensors) {
    Fnv1a hash;
    for (const optim::PartialTensor& partial : tensors)
        hash.add(partial.slot * std::uint64_t(dtype_count) + std::uint64_t(partial.tensor.dtype()));
    return hash.value();
}

// Returns the device of the messages: that of the tensors, if its engine can send from there, otherwise the
// CPU.
Device device_of(const std::vector<optim::PartialTensor>& tensors, const GroupImpl& group) {
    const Device device = tensors[0].tensor.device();
    for (const optim::PartialTensor& partial : tensors) {
        group.devices().note_elsewhere(partial.tensor.device());
        if (partial.tensor.device() != device || !group.devices().suits(device)) return cpu_device;
    }
    return device;
}

}  // namespace

void gather_parts(const std::vector<optim::PartialTensor>& tensors, const Partition& partition,
                  const Group& group) {
    constexpr const char* op = "a sharded optimizer";
    refuse_in_capture(op, "exchange the ranks' parts");
    if (tensors.empty()) return;
    const NoGrad no_history;
    const NoAutocast as_they_are;
    const int ranks = partition.ranks(), own = group.rank();
    const Device device = device_of(tensors, group.impl());
    const auto bytes = [&](std::int64_t count) { return empty({count}, {.dtype = uint8, .device = device}); };
    std::vector<Stream> streams;
    std::int64_t longest = 0;
    for (int rank = 0; rank < ranks; ++rank) {
        streams.push_back(stream_of(rank, tensors, partition));
        longest = std::max(longest, streams.back().bytes);
    }
    const std::int64_t limit = std::max(message_bytes / ranks / alignment, std::int64_t(1)) * alignment;
    const Tensor sent = bytes(std::min(limit, longest)), received = bytes(sent.numel() * ranks);
    const std::uint64_t hash = hash_of(tensors);
    for (std::int64_t from = 0; from < longest; from += limit) {
        const std::int64_t to = std::min(from + limit, longest), length = to - from;
        for_each_piece(streams[std::size_t(own)], from, to, sent, 0,
                       [](const Tensor& part, const Tensor& message) { message.copy_(part); });
        gather(group, op, {.call = Call::parts, .elements = length, .shape = hash}, sent, received,
               std::size_t(length));
        for (int rank = 0; rank < ranks; ++rank)
            if (rank != own)
                for_each_piece(streams[std::size_t(rank)], from, to, received, rank * length,
                               [](const Tensor& part, const Tensor& message) { part.copy_(message); });
    }
}

}  // namespace mezzo::distributed
