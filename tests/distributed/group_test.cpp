// Groups without other processes: the group of one, the communication thread over an engine of the test,
// environments, and the store with ranks that are threads. tests/distributed/*_test.py run several processes.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/live_error.h"
#include "distributed/control.h"
#include "distributed/environment.h"
#include "distributed/group_impl.h"
#include "distributed/store_server.h"
#include "mezzo/distributed/group.h"
#include "mezzo/mezzo.h"
#include "tests/distributed/thread_group.h"

using namespace mezzo;
using namespace mezzo::distributed;
using mezzo::distributed::name;

namespace {

std::optional<Launch> read(const std::map<std::string, std::string>& variables) {
    return read_environment([&](const char* key) {
        const auto found = variables.find(key);
        return found != variables.end() ? found->second.c_str() : nullptr;
    });
}

std::string text_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const Error& error) {
        return error.what();
    }
    return "no error";
}

std::map<std::string, std::string> torchrun() {
    return {{"RANK", "1"},        {"WORLD_SIZE", "4"},    {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"},
            {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1234"}};
}

// Waits in every call until it is aborted.
class Waiting final : public Collectives {
public:
    void all_reduce(void*, std::int64_t, Dtype, ReduceOp) override { wait(); }
    void all_gather(const void*, void*, std::size_t) override { wait(); }
    void all_to_all(const void*, void*, std::size_t) override { wait(); }
    void broadcast(void*, std::size_t, int) override { wait(); }
    void abort() noexcept override {
        const std::lock_guard lock(mutex_);
        aborted_ = true;
        changed_.notify_all();
    }

private:
    void wait() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return aborted_; });
        throw std::runtime_error("aborted");
    }
    std::mutex mutex_;
    std::condition_variable changed_;
    bool aborted_ = false;
};

Group two_ranks() { return make_group({0, 2, 0, 2}, std::make_unique<Waiting>()); }

// A store, and the arguments that one rank needs to join it.
struct Meeting {
    explicit Meeting(int ranks)
        : server(listen_at("127.0.0.1", 0),
                 {ranks, "run", "the test", [this](const std::string& text) { add_note(text); }}),
          size(ranks) {}
    Launch launch(int rank) const {
        return {{rank, size, rank, size}, "127.0.0.1", server.port(), 1, true, "run"};
    }
    std::vector<std::unique_ptr<Control>> join(double timeout = 60) const {
        std::vector<std::unique_ptr<Control>> ranks(static_cast<std::size_t>(size));
        std::vector<std::thread> threads;
        for (int r = 0; r < size; ++r)
            threads.emplace_back([this, &ranks, r, timeout] {
                ranks[std::size_t(r)] = std::make_unique<Control>(launch(r), InitOptions{timeout, 60});
            });
        for (std::thread& thread : threads) thread.join();
        return ranks;
    }
    std::vector<std::string> notes() {
        const std::lock_guard lock(mutex_);
        return notes_;
    }

private:
    void add_note(const std::string& text) {
        const std::lock_guard lock(mutex_);
        notes_.push_back(text);
    }
    std::mutex mutex_;
    std::vector<std::string> notes_;

public:
    StoreServer server;  // the last: its thread uses the others
    int size;
};

// Records the cause of failure that a rank is notified of.
struct Told {
    explicit Told(Control& control) : control_(control) {
        control.attach([this](const std::string& words) {
            const std::lock_guard lock(mutex_);
            cause_ = words;
            changed_.notify_all();
        });
    }
    ~Told() { control_.detach(); }
    std::string cause() {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, std::chrono::seconds(20), [&] { return !cause_.empty(); });
        return cause_;
    }

private:
    Control& control_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::string cause_;
};

}  // namespace

