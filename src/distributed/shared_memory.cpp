#include "distributed/shared_memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "cpu/elementwise/loops.h"
#include "distributed/element_reduction.h"
#include "distributed/shared_segment.h"
#include "mezzo/error.h"

namespace mezzo::distributed {
namespace {

// A rank's call, at the head of its slot. Ranks compare it, so that different calls are an error.
struct Call {
    enum Collective : std::uint8_t { all_reduce, all_gather, all_to_all, broadcast };
    Collective kind;
    ReduceOp op = ReduceOp::sum;
    Dtype dtype = uint8;
    int root = 0;
    std::uint64_t bytes = 0;
    bool operator==(const Call&) const = default;
};
constexpr std::size_t head_bytes = 64;
static_assert(sizeof(Call) <= head_bytes);

std::string text_of(const Call& call) {
    constexpr const char* kinds[] = {"all_reduce", "all_gather", "all_to_all", "broadcast"};
    constexpr const char* ops[] = {"sum", "mean", "min", "max"};
    std::string text = kinds[call.kind];
    if (call.kind == Call::all_reduce)
        text += std::string(" (") + ops[int(call.op)] + ", " + mezzo::name(call.dtype) + ")";
    if (call.kind == Call::broadcast) text += " (root " + std::to_string(call.root) + ")";
    return text + " of " + std::to_string(call.bytes) + " bytes";
}

void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
}

template <class T> constexpr bool has_loops = std::is_floating_point_v<T>;
template <class T> constexpr auto compute_of =
    std::is_same_v<T, double> ? cpu::Compute::f64 : cpu::Compute::f32;

// to = left op right.
template <class T> void reduce_into(T* to, const T* left, const T* right, std::size_t count, ReduceOp op) {
    if constexpr (has_loops<T>)
        if (op == ReduceOp::sum || op == ReduceOp::mean) {  // the common case
            const auto add = cpu::active_loops().binary[int(cpu::BinaryOp::add)][int(compute_of<T>)];
            return add(to, left, right, std::int64_t(count), cpu::Single::none);
        }
    reduction_of<T>(op)(to, left, right, count);
}

template <class T> void divide(T* x, std::size_t count, int divisor) {
    if constexpr (has_loops<T>) {
        const auto scale = cpu::active_loops().unary[int(cpu::UnaryOp::mul_scalar)][int(compute_of<T>)];
        scale(x, x, std::int64_t(count), double(T(1) / T(divisor)), 0);
    }
}

class SharedMemory final : public Collectives {
public:
    SharedMemory(std::unique_ptr<SharedSegment> segment, std::unique_ptr<Collectives> engine,
                 const RankInfo& place, double timeout)
        : segment_(std::move(segment)), engine_(std::move(engine)), place_(place), timeout_(timeout) {}

    void all_reduce(void* data, std::int64_t count, Dtype dtype, ReduceOp op) override {
        with_reduced_type(dtype, op, [&]<class T>(T) {
            auto* const mine = static_cast<T*>(data);
            const Call call{.kind = Call::all_reduce,
                            .op = op,
                            .dtype = dtype,
                            .bytes = std::uint64_t(count) * sizeof(T)};
            // The ranks share the work: each reduces its part of the elements. A rank's slot first holds its
            // elements of the other parts, then the result of its own part.
            rounds(
                call, room() / 64 * 64,
                [&](char* slot, std::size_t at, std::size_t n) {
                    each_part<T>(n, [&](int part, std::size_t begin, std::size_t bytes) {
                        if (part != place_.rank) copy(slot + begin, bytes_at(mine, at + begin), bytes);
                    });
                },
                [&](unsigned set, std::size_t at, std::size_t n) {
                    each_part<T>(n, [&](int part, std::size_t begin, std::size_t bytes) {
                        if (part != place_.rank) return;
                        reduce_part<T>(set, bytes_at(mine, at + begin), begin, bytes / sizeof(T), op);
                        copy(content(set, part) + begin, bytes_at(mine, at + begin), bytes);
                    });
                    arrive();
                    each_part<T>(n, [&](int part, std::size_t begin, std::size_t bytes) {
                        if (part != place_.rank)
                            copy(bytes_at(mine, at + begin), content(set, part) + begin, bytes);
                    });
                });
        });
    }

    void all_gather(const void* mine, void* all, std::size_t bytes) override {
        rounds(
            {.kind = Call::all_gather, .bytes = bytes}, room(),
            [&](char* slot, std::size_t at, std::size_t n) {
                copy(slot, static_cast<const char*>(mine) + at, n);
            },
            [&](unsigned set, std::size_t at, std::size_t n) {
                for (int rank = 0; rank < place_.size; ++rank)
                    copy(static_cast<char*>(all) + std::size_t(rank) * bytes + at, content(set, rank), n);
            });
    }

    void all_to_all(const void* sent, void* received, std::size_t bytes) override {
        const std::size_t share = room() / std::size_t(place_.size);
        rounds(
            {.kind = Call::all_to_all, .bytes = bytes}, share,
            [&](char* slot, std::size_t at, std::size_t n) {
                for (std::size_t to = 0; to < std::size_t(place_.size); ++to)
                    copy(slot + to * share, static_cast<const char*>(sent) + to * bytes + at, n);
            },
            [&](unsigned set, std::size_t at, std::size_t n) {
                for (int from = 0; from < place_.size; ++from)
                    copy(static_cast<char*>(received) + std::size_t(from) * bytes + at,
                         content(set, from) + std::size_t(place_.rank) * share, n);
            });
    }

