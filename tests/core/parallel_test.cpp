// The thread pool: coverage of ranges, exceptions, nesting, several callers, changing sizes.
#include "cpu/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/system/processors.h"
#include "mezzo/error.h"
#include "tests/support/folder.h"

using namespace mezzo;

namespace {

// Every index exactly once, chunks no shorter than the grain except the last.
bool covers(std::int64_t n, std::int64_t grain) {
    std::vector<std::atomic<int>> hits(static_cast<std::size_t>(n));
    std::atomic<bool> good{true};
    cpu::parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
        if (begin >= end || begin < 0 || end > n || (end - begin < grain && end != n)) good = false;
        for (std::int64_t i = begin; i < end; ++i) ++hits[static_cast<std::size_t>(i)];
    });
    for (const auto& hit : hits) good = good && hit == 1;
    return good;
}

struct Threads {  // restores the number of threads
    int before = cpu::num_threads();
    ~Threads() { cpu::set_num_threads(before); }
};

}  // namespace

TEST_CASE("parallel_for covers its range", "[parallel]") {
    const Threads restore;
    CHECK(cpu::num_threads() >= 1);
    for (const int threads : {1, 2, 3, 4, 1, 4}) {
        cpu::set_num_threads(threads);
        CHECK(cpu::num_threads() == threads);
        for (const std::int64_t n : {0, 1, 2, 7, 100, 1001})
            for (const std::int64_t grain : {0, 1, 3, 64, 5000}) {
                INFO("threads " << threads << ", n " << n << ", grain " << grain);
                CHECK(covers(n, grain));
            }
    }
    CHECK_THROWS_AS(cpu::set_num_threads(0), Error);
    CHECK_THROWS_AS(cpu::set_num_threads(-2), Error);
}

TEST_CASE("parallel_for really uses several threads", "[parallel]") {
    const Threads restore;
    cpu::set_num_threads(3);
    std::atomic<int> arrived{0};
    cpu::parallel_for(3, 1,
                      [&](std::int64_t, std::int64_t) {  // returns only when all three are inside at once
                          ++arrived;
                          while (arrived < 3) std::this_thread::yield();
                      });
    CHECK(arrived == 3);
}

TEST_CASE("parallel_for: many small loops in a row", "[parallel]") {
    const Threads restore;
    cpu::set_num_threads(4);
    std::atomic<std::int64_t> sum{0};
    for (int i = 0; i < 20000; ++i)
        cpu::parallel_for(8, 1, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
    CHECK(sum == 160000);
}

TEST_CASE("parallel_for passes exceptions on and stays usable", "[parallel]") {
    const Threads restore;
    for (const int threads : {1, 4}) {
        cpu::set_num_threads(threads);
        for (int round = 0; round < 50; ++round) {
            CHECK_THROWS_WITH(cpu::parallel_for(100, 1,
                                                [&](std::int64_t begin, std::int64_t end) {
                                                    if (begin <= 37 && 37 < end)
                                                        throw std::runtime_error("at 37");
                                                }),
                              "at 37");
            CHECK_FALSE(cpu::in_parallel_region());
            CHECK(covers(50, 1));
        }
    }
}

TEST_CASE("parallel_for inside parallel_for runs inline", "[parallel]") {
    const Threads restore;
    cpu::set_num_threads(4);
    std::atomic<int> count{0}, elsewhere{0};
    cpu::parallel_for(16, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const auto self = std::this_thread::get_id();
            cpu::parallel_for(10, 1, [&](std::int64_t b, std::int64_t e) {
                count += static_cast<int>(e - b);
                elsewhere += std::this_thread::get_id() != self;
            });
        }
    });
    CHECK(count == 160);
    CHECK(elsewhere == 0);
    CHECK_THROWS_AS(cpu::parallel_for(2, 1, [](std::int64_t, std::int64_t) { cpu::set_num_threads(2); }),
                    Error);
}

TEST_CASE("parallel_for from several user threads at once", "[parallel]") {
    const Threads restore;
    cpu::set_num_threads(3);
    std::atomic<int> failures{0};
    std::vector<std::thread> users;
    for (int u = 0; u < 4; ++u)
        users.emplace_back([&] {
            for (int i = 0; i < 300; ++i) failures += !covers(257, 2);
        });
    for (std::thread& user : users) user.join();
    CHECK(failures == 0);
}

