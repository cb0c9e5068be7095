#include "distributed/store_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "distributed/socket_calls.h"
#include "mezzo/error.h"
#include "mezzo/version.h"

namespace mezzo::distributed {
namespace {

constexpr std::chrono::milliseconds tick{250};
// Time for another rank's end to reach the store: it is a better reason than an engine's message.
constexpr std::chrono::milliseconds grace{1000};
constexpr std::chrono::seconds greeting_time{10};
// Time for a rank that has not waited for an answer to try again.
constexpr std::chrono::seconds return_time{10};
constexpr std::size_t most_strangers = 64;  // connections without a rank
constexpr std::size_t most_values = 1u << 20;
constexpr int last_reads = 1000;  // per connection, when the store closes

bool is_readable(const Socket& socket) {
    pollfd entry{socket.descriptor(), POLLIN, 0};
    return ::poll(&entry, 1, 0) > 0;
}

Message message(FromStore kind) { return Message(static_cast<std::uint8_t>(kind)); }

}  // namespace

StoreServer::StoreServer(Socket listening, StoreOptions options)
    : options_(std::move(options)),
      listening_(std::move(listening)),
      port_(port_of(listening_)),
      ranks_(std::size_t(options_.size)),
      nodes_(std::size_t(options_.nodes)) {
    nodes_[0] = {true, false, options_.holder};
    check(open_pipe(wake_) == 0, ErrorKind::backend, "init: no pipe for the store");
    thread_ = std::thread([this] { serve(); });
}

StoreServer::~StoreServer() {
    close();
    for (const int end : wake_) ::close(end);
}

void StoreServer::close() {
    if (!thread_.joinable()) return;
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    static_cast<void>(!write(wake_[1], "", 1));
    thread_.join();
}

std::string StoreServer::cause() const {
    const std::lock_guard lock(mutex_);
    return cause_;
}

int StoreServer::culprit() const {
    const std::lock_guard lock(mutex_);
    return culprit_;
}

std::uint64_t StoreServer::calls_of(int rank) const {
    const std::lock_guard lock(mutex_);
    return ranks_[std::size_t(rank)].started;
}

void StoreServer::process_ended(int rank, const std::string& how) {
    const std::lock_guard lock(mutex_);
    ranks_[std::size_t(rank)].ending = how;
    ranks_[std::size_t(rank)].ended = Clock::now();
    static_cast<void>(!write(wake_[1], "", 1));
}

void StoreServer::serve() {
    while (poll_once()) {
    }
    const std::lock_guard lock(mutex_);
    look_a_last_time();
    broadcast(farewell());
    for (Connection& to : connections_) {
        if (to.ended || to.sent.empty()) continue;
        pollfd entry{to.socket.descriptor(), POLLOUT, 0};
        if (poll(&entry, 1, 100) > 0) flush(to);
    }
    connections_.clear();
    listening_ = {};
}

// Handles messages that have arrived and were not read yet: they may name a cause. No better cause comes
// later, so suspicions count at once.
void StoreServer::look_a_last_time() {
    for (Connection& connection : connections_)
        for (int i = 0; i < last_reads && !connection.ended && is_readable(connection.socket); ++i)
            read(connection);
    look_for_processes({});
    if (!suspicions_.empty()) break_with(suspicions_.front().words);
}

// Waits for events and handles them. Returns false when the server stops.
bool StoreServer::poll_once() {
    std::vector<pollfd> entries;
    std::vector<Connection*> owners;
    {
        const std::lock_guard lock(mutex_);
        entries = {{wake_[0], POLLIN, 0}, {listening_.descriptor(), POLLIN, 0}};
        for (Connection& connection : connections_) {
            entries.push_back({connection.socket.descriptor(),
                               short(connection.sent.empty() ? POLLIN : POLLIN | POLLOUT), 0});
            owners.push_back(&connection);
        }
    }
    if (poll(entries.data(), entries.size(), int(tick.count())) < 0 && errno != EINTR) return false;
    std::string note;
    {
        const std::lock_guard lock(mutex_);
        if (stopping_) return false;
        char discarded[64];
        while (::read(wake_[0], discarded, sizeof discarded) > 0) {
        }
        for (std::size_t i = 0; i < owners.size(); ++i) {
            if (entries[i + 2].revents & POLLOUT) flush(*owners[i]);
            if (entries[i + 2].revents & (POLLIN | POLLHUP | POLLERR)) read(*owners[i]);
        }
        if (entries[1].revents & POLLIN) {
            if (Socket socket = accept_from(listening_)) connections_.emplace_back(std::move(socket));
        }
        look_at_the_clock();
        connections_.remove_if([](const Connection& c) { return c.ended; });
        note.swap(pending_note_);
    }
    if (!note.empty() && options_.note) options_.note(note);
    return true;
}

void StoreServer::read(Connection& from) {
    if (from.ended) return;
    bool open = true;
    try {
        open = receive_some(from.socket, from.received, 0);
        while (std::optional<Message> next = take_message(from.received)) {
            take(from, std::move(*next));
            if (from.ended) return;
        }
    } catch (const Error&) {  // not a message of a rank or node
        open = false;
    }
    if (!open) ended(from);
}

void StoreServer::take(Connection& from, Message message) {
    const auto kind = static_cast<FromRank>(message.kind());
    if (from.node >= 0) return take_from_node(from, message);
    if (kind == FromRank::hello && from.rank < 0) return hello(from, message);
    if (kind == FromRank::node_hello && from.rank < 0) return node_hello(from, message);
    check(from.rank >= 0, ErrorKind::backend, "store: a message before the greeting");
    Rank& rank = ranks_[std::size_t(from.rank)];
    switch (kind) {
        case FromRank::set: {
            std::string key = message.text();
            check(values_.size() < most_values, ErrorKind::backend, "store: too many values");
            values_[std::move(key)] = message.text();
            rank.has_set = true;
            return answer_gets();
        }
        case FromRank::get:
            from.wanted.push_back(message.text());
            return answer_gets();
        case FromRank::at: {
            const std::uint64_t started = message.number();
            return progress(rank, started, message.number());
        }
        case FromRank::left:
            rank.left = true;
            rank.started = rank.finished = message.number();
            return look_for_leavers();
        case FromRank::failed:
            rank.gone = true;
            return break_with("rank " + std::to_string(from.rank) + ": " + message.text(), from.rank);
        case FromRank::followed:
            rank.gone = true;
            suspicions_.push_back(
                {Clock::now() + grace, "rank " + std::to_string(from.rank) + ": " + message.text()});
            return;
        case FromRank::lost:
        case FromRank::timed_out: {
            const std::uint64_t started = message.number(), finished = message.number();
            progress(rank, started, finished);
            const std::string words = "rank " + std::to_string(from.rank) + ": " + message.text();
            if (kind == FromRank::lost)
                suspicions_.push_back({Clock::now() + grace, words});
            else
                break_with(words + (started == 0 ? missing_ranks() : late_ranks(started)));
            return;
        }
        default:
            fail(ErrorKind::backend, "store: a message of kind ", int(message.kind()));
    }
}

void StoreServer::hello(Connection& from, Message& message) {
    check(message.text() == rank_greeting, ErrorKind::backend, "store: another greeting");
    Hello hello;
    hello.version = message.text();
    hello.run = message.text();
    hello.size = message.number();
    hello.rank = message.number();
    hello.host = message.text();
    hello.process = message.number();
    const std::string processors = message.text();
    const double timeout = double(message.number()) / 1e3;
    hello.token = message.number();
    bool look_on = false;
    const std::string reason = refusal(hello, look_on);
    if (!reason.empty()) return refuse(from, reason, look_on);
    for (Connection& old : connections_)
        if (old.rank == int(hello.rank)) old.ended = true;
    from.rank = int(hello.rank);
    Rank& rank = ranks_[hello.rank];
    rank.joined = true;
    rank.away.reset();
    rank.host = hello.host;
    rank.process = hello.process;
    rank.token = hello.token;
    rank.processors = rank.host + " " + processors;
    rank.timeout = timeout;
    send(from, distributed::message(FromStore::welcome).add(store_greeting).add(options_.holder));
    if (!cause_.empty()) send(from, distributed::message(FromStore::broken).add(cause_));
    complete();
}

// Whether this is the same process again: a rank that did not wait for our answer may connect again before we
// see the end of its first connection.
bool StoreServer::comes_again(const Hello& hello) const {
    const Rank& rank = ranks_[hello.rank];
    return !ready_ && !rank.left && rank.token == hello.token;
}

// Whether host name and process id are those of the rank that has joined, but not its token: one of two
// processes may have been killed, or they run in containers that share the host's name. The end of the first
// connection shows which.
bool StoreServer::is_namesake(const Hello& hello) const {
    const Rank& rank = ranks_[hello.rank];
    return rank.host == hello.host && rank.process == hello.process && rank.token != hello.token;
}

// Returns why a rank is refused, or "" if it is accepted. look_on: whether the rank should look for another
// store, which may be this one later.
std::string StoreServer::refusal(const Hello& hello, bool& look_on) const {
    const bool other_run =
        hello.run != options_.run || hello.size != ranks_.size() || hello.rank >= ranks_.size();
    const bool twice = !other_run && ranks_[hello.rank].joined && !comes_again(hello);
    const bool namesake = twice && is_namesake(hello);
    const std::string who = "rank " + std::to_string(hello.rank);
    look_on = other_run || namesake || (twice && hello.run.empty());
    if (namesake)
        return title(hello.rank) +
               " is here already, by another connection that is still open; has another process the same "
               "rank?";
    if (look_on)
        return "this is the store of another run, of " + std::to_string(ranks_.size()) + " ranks; got " +
               who + " of " + std::to_string(hello.size);
    if (twice) return who + " has come twice; ranks must be numbered from 0 on";
    if (hello.version != mezzo::version())
        return who + " uses mezzo " + hello.version + ", the store " + mezzo::version() + "; use one version";
    return "";
}

bool StoreServer::all_joined() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.joined; });
}

