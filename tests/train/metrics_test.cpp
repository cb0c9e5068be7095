// Logs of runs: event files against golden bytes, CSV and JSON lines. tests/interop/tensorboard_test.py reads
// the event files with TensorBoard itself.
#include "mezzo/train/metrics.h"

#include <sys/resource.h>
#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

#include "io/appended_file.h"
#include "io/crc.h"
#include "mezzo/data/images.h"
#include "mezzo/ops.h"
#include "tests/support/folder.h"
#include "tests/support/support.h"
#include "train/event_record.h"

namespace {

using namespace mezzo;
using Catch::Matchers::Contains;
using test::Folder;
using test::read_file;

constexpr double inf = std::numeric_limits<double>::infinity(),
                 not_a_number = std::numeric_limits<double>::quiet_NaN();

std::string hex(const std::string& bytes) {
    std::string text;
    for (const char c : bytes) {
        const char* const digits = "0123456789abcdef";
        text += digits[static_cast<unsigned char>(c) >> 4];
        text += digits[c & 15];
    }
    return text;
}
void append(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::app) << text; }

// The lines of a CSV file without the time column.
std::vector<std::string> rows(const std::string& path) {
    std::vector<std::string> result;
    std::stringstream text(read_file(path));
    for (std::string line; std::getline(text, line);) {
        const std::size_t first = line.find(','), second = line.find(',', first + 1);
        result.push_back(line.substr(0, first) + (second == std::string::npos ? "" : line.substr(second)));
    }
    return result;
}

}  // namespace

TEST_CASE("metrics: CRC-32C", "[io]") {
    CHECK(io::crc32c("123456789") == 0xE3069283u);
    CHECK(io::masked_crc32c("123456789") == 0xC78AB0E5u);
    CHECK(io::crc32c(std::string(32, '\0')) == 0x8A9136AAu);
    CHECK(io::crc32c(std::string(32, '\xff')) == 0x62A8AB43u);
}

TEST_CASE("metrics: records of an event file, byte for byte", "[io]") {
    CHECK(hex(io::tf_record(io::version_event(1.0))) ==
          "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a");
    CHECK(hex(io::tf_record(io::summary_event(1.0, 7, io::scalar_value("loss", 0.5)))) ==
          "1a00000000000000129bd82d09000000000000f03f10072a0d0a0b0a046c6f7373150000003f862c9a2f");
    CHECK(hex(io::Message().varint(1, 300).text()) == "08ac02");
    CHECK(hex(io::Message().varint(2, std::uint64_t(-1)).text()) == "10ffffffffffffffffff01");
}

TEST_CASE("metrics: a histogram counts each element in its bucket", "[io]") {
    std::int64_t nonfinite = 0;
    const std::string one = io::histogram_value("h", {1.0, -2.0, 0.0, inf, not_a_number}, nonfinite).text();
    CHECK(nonfinite == 2);
    CHECK(one.size() > 100);
    const std::string none = io::histogram_value("h", {}, nonfinite).text();
    CHECK(nonfinite == 0);
    CHECK(hex(none).find("110000000000000000") != std::string::npos);
}

TEST_CASE("metrics: the writer makes a folder and a file in it, and refuses what readers refuse", "[io]") {
    const Folder folder;
    const std::string runs = folder.file("runs/first");
    io::SummaryWriter writer(runs), other(runs);
    CHECK(writer.path() != other.path());
    CHECK_THAT(writer.path(), Contains("runs/first/events.out.tfevents."));
    writer.add_scalar("loss", 0.5, 7, 1.0);
    writer.flush();
    const std::string text = read_file(writer.path());
    CHECK(hex(text.substr(40)) ==
          "1a00000000000000129bd82d09000000000000f03f10072a0d0a0b0a046c6f7373150000003f862c9a2f");
    CHECK_THROWS_WITH(writer.add_scalar("\xff", 1, 0), Contains("UTF-8"));
    CHECK_THROWS_WITH(writer.add_text("t", "\xc3", 0), Contains("UTF-8"));
    CHECK_THROWS_WITH(writer.add_image("i", zeros({2, 2}), 0), Contains("[2, 2]"));
    CHECK_THROWS_WITH(writer.add_image("i", zeros({2, 2, 2}), 0), Contains("[2, 2, 2]"));
    CHECK_THROWS_WITH(writer.add_image("i", zeros({2, 2, 3}, {.dtype = int64}), 0), Contains("int64"));
    CHECK_THROWS_WITH(writer.add_histogram("h", {}, 0), Contains("undefined"));
    writer.flush();
    CHECK(read_file(writer.path()) == text);
    append(folder.file("file"), "x");
    CHECK_THROWS_AS(io::SummaryWriter(folder.file("file")), Error);
    CHECK_THROWS_AS(io::SummaryWriter(folder.file("file") + "/below"), Error);
}

