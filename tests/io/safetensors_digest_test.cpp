// Damage that leaves a safetensors file well formed: digests of header and elements detect it.
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>

#include "mezzo/io.h"
#include "mezzo/ops.h"
#include "tests/support/folder.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using test::Folder;

namespace {

// The contents of a file as text.
std::string contents(const std::string& path) {
    const io::SafeTensors file(path);
    std::string text;
    for (const auto& [key, value] : file.metadata()) text += key + "=" + value + ";";
    for (const io::TensorInfo& info : file.infos()) {
        const Tensor x = file.tensor(info.name);
        text += info.name + " " + info.dtype + " " + x.to_string() + ";";
    }
    return text;
}

std::string contents_of_checkpoint(const std::string& path) {
    const io::Checkpoint read = io::load_checkpoint(path);
    std::string text = std::to_string(read.random.seed) + " " + std::to_string(read.random.offset);
    for (const StateDict* state : {&read.model, &read.optimizer, &read.scaler, &read.extra})
        for (const auto& [name, value] : *state) text += ";" + name + " " + value.to_string();
    return text;
}

struct Flips {
    int refused = 0, harmless = 0;
    std::string wrong = {};  // flips that were neither
};

// Flips every bit of a file, one at a time.
Flips flip_all(const Folder& folder, const std::string& name,
               const std::function<std::string(const std::string&)>& read) {
    const std::string bytes = folder.read(name), before = read(folder.file(name));
    Flips flips;
    const std::string path = folder.write("damaged", bytes);
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    const auto put = [&](std::size_t at, char byte) {
        file.seekp(std::streamoff(at)).put(byte).flush();
        REQUIRE(file.good());
    };
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
        put(bit / 8, char(bytes[bit / 8] ^ 1 << bit % 8));
        if (bit >= 8 && bit % 8 == 0) put(bit / 8 - 1, bytes[bit / 8 - 1]);
        try {
            if (read(path) == before)
                ++flips.harmless;
            else
                flips.wrong += " " + std::to_string(bit);
        } catch (const Error& error) {
            flips.refused += error.kind() == ErrorKind::io;
            if (error.kind() != ErrorKind::io) flips.wrong += " " + std::to_string(bit);
        }
    }
    return flips;
}

// Error of reading the file after one byte of the elements has changed; `from_end` counts from the end of the
// file.
std::string error_after_change(const Folder& folder, const std::string& name, std::size_t from_end) {
    std::string bytes = folder.read(name);
    bytes[bytes.size() - from_end] ^= 4;
    try {
        contents(folder.write("damaged", bytes));
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

// The file with another header, whose length is made to fit.
std::string with_header(const std::string& bytes, const std::function<void(std::string&)>& change) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    std::string header = bytes.substr(8, length);
    change(header);
    const std::uint64_t now = header.size();
    return std::string(reinterpret_cast<const char*>(&now), 8) + header + bytes.substr(8 + length);
}

void replace(std::string& text, const std::string& from, const std::string& to) {
    REQUIRE(text.find(from) != text.npos);
    text.replace(text.find(from), from.size(), to);
}

StateDict some_state() {
    return {
        {"weight", arange(6).to(float32).reshape({2, 3})},     {"half", full({3}, 0.5, {.dtype = float16})},
        {"flags", eq(arange(3), scalar(1, {.dtype = int64}))}, {"none", zeros({0, 2})},
        {"also none", zeros({0}, {.dtype = int64})},           {"count", full({}, 7, {.dtype = int64})}};
}

}  // namespace

TEST_CASE("digests: every flipped bit of a file is refused or changes nothing", "[io]") {
    const Folder folder;
    io::save_safetensors(folder.file("file"), some_state(), {{"format", "pt"}, {"note", "\xc3\xa9"}});
    const Flips flips = flip_all(folder, "file", contents);
    CHECK(flips.wrong.empty());
    CHECK(flips.harmless == 0);
    CHECK(flips.refused == int(8 * folder.read("file").size()));
}

TEST_CASE("digests: every flipped bit of a checkpoint is refused or changes nothing", "[io]") {
    const Folder folder;
    io::save_checkpoint(folder.file("file"), {.model = {{"w", full({2}, 1.5)}},
                                              .optimizer = {{"w", full({2}, -3, {.dtype = float64})}},
                                              .extra = {{"epoch", full({}, 3, {.dtype = int64})}},
                                              .random = {.seed = 1, .offset = 5}});
    const Flips flips = flip_all(folder, "file", contents_of_checkpoint);
    CHECK(flips.wrong.empty());
    CHECK(flips.refused + flips.harmless == int(8 * folder.read("file").size()));
}

