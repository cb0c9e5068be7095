// The progress bar: on terminals, in pipes, and what it computes.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "mezzo/train/progress.h"
#include "tests/support/folder.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using training::clock_time;
using training::ProgressBar;
using training::ProgressStyle;
using training::TrainingStatus;

namespace {

// A file that can be read back.
struct Output {
    Output() : file(std::tmpfile()) { REQUIRE(file != nullptr); }
    ~Output() { std::fclose(file); }
    Output(const Output&) = delete;
    Output& operator=(const Output&) = delete;
    std::string text() const {
        std::string result(std::size_t(std::ftell(file)), '\0');
        std::rewind(file);
        REQUIRE(std::fread(result.data(), 1, result.size(), file) == result.size());
        return result;
    }
    std::FILE* file;
};

// Sets an environment variable and restores it at the end.
struct Variable {
    Variable(const char* n, const char* value) : name(n) {
        if (const char* const old = std::getenv(n)) before = old;
        value == nullptr ? unsetenv(n) : setenv(n, value, 1);
    }
    ~Variable() { before ? setenv(name, before->c_str(), 1) : unsetenv(name); }
    Variable(const Variable&) = delete;
    Variable& operator=(const Variable&) = delete;
    const char* name;
    std::optional<std::string> before;
};

TrainingStatus status(std::int64_t step) {
    return {.epoch = 1,
            .epochs = 8,
            .step = step,
            .steps = 200,
            .loss = 0.5,
            .lr = 1e-3,
            .scale = 65536,
            .skipped = 2};
}

}  // namespace

TEST_CASE("progress: times", "[training]") {
    CHECK(clock_time(0) == "0:00");
    CHECK(clock_time(75.4) == "1:15");
    CHECK(clock_time(59.6) == "1:00");
    CHECK(clock_time(4000) == "1:06:40");
    for (const double odd : {-1.0, std::nan(""), HUGE_VAL, 1e300}) CHECK(clock_time(odd) == "?");
}

TEST_CASE("progress: plain lines now and then, without a control character", "[training]") {
    const Output out;
    double time = 100;
    {
        ProgressBar bar(out.file, {.label = "resnet", .clock = [&] { return time; }});
        for (std::int64_t step = 10; step <= 200; step += 10, time += 2) bar.show(status(step));
        bar.print("saved");
    }
    const std::string text = out.text();
    CHECK(
        text ==
        "resnet epoch 2/8   5 % 10/200  loss 0.5  lr 1.0e-03  scale 65536  skipped 2\n"
        "resnet epoch 2/8  30 % 60/200  5.0 steps/s  ETA 0:28  loss 0.5  lr 1.0e-03  scale 65536  skipped 2\n"
        "resnet epoch 2/8  55 % 110/200  5.0 steps/s  ETA 0:18  loss 0.5  lr 1.0e-03  scale 65536  skipped "
        "2\n"
        "resnet epoch 2/8  80 % 160/200  5.0 steps/s  ETA 0:08  loss 0.5  lr 1.0e-03  scale 65536  skipped "
        "2\n"
        "resnet epoch 2/8 100 % 200/200  5.0 steps/s  ETA 0:00  loss 0.5  lr 1.0e-03  scale 65536  skipped "
        "2\n"
        "saved\n");
}

TEST_CASE("progress: one line that is rewritten", "[training]") {
    double time = 0;
    const auto shown = [&](const char* no_color, double loss) {
        const Variable variable("NO_COLOR", no_color);
        const Output out;
        time = 0;
        {
            ProgressBar bar(out.file, {.style = ProgressStyle::bar, .clock = [&] { return time; }});
            TrainingStatus now{.step = 1, .steps = 4, .loss = loss, .lr = 0.5};
            bar.show(now);
            time = 0.05;
            now.step = 2;
            bar.show(now);  // too soon
            time = 10;
            now.step = 3;
            bar.show(now);
            bar.print("note");
        }
        return out.text();
    };
    CHECK(shown("1", 0.25) ==
          "\r[=====>              ]  25 % 1/4  loss 0.25  lr 5.0e-01\x1b[K\r\x1b[K"
          "\r[===============>    ]  75 % 3/4  5.0 s/step  ETA 0:05  loss 0.25  lr 5.0e-01\x1b[K"
          "\r\x1b[Knote\n");
    for (const char* colours : {static_cast<const char*>(nullptr), ""}) {
        CHECK_THAT(shown(colours, 0.25), Contains("\x1b[32m["));
        CHECK_THAT(shown(colours, std::nan("")), Contains("\x1b[31m[") && Contains("loss nan"));
    }
}

TEST_CASE("progress: unknown lengths, metrics, and a training after another", "[training]") {
    const Output out;
    double time = 0;
    {
        ProgressBar bar(out.file, {.interval = 0, .clock = [&] { return time; }});
        bar.show({.step = 7, .loss = 2, .lr = 1, .metrics = {{"accuracy", 0.75}}});
        time = 1;
        bar.show({.step = 9, .loss = 2, .lr = 1});
        bar.show({.step = 1, .loss = 3, .lr = 1});
    }
    CHECK(out.text() ==
          "step 7  loss 2  lr 1.0e+00  accuracy 0.75\n"
          "step 9  2.0 steps/s  loss 2  lr 1.0e+00\n"
          "step 1  loss 3  lr 1.0e+00\n");
}

TEST_CASE("progress: a null stream, and numbers at the end of int64", "[training]") {
    CHECK_THROWS_WITH(ProgressBar(nullptr), Contains("ProgressBar: the stream is null"));
    const Output out;
    CHECK_THROWS_WITH(ProgressBar(out.file, {.style = ProgressStyle(7)}),
                      Contains("ProgressBar: style is 7"));
    constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
    ProgressBar bar(out.file, {.style = ProgressStyle::bar, .interval = 0});
    bar.show({.epoch = largest, .epochs = largest, .step = largest / 2, .steps = largest});
    bar.end_line();
    CHECK_THAT(out.text(), Contains("epoch 9223372036854775807/9223372036854775807") && Contains(" 50 %"));
}