TEST_CASE("a group of one changes nothing and refuses what a larger one refuses") {
    const Group group = make_group({}, nullptr);
    CHECK((group.rank() == 0 && group.size() == 1 && group.local_rank() == 0 && group.local_size() == 1 &&
           group.leader()));
    CHECK((group.shard().rank == 0 && group.shard().size == 1));
    const Tensor x = Tensor::from({1, -2, 3});
    const std::uint64_t version = x.version();
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max})
        group.all_reduce_(x, op);
    group.broadcast_(x);
    CHECK(x.to_vector<int>() == std::vector<int>{1, -2, 3});
    CHECK(x.version() == version);
    CHECK(group.all_gather(x).shape() == Shape{1, 3});
    CHECK(group.all_gather(x)[0].to_vector<int>() == x.to_vector<int>());
    CHECK(group.mean(ones({2}, {.dtype = int32})).dtype() == float32);
    CHECK(group.weight(7).item<double>() == 1);
    CHECK(group.weight(0).item<double>() == 0);
    group.barrier();
    CHECK((group.all(true) && !group.all(false) && group.any(true) && !group.any(false)));

    CHECK_THROWS_AS(group.all_reduce_(Tensor()), Error);
    CHECK(text_of([&] { group.all_reduce_(ones({2}, {.dtype = int64}), ReduceOp::mean); }) ==
          "all_reduce_: no mean of int64; convert it to float32, or use mean()");
    CHECK(text_of([&] {
              group.all_reduce_(ones({2}, {.dtype = boolean}));
          }).starts_with("all_reduce_: no sum of boolean"));
    CHECK(text_of([&] { group.broadcast_(x, 1); }) == "broadcast_: root 1 is none of the ranks 0 to 0");
    CHECK(text_of([&] { static_cast<void>(group.weight(-1)); }) ==
          "weight: got a count of -1; it is a number of rows or tokens");
    CHECK(text_of([&] { group.all_reduce_(zeros({1}).expand({4})); }).find("expanded tensor") !=
          std::string::npos);
    const Tensor leaf = ones({2}).set_requires_grad();
    CHECK(text_of([&] { group.all_reduce_(leaf); }).find("open a NoGrad scope") != std::string::npos);
    const NoGrad no_grad;
    group.all_reduce_(leaf);
}

TEST_CASE("init refuses timeouts that are none") {
    for (const double seconds : {0.0, -1.0, 1e9, std::nan("")}) {
        CHECK_THROWS_AS(init({.timeout = seconds}), Error);
        CHECK_THROWS_AS(init({.rendezvous_timeout = seconds}), Error);
    }
}

TEST_CASE("work runs in order, and wait() throws what its own work threw, once") {
    const Group group = two_ranks();
    GroupImpl& impl = group.impl();
    std::vector<std::uint64_t> order;
    const auto note = [&](Collectives&) { order.push_back(impl.running()); };
    const std::uint64_t first = impl.submit(note);
    const std::uint64_t second = impl.submit([](Collectives&) { fail(ErrorKind::shape, "the second"); });
    const std::uint64_t third = impl.submit(note);
    impl.wait(third);
    CHECK(impl.done(second));
    CHECK(order == std::vector<std::uint64_t>{first, third});
    CHECK(text_of([&] { impl.wait(second); }) == "the second");
    impl.wait(second);
    impl.wait(first);
    CHECK_THROWS_AS(impl.wait(third + 1), Error);
    CHECK_THROWS_AS(impl.wait(0), Error);
    CHECK(text_of([&] {
              impl.run([&](Collectives&) { impl.wait(first); });
          }).find("cannot wait for itself") != std::string::npos);
}

TEST_CASE("a group that breaks ends every wait with the first cause") {
    const Group group = two_ranks();
    GroupImpl& impl = group.impl();
    std::atomic<bool> ran{false};
    char byte = 0;
    const std::uint64_t running = impl.submit([&](Collectives& engine) { engine.broadcast(&byte, 1, 0); });
    const std::uint64_t queued = impl.submit([&](Collectives&) { ran = true; });
    CHECK_FALSE(impl.done(running));
    std::thread watcher([&] { impl.break_with("rank 1 is gone"); });
    CHECK(text_of([&] { impl.wait(queued); }) == "rank 1 is gone");
    CHECK(text_of([&] { impl.wait(running); }) == "rank 1 is gone");
    watcher.join();
    impl.break_with("another cause");
    CHECK(text_of([&] { group.barrier(); }) == "rank 1 is gone");
    CHECK_FALSE(ran);
}

