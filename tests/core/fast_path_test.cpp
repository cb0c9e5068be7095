// The setting for a fast path, and the file of check results, in every build.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>
#include <type_traits>

#include "core/system/build_id.h"
#include "core/system/log_line.h"
#include "kernels/choice_file.h"
#include "mezzo/cuda.h"
#include "mezzo/device.h"
#include "mezzo/log.h"
#include "tests/support/folder.h"

using namespace mezzo;
using Catch::Matchers::Contains;

namespace {

// Sets the cache folder of this process for a scope.
struct CacheFolder {
    CacheFolder() { setenv("MEZZO_CACHE", folder.path.c_str(), 1); }
    ~CacheFolder() { setenv("MEZZO_CACHE", "off", 1); }
    CacheFolder(const CacheFolder&) = delete;
    CacheFolder& operator=(const CacheFolder&) = delete;
    test::Folder folder;
};

}  // namespace

static_assert(!std::is_convertible_v<int, FastPath> && !std::is_convertible_v<const char*, FastPath>);
static_assert(!std::is_convertible_v<FastPath, bool>);  // automatic would be neither

TEST_CASE("fast path: automatic unless a program says otherwise", "[fast_path]") {
    CHECK(FastPath() == FastPath::automatic);
    CHECK(FastPath(true) == FastPath::on);
    CHECK(FastPath(false) == FastPath::off);
    CHECK(name(FastPath()) == std::string("automatic"));
    CHECK(name(FastPath(true)) == std::string("on"));
    CHECK(name(FastPath(false)) == std::string("off"));
    const FastPath before = flash_attention();
    set_flash_attention(true);
    CHECK(flash_attention() == FastPath::on);
    set_flash_attention(before);
    CHECK(cuda::GemmOptions().fuse_layers == FastPath::automatic);
}

TEST_CASE("fast path: results are kept by identity", "[fast_path]") {
    const CacheFolder cache;
    const ChoiceFile one("fast-paths", "GPU one"), two("fast-paths", "GPU two");
    one.save("path float32", "passed");
    one.save("path float16", "not used; element 3 is 1; the plain path gives 2:\n5");
    CHECK(two.load().empty());
    const Choices found = ChoiceFile("fast-paths", "GPU one").load();
    REQUIRE(found.size() == 2);
    CHECK(found.at("path float32") == "passed");
    CHECK(found.at("path float16") == "not used; element 3 is 1; the plain path gives 2: 5");
    two.save("path float32", "not used");
    CHECK(two.load().at("path float32") == "not used");
    CHECK(one.load().size() == 2);
    CHECK(ChoiceFile("gemm-cpu", "GPU one").load().empty());
}

TEST_CASE("fast path: a mark is found when its process is gone, and only then", "[fast_path]") {
    const CacheFolder cache;
    const ChoiceFile file("fast-paths", "GPU");
    { CHECK_FALSE(ChoiceFile::Mark(file, "path").found()); }
    { CHECK_FALSE(ChoiceFile::Mark(file, "path").found()); }  // the first self_check has ended
    const pid_t child = fork();
    if (child == 0) {
        static const ChoiceFile::Mark mark(file, "path");
        _exit(mark.found() ? 1 : 0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(status == 0);
    { CHECK_FALSE(ChoiceFile::Mark(file, "other path").found()); }
    { CHECK(ChoiceFile::Mark(file, "path").found()); }
    { CHECK_FALSE(ChoiceFile::Mark(file, "path").found()); }  // it has been read
}

TEST_CASE("fast path: a check runs once, and not after it has ended a process", "[fast_path]") {
    const CacheFolder cache;
    const ChoiceFile file("fast-paths", "GPU");
    int runs = 0;
    const auto check = [&](const char* key, CheckResult result, bool again = false) {
        return text_of(file.check(key, again, [&] { return ++runs, result; }));
    };
    CHECK(check("path", {CheckResult::open, "no memory"}) == "not checked yet; no memory");
    CHECK(check("path", {CheckResult::good}) == "passed");
    CHECK(check("path", {CheckResult::bad, "3"}) == "passed");
    CHECK(runs == 2);
    CHECK(check("path", {CheckResult::bad, "3"}, true) == "not used; 3");
    CHECK(check("path", {CheckResult::good}) == "not used; 3");
    CHECK(runs == 3);
    const pid_t child = fork();
    if (child == 0) {
        file.check("other path", false, []() -> CheckResult { _exit(0); });
        _exit(1);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(status == 0);
    CHECK_THAT(check("other path", {CheckResult::good}), Contains("an earlier process ended in this check"));
    CHECK_THAT(check("other path", {CheckResult::good}), Contains("an earlier process ended in this check"));
    CHECK(runs == 3);
    CHECK(check("other path", {CheckResult::good}, true) == "passed");
}

TEST_CASE("fast path: no folder, or one that cannot be written", "[fast_path]") {
    const ChoiceFile file("fast-paths", "GPU");
    for (const char* folder : {"off", "/dev/null/x", "/proc"}) {
        setenv("MEZZO_CACHE", folder, 1);
        CHECK_FALSE(ChoiceFile::Mark(file, "path").found());
        file.save("path", "passed");
        CHECK(file.load().empty());
    }
    setenv("MEZZO_CACHE", "off", 1);
}

TEST_CASE("log: one sink at a time, whose exceptions stay inside", "[log]") {
    std::string first, second;
    set_log_sink([&](std::string_view line) { first += line; });
    log_line("one");
    set_log_sink([&](std::string_view line) {
        second += line;
        throw 1;
    });
    log_line("two");
    set_log_sink(nullptr);
    log_line("three");
    CHECK(first == "one");
    CHECK(second == "two");
}

TEST_CASE("build id: the same in every call, of hexadecimal digits", "[core]") {
    CHECK(build_id() == build_id());
    CHECK(build_id().find_first_not_of("0123456789abcdef") == std::string::npos);
}
