#include "tests/emulation/nccl.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "cuda/nccl/nccl.h"
#include "tests/emulation/communication.h"
#include "tests/emulation/engine.h"
#include "tests/emulation/streams.h"

namespace mezzo::emulation {
namespace {

using namespace cuda::nccl;

constexpr int system_error = 2, invalid_argument = 4;

struct World;

// A communicator of one rank.
struct Member {
    World* world = nullptr;
    int rank = 0, device = 0;
    bool ended = false;  // aborted or destroyed
    int error = success;
    std::string last_error;
    std::uint64_t issued = 0, executed = 0;
    int in_graphs = 0;                    // operations that graphs hold
    std::deque<std::uint64_t> positions;  // on the communication stream, of those in it that have not begun
};

enum class Kind { all_reduce, all_gather, broadcast, all_to_all };

// Call of one rank. The ranks' texts are compared.
struct Call {
    Kind kind{};
    std::string text = {};
    const char* from = nullptr;
    char* to = nullptr;
    std::size_t count = 0;
    int type = 0, op = 0, root = 0;
    std::vector<const char*> sent = {};  // all_to_all: by peer
    std::vector<char*> received = {};
};

struct Meeting {
    std::vector<std::optional<Call>> calls;
    bool complete = false;
};

struct World {
    int size = 0;
    std::vector<std::shared_ptr<Member>> members;
    std::map<std::uint64_t, Meeting> meetings;
};

std::mutex mutex;                                      // of all that follows
std::map<std::string, std::unique_ptr<World>> worlds;  // to the end of the program
std::map<Communicator, std::shared_ptr<Member>> live;
NcclReport report;

void violate(const std::string& text) { report.violations += text + "; "; }

std::shared_ptr<Member> find_member(Communicator communicator, const char* call) {
    const auto found = live.find(communicator);
    if (found != live.end()) return found->second;
    violate(std::string(call) + " of a communicator that has been ended");
    return nullptr;
}

std::size_t size_of_type(int type) { return type == type_uint8 ? 1 : type == type_float32 ? 4 : 8; }

template <class T> void reduce(Meeting& meeting, int ranks, std::uint64_t number) {
    const Call& first = *meeting.calls[0];
    std::vector<T> result(first.count);
    const auto term = [&](int rank, std::size_t i) {
        const T value = reinterpret_cast<const T*>(meeting.calls[std::size_t(rank)]->from)[i];
        if constexpr (std::is_floating_point_v<T>)
            if (first.op == reduce_average) return T(value * (T(1) / T(ranks)));
        return value;
    };
    for (std::size_t i = 0; i < first.count; ++i) {
        // Like a ring: part r of the elements is added beginning with rank r.
        int begin = int(i * std::size_t(ranks) / first.count);
        if (nccl_options.changing_order) begin = (begin + int(number)) % ranks;
        T value = term(begin, i);
        for (int r = 1; r < ranks; ++r) {
            const T more = term((begin + r) % ranks, i);
            if (first.op == reduce_min)
                value = std::min(value, more);
            else if (first.op == reduce_max)
                value = std::max(value, more);
            else
                value = T(value + more);
        }
        result[i] = value;
    }
    for (auto& call : meeting.calls) std::memcpy(call->to, result.data(), result.size() * sizeof(T));
}

void exchange(Meeting& meeting, int ranks, std::uint64_t number) {
    const Call& first = *meeting.calls[0];
    const std::size_t bytes = first.count * size_of_type(first.type);
    if (first.kind == Kind::all_reduce) {
        if (first.type == type_float32) return reduce<float>(meeting, ranks, number);
        if (first.type == type_float64) return reduce<double>(meeting, ranks, number);
        if (first.type == type_int64) return reduce<std::int64_t>(meeting, ranks, number);
        return reduce<unsigned char>(meeting, ranks, number);
    }
    // Results may lie over what others still have to read.
    std::vector<std::vector<char>> sent;
    for (const auto& call : meeting.calls) {
        std::vector<char>& own = sent.emplace_back();
        if (call->kind == Kind::all_to_all)
            for (const char* piece : call->sent) own.insert(own.end(), piece, piece + bytes);
        else
            own.assign(call->from, call->from + bytes);
    }
    for (std::size_t to = 0; to < meeting.calls.size(); ++to) {
        const Call& call = *meeting.calls[to];
        if (call.kind == Kind::broadcast) std::memcpy(call.to, sent[std::size_t(call.root)].data(), bytes);
        for (std::size_t from = 0; from < sent.size(); ++from) {
            if (call.kind == Kind::all_gather) std::memcpy(call.to + from * bytes, sent[from].data(), bytes);
            if (call.kind == Kind::all_to_all)
                std::memcpy(call.received[from], sent[from].data() + to * bytes, bytes);
        }
    }
}

// All ranks are here.
void complete(World& world, std::uint64_t number) {
    Meeting& meeting = world.meetings[number];
    for (std::size_t rank = 1; rank < meeting.calls.size(); ++rank) {
        const std::string &a = meeting.calls[0]->text, &b = meeting.calls[rank]->text;
        if (a == b) continue;
        const std::string text = "rank 0 calls " + a + ", rank " + std::to_string(rank) + " calls " + b;
        violate(text);
        for (const auto& member : world.members) {
            member->error = invalid_usage;
            member->last_error = text;
        }
        return;
    }
    Engine::get().open_device_memory();
    exchange(meeting, world.size, number);
    Engine::get().close_device_memory();
    ++report.operations;
    meeting.complete = true;
}

// An operation on its way, in a stream or a graph.
class Operation {
public:
    Operation(std::shared_ptr<Member> member, Call call, std::uint64_t issued, bool in_graph)
        : member_(std::move(member)), call_(std::move(call)), issued_(issued), in_graph_(in_graph) {
        if (in_graph_) ++member_->in_graphs;  // the caller has the mutex
    }
    ~Operation() {
        const std::lock_guard lock(mutex);
        if (in_graph_) --member_->in_graphs;
    }
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

