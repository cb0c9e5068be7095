// Search of the ranks for the store of their run, when its answer is late, belongs to another run, or never
// comes.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "distributed/control.h"
#include "distributed/environment.h"
#include "distributed/store_messages.h"
#include "distributed/store_server.h"
#include "mezzo/distributed/group.h"
#include "mezzo/mezzo.h"

using namespace mezzo;
using namespace mezzo::distributed;
using Catch::Matchers::Contains;

namespace {

constexpr int size = 2;

Launch launch_of(int rank, int port, const std::string& run = "run") {
    return {{rank, size, rank, size}, "127.0.0.1", port, 1, true, run};
}

std::unique_ptr<StoreServer> serve(Socket listening) {
    return std::make_unique<StoreServer>(std::move(listening), StoreOptions{size, "run", "the test"});
}

struct Joined {
    std::vector<std::unique_ptr<Control>> ranks = std::vector<std::unique_ptr<Control>>(size);
    std::vector<std::string> errors = std::vector<std::string>(size, "none");
};

Joined join(int port, double rendezvous_timeout = 30) {
    Joined all;
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < size; ++r)
        threads.emplace_back([&all, r, port, rendezvous_timeout] {
            try {
                all.ranks[r] =
                    std::make_unique<Control>(launch_of(int(r), port), InitOptions{60, rendezvous_timeout});
            } catch (const Error& error) {
                all.errors[r] = error.what();
            }
        });
    for (std::thread& thread : threads) thread.join();
    return all;
}

std::string error_of(const Launch& launch, double rendezvous_timeout) {
    try {
        const Control control(launch, {60, rendezvous_timeout});
    } catch (const Error& error) {
        return error.what();
    }
    return "none";
}

// Error of a rank that searches for its store until its time is over. The store answers at once, but on a
// busy machine the answer may come later than that: a rank that has not received it searches again, for
// longer.
std::string error_at_the_end(const Launch& launch, const std::string& answer) {
    std::string error;
    for (const double seconds : {0.3, 3.0, 30.0}) {
        error = error_of(launch, seconds);
        if (error.find(answer) != std::string::npos) break;
    }
    return error;
}

// Connects as rank 1 and sends its first message.
Socket greeted(int port, std::uint64_t process, std::uint64_t token = 1,
               const std::string& its_version = version()) {
    Socket socket = connect_to("127.0.0.1", port, 5);
    Message hello(static_cast<std::uint8_t>(FromRank::hello));
    hello.add(rank_greeting)
        .add(its_version)
        .add("run")
        .add(std::uint64_t(size))
        .add(std::uint64_t(1))
        .add(host_name())
        .add(process)
        .add("1")
        .add(std::uint64_t(1000))
        .add(token);
    send_all(socket, hello.framed());
    return socket;
}

Message await_message(const Socket& socket) {
    std::string received;
    std::optional<Message> answer;
    while (!(answer = take_message(received))) {
        const std::size_t before = received.size();
        REQUIRE(receive_some(socket, received, 60));
        REQUIRE(received.size() > before);
    }
    return std::move(*answer);
}
FromStore await_answer(const Socket& socket) { return static_cast<FromStore>(await_message(socket).kind()); }

std::string words_of_another_version() {
    return "rank 1 uses mezzo 0.0.1, the store " + std::string(version()) + "; use one version";
}

// Checks the error that rank 0 gets if `happen` befalls rank 1 just before the store closes.
void check_last_words(const std::string& words,
                      const std::function<void(StoreServer&, std::optional<Socket>&)>& happen) {
    for (int attempt = 0; attempt < 5; ++attempt) {
        std::unique_ptr<StoreServer> server = serve(listen_at("127.0.0.1", 0));
        std::optional<Socket> rank = greeted(server->port(), 77);
        Control staying(launch_of(0, server->port()), {60, 60});
        happen(*server, rank);
        server->close();
        CHECK(server->cause() == words);
        server.reset();
        CHECK_THROWS_WITH(staying.get("nothing"), "init: " + words);
    }
}

}  // namespace