    void broadcast(void* data, std::size_t bytes, int root) override {
        auto* const mine = static_cast<char*>(data);
        rounds(
            {.kind = Call::broadcast, .root = root, .bytes = bytes}, room(),
            [&](char* slot, std::size_t at, std::size_t n) {
                if (place_.rank == root) copy(slot, mine + at, n);
            },
            [&](unsigned set, std::size_t at, std::size_t n) {
                if (place_.rank != root) copy(mine + at, content(set, root), n);
            });
    }

    const char* name() const override { return "shared memory"; }

    void abort() noexcept override {
        segment_->break_up();
        engine_->abort();
    }

private:
    std::size_t room() const { return segment_->slot_bytes() - head_bytes; }
    char* content(unsigned set, int rank) const { return segment_->slot(set, rank) + head_bytes; }

    // Runs a call in rounds of at most `step` bytes. In each round every rank writes its data to its slot,
    // waits for all ranks, and reads what it needs from their slots. The rounds alternate between the two
    // sets of slots: a rank that fills a set again has seen all ranks arrive in the round in between, so all
    // of them have finished reading the set.
    template <class Put, class Take>
    void rounds(const Call& call, std::size_t step, const Put& put, const Take& take) {
        std::size_t at = 0;
        do {
            const std::size_t n = std::min<std::size_t>(step, call.bytes - at);
            const unsigned set = round_++ % 2;
            std::memcpy(segment_->slot(set, place_.rank), &call, sizeof call);
            put(content(set, place_.rank), at, n);
            arrive();
            require_same(set, call);
            take(set, at, n);
            at += n;
        } while (at < call.bytes);
    }

    // Calls f(rank, begin, bytes) for each rank's part of `n` bytes to reduce.
    template <class T, class F> void each_part(std::size_t n, const F& f) const {
        const std::size_t count = n / sizeof(T), ranks = std::size_t(place_.size);
        for (std::size_t rank = 0; rank < ranks; ++rank) {
            const std::size_t begin = count * rank / ranks, end = count * (rank + 1) / ranks;
            f(int(rank), begin * sizeof(T), (end - begin) * sizeof(T));
        }
    }
    static char* bytes_at(void* data, std::size_t at) { return static_cast<char*>(data) + at; }

    // Reduces this rank's elements with the other ranks', which are `begin` bytes behind the heads of their
    // slots, in the order of the ranks.
    template <class T>
    void reduce_part(unsigned set, char* mine, std::size_t begin, std::size_t count, ReduceOp op) const {
        auto* const result = reinterpret_cast<T*>(mine);
        const auto of = [&](int rank) { return reinterpret_cast<T*>(content(set, rank) + begin); };
        for (int rank = 1; rank < place_.rank; ++rank) reduce_into(of(0), of(0), of(rank), count, op);
        if (place_.rank > 0) reduce_into(result, of(0), result, count, op);
        for (int rank = place_.rank + 1; rank < place_.size; ++rank)
            reduce_into(result, result, of(rank), count, op);
        if (op == ReduceOp::mean) divide(result, count, place_.size);
    }

    void arrive() {
        switch (segment_->arrive(timeout_)) {
            case SharedSegment::Wait::all_came:
                return;
            case SharedSegment::Wait::too_long:
                throw no_answer_within(timeout_);
            case SharedSegment::Wait::broken:
                throw std::runtime_error("shared memory: the group is broken");
        }
    }

    void require_same(unsigned set, const Call& mine) const {
        for (int rank = 0; rank < place_.size; ++rank) {
            Call other{};
            std::memcpy(&other, segment_->slot(set, rank), sizeof other);
            if (other != mine)
                throw std::runtime_error("the ranks call different operations: " + text_of(mine) +
                                         " on rank " + std::to_string(place_.rank) + ", " + text_of(other) +
                                         " on rank " + std::to_string(rank));
        }
    }

    const std::unique_ptr<SharedSegment> segment_;
    const std::unique_ptr<Collectives> engine_;
    const RankInfo place_;
    const double timeout_;
    unsigned round_ = 0;
};

// Identifies the network namespace: two processes have the same one only if sockets between them would not
// leave the machine.
std::string network() {
    std::error_code none;
    return std::filesystem::read_symlink("/proc/self/ns/net", none).string();
}

bool switched_off() {
    const char* const given = std::getenv("MEZZO_SHARED_MEMORY");
    const std::string_view choice = given != nullptr ? given : "";
    check(choice.empty() || choice == "on" || choice == "off", ErrorKind::value,
          "MEZZO_SHARED_MEMORY: unknown value \"", choice, "\"; use on or off");
    return choice == "off";
}

// Returns whether this rank has mapped the memory. Rank 0 creates it and publishes its address.
bool map_together(SharedSegment& segment, KeyValues& store, const RankInfo& place) {
    constexpr const char* key = "shared memory";
    const bool off = switched_off();
    if (place.rank == 0) {
        const std::string address = off ? "" : segment.create(place.size);
        store.set(key, address.empty() ? "" : address + " " + network());
        return !address.empty();
    }
    const std::string said = store.get(key);
    const std::size_t space = said.find(' ');
    return !off && space != std::string::npos && said.substr(space + 1) == network() &&
           segment.open(said.substr(0, space), place.size);
}

}  // namespace

std::unique_ptr<Collectives> over_shared_memory(KeyValues& store, std::unique_ptr<Collectives> engine,
                                                const RankInfo& place, double timeout) {
    auto segment = std::make_unique<SharedSegment>();
    const char mapped = map_together(*segment, store, place) ? 1 : 0;
    std::vector<char> all(std::size_t(place.size));
    engine->all_gather(&mapped, all.data(), 1);
    segment->forget_address();
    if (std::find(all.begin(), all.end(), 0) != all.end()) return engine;
    return std::make_unique<SharedMemory>(std::move(segment), std::move(engine), place, timeout);
}

}  // namespace mezzo::distributed
