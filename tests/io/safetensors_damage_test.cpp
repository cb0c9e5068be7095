// Damaged or malicious safetensors files: each is refused, and the message says what is wrong.
#include <sys/stat.h>

#include <catch2/catch.hpp>

#include "mezzo/io.h"
#include "tests/support/folder.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::Equals;
using test::Folder;

namespace {

std::string length_of(std::uint64_t n) {
    std::string bytes;
    for (int shift = 0; shift < 64; shift += 8) bytes += char(n >> shift & 255);
    return bytes;
}
std::string file_of(const std::string& header, std::size_t data_bytes) {
    return length_of(header.size()) + header + std::string(data_bytes, '\0');
}
// A file with one tensor "a".
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets,
                std::size_t data_bytes) {
    return file_of(
        R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}",
        data_bytes);
}

// Opens a file of the given bytes and returns the error, or "" if it opens. Every message names the file.
struct Opener {
    std::string operator()(const std::string& bytes) const {
        try {
            const io::SafeTensors file(folder.write("file.safetensors", bytes));
            for (const io::TensorInfo& info : file.infos()) file.tensor(info.name);
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::io);
            CHECK_THAT(error.what(), Contains(folder.file("file.safetensors")));
            return error.what();
        }
        return "";
    }
    Folder folder;
};

}  // namespace

TEST_CASE("safetensors damage: lengths", "[io]") {
    const Opener open;
    CHECK_THAT(open(""), Contains("0 bytes; a safetensors file has at least 8"));
    CHECK_THAT(open("1234567"), Contains("7 bytes"));
    CHECK_THAT(open(length_of(std::uint64_t(1) << 63)),
               Contains("claims 9223372036854775808 bytes; at most 100000000"));
    CHECK_THAT(open(length_of(~std::uint64_t(0))), Contains("claims 18446744073709551615 bytes"));
    CHECK_THAT(open(length_of(100000001)), Contains("claims 100000001 bytes"));
    CHECK_THAT(open(length_of(100000000)), Contains("claims 100000000 bytes, only 0 follow"));
    CHECK_THAT(open(length_of(3) + "{}"), Contains("claims 3 bytes, only 2 follow"));
    CHECK_THAT(open(length_of(0)), Contains("it is filled with zeros where it begins"));
    CHECK_THAT(open(length_of(2) + "{}"), Equals(""));
}

TEST_CASE("safetensors damage: the header is no JSON object", "[io]") {
    const Opener open;
    CHECK_THAT(open(file_of("\xff", 0)), Contains("no valid UTF-8: byte 255 at 0"));
    CHECK_THAT(open(file_of("{\"\xed\xa0\x80\":1}", 0)), EndsWith("no valid UTF-8: byte 237 at 2"));
    CHECK_THAT(open(file_of("{", 0)), Contains("no valid JSON at byte 2: syntax error"));
    CHECK_THAT(open(file_of("{}x", 0)), Contains("no valid JSON at byte 3"));
    CHECK_THAT(open(file_of("{}{}", 0)), Contains("no valid JSON"));
    CHECK_THAT(open(file_of(std::string("{}\0{}", 5), 0)), EndsWith("no valid JSON: a null byte at 2"));
    CHECK_THAT(open(file_of("\xef\xbb\xbf{}", 0)), Contains("byte order mark"));
    CHECK_THAT(open(file_of("[]", 0)), Contains("the header is an array, not an object"));
    CHECK_THAT(open(file_of("1", 0)), Contains("the header is a whole number, not an object"));
    CHECK_THAT(open(file_of("null", 0)), Contains("the header is null, not an object"));
    CHECK_THAT(open(file_of("{\"a\":1}", 0)), Contains("\"a\" is a whole number, not an object"));
    CHECK_THAT(open(file_of("{\"a\":[]}", 0)), Contains("\"a\" is an array, not an object"));
    CHECK_THAT(open(file_of("{\"\\ud800\":{}}", 0)), Contains("no valid JSON"));
    CHECK_THAT(open(file_of("// {}\n{}", 0)), Contains("no valid JSON"));
    CHECK_THAT(open(file_of("{\"" + std::string(100000, 'n') + "\":{}}", 0)), Contains("nnn\"..."));
    // White space around it is padding.
    CHECK_THAT(open(file_of(" \n\t\r{} \n\t\r", 0)), Equals(""));
    const std::string deep(1000000, '[');
    CHECK_THAT(open(file_of("{\"a\":" + deep + "}", 0)), Contains("\"a\" is an array"));
    CHECK_THAT(open(file_of(R"({"a":{"shape":)" + deep + "}}", 0)), Contains("shape holds an array"));
}