// Notifies all ranks that the group is complete, once the last one has joined.
void StoreServer::complete() {
    if (ready_ || !all_joined()) return;
    for (Connection& connection : connections_)  // the end of some may not have been read yet
        if (connection.rank >= 0 && !connection.ended && is_ended(connection.socket)) ended(connection);
    if (!all_joined()) return;
    ready_ = true;
    std::string address;
    for (const Connection& connection : connections_) {
        const std::string local = local_address(connection.socket);
        if (connection.rank >= 0 && !is_loopback(local) && address.empty()) address = local;
    }
    for (Connection& connection : connections_) {
        if (connection.rank < 0 || connection.ended) continue;
        const std::string& mine = ranks_[std::size_t(connection.rank)].processors;
        const auto sharing =
            std::count_if(ranks_.begin(), ranks_.end(), [&](const Rank& r) { return r.processors == mine; });
        send(connection, message(FromStore::ready).add(address).add(std::uint64_t(sharing)));
    }
}

void StoreServer::answer_gets() {
    for (Connection& to : connections_) {
        std::erase_if(to.wanted, [&](const std::string& key) {
            const auto found = values_.find(key);
            if (found == values_.end()) return false;
            send(to, message(FromStore::value).add(key).add(found->second));
            return true;
        });
    }
}