TEST_CASE("parallel_for works in a forked child, which exits cleanly", "[parallel]") {
#if defined(__SANITIZE_THREAD__)
    return;  // the sanitizer does not follow threads through fork
#endif
    const Threads restore;
    cpu::set_num_threads(3);
    CHECK(covers(100, 1));
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);
        const bool good = covers(100, 1);
        cpu::set_num_threads(2);
        _exit(good && covers(64, 1) ? 0 : 1);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
}

TEST_CASE("parallel_for goes on where the system starts no thread", "[parallel]") {
    const Threads restore;
    cpu::set_num_threads(1);
    CHECK_THROWS_WITH(cpu::set_num_threads(1048576),
                      Catch::Matchers::Contains("got 1048576; 1 to 1024 threads"));
    CHECK(cpu::num_threads() == 1);
    pthread_attr_t usual, impossible;
    REQUIRE(pthread_getattr_default_np(&usual) == 0);
    REQUIRE(pthread_getattr_default_np(&impossible) == 0);
    REQUIRE(pthread_attr_setstacksize(&impossible, std::size_t(1) << 50) ==
            0);  // no address space has room for it
    cpu::set_num_threads(4);
    REQUIRE(pthread_setattr_default_np(&impossible) == 0);
    const bool covered = covers(1000, 1), again = covers(77, 3);
    const int left = cpu::num_threads();
    REQUIRE(pthread_setattr_default_np(&usual) == 0);
    CHECK(covered);
    CHECK(again);
    CHECK(left == 1);
    cpu::set_num_threads(3);  // a second call succeeds
    CHECK(covers(1000, 1));
    CHECK(cpu::num_threads() == 3);
    pthread_attr_destroy(&usual);
    pthread_attr_destroy(&impossible);
}

TEST_CASE("processors: as many as the quotas of control groups allow", "[parallel]") {
    const test::Folder folder;
    for (const char* group : {"pod/box", "pod/half", "cpu/old", "cpu/free"})
        std::filesystem::create_directories(folder.file(group));
    const auto quota = [&](const std::string& groups) {
        return quota_processors(folder.write("groups", groups), folder.path);
    };
    folder.write("cpu.max", "max 100000\n");
    folder.write("pod/cpu.max", "250000 100000\n");
    folder.write("pod/box/cpu.max", "max 100000\n");
    folder.write("pod/half/cpu.max", "50000 100000\n");
    CHECK(quota("0::/\n") == unlimited_processors);
    CHECK(quota("0::/pod/box\n") == 3);  // limited by the group above; 2.5, rounded up
    CHECK(quota("0::/pod/half\n") == 1);
    CHECK(quota("0::/of/the/host\n") == unlimited_processors);
    folder.write("cpu/old/cpu.cfs_quota_us", "400000\n");
    folder.write("cpu/old/cpu.cfs_period_us", "100000\n");
    folder.write("cpu/free/cpu.cfs_quota_us", "-1\n");
    folder.write("cpu/free/cpu.cfs_period_us", "100000\n");
    CHECK(quota("5:memory:/pod/half\n4:cpu,cpuacct:/old\n0::/\n") == 4);
    CHECK(quota("4:cpu,cpuacct:/free\n") == unlimited_processors);
    CHECK(quota("3:cpuset:/old\n") == unlimited_processors);
    CHECK(quota("nonsense\n") == unlimited_processors);
    CHECK(quota_processors(folder.file("missing"), folder.path) == unlimited_processors);
}

#ifdef __linux__
TEST_CASE("processors: those that the thread may run on, and no others", "[parallel]") {
    int count = 0, number = 0;
    std::string set;
    std::thread([&] {
        cpu_set_t allowed;
        if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
        while (!CPU_ISSET(number, &allowed)) ++number;
        CPU_ZERO(&allowed);
        CPU_SET(number, &allowed);
        sched_setaffinity(0, sizeof allowed, &allowed);
        count = available_processors();
        set = processor_set();
    }).join();
    CHECK(count == 1);
    CHECK(set == std::string(static_cast<std::size_t>(number) / 4, '0') + "1248"[number % 4]);
}
#endif