TEST_CASE("safetensors damage: metadata", "[io]") {
    const Opener open;
    CHECK_THAT(open(file_of(R"({"__metadata__":{}})", 0)), Equals(""));
    CHECK_THAT(open(file_of(R"({"__metadata__":{"a":{"b":"c"}}})", 0)),
               Contains("metadata \"a\" is an object, not a string"));
    CHECK_THAT(open(file_of(R"({"__metadata__":{"a":1}})", 0)), Contains("metadata \"a\" is a whole number"));
    CHECK_THAT(open(file_of(R"({"__metadata__":{"a":null}})", 0)), Contains("metadata \"a\" is null"));
    CHECK_THAT(open(file_of(R"({"__metadata__":"x"})", 0)),
               Contains("\"__metadata__\" is a string, not an object"));
    CHECK_THAT(open(file_of(R"({"__metadata__":{"a":"","a":""}})", 0)),
               Contains("metadata \"a\" occurs twice"));
    CHECK_THAT(open(file_of(R"({"__metadata__":{},"__metadata__":{}})", 0)),
               Contains("\"__metadata__\" occurs twice"));
}

TEST_CASE("safetensors damage: entries", "[io]") {
    const Opener open;
    CHECK_THAT(open(one("I32", "[2,2]", "[0,16]", 16)), Equals(""));
    CHECK_THAT(open(file_of(R"({"a":{}})", 0)), Contains("tensor \"a\" has no dtype"));
    CHECK_THAT(open(file_of(R"({"a":{"dtype":"F32"}})", 0)), Contains("tensor \"a\" has no shape"));
    CHECK_THAT(open(file_of(R"({"a":{"dtype":"F32","shape":[]}})", 0)),
               Contains("tensor \"a\" has no data_offsets"));
    CHECK_THAT(open(file_of(R"({"a":{"dtype":"F32","strides":[]}})", 0)),
               Contains("\"strides\" is not one of"));
    CHECK_THAT(open(file_of(R"({"a":{"dtype":"F32","dtype":"F32"}})", 0)),
               Contains("\"dtype\" occurs twice"));
    CHECK_THAT(open(file_of(R"({"a":{"dtype":1}})", 0)), Contains("dtype is a whole number, not a string"));
    CHECK_THAT(open(file_of(R"({"a":{"dtype":[]}})", 0)), Contains("dtype is an array, not a string"));
    CHECK_THAT(open(one("F31", "[]", "[0,4]", 4)), Contains("tensor \"a\": unknown dtype \"F31\""));
    CHECK_THAT(open(one("f32", "[]", "[0,4]", 4)), Contains("unknown dtype \"f32\""));
    CHECK_THAT(open(one("F32", "2", "[0,8]", 8)), Contains("shape is a whole number, not an array"));
    CHECK_THAT(open(one("F32", "[-2]", "[0,8]", 8)), Contains("shape holds a negative number"));
    CHECK_THAT(open(one("F32", "[-0]", "[0,0]", 0)), Contains("shape holds a negative number"));
    CHECK_THAT(open(one("F32", "[2.0]", "[0,8]", 8)),
               Contains("shape holds a number, not an array of whole"));
    CHECK_THAT(open(one("F32", "[2e0]", "[0,8]", 8)), Contains("shape holds a number"));
    CHECK_THAT(open(one("F32", "[true]", "[0,4]", 4)), Contains("shape holds true or false"));
    CHECK_THAT(open(one("F32", "[\"2\"]", "[0,8]", 8)), Contains("shape holds a string"));
    CHECK_THAT(open(one("F32", "[[2]]", "[0,8]", 8)), Contains("shape holds an array"));
    CHECK_THAT(open(one("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]", 4)),
               Contains("\"a\" has more than 8 dimensions"));
    CHECK_THAT(open(one("F32", "[1]", "[0]", 4)), Contains("data_offsets has 1 numbers, not 2"));
    CHECK_THAT(open(one("F32", "[1]", "[0,4,8]", 4)), Contains("data_offsets has 3 numbers, not 2"));
    CHECK_THAT(open(one("F32", "[1]", "{}", 4)), Contains("data_offsets is an object, not an array of two"));
    CHECK_THAT(open(one("F32", "[1]", "[0,-4]", 4)), Contains("data_offsets holds a negative number"));
    const std::string entry = R"("a":{"dtype":"U8","shape":[1],"data_offsets":)";
    CHECK_THAT(open(file_of("{" + entry + "[0,1]}," + entry + "[1,2]}}", 2)),
               Contains("tensor \"a\" occurs twice"));
}

