// Collective operations through shared memory. The ranks are threads, each with a mapping of its own;
// distributed/*_test.py have processes.
#include "distributed/shared_memory.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "distributed/shared_segment.h"
#include "tests/distributed/thread_group.h"

using namespace mezzo;
using namespace mezzo::distributed;

namespace {

class Values final : public KeyValues {
public:
    void set(const std::string& key, const std::string& value) override {
        const std::lock_guard lock(mutex_);
        values_[key] = value;
        changed_.notify_all();
    }
    std::string get(const std::string& key) override {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return values_.contains(key); });
        return values_[key];
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::string, std::string> values_;
};

// Runs one thread per rank, and returns what each threw.
std::vector<std::string> on_ranks(int ranks, const std::function<void(int, Collectives&)>& body,
                                  double timeout = 60) {
    Values values;
    const auto meeting = std::make_shared<test::Meeting>(ranks);
    std::vector<std::string> errors(std::size_t(ranks), "");
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
        threads.emplace_back([&, rank] {
            try {
                const RankInfo place{.rank = rank, .size = ranks, .local_rank = rank, .local_size = ranks};
                const auto engine = over_shared_memory(
                    values, std::make_unique<test::ThreadCollectives>(meeting, rank), place, timeout);
                body(rank, *engine);
            } catch (const std::exception& error) {
                errors[std::size_t(rank)] = error.what();
            }
        });
    for (std::thread& thread : threads) thread.join();
    return errors;
}
bool all_empty(const std::vector<std::string>& errors) {
    for (const std::string& error : errors)
        if (!error.empty()) WARN(error);
    return std::all_of(errors.begin(), errors.end(), [](const std::string& e) { return e.empty(); });
}

// Element i of a rank's data: different for any two ranks and neighbours, and sums of floats are rounded.
template <class T> T element(int rank, std::int64_t i) {
    return static_cast<T>(T((i * 7 + rank * 3) % 23) * (std::is_floating_point_v<T> ? T(1.1) : T(1)));
}
template <class T> std::vector<T> elements(int rank, std::int64_t n) {
    std::vector<T> values(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) values[std::size_t(i)] = element<T>(rank, i);
    return values;
}
template <class T> T expected(ReduceOp op, int ranks, std::int64_t i) {
    T value = element<T>(0, i);
    for (int rank = 1; rank < ranks; ++rank) {
        const T other = element<T>(rank, i);
        value = op == ReduceOp::min   ? std::min(value, other)
                : op == ReduceOp::max ? std::max(value, other)
                                      : static_cast<T>(value + other);
    }
    return op == ReduceOp::mean ? static_cast<T>(value * (T(1) / T(ranks))) : value;
}

// Lengths around the size of a buffer (512 KiB), and numbers of elements that the ranks cannot share evenly.
constexpr std::int64_t lengths[] = {0, 1, 2, 3, 5, 1000, 131055, 131056, 131057, 300001};

template <class T> void check_reduction(Collectives& engine, int rank, int ranks, ReduceOp op) {
    for (const std::int64_t n : lengths) {
        std::vector<T> x = elements<T>(rank, n);
        engine.all_reduce(x.data(), n, dtype_of<T>(), op);
        for (std::int64_t i = 0; i < n; ++i)
            if (x[std::size_t(i)] != expected<T>(op, ranks, i))
                throw std::runtime_error("element " + std::to_string(i) + " of " + std::to_string(n));
    }
}

}  // namespace

TEST_CASE("shared memory: sums are those in the order of the ranks, bit for bit", "[distributed][threads]") {
    const int ranks = GENERATE(2, 3, 4, 7);
    CHECK(all_empty(on_ranks(ranks, [&](int rank, Collectives& engine) {
        if (std::string(engine.name()) != "shared memory") throw std::runtime_error(engine.name());
        for (const ReduceOp op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max}) {
            check_reduction<float>(engine, rank, ranks, op);
            check_reduction<double>(engine, rank, ranks, op);
            check_reduction<std::int64_t>(engine, rank, ranks, op);
            check_reduction<std::uint8_t>(engine, rank, ranks, op);
        }
        check_reduction<float>(engine, rank, ranks, ReduceOp::mean);
        check_reduction<double>(engine, rank, ranks, ReduceOp::mean);
    })));
}