TEST_CASE("the destructor of a group gives up what is under way") {
    char byte = 0;
    {
        const Group group = two_ranks();
        for (int i = 0; i < 2; ++i)
            group.impl().submit([&](Collectives& engine) { engine.all_gather(&byte, &byte, 1); });
        while (group.impl().running() == 0) std::this_thread::yield();
    }
    SUCCEED();
}

TEST_CASE("ranks that are threads: who comes after another has given up reads nothing of it") {
    const auto meeting = std::make_shared<test::Meeting>(2);
    const auto words_of = [&](int rank, const auto& call) {
        try {
            test::ThreadCollectives engine(meeting, rank);
            call(engine);
        } catch (const std::exception& error) {
            return std::string(error.what());
        }
        return std::string("none");
    };
    char byte = 0, all[2];
    std::string first;
    std::thread waiting([&] { first = words_of(0, [&](Collectives& c) { c.all_gather(&byte, all, 1); }); });
    meeting->abort();
    waiting.join();
    CHECK(first == "threads: another rank has given up");
    CHECK(words_of(1, [&](Collectives& c) { c.broadcast(&byte, 1, 0); }) == first);
}

TEST_CASE("the words of an Error live as long as it") {
    CHECK(live_error().empty());
    try {
        fail(ErrorKind::value, "words ", 7);
    } catch (const Error& error) {
        CHECK(live_error() == "words 7");
        const Error copy = error;
        CHECK(std::string(copy.what()) == "words 7");
    }
    CHECK(live_error().empty());
}

TEST_CASE("the environment of each launcher") {
    CHECK_FALSE(read({}));
    const auto check_place = [](const std::optional<Launch>& launch, int rank, int size, int local_rank,
                                int local_size) {
        REQUIRE(launch);
        CHECK(launch->place.rank == rank);
        CHECK(launch->place.size == size);
        CHECK(launch->place.local_rank == local_rank);
        CHECK(launch->place.local_size == local_size);
    };
    check_place(read(torchrun()), 1, 4, 1, 2);
    CHECK(read(torchrun())->host == "a");
    CHECK(read(torchrun())->first_port == 1234);
    CHECK(read(torchrun())->ports == 1);  // only the port distinguishes it from other runs
    auto named = torchrun();
    named["MEZZO_RUN_ID"] = "mine";
    CHECK(read(named)->ports == 17);
    auto agent = torchrun();
    agent["TORCHELASTIC_USE_AGENT_STORE"] = "True";
    CHECK(read(agent)->first_port == 1235);
    auto own = torchrun();
    own["MEZZO_RENDEZVOUS"] = "[::1]:77";
    own["MEZZO_STORE"] = "launcher";
    CHECK(read(own)->host == "::1");
    CHECK(read(own)->first_port == 77);
    CHECK(read(own)->ports == 1);
    CHECK(read(own)->launcher_holds_store);
    check_place(read({{"OMPI_COMM_WORLD_RANK", "2"},
                      {"OMPI_COMM_WORLD_SIZE", "3"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}}),
                2, 3, 2, 3);
    check_place(
        read({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}}), 0,
        2, 0, 2);
    std::map<std::string, std::string> slurm{
        {"SLURM_PROCID", "5"},      {"SLURM_STEP_NUM_TASKS", "7"},
        {"SLURM_LOCALID", "1"},     {"SLURM_STEP_TASKS_PER_NODE", "2(x2),3"},
        {"SLURM_NODEID", "2"},      {"SLURM_STEP_NODELIST", "n[07-09]"},
        {"SLURM_JOB_ID", "123456"}, {"PMI_RANK", "5"}};
    check_place(read(slurm), 5, 7, 1, 3);
    CHECK(read(slurm)->host == "n07");
    CHECK(read(slurm)->first_port == 23456);
    slurm.erase("SLURM_STEP_NODELIST");  // the shell of an allocation: nothing was started by srun
    slurm.erase("PMI_RANK");
    CHECK_FALSE(read(slurm));
}