    // Whether it has ended.
    bool step() {
        std::vector<std::pair<int, std::uint64_t>>
            others;  // devices that have it in their streams, and where
        bool arrived = false;
        {
            const std::lock_guard lock(mutex);
            if (member_->ended) return forget();
            if (stuck()) return false;
            World& world = *member_->world;
            arrived = !number_.has_value();
            if (arrived) arrive(world);
            for (const auto& other : world.members)
                if (!other->ended && !world.meetings[*number_].calls[std::size_t(other->rank)] &&
                    !other->positions.empty())
                    others.emplace_back(other->device, other->positions.front());
        }
        if (arrived) note_progress();
        for (const auto& [device, position] : others) communication_of(device).advance(position);
        const std::lock_guard lock(mutex);
        return over(*member_->world) && forget();
    }
    void run() {
        for (;;) {
            const std::uint64_t seen = progress();
            if (step()) return;
            wait_for_progress(seen);
        }
    }

private:
    bool forget() {
        number_.reset();
        return true;
    }
    bool stuck() const {
        const bool hit = nccl_options.fault_rank == member_->rank && nccl_options.fault_call == issued_ &&
                         (nccl_options.fault == NcclFault::error || nccl_options.fault == NcclFault::lost);
        if (hit && nccl_options.fault == NcclFault::error && member_->error == success) {
            member_->error = system_error;
            member_->last_error = "planted: the network is gone";
        }
        return hit;
    }
    void arrive(World& world) {
        number_ = member_->executed++;
        if (!in_graph_) member_->positions.pop_front();
        Meeting& meeting = world.meetings[*number_];
        meeting.calls.resize(std::size_t(world.size));
        meeting.calls[std::size_t(member_->rank)] = call_;
        const auto came = [](const auto& call) { return call.has_value(); };
        const auto goes_on = [](const auto& member) { return !member->ended; };  // its memory is there
        if (std::all_of(meeting.calls.begin(), meeting.calls.end(), came) &&
            std::all_of(world.members.begin(), world.members.end(), goes_on))
            complete(world, *number_);
    }
    bool over(World& world) const { return world.meetings[*number_].complete; }