TEST_CASE("a store that answers late is waited for") {
    Socket listening = listen_at("127.0.0.1", 0);
    const int port = port_of(listening);
    std::unique_ptr<StoreServer> server;
    std::thread late([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(2600));
        server = serve(std::move(listening));
    });
    const Joined all = join(port);
    late.join();
    CHECK(all.errors == std::vector<std::string>(size, "none"));
    CHECK(server->cause().empty());
}

TEST_CASE("a rank whose first connection ended before the group was complete comes again") {
    const std::unique_ptr<StoreServer> server = serve(listen_at("127.0.0.1", 0));
    const auto process = static_cast<std::uint64_t>(getpid());
    std::optional<Socket> first = greeted(server->port(), process);
    SECTION("the store has seen the end") {
        await_answer(*first);
        first.reset();
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
    SECTION("the store reads the greeting and the end at once") { first.reset(); }
    const Joined all = join(server->port());
    CHECK(all.errors == std::vector<std::string>(size, "none"));
    CHECK(server->cause().empty());
}

TEST_CASE("a rank that comes again before its first connection has ended takes its own place") {
    const std::unique_ptr<StoreServer> server = serve(listen_at("127.0.0.1", 0));
    const Socket first = greeted(server->port(), 77, 5);
    REQUIRE(await_answer(first) == FromStore::welcome);
    const Socket second = greeted(server->port(), 77, 5);
    CHECK(await_answer(second) == FromStore::welcome);
    std::string nothing;
    CHECK_FALSE(receive_some(first, nothing, 60));  // is closed
    CHECK(server->cause().empty());
}

TEST_CASE("who has a rank's host name and process id waits for the end of its connection") {
    const std::unique_ptr<StoreServer> server = serve(listen_at("127.0.0.1", 0));
    std::optional<Socket> first = greeted(server->port(), static_cast<std::uint64_t>(getpid()));
    REQUIRE(await_answer(*first) == FromStore::welcome);
    const std::string open = "is here already, by another connection that is still open";
    CHECK_THAT(error_at_the_end(launch_of(1, server->port()), open),
               Contains("found no store of this run") && Contains("rank 1 (host ") && Contains(open));
    CHECK(server->cause().empty());
    std::string more;
    CHECK(receive_some(*first, more, 0));  // still open
    first.reset();
    const Joined all = join(server->port(), 60);
    CHECK(all.errors == std::vector<std::string>(size, "none"));
    CHECK(server->cause().empty());
}

TEST_CASE("a rank that does not come again is named") {
    const std::unique_ptr<StoreServer> server = serve(listen_at("127.0.0.1", 0));
    await_answer(greeted(server->port(), 77));
    const std::string error = error_of(launch_of(0, server->port()), 60);
    CHECK_THAT(error, Contains("rank 1 (host ") && Contains("pid 77) is gone") &&
                          Contains("before the group was complete"));
}

TEST_CASE("another process of the same rank is refused") {
    const std::unique_ptr<StoreServer> server = serve(listen_at("127.0.0.1", 0));
    const Socket other = greeted(server->port(), 77);
    await_answer(other);
    CHECK_THAT(error_of(launch_of(1, server->port()), 60), Contains("rank 1 has come twice"));
}

TEST_CASE("a rank of another version is refused at once") {
    const std::unique_ptr<StoreServer> server = serve(listen_at("127.0.0.1", 0));
    Message answer = await_message(greeted(server->port(), 77, 1, "0.0.1"));
    CHECK(static_cast<FromStore>(answer.kind()) == FromStore::refused);
    CHECK(answer.text() == store_greeting);
    CHECK(answer.number() == 0);  // it is this rank's run, so the search ends
    CHECK(answer.text() == words_of_another_version());
}

// Otherwise the others would wait for that rank in vain, and say so after 60 s.
TEST_CASE("a rank of another version ends the others") {
    const std::unique_ptr<StoreServer> server = serve(listen_at("127.0.0.1", 0));
    std::future<std::string> waiting =
        std::async(std::launch::async, error_of, launch_of(0, server->port()), 60);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // until it has come, most likely
    const Socket other = greeted(server->port(), 77, 1, "0.0.1");
    REQUIRE(waiting.get() == "init: " + words_of_another_version());
    CHECK(server->cause() == words_of_another_version());
}

TEST_CASE("who comes after a rank of another version ends as the others") {
    const std::unique_ptr<StoreServer> server = serve(listen_at("127.0.0.1", 0));
    await_answer(greeted(server->port(), 77, 1, "0.0.1"));
    CHECK(error_of(launch_of(0, server->port()), 60) == "init: " + words_of_another_version());
}

// NCCL reads NCCL_ALGO when it is opened. No other rank comes here, so init() throws.
TEST_CASE("init({.deterministic = true}) leaves out NCCL's algorithms whose sums differ") {
    const char* const variables[][2] = {{"RANK", "1"},
                                        {"WORLD_SIZE", "2"},
                                        {"LOCAL_RANK", "1"},
                                        {"LOCAL_WORLD_SIZE", "2"},
                                        {"MASTER_ADDR", "127.0.0.1"}};
    const auto algorithms = [](bool deterministic) {
        InitOptions options{.rendezvous_timeout = 0.05};
        options.deterministic = deterministic;
        CHECK_THROWS_AS(init(options), Error);
        const char* const chosen = std::getenv("NCCL_ALGO");
        return std::string(chosen != nullptr ? chosen : "");
    };
    for (const auto& [name, value] : variables) setenv(name, value, 1);
    setenv("MASTER_PORT", std::to_string(port_of(listen_at("127.0.0.1", 0))).c_str(), 1);
    unsetenv("NCCL_ALGO");
    CHECK(algorithms(false).empty());
    CHECK(algorithms(true) == (cuda_device_count() > 0 ? "^NVLS,NVLSTree" : ""));
    setenv("NCCL_ALGO", "Ring", 1);
    CHECK(algorithms(true) == "Ring");
    unsetenv("NCCL_ALGO");
    for (const auto& [name, value] : variables) unsetenv(name);
    unsetenv("MASTER_PORT");
}

// Two threads of a rank report its position, and one may be delayed between reading and sending it.
TEST_CASE("where a rank was before it left is no news, however late it is told") {
    const std::unique_ptr<StoreServer> server = serve(listen_at("127.0.0.1", 0));
    const Socket leaving = greeted(server->port(), 77);
    Control staying(launch_of(0, server->port()), {60, 60});
    const auto say = [&](FromRank kind) { return Message(static_cast<std::uint8_t>(kind)); };
    send_all(leaving, say(FromRank::left).add(std::uint64_t(3)).framed());
    send_all(leaving, say(FromRank::at).add(std::uint64_t(3)).add(std::uint64_t(2)).framed());
    send_all(leaving, say(FromRank::set).add("said").add("").framed());
    staying.get("said");
    staying.at(3, 2);
    staying.set("seen", "");
    staying.get("seen");
    CHECK(server->cause().empty());
    CHECK(server->calls_of(1) == 3);
}

TEST_CASE("a store that closes has read all that came, and names the cause") {
    const std::string lost = "rank 1 (host " + host_name() + ", pid 77) ";
    const auto say = [](FromRank kind) { return Message(static_cast<std::uint8_t>(kind)); };
    SECTION("a connection has ended") {
        check_last_words(lost + "is gone; it was last seen after call 0",
                         [](StoreServer&, std::optional<Socket>& rank) { rank.reset(); });
    }
    SECTION("a rank has said why it fails") {
        check_last_words("rank 1: words", [&](StoreServer&, const std::optional<Socket>& rank) {
            send_all(*rank, say(FromRank::failed).add("words").framed());
        });
    }
    SECTION("a process has ended, and a child of it holds its connection open") {
        check_last_words(lost + "ended with signal 9", [](StoreServer& store, const std::optional<Socket>&) {
            store.process_ended(1, "ended with signal 9");
        });
    }
    SECTION("an engine has failed, and nothing better is known") {
        check_last_words("rank 1: words", [&](StoreServer&, const std::optional<Socket>& rank) {
            const std::uint64_t none = 0;
            send_all(*rank, say(FromRank::lost).add(none).add(none).add("words").framed());
        });
    }
}

TEST_CASE("a rank that has only heard of a failure is not the first cause") {
    {
        const std::unique_ptr<StoreServer> server = serve(listen_at("127.0.0.1", 0));
        const Joined all = join(server->port());
        all.ranks[1]->heard_of_failure();
        std::thread second([&] { all.ranks[1]->failed("rank 0 could not save; its error says why"); });
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        all.ranks[0]->failed("no space left");
        second.join();
        CHECK(server->cause() == "rank 0: no space left");
    }
    {  // A rank that has gone on since then has a failure of its own.
        const std::unique_ptr<StoreServer> server = serve(listen_at("127.0.0.1", 0));
        const Joined all = join(server->port());
        all.ranks[1]->at(1, 1);
        all.ranks[1]->heard_of_failure();
        all.ranks[1]->at(2, 1);
        all.ranks[0]->heard_of_failure();
        std::thread first([&] { all.ranks[0]->failed("rank 1 could not save; its error says why"); });
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        all.ranks[1]->failed("no space left");
        first.join();
        CHECK(server->cause() == "rank 1: no space left");
    }
    // If the store receives no other error, this one is the best known cause.
    const std::unique_ptr<StoreServer> server = serve(listen_at("127.0.0.1", 0));
    const Joined all = join(server->port());
    all.ranks[1]->heard_of_failure();
    all.ranks[1]->failed("rank 0 could not save");
    CHECK(server->cause() == "rank 1: rank 0 could not save");
}

TEST_CASE("connections that say nothing keep no rank out") {
    const std::unique_ptr<StoreServer> server = serve(listen_at("127.0.0.1", 0));
    std::vector<Socket> silent;
    for (int i = 0; i < 200; ++i) silent.push_back(connect_to("127.0.0.1", server->port(), 10));
    const Socket rank = greeted(server->port(), 77);
    CHECK(await_answer(rank) == FromStore::welcome);
    CHECK(server->cause().empty());
}

TEST_CASE("a store that closes before all ranks have come is not waited for any longer") {
    std::unique_ptr<StoreServer> server = serve(listen_at("127.0.0.1", 0));
    std::string error;
    std::thread waiting([&, port = server->port()] { error = error_of(launch_of(0, port), 600); });
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    server.reset();
    waiting.join();
    CHECK_THAT(error,
               Contains("init: the store has closed before all ranks had come: it was held by the test") ||
                   Contains("init: the store is gone"));  // where it had not come before
}

// The store stops reading, as when mezzo-run is stopped. The kernel buffers some megabytes for it.
TEST_CASE("a store that does not read holds no call up, and later reads whole messages") {
    const Socket listening = listen_at("127.0.0.1", 0);
    const int least = 4096;  // what the kernel takes does not grow then
    setsockopt(listening.descriptor(), SOL_SOCKET, SO_RCVBUF, &least, sizeof least);
    Socket store;
    std::thread welcoming([&] {
        while (!store) store = accept_from(listening);
        await_message(store);
        const auto say = [](FromStore kind) { return Message(static_cast<std::uint8_t>(kind)); };
        send_all(store, say(FromStore::welcome).add(store_greeting).add("the test").framed() +
                            say(FromStore::ready).add("").add(std::uint64_t(1)).framed());
    });
    auto rank = std::make_unique<Control>(launch_of(1, port_of(listening)), InitOptions{60, 60});
    welcoming.join();
    using Clock = std::chrono::steady_clock;
    std::uint64_t texts = 0;
    const auto set = [&] { rank->set(std::to_string(texts++), std::string(1000000, 'x')); };
    const auto full = [&] {
        const auto begin = Clock::now();
        set();
        return Clock::now() - begin > std::chrono::seconds(4);
    };
    while (!full()) {
    }
    const auto begin = Clock::now();
    constexpr std::uint64_t calls = 20;
    for (std::uint64_t call = 1; call <= calls; ++call) {
        rank->at(call, call);
        std::this_thread::sleep_for(std::chrono::milliseconds(25));
    }
    CHECK(Clock::now() - begin < std::chrono::seconds(10));  // two that wait take as long
    std::thread reading([&] {
        std::string received;
        std::uint64_t read = 0, last = 0;
        for (bool open = true; open;) {
            open = receive_some(store, received, 60);
            while (std::optional<Message> message = take_message(received)) {
                const auto kind = static_cast<FromRank>(message->kind());
                if (kind == FromRank::set) CHECK(message->text() == std::to_string(read++));
                if (kind == FromRank::at || kind == FromRank::left) last = message->number();
            }
        }
        CHECK(read == texts);
        CHECK(last == calls);
    });
    rank.reset();
    reading.join();
}

TEST_CASE("what a store of another run has answered is in the error") {
    const std::unique_ptr<StoreServer> server = serve(listen_at("127.0.0.1", 0));
    const std::string other = "this is the store of another run";
    CHECK_THAT(error_at_the_end(launch_of(1, server->port(), "another"), other),
               Contains("found no store of this run") && Contains(other));
    CHECK(server->cause().empty());
}

TEST_CASE("a host that is not known is looked for until the end of the time") {
    Launch launch = launch_of(1, 4000);
    launch.host = "host.invalid";
    CHECK_THAT(error_of(launch, 0.3), Contains("found no store of this run") &&
                                          Contains("the host \"host.invalid\" is not known: "));
}

TEST_CASE("what repeats a rank's own words is no store") {
    const Socket listening = listen_at("127.0.0.1", 0);
    std::thread echo([&] {
        Socket socket;
        while (!socket) socket = accept_from(listening);
        std::string received;
        while (receive_some(socket, received, -1) && received.size() < 100) {
        }
        send_all(socket, received);
    });
    CHECK_THAT(error_of(launch_of(1, port_of(listening)), 1), Contains("found no store of this run"));
    echo.join();
}

TEST_CASE("a socket that is connected to itself") {
    const Socket self(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    REQUIRE(bind(self.descriptor(), reinterpret_cast<sockaddr*>(&address), length) == 0);
    REQUIRE(getsockname(self.descriptor(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
    REQUIRE(connect(self.descriptor(), reinterpret_cast<sockaddr*>(&address), length) == 0);
    CHECK(is_connected_to_itself(self));
    const Socket listening = listen_at("127.0.0.1", 0);
    CHECK_FALSE(is_connected_to_itself(connect_to("127.0.0.1", port_of(listening), 5)));
}

TEST_CASE("a text that nobody leaves is waited for in vain") {
    // The same timeout holds for joining: on a busy machine a second may be too short for that.
    std::unique_ptr<StoreServer> server;
    Joined all;
    int seconds = 1;
    for (;; seconds *= 10) {
        server = serve(listen_at("127.0.0.1", 0));
        all = join(server->port(), seconds);
        if (all.errors == std::vector<std::string>(size, "none") || seconds >= 10) break;
    }
    REQUIRE(all.errors == std::vector<std::string>(size, "none"));
    all.ranks[0]->set("0", "here");
    std::string error = "none";
    try {
        all.ranks[0]->get("1");
    } catch (const Error& caught) {
        error = caught.what();
    }
    CHECK_THAT(error, Contains("not all ranks have said where they are within " + std::to_string(seconds) +
                               " s: not rank 1 (host ") &&
                          !Contains("not rank 0"));
}