TEST_CASE("safetensors damage: sizes", "[io]") {
    const Opener open;
    CHECK_THAT(open(one("I32", "[2,2]", "[0,4]", 4)),
               Contains("tensor \"a\": shape [2, 2] of I32 needs 16 bytes, data_offsets [0, 4] hold 4"));
    CHECK_THAT(open(one("F16", "[2]", "[0,8]", 8)), Contains("shape [2] of F16 needs 4 bytes"));
    CHECK_THAT(open(one("I32", "[2,18446744073709551614]", "[0,16]", 16)),
               Contains("18446744073709551614 in shape overflows 63 bits"));
    CHECK_THAT(open(one("I32", "[2,9223372036854775807]", "[0,16]", 16)),
               Contains("the size of shape [2, 9223372036854775807] in I32 overflows 63 bits"));
    CHECK_THAT(open(one("U8", "[4611686018427387904,4]", "[0,0]", 0)), Contains("overflows 63 bits"));
    CHECK_THAT(open(one("U8", "[0,4611686018427387904,4611686018427387904]", "[0,0]", 0)),
               Contains("overflows 63 bits"));
    CHECK_THAT(open(one("I32", "[99999999999999999999]", "[0,16]", 16)), Contains("shape holds a number"));
    CHECK_THAT(open(one("F4", "[3]", "[0,1]", 1)),
               Contains("shape [3] of F4 is 12 bits, no whole number of bytes"));
    CHECK_THAT(open(one("F32", "[2,0]", "[0,0]", 0)), Equals(""));
    CHECK_THAT(open(one("F32", "[0]", "[0,4]", 4)), Contains("shape [0] of F32 needs 0 bytes"));
    CHECK_THAT(open(one("F32", "[]", "[0,4]", 4)), Equals(""));
    CHECK_THAT(open(one("F32", "[]", "[0,0]", 0)), Contains("shape [] of F32 needs 4 bytes"));
}

TEST_CASE("safetensors damage: places", "[io]") {
    const Opener open;
    CHECK_THAT(open(one("U8", "[1]", "[0,1]", 2)),
               Contains("1 bytes follow the last tensor, which ends at 1"));
    CHECK_THAT(open(file_of("{}", 3)), Contains("3 bytes follow the last tensor"));
    CHECK_THAT(open(one("I32", "[2,2]", "[0,16]", 14)),
               Contains("tensor \"a\" ends at byte 16, the data have 14"));
    CHECK_THAT(open(one("U8", "[1]", "[1,2]", 2)),
               Contains("tensor \"a\" begins at byte 1, which leaves a hole; the one before it ends at 0"));
    CHECK_THAT(open(one("U8", "[1]", "[2,1]", 2)), Contains("data_offsets end at 1, before they begin at 2"));
    CHECK_THAT(open(one("U8", "[1]", "[9223372036854775807,9223372036854775808]", 1)),
               Contains("9223372036854775808 in data_offsets overflows 63 bits"));
    CHECK_THAT(open(one("U8", "[9223372036854775807]", "[0,9223372036854775807]", 1)),
               Contains("overflows 63 bits"));
    CHECK_THAT(open(one("U8", "[1000000000000]", "[0,1000000000000]", 1)),
               Contains("ends at byte 1000000000000, the data have 1"));
    const auto sharing = [](int count) {
        std::string header = "{";
        for (int i = 0; i < count; ++i)
            header += (i ? ",\"" : "\"") + std::to_string(i) +
                      R"(":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]})";
        return file_of(header + "}", 16);
    };
    CHECK_THAT(open(sharing(1)), Equals(""));
    CHECK_THAT(
        open(sharing(10)),
        Contains("tensor \"1\" begins at byte 0, which another tensor holds; the one before it ends at 16"));
    CHECK_THAT(open(sharing(200000)), Contains("which another tensor holds"));
}