    const std::shared_ptr<Member> member_;
    const Call call_;
    const std::uint64_t issued_;
    const bool in_graph_;
    std::optional<std::uint64_t> number_;  // of its rendezvous, once it has come to it
};

int refuse(Member& member, const std::string& text) {
    member.last_error = text;
    return invalid_usage;
}

int issue(Communicator communicator, Call call, void* stream) {
    std::unique_lock lock(mutex);
    const std::shared_ptr<Member> member = find_member(communicator, call.text.c_str());
    if (member == nullptr) return invalid_argument;
    const std::uint64_t number = ++member->issued;
    if (nccl_options.fault == NcclFault::refused && nccl_options.fault_rank == member->rank &&
        nccl_options.fault_call == number) {
        member->last_error = "planted: the call is refused";
        return system_error;
    }
    if (member->error != success) return member->error;
    if (stream != stream_of(member->device, communication_stream))
        return refuse(*member, "the stream is not the communication stream of the communicator's device");
    if (captured != nullptr) {
        call.text += " in a capture";
        const auto operation = std::make_shared<Operation>(member, std::move(call), number, true);
        lock.unlock();
        captured->add([operation] { operation->run(); }, communication_stream);
        return success;
    }
    const auto operation = std::make_shared<Operation>(member, std::move(call), number, false);
    CommunicationStream& queue = communication_of(member->device);
    member->positions.push_back(queue.position() + 1);
    lock.unlock();
    queue.add([operation] { return operation->step(); });
    return success;
}

std::string text_of(const char* name, std::size_t count, int type) {
    return std::string(name) + " of " + std::to_string(count) + " elements of type " + std::to_string(type);
}

std::atomic<bool> opened{false};

int get_version(int* version) {
    static std::atomic<int> asked{0};
    opened = true;
    const bool other = nccl_options.other_version != 0 && ++asked % 2 == 0;
    *version = other ? nccl_options.other_version : nccl_options.version;
    return success;
}

int get_unique_id(UniqueId* id) {
    const std::lock_guard lock(mutex);
    static int count = 0;
    const std::string text = "stand-in " + std::to_string(++count);
    std::memset(id->bytes, 0, sizeof id->bytes);
    std::memcpy(id->bytes, text.data(), text.size());
    return success;
}

int init_rank(Communicator* made, int ranks, UniqueId id, int rank, Config* config) {
    const std::lock_guard lock(mutex);
    if (config->magic != 0xcafebeef || config->size < sizeof(Config) || config->blocking != 0)
        return invalid_argument;
    std::unique_ptr<World>& world = worlds[std::string(id.bytes, sizeof id.bytes)];
    if (world == nullptr) {
        world = std::make_unique<World>();
        world->size = ranks;
        world->members.resize(std::size_t(ranks));
    }
    const auto member = std::make_shared<Member>();
    member->world = world.get();
    member->rank = rank;
    member->device = cuda::current_device();
    for (const auto& other : world->members) {
        if (other == nullptr || other->device != member->device) continue;
        for (Member* both : {other.get(), member.get()}) {
            both->error = invalid_usage;
            both->last_error = "Duplicate GPU detected";
        }
    }
    world->members[std::size_t(rank)] = member;
    live[member.get()] = member;
    ++report.communicators;
    *made = member.get();
    note_progress();
    return member->error != success ? member->error : in_progress;
}

int async_error(Communicator communicator, int* error) {
    const std::lock_guard lock(mutex);
    const std::shared_ptr<Member> member = find_member(communicator, "ncclCommGetAsyncError");
    if (member == nullptr) return invalid_argument;
    const auto& all = member->world->members;
    const bool here = std::find(all.begin(), all.end(), nullptr) == all.end();
    *error = member->error != success ? member->error : here ? int(success) : int(in_progress);
    return success;
}

int end_member(Communicator communicator, const char* call, bool in_order) {
    const std::lock_guard lock(mutex);
    const std::shared_ptr<Member> member = find_member(communicator, call);
    if (member == nullptr) return invalid_argument;
    if (in_order && member->in_graphs != 0) violate(std::string(call) + " while graphs hold operations");
    member->ended = true;
    live.erase(communicator);
    --report.communicators;
    if (!in_order) ++report.aborts;
    note_progress();
    return success;
}

int finalize(Communicator communicator) {
    const std::lock_guard lock(mutex);
    return find_member(communicator, "ncclCommFinalize") != nullptr ? int(success) : invalid_argument;
}
int destroy(Communicator communicator) { return end_member(communicator, "ncclCommDestroy", true); }
// Like NCCL's: operations end, and then it waits for the graphs that hold some.
int abort(Communicator communicator) {
    const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
    while (nccl_abort_hangs) pause();
    for (;; pause()) {
        const std::lock_guard lock(mutex);
        const std::shared_ptr<Member> member = find_member(communicator, "ncclCommAbort");
        if (member == nullptr) return invalid_argument;
        member->ended = true;
        note_progress();
        if (member->in_graphs == 0) break;
    }
    return end_member(communicator, "ncclCommAbort", false);
}

const char* error_string(int result) {
    return result == system_error    ? "unhandled system error (run with NCCL_DEBUG=INFO for details)"
           : result == invalid_usage ? "invalid usage (run with NCCL_DEBUG=WARN for details)"
                                     : "invalid argument";
}
const char* last_error(Communicator communicator) {
    const std::lock_guard lock(mutex);
    const auto found = live.find(communicator);
    thread_local std::string text;
    text = found != live.end() ? found->second->last_error : "";
    return text.c_str();
}

int all_reduce(const void* from, void* to, std::size_t count, int type, int op, Communicator c,
               void* stream) {
    Call call{.kind = Kind::all_reduce, .text = text_of("all_reduce", count, type)};
    call.text += " by operation " + std::to_string(op);
    call.from = static_cast<const char*>(from);
    call.to = static_cast<char*>(to);
    call.count = count;
    call.type = type;
    call.op = op;
    return issue(c, std::move(call), stream);
}
int all_gather(const void* from, void* to, std::size_t count, int type, Communicator c, void* stream) {
    Call call{.kind = Kind::all_gather, .text = text_of("all_gather", count, type)};
    call.from = static_cast<const char*>(from);
    call.to = static_cast<char*>(to);
    call.count = count;
    call.type = type;
    return issue(c, std::move(call), stream);
}
int broadcast(const void* from, void* to, std::size_t count, int type, int root, Communicator c,
              void* stream) {
    Call call{.kind = Kind::broadcast, .text = text_of("broadcast", count, type)};
    call.text += " from " + std::to_string(root);
    call.from = static_cast<const char*>(from);
    call.to = static_cast<char*>(to);
    call.count = count;
    call.type = type;
    call.root = root;
    return issue(c, std::move(call), stream);
}

// The sends and receives of a thread's group: each rank sends one piece to each, and gets one from each.
struct Group {
    Call call;
    Communicator communicator = nullptr;
    void* stream = nullptr;
};
thread_local std::optional<Group> group;

int add_piece(Communicator c, void* stream, std::size_t count, int type) {
    if (!group ||
        (group->communicator != nullptr && (group->communicator != c || group->stream != stream ||
                                            group->call.count != count || group->call.type != type)))
        return invalid_usage;
    group->communicator = c;
    group->stream = stream;
    group->call.count = count;
    group->call.type = type;
    return success;
}
int send(const void* from, std::size_t count, int type, int peer, Communicator c, void* stream) {
    const int result = add_piece(c, stream, count, type);
    if (result != success || peer != int(group->call.sent.size())) return invalid_usage;
    group->call.sent.push_back(static_cast<const char*>(from));
    return success;
}
int receive(void* to, std::size_t count, int type, int peer, Communicator c, void* stream) {
    const int result = add_piece(c, stream, count, type);
    if (result != success || peer != int(group->call.received.size())) return invalid_usage;
    group->call.received.push_back(static_cast<char*>(to));
    return success;
}
int group_start() {
    if (group) return invalid_usage;
    group.emplace();
    group->call.kind = Kind::all_to_all;
    return success;
}
int group_end() {
    if (!group) return invalid_usage;
    Group ended = std::move(*group);
    group.reset();
    ended.call.text = text_of("all_to_all", ended.call.count, ended.call.type);
    return issue(ended.communicator, std::move(ended.call), ended.stream);
}

constexpr Functions table{get_version, get_unique_id, init_rank,   finalize,   destroy,    abort,
                          async_error, error_string,  last_error,  all_reduce, all_gather, broadcast,
                          send,        receive,       group_start, group_end};

}  // namespace

NcclReport nccl_report() {
    const std::lock_guard lock(mutex);
    return report;
}

bool nccl_was_opened() { return opened; }

void reset_nccl_report() {
    const std::lock_guard lock(mutex);
    const int communicators = report.communicators;
    report = {};
    report.communicators = communicators;
}

void use_nccl_stand_in(const char* path) {
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) throw std::runtime_error(dlerror());
    reinterpret_cast<void (*)(const Functions*)>(dlsym(library, "mezzo_stand_in_functions"))(&table);
    setenv("MEZZO_NCCL", path, 1);
}

}  // namespace mezzo::emulation