TEST_CASE("metrics: several threads share a writer", "[io]") {
    const Folder folder;
    io::SummaryWriter writer(folder.file("runs"));
    io::CsvWriter csv(folder.file("log.csv"));
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            for (int i = 0; i < 100; ++i) {
                writer.log(i, {{"loss", 0.5}});
                csv.log(i, {{"of " + std::to_string(t), 1}});
            }
        });
    for (std::thread& thread : threads) thread.join();
    writer.flush();
    csv.flush();
    const std::size_t record = io::tf_record(io::summary_event(1, 1, io::scalar_value("loss", 0.5))).size();
    // Steps up to 127 take one byte.
    CHECK(read_file(writer.path()).size() == 40 + 400 * record);
    CHECK(rows(folder.file("log.csv")).size() == 401);
}

TEST_CASE("metrics: an image becomes a PNG file that a reader reads", "[io]") {
    std::vector<unsigned char> pixels;
    for (int i = 0; i < 5 * 3 * 3; ++i) pixels.push_back(static_cast<unsigned char>(7 * i));
    const std::string png = io::png_of(pixels.data(), 5, 3, 3);
    const Folder folder;
    append(folder.file("x.png"), png);
    try {
        const Tensor image = data::read_image(folder.file("x.png"));
        CHECK(image.shape() == Shape({5, 3, 3}));
        CHECK(image.to_vector<std::uint8_t>() == pixels);
    } catch (const Error& error) {
        CHECK_THAT(error.what(), Contains("this build of mezzo reads none"));
    }
}

TEST_CASE("metrics: CSV has a column per metric, also for those that come later", "[io]") {
    const Folder folder;
    const std::string path = folder.file("log.csv");
    {
        io::CsvWriter csv(path);
        csv.log(1, {{"loss", 0.1}, {"scale", 65536}});
        csv.log(2, {{"loss", inf}});
        csv.log(3, {{"a, \"b\"\nc", not_a_number}, {"loss", -2}});
        CHECK_THROWS_WITH(csv.log(4, {{"loss", 1}, {"loss", 2}}), Contains("loss"));
        CHECK_THROWS_AS(csv.log(4, {{"step", 1}}), Error);
        CHECK_THROWS_AS(csv.log(4, {{"", 1}}), Error);
    }
    const std::vector<std::string> expected{"step,loss,scale,\"a, \"\"b\"\"", "c\"", "1,0.1,65536,",
                                            "2,inf,,", "3,-2,,nan"};
    const std::string text = read_file(path);
    CHECK_THAT(text, Contains("step,time,loss,scale,\"a, \"\"b\"\"\nc\"\n1,"));
    CHECK(rows(path)[2] == expected[2]);
    CHECK(rows(path)[3] == expected[3]);
    CHECK(rows(path)[4] == expected[4]);
}

TEST_CASE("metrics: a CSV file is continued, without the line that a killed program left", "[io]") {
    const Folder folder;
    const std::string path = folder.file("log.csv");
    io::CsvWriter(path).log(1, {{"loss", 4}});
    append(path, "2,17");
    {
        io::CsvWriter csv(path);
        csv.log(2, {{"loss", 5}});
        csv.log(3, {{"new", 6}});
    }
    CHECK(rows(path) == std::vector<std::string>{"step,loss,new", "1,4,", "2,5,", "3,,6"});
    append(folder.file("other.csv"), "x,y\n1,2\n");
    CHECK_THROWS_WITH(io::CsvWriter(folder.file("other.csv")), Contains("other.csv"));
    CHECK(read_file(folder.file("other.csv")) == "x,y\n1,2\n");
    append(folder.file("notes.txt"), "a file of one line");
    CHECK_THROWS_WITH(io::CsvWriter(folder.file("notes.txt")), Contains("notes.txt"));
    CHECK(read_file(folder.file("notes.txt")) == "a file of one line");
    CHECK_THROWS_AS(io::CsvWriter(folder.file("missing/log.csv")), Error);
    // The file has only an unfinished first line.
    append(folder.file("torn.csv"), "step,ti");
    io::CsvWriter(folder.file("torn.csv")).log(1, {{"loss", 4}});
    CHECK(rows(folder.file("torn.csv")) == std::vector<std::string>{"step,loss", "1,4"});
}