TEST_CASE("shared memory: a NaN of any rank is in the extremes of all", "[distributed][threads]") {
    CHECK(all_empty(on_ranks(3, [](int rank, Collectives& engine) {
        for (const ReduceOp op : {ReduceOp::min, ReduceOp::max, ReduceOp::sum}) {
            std::vector<float> x = {rank == 0 ? NAN : 1.0f, rank == 1 ? NAN : 1.0f, rank == 2 ? NAN : 1.0f,
                                    1.0f};
            engine.all_reduce(x.data(), 4, float32, op);
            if (!std::isnan(x[0]) || !std::isnan(x[1]) || !std::isnan(x[2]) || std::isnan(x[3]))
                throw std::runtime_error("a NaN is lost");
        }
    })));
}

TEST_CASE("shared memory: pieces reach their ranks", "[distributed][threads]") {
    const int ranks = GENERATE(2, 3, 5);
    CHECK(all_empty(on_ranks(ranks, [&](int rank, Collectives& engine) {
        const auto require = [](bool held, const std::string& what) {
            if (!held) throw std::runtime_error(what);
        };
        for (const std::int64_t n : lengths) {
            const auto bytes = std::size_t(n) * sizeof(float);
            const std::vector<float> mine = elements<float>(rank, n);
            std::vector<float> all(std::size_t(n * ranks));
            engine.all_gather(mine.data(), all.data(), bytes);
            for (int r = 0; r < ranks; ++r)
                require(
                    std::equal(all.begin() + r * n, all.begin() + (r + 1) * n, elements<float>(r, n).begin()),
                    "all_gather of " + std::to_string(n));

            // Piece d of rank r is that of a rank r * ranks + d.
            std::vector<float> sent, received(std::size_t(n * ranks));
            for (int d = 0; d < ranks; ++d) {
                const std::vector<float> piece = elements<float>(rank * ranks + d, n);
                sent.insert(sent.end(), piece.begin(), piece.end());
            }
            engine.all_to_all(sent.data(), received.data(), bytes);
            for (int r = 0; r < ranks; ++r)
                require(std::equal(received.begin() + r * n, received.begin() + (r + 1) * n,
                                   elements<float>(r * ranks + rank, n).begin()),
                        "all_to_all of " + std::to_string(n));

            for (int root = 0; root < ranks; ++root) {
                std::vector<float> x = elements<float>(rank, n);
                engine.broadcast(x.data(), bytes, root);
                require(x == elements<float>(root, n), "broadcast of " + std::to_string(n));
            }
        }
    })));
}

TEST_CASE("shared memory: thousands of small calls in a row", "[distributed][threads]") {
    CHECK(all_empty(on_ranks(3, [](int rank, Collectives& engine) {
        for (int step = 0; step < 3000; ++step) {
            std::int64_t sum = step + rank;
            engine.all_reduce(&sum, 1, int64, ReduceOp::sum);
            if (sum != 3 * step + 3) throw std::runtime_error("step " + std::to_string(step));
            int root = rank * 10 + step;
            engine.broadcast(&root, sizeof root, step % 3);
            if (root != step % 3 * 10 + step) throw std::runtime_error("broadcast " + std::to_string(step));
        }
    })));
}