TEST_CASE("digests: the error names the tensor, and the others can be read", "[io]") {
    const Folder folder;
    io::save_safetensors(folder.file("file"), {{"first", zeros({2})}, {"second", zeros({300000})}});
    CHECK_THAT(error_after_change(folder, "file", 1),
               Contains("damaged: tensor \"second\" at byte") &&
                   Contains("1200000 bytes do not have the CRC-32 that was written; the file is damaged"));
    CHECK_THAT(error_after_change(folder, "file", 1200000), Contains("tensor \"second\""));
    CHECK_THAT(error_after_change(folder, "file", 1200001), Contains("tensor \"first\""));
    const io::SafeTensors file(folder.file("damaged"));
    CHECK(test::doubles(file.tensor("second")) == std::vector<double>(300000, 0));
    CHECK_THROWS_AS(file.tensor("first"), Error);
}

TEST_CASE("digests: files of other programs have none", "[io]") {
    const Folder folder;
    io::save_safetensors(folder.file("file"), some_state());
    const std::string bytes = folder.read("file"), before = contents(folder.file("file"));
    const auto drop = [](std::string& header, const std::string& key) {
        const std::size_t begin = header.find(",\"mezzo.crc32." + key);
        REQUIRE(begin != header.npos);
        header.erase(begin, header.find('"', header.find(":\"", begin) + 2) + 1 - begin);
    };
    const std::string foreign = with_header(bytes, [&](std::string& header) {
        drop(header, "tensors");
        drop(header, "header");
    });
    CHECK(contents(folder.write("foreign", foreign)) == before);
    for (const std::string key : {"tensors", "header"}) {
        folder.write("half", with_header(bytes, [&](std::string& header) { drop(header, key); }));
        CHECK_THROWS_WITH(io::SafeTensors(folder.file("half")),
                          Contains("only one of the metadata mezzo.crc32.tensors and mezzo.crc32.header"));
    }
}

TEST_CASE("digests: a header in other words is the same, another one is not", "[io]") {
    const Folder folder;
    io::save_safetensors(folder.file("file"), some_state(), {{"a", "1"}, {"b", "2"}});
    const std::string bytes = folder.read("file"), before = contents(folder.file("file"));
    const auto changed = [&](const std::string& from, const std::string& to) {
        return folder.write("changed", with_header(bytes, [&](std::string& h) { replace(h, from, to); }));
    };
    // Python's safetensors writes metadata in any order.
    const io::SafeTensors reordered(changed(R"("a":"1","b":"2")", R"("b":"2", "a":"1")"));
    CHECK(test::doubles(reordered.tensor("weight")) == std::vector<double>{0, 1, 2, 3, 4, 5});
    CHECK(contents(changed(R"("weight")", R"( "\u0077eight" )")) == before);
    const auto refused = Contains("the header has CRC-32");
    CHECK_THROWS_WITH(io::SafeTensors(changed(R"("a":"1")", R"("a":"2")")), refused);
    CHECK_THROWS_WITH(io::SafeTensors(changed(R"([2,3])", R"([3,2])")), refused);
    CHECK_THROWS_WITH(io::SafeTensors(changed(R"("F16")", R"("BF16")")), refused);
    CHECK_THROWS_WITH(io::SafeTensors(changed(R"("weight")", R"("weighs")")), refused);
    CHECK_THROWS_WITH(
        io::SafeTensors(changed("mezzo.crc32.tensors\":\"", "mezzo.crc32.tensors\":\"00000000 ")), refused);
    CHECK_THROWS_WITH(io::SafeTensors(changed("mezzo.crc32.header\":\"", "mezzo.crc32.header\":\"G")),
                      Contains("is no digest of eight hexadecimal digits"));
    CHECK_THROWS_WITH(io::SafeTensors(changed("mezzo.crc32.header", "mezzo.crc32.headers")),
                      Contains("unknown metadata \"mezzo.crc32.headers\""));
}

TEST_CASE("digests: metadata come back without them, and cannot pose as them", "[io]") {
    const Folder folder;
    io::save_safetensors(folder.file("file"), some_state());
    const io::SafeTensors file(folder.file("file"));
    CHECK(file.metadata() == io::Metadata{{"format", "pt"}});
    io::save_safetensors(folder.file("again"), file.state_dict(), file.metadata());
    CHECK(folder.read("again") == folder.read("file"));
    CHECK_THROWS_WITH(io::save_safetensors(folder.file("file"), {}, {{"mezzo.crc32.tensors", ""}}),
                      Contains("names that begin with mezzo.crc32. are those of the digests"));
}