TEST_CASE("safetensors damage: dtypes that mezzo lacks are refused when asked for", "[io]") {
    const Folder folder;
    const std::string header = R"({"a":{"dtype":"F8_E5M2FNUZ","shape":[2],"data_offsets":[0,2]},)"
                               R"("b":{"dtype":"F4","shape":[4],"data_offsets":[2,4]},)"
                               R"("c":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}})";
    const io::SafeTensors file(folder.write("file", file_of(header, 5)));
    CHECK(file.names() == std::vector<std::string>{"a", "b", "c"});
    CHECK(file.tensor("c").item<int>() == 0);
    CHECK_THROWS_WITH(file.tensor("a"), Contains("file: tensor \"a\" is F8_E5M2FNUZ; mezzo reads"));
    CHECK_THROWS_WITH(file.tensor("b"), Contains("tensor \"b\" is F4"));
    CHECK_THROWS_AS(file.state_dict(), Error);
}

TEST_CASE("safetensors damage: a BOOL is true or false, whatever its byte", "[io]") {
    const Folder folder;
    std::string bytes = one("BOOL", "[3]", "[0,3]", 3);
    bytes[bytes.size() - 3] = '\x02';
    bytes[bytes.size() - 1] = '\xff';
    const Tensor flags = io::SafeTensors(folder.write("file", bytes)).tensor("a");
    CHECK(test::doubles(flags) == std::vector<double>{1, 0, 1});
}

TEST_CASE("safetensors damage: what is no file", "[io]") {
    const Folder folder;
    CHECK_THROWS_WITH(io::SafeTensors(folder.file("absent")),
                      Contains("cannot open") && Contains("No such file"));
    CHECK_THROWS_WITH(io::SafeTensors(folder.path), Contains("is no regular file"));
    REQUIRE(mkfifo(folder.file("pipe").c_str(), 0600) == 0);
    CHECK_THROWS_WITH(io::SafeTensors(folder.file("pipe")), Contains("is no regular file"));
}

TEST_CASE("sharded models: the index and its files", "[io]") {
    const Folder folder;
    io::save_safetensors(folder.file("m-1.safetensors"), {{"a", full({2}, 1)}, {"b", full({1}, 2)}});
    io::save_safetensors(folder.file("m-2.safetensors"), {{"c", full({3}, 3)}});
    const auto index = [&](const std::string& map) {
        return folder.write("model.safetensors.index.json",
                            R"({"metadata":{"total_size":24},"weight_map":)" + map + "}");
    };
    const auto load = [&](const std::string& map) { return io::load_state_dict_file(index(map)); };
    const StateDict state = load(R"({"c":"m-2.safetensors","a":"m-1.safetensors","b":"m-1.safetensors"})");
    REQUIRE(state.size() == 3);
    CHECK(state[0].first == "a");
    CHECK(test::doubles(state[2].second) == std::vector<double>{3, 3, 3});
    CHECK(io::load_state_dict_file(folder.file("m-2.safetensors")).size() == 1);

    CHECK_THROWS_WITH(load(R"({"c":"m-2.safetensors","a":"m-1.safetensors"})"),
                      Contains("index.json: names 1 tensors of \"m-1.safetensors\", which has 2"));
    CHECK_THROWS_WITH(load(R"({"d":"m-2.safetensors"})"),
                      Contains("m-2.safetensors: no tensor \"d\" among 1"));
    CHECK_THROWS_WITH(load(R"({"a":"m-3.safetensors"})"),
                      Contains("cannot open") && Contains("m-3.safetensors"));
    for (const char* name :
         {"../m-1.safetensors", "/etc/passwd", "sub/m", "..", ".", "", "a\\\\b", "m\\u0000"})
        CHECK_THROWS_WITH(load(R"({"a":")" + std::string(name) + "\"}"),
                          Contains("index.json: weight_map \"a\": the file name") && Contains("leads out"));
    CHECK_THROWS_WITH(load(R"({"a":1})"), Contains("weight_map \"a\" is a whole number, not a file name"));
    CHECK_THROWS_WITH(load(R"({"a":"m-1.safetensors","a":"m-2.safetensors"})"),
                      Contains("\"a\" occurs twice"));
    CHECK_THROWS_WITH(load("[]"), Contains("no object \"weight_map\""));
    CHECK_THROWS_WITH(load("{"), Contains("no valid JSON"));
    CHECK_THROWS_WITH(load(std::string(1000, '[') + std::string(1000, ']')), Contains("more than 64 levels"));
}