// Several threads of a rank report, so a report may come after newer ones, and after the rank has left.
void StoreServer::progress(Rank& rank, std::uint64_t started, std::uint64_t finished) {
    if (started < rank.started || finished < rank.finished) return;
    if (started != rank.started || finished >= started) rank.since = Clock::now();
    rank.started = started;
    rank.finished = finished;
    look_for_leavers();
}

// Handles the end of a connection: its rank has ended, except before the group is complete, when it may
// connect again.
void StoreServer::ended(Connection& from) {
    from.ended = true;
    if (from.node >= 0) return node_ended(from.node);
    if (from.rank < 0) return;
    Rank& rank = ranks_[std::size_t(from.rank)];
    if (rank.left || rank.gone) return;
    if (!ready_ && !rank.ended) {
        rank.joined = false;
        rank.away = Clock::now();
        return;
    }
    gone(std::size_t(from.rank));
}

void StoreServer::gone(std::size_t r) {
    Rank& rank = ranks_[r];
    rank.gone = true;
    const std::string where = !ready_                        ? "before the group was complete"
                              : rank.started > rank.finished ? "in call " + std::to_string(rank.started)
                                                             : "after call " + std::to_string(rank.finished);
    break_with(title(r) + " is gone; it was last seen " + where, int(r));
}

void StoreServer::look_at_the_clock() {
    const Clock::time_point now = Clock::now();
    for (const Suspicion& suspicion : suspicions_)
        if (suspicion.due <= now) break_with(suspicion.words);
    std::erase_if(suspicions_, [&](const Suspicion& s) { return s.due <= now; });
    // Drops the oldest connections without a rank: the newest have had no time to send a greeting.
    std::size_t strangers = 0;
    for (auto connection = connections_.rbegin(); connection != connections_.rend(); ++connection)
        if (connection->rank < 0 && connection->node < 0 &&
            (now - connection->since > greeting_time || ++strangers > most_strangers))
            connection->ended = true;
    look_for_processes(grace);
    tell_of_waits();
}

// Breaks the group if a process has ended without leaving. A rank that has joined reports for itself, and its
// last messages may not have been read yet. The end of its connection is no sign if a child has inherited
// that.
void StoreServer::look_for_processes(std::chrono::milliseconds patience) {
    const bool any_joined = std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.joined; });
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
        Rank& rank = ranks_[r];
        if (rank.away && !rank.gone && !rank.ended && Clock::now() - *rank.away > return_time) gone(r);
        if (!rank.ended || rank.left || rank.gone || (rank.joined && Clock::now() - *rank.ended < patience))
            continue;
        if (!any_joined && rank.ending.empty()) continue;  // a program that forms no group
        rank.gone = true;
        break_with(title(r) + " " + (rank.ending.empty() ? "ended" : rank.ending) +
                       (rank.joined ? "" : " before it joined the group"),
                   int(r));
    }
}