TEST_CASE("environments that say too little or nonsense") {
    for (const char* const missing : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
        auto half = torchrun();
        half.erase(missing);
        CHECK(text_of([&] { read(half); }) ==
              std::string("init: half an environment: of torchrun or mezzo-run's variables ") + missing +
                  " is missing; set them all, or none to be alone");
    }
    CHECK(text_of([] {
              read({{"OMPI_COMM_WORLD_RANK", "0"}, {"PMI_SIZE", "2"}});
          }).find("MPICH's variables PMI_RANK, MPI_LOCALRANKID") != std::string::npos);
    auto far = torchrun();
    far.erase("MASTER_ADDR");
    CHECK(text_of([&] { read(far); }).find("set MASTER_ADDR") != std::string::npos);
    far["LOCAL_WORLD_SIZE"] = "4";  // one machine needs no address
    CHECK(read(far)->host == "127.0.0.1");
    const std::pair<const char*, const char*> wrong[] = {{"RANK", "4"},
                                                         {"RANK", "-1"},
                                                         {"WORLD_SIZE", "0"},
                                                         {"WORLD_SIZE", "two"},
                                                         {"LOCAL_RANK", "2"},
                                                         {"LOCAL_WORLD_SIZE", "5"},
                                                         {"MASTER_PORT", "65530"},
                                                         {"MASTER_PORT", "1 2"},
                                                         {"MEZZO_RENDEZVOUS", "host"},
                                                         {"MEZZO_RENDEZVOUS", "h:0"}};
    for (const auto& [key, value] : wrong) {
        auto variables = torchrun();
        variables[key] = value;
        INFO(key << "=" << value);
        CHECK(text_of([&] { read(variables); }).find(std::string(key) + "=" + value) != std::string::npos);
    }
}

TEST_CASE("the first host of Slurm's lists") {
    for (const auto& [list, host] : std::vector<std::pair<std::string, std::string>>{{"a", "a"},
                                                                                     {"a,b", "a"},
                                                                                     {"n[3-7]", "n3"},
                                                                                     {"n[003,7]", "n003"},
                                                                                     {"n[1-2]-x,m", "n1-x"},
                                                                                     {"a,n[1-2]", "a"},
                                                                                     {"n[12", "n12"}})
        CHECK(first_host(list) == host);
}

TEST_CASE("ranks meet at a store and leave texts for each other") {
    const Meeting meeting(3);
    const auto ranks = meeting.join();
    std::vector<std::thread> threads;
    std::atomic<int> good{0};
    for (int r = 0; r < 3; ++r)
        threads.emplace_back([&, r] {
            Control& control = *ranks[std::size_t(r)];
            control.set("key " + std::to_string(r), std::string(1000, char('a' + r)) + '\0');
            good += control.get("key " + std::to_string((r + 1) % 3)) ==
                    std::string(1000, char('a' + (r + 1) % 3)) + '\0';
            good += control.sharing() == 3 && control.address() == "127.0.0.1";
        });
    for (std::thread& thread : threads) thread.join();
    CHECK(good == 6);
}