TEST_CASE("metrics: JSON lines", "[io]") {
    const Folder folder;
    const std::string path = folder.file("log.jsonl");
    io::JsonLinesWriter(path).log(1, {{"loss", 0.25}});
    {
        io::JsonLinesWriter json(path);
        json.log(2, {{"a \"b\"", inf}, {"c", -inf}, {"d", not_a_number}});
        CHECK_THROWS_AS(json.log(3, {{"time", 1}}), Error);
        CHECK_THROWS_AS(json.log(3, {{"\xff", 1}}), Error);
    }
    const std::string text = read_file(path);
    CHECK_THAT(text, Contains("{\"step\": 1, \"time\": ") && Contains(", \"loss\": 0.25}\n"));
    CHECK_THAT(text, Contains(", \"a \\\"b\\\"\": \"Infinity\", \"c\": \"-Infinity\", \"d\": \"NaN\"}\n"));
    CHECK_THROWS_AS(io::JsonLinesWriter(folder.file("missing/log.jsonl")), Error);
}

TEST_CASE("metrics: JSON lines are continued, without the line that a killed program left", "[io]") {
    const Folder folder;
    const std::string path = folder.file("log.jsonl"), notes = folder.file("notes.txt");
    io::JsonLinesWriter(path).log(1, {{"loss", 4}});
    const std::string before = read_file(path);
    for (const std::string& torn : {std::string("{\"st"), "{\"step\": 2, \"" + std::string(70000, 'x')}) {
        append(path, torn);
        const io::JsonLinesWriter json(path);
        CHECK(read_file(path) == before);
    }
    io::JsonLinesWriter(path).log(2, {{"loss", 5}});
    CHECK_THAT(read_file(path),
               Catch::StartsWith(before + "{\"step\": 2, ") && Catch::EndsWith("\"loss\": 5}\n"));
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);  // a whole line but for its end
    io::JsonLinesWriter(path).log(3, {{"loss", 6}});
    const std::string lines = read_file(path);
    CHECK(std::count(lines.begin(), lines.end(), '\n') == 3);
    for (const std::string text : {"a file of one line", "two\nlines"}) {
        std::filesystem::remove(notes);
        append(notes, text);
        CHECK_THROWS_WITH(io::JsonLinesWriter(notes), Contains("notes.txt"));
        CHECK(read_file(notes) == text);
    }
}

TEST_CASE("metrics: what waits is written after two minutes", "[io]") {
    const Folder folder;
    io::AppendedFile file("test", folder.file("log"), true);
    const auto now = io::AppendedFile::Clock::now();
    file.append("a", now + std::chrono::seconds(119));
    CHECK(read_file(folder.file("log")).empty());
    file.append("b", now + std::chrono::seconds(121));
    CHECK(read_file(folder.file("log")) == "ab");
    file.append("c", now + std::chrono::seconds(240));
    CHECK(read_file(folder.file("log")) == "ab");
}

namespace {

// While it exists, writes beyond so many bytes of a file fail, as on a full disk.
struct FullDisk {
    explicit FullDisk(rlim_t bytes) : before_(signal(SIGXFSZ, SIG_IGN)) {
        getrlimit(RLIMIT_FSIZE, &limit_);
        const rlimit small{bytes, limit_.rlim_max};
        setrlimit(RLIMIT_FSIZE, &small);
    }
    ~FullDisk() {
        setrlimit(RLIMIT_FSIZE, &limit_);
        signal(SIGXFSZ, before_);
    }
    FullDisk(const FullDisk&) = delete;
    FullDisk& operator=(const FullDisk&) = delete;

private:
    rlimit limit_{};
    void (*before_)(int);
};

}  // namespace

TEST_CASE("metrics: what a full disk refused is written later", "[io]") {
    const Folder folder;
    const std::string path = folder.file("log.jsonl");
    io::JsonLinesWriter json(path);
    json.log(1, {{"first", 1}});
    json.log(2, {{"second", 2}});
    {
        const FullDisk full(50);
        CHECK_THROWS_WITH(json.flush(), Contains("log.jsonl cannot be written"));
        CHECK_THROWS_AS(json.flush(), Error);
    }
    json.flush();
    json.flush();
    const std::string text = read_file(path);
    CHECK(std::count(text.begin(), text.end(), '\n') == 2);
    CHECK(text.starts_with("{\"step\": 1, "));
    CHECK(text.ends_with("\"second\": 2}\n"));
}