// Breaks the group if a rank is in a call that another rank, which has left, will not make.
void StoreServer::look_for_leavers() {
    for (std::size_t gone = 0; gone < ranks_.size(); ++gone) {
        if (!ranks_[gone].left) continue;
        const std::uint64_t finished = ranks_[gone].finished;
        for (std::size_t r = 0; r < ranks_.size(); ++r)
            if (!ranks_[r].left && ranks_[r].started > finished)
                return break_with(words_of_unequal_calls(gone, finished, r, ranks_[r].started));
    }
}

// Message that the store closes, with the rank that has left after the fewest calls: a rank that makes more
// calls waits for it, and the store can no longer report that.
Message StoreServer::farewell() const {
    const Rank* first = nullptr;
    for (const Rank& rank : ranks_)
        if (rank.left && (first == nullptr || rank.finished < first->finished)) first = &rank;
    Message closing = std::move(message(FromStore::closing).add(std::uint64_t(first != nullptr)));
    if (first != nullptr) closing.add(std::uint64_t(first - ranks_.data())).add(first->finished);
    return closing;
}

// Notifies once which ranks keep the others waiting, after a minute or half of the timeout.
void StoreServer::tell_of_waits() {
    if (!cause_.empty()) return;
    const Clock::time_point now = Clock::now();
    for (const Rank& rank : ranks_) {
        const double waited = std::chrono::duration<double>(now - rank.since).count();
        const double limit = std::min(60.0, rank.timeout / 2);
        if (rank.left || rank.started <= rank.finished || rank.started <= noted_ || waited < limit) continue;
        noted_ = rank.started;
        pending_note_ = "call " + std::to_string(rank.started) + " has waited for " +
                        std::to_string(std::lround(waited)) + " s" + late_ranks(rank.started);
        broadcast(message(FromStore::note).add(pending_note_));
        return;
    }
}

void StoreServer::break_with(const std::string& cause, int culprit) {
    if (!cause_.empty()) return;
    cause_ = cause;
    culprit_ = culprit;
    broadcast(message(FromStore::broken).add(cause));
    refuse_waiting_nodes();
}

void StoreServer::send(Connection& to, const Message& message) {
    if (to.ended) return;
    to.sent += message.framed();
    flush(to);
}

// Refuses a rank or node. Unless it should look for another store it belongs to this run, which then cannot
// go on.
void StoreServer::refuse(Connection& from, const std::string& reason, bool look_on) {
    send(from, message(FromStore::refused).add(store_greeting).add(look_on).add(reason));
    if (!look_on) break_with(reason);
    from.ended = true;
}

void StoreServer::broadcast(const Message& message) {
    for (Connection& connection : connections_)
        if (connection.rank >= 0) send(connection, message);
}

// Sends as much as the connection takes now.
void StoreServer::flush(Connection& to) {
    while (!to.sent.empty()) {
        const ssize_t count =
            ::send(to.socket.descriptor(), to.sent.data(), to.sent.size(), no_signal | MSG_DONTWAIT);
        if (count <= 0) return;  // full, or gone, which the next read detects
        to.sent.erase(0, std::size_t(count));
    }
}

std::string StoreServer::title(std::size_t rank) const {
    const Rank& r = ranks_[rank];
    std::string text = "rank " + std::to_string(rank);
    if (r.joined || r.away) text += " (host " + r.host + ", pid " + std::to_string(r.process) + ")";
    return text;
}

// Names the ranks that have not begun this call.
std::string StoreServer::late_ranks(std::uint64_t call) const {
    std::string text;
    for (std::size_t r = 0; r < ranks_.size(); ++r)
        if (!ranks_[r].left && ranks_[r].started < call)
            text += (text.empty() ? ": " : ", ") + title(r) + " has not arrived, last seen in call " +
                    std::to_string(ranks_[r].started);
    return text.empty() ? ": all ranks are in it; do they make the same calls in the same order?" : text;
}

// Names the ranks that have not joined, or have joined and not published their address.
std::string StoreServer::missing_ranks() const {
    std::string text;
    for (std::size_t r = 0; ready_ && r < ranks_.size(); ++r)
        if (!ranks_[r].has_set) text += (text.empty() ? ": not " : ", ") + title(r);
    for (std::size_t r = 0; r < ranks_.size(); ++r)
        if (!ranks_[r].joined) text += (text.empty() ? ": missing rank " : ", ") + std::to_string(r);
    return text;
}

}  // namespace mezzo::distributed