TEST_CASE("every rank is told the first cause") {
    Meeting meeting(3);
    auto ranks = meeting.join();
    Told one(*ranks[1]), two(*ranks[2]);
    SECTION("its words") {
        ranks[0]->failed("matmul: no");
        ranks[1]->failed("a consequence");
        CHECK(one.cause() == "rank 0: matmul: no");
        CHECK(ranks[2]->lost("a connection") == "rank 0: matmul: no");
        CHECK(meeting.server.culprit() == 0);
    }
    SECTION("it left too early") {
        ranks[0]->at(4, 4);
        ranks[0].reset();
        ranks[1]->at(5, 4);
        CHECK(one.cause() ==
              "rank 0 left after 4 calls, rank 1 waits in call 5: unequal numbers of batches?");
    }
    SECTION("it is late") {
        ranks[0]->at(1, 1);
        ranks[1]->at(2, 1);
        ranks[2]->at(2, 1);
        for (const int r : {0, 2}) {  // the store has read what they have sent before
            ranks[std::size_t(r)]->set("rank " + std::to_string(r), "");
            ranks[1]->get("rank " + std::to_string(r));
        }
        CHECK(ranks[1]->timed_out("nobody came").starts_with("rank 1: nobody came: rank 0 (host "));
        CHECK(two.cause().ends_with(" has not arrived, last seen in call 1"));
    }
    SECTION("its process ended, and its connection is open still") {
        meeting.server.process_ended(0, "ended with signal 9");
        CHECK(one.cause().find("ended with signal 9") != std::string::npos);
    }
    SECTION("an engine failed, and nobody else knows why") {
        CHECK(ranks[1]->lost("network is down") == "rank 1: network is down");
    }
    CHECK(one.cause() == two.cause());
    CHECK(meeting.server.cause() == two.cause());
}

TEST_CASE("ranks that go in order break nothing") {
    Meeting meeting(2);
    auto ranks = meeting.join();
    ranks[0]->at(3, 3);
    ranks[1]->at(3, 2);
    ranks[0].reset();
    ranks[1]->at(3, 3);
    ranks[1].reset();
    meeting.server.process_ended(0, "");
    CHECK(meeting.server.cause().empty());
}

TEST_CASE("a store that closes in order breaks nothing") {
    auto meeting = std::make_unique<Meeting>(2);
    auto ranks = meeting->join();
    meeting.reset();
    CHECK(ranks[0]->lost("the connection") == "the connection");
}

TEST_CASE("a call that a rank has left out is known after the store has closed") {
    auto meeting = std::make_unique<Meeting>(3);
    auto ranks = meeting->join();
    Told one(*ranks[1]);
    ranks[0]->at(4, 4);
    ranks[1]->at(4, 4);
    ranks[2]->at(4, 3);
    ranks[0].reset();
    meeting.reset();
    ranks[2]->at(4, 4);  // ends as if the store were there
    CHECK(ranks[2]->lost("the connection") == "the connection");
    ranks[1]->at(5, 4);
    CHECK(one.cause() == "rank 0 left after 4 calls, rank 1 waits in call 5: unequal numbers of batches?");
    CHECK(ranks[1]->lost("the connection") == one.cause());
}

TEST_CASE("a wait that is long is told") {
    Meeting meeting(2);
    auto ranks = meeting.join(2);
    ranks[0]->at(1, 0);
    for (int i = 0; i < 100 && meeting.notes().empty(); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ranks.clear();
    REQUIRE(meeting.notes().size() == 1);
    CHECK(meeting.notes()[0].find("rank 1 (host ") != std::string::npos);
}

TEST_CASE("messages") {
    Message message(7);
    message.add(std::uint64_t(1) << 63).add("").add(std::string("a\0b", 3));
    std::string received = message.framed() + message.framed().substr(0, 10);
    std::optional<Message> taken = take_message(received);
    REQUIRE(taken);
    CHECK(taken->kind() == 7);
    CHECK(taken->number() == std::uint64_t(1) << 63);
    CHECK(taken->text().empty());
    CHECK(taken->text() == std::string("a\0b", 3));
    CHECK_THROWS_AS(taken->number(), Error);
    CHECK_FALSE(take_message(received));
    for (std::string damaged : {std::string(4, '\0'), std::string("\xff\xff\xff\xff", 4)})
        CHECK_THROWS_AS(take_message(damaged), Error);
    Message lying(1);
    lying.add(std::uint64_t(1) << 40);
    CHECK_THROWS_AS(lying.text(), Error);
}