TEST_CASE("shared memory: ranks that call different operations are told what each calls",
          "[distributed][threads]") {
    const auto errors = on_ranks(2, [](int rank, Collectives& engine) {
        std::vector<float> x(5);
        try {
            engine.all_reduce(x.data(), rank == 0 ? 4 : 5, float32, ReduceOp::sum);
        } catch (...) {
            engine.abort();  // as a group does
            throw;
        }
    });
    CHECK_THAT(errors[0], Catch::Contains("all_reduce (sum, float32) of 16 bytes on rank 0, all_reduce (sum, "
                                          "float32) of 20 bytes on rank 1"));
    CHECK_THAT(errors[1], Catch::Contains("all_reduce (sum, float32) of 20 bytes on rank 1, all_reduce (sum, "
                                          "float32) of 16 bytes on rank 0"));
    const auto dtypes = on_ranks(2, [](int rank, Collectives& engine) {
        std::vector<double> x(2);
        engine.all_reduce(x.data(), rank == 0 ? 4 : 2, rank == 0 ? float32 : float64, ReduceOp::sum);
    });
    CHECK_THAT(dtypes[0],
               Catch::Contains("all_reduce (sum, float32)") && Catch::Contains("all_reduce (sum, float64)"));
}

TEST_CASE("shared memory: abort() wakes who waits, and a rank that does not come is not awaited for ever",
          "[distributed][threads]") {
    const auto begin = std::chrono::steady_clock::now();
    const auto aborted = on_ranks(2, [](int rank, Collectives& engine) {
        std::thread watcher;
        if (rank == 0)
            watcher = std::thread([&] {
                std::this_thread::sleep_for(std::chrono::milliseconds(50));
                engine.abort();
            });
        char byte = 0;
        try {
            if (rank == 0) engine.broadcast(&byte, 1, 0);
        } catch (...) {
            watcher.join();
            throw;
        }
    });
    CHECK_THAT(aborted[0], Catch::Contains("the group is broken"));
    const auto late = on_ranks(
        2,
        [](int rank, Collectives& engine) {
            char byte = 0;
            if (rank == 0) engine.broadcast(&byte, 1, 0);
        },
        0.2);
    CHECK_THAT(late[0], Catch::Contains("no answer of the other ranks within 0.2 s"));
    CHECK(late[1].empty());
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
}

TEST_CASE("shared memory: dtypes that are not reduced", "[distributed]") {
    const auto errors = on_ranks(2, [](int, Collectives& engine) {
        std::int64_t x = 1;
        engine.all_reduce(&x, 1, int64, ReduceOp::mean);
    });
    CHECK(errors[0] == "all_reduce: no mean of integers");
    CHECK(errors[1] == errors[0]);
}

TEST_CASE("shared memory: what has another name than the address says is not mapped", "[distributed]") {
    SharedSegment made, other, mapped;
    const std::string address = made.create(2), elsewhere = other.create(2);
    if (address.empty()) return;  // a system without such memory
    const auto name = [](const std::string& text) { return text.substr(text.find('#')); };
    CHECK_FALSE(mapped.open(address.substr(0, address.find('#')) + name(elsewhere), 2));
    CHECK_FALSE(mapped.open(address.substr(0, address.find('#')), 2));
    CHECK_FALSE(mapped.open(address, 3));
    CHECK_FALSE(mapped.open("/proc/self/fd/no#1", 2));
    REQUIRE(mapped.open(address, 2));
    *made.slot(0, 1) = 'a';
    CHECK(*mapped.slot(0, 1) == 'a');
}

TEST_CASE("shared memory: switched off, the engine is as it was", "[distributed]") {
    setenv("MEZZO_SHARED_MEMORY", "off", 1);
    std::string name;
    const auto errors = on_ranks(2, [&](int rank, Collectives& engine) {
        if (rank == 0) name = engine.name();
    });
    setenv("MEZZO_SHARED_MEMORY", "maybe", 1);
    const auto refused = on_ranks(2, [](int, Collectives&) {});
    unsetenv("MEZZO_SHARED_MEMORY");
    CHECK(all_empty(errors));
    CHECK(name == "threads");
    for (const std::string& error : refused)
        CHECK(error == "MEZZO_SHARED_MEMORY: unknown value \"maybe\"; use on or off");
}
