#include "tools/mezzo_run/node_zero.h"

#include <unistd.h>

#include <optional>
#include <stdexcept>
#include <string_view>

#include "distributed/store_messages.h"
#include "mezzo/error.h"
#include "mezzo/version.h"

namespace mezzo_run {

namespace md = mezzo::distributed;

namespace {

constexpr double connect_time = 0.9, answer_time = 0.1;  // s

md::Message message(md::FromRank kind) { return md::Message(static_cast<std::uint8_t>(kind)); }

}  // namespace

// Keeps the connection until there is an answer, however late: if it ended, node 0 would take this node for
// lost.
bool NodeZero::join(const std::string& host, int port, const Node& node) {
    try {
        if (!socket_) ask(host, port, node);
        if (!socket_) return false;
        if (std::optional<md::Message> answer = md::receive_message(socket_, received_, answer_time))
            return take_answer(std::move(*answer));
        if (!md::is_ended(socket_)) return false;
    } catch (const mezzo::Error& error) {  // the name is not known yet, or another program listens there
        reason_ = error.what();
    }
    socket_ = {};
    return false;
}

void NodeZero::ask(const std::string& host, int port, const Node& node) {
    received_.clear();
    socket_ = md::connect_to(host, port, connect_time);
    if (!socket_) return;
    reason_ = "it has not answered, which it does when all nodes have come";
    const md::Message hello = std::move(message(md::FromRank::node_hello)
                                            .add(md::node_greeting)
                                            .add(mezzo::version())
                                            .add(std::uint64_t(node.nodes))
                                            .add(std::uint64_t(node.ranks))
                                            .add(std::uint64_t(node.node))
                                            .add(md::host_name())
                                            .add(std::uint64_t(getpid())));
    if (!md::send_all(socket_, hello.framed())) socket_ = {};
}

bool NodeZero::take_answer(md::Message answer) {
    if (answer.text() != md::store_greeting) {
        reason_ = "something else listens there";
        socket_ = {};
        return false;
    }
    if (answer.kind() == std::uint8_t(md::FromStore::refused)) {
        socket_ = {};
        const bool look_on = answer.number() != 0;
        reason_ = answer.text();
        if (!look_on) throw std::runtime_error(reason_);
        return false;
    }
    answer.text();  // the holder of the store
    run_ = answer.text();
    starts_ = static_cast<int>(answer.number());
    return true;
}

void NodeZero::process_ended(int rank, const std::string& how) {
    unsent_ += message(md::FromRank::process_ended).add(std::uint64_t(rank)).add(how).framed();
    flush();
}

void NodeZero::flush() {
    std::string_view rest = unsent_;
    md::send_some(socket_, rest, 0);
    unsent_.erase(0, unsent_.size() - rest.size());
}

}  // namespace mezzo_run
