// Reading and writing valid safetensors files.
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

#include "io/file.h"
#include "mezzo/data/images.h"
#include "mezzo/data/loader.h"
#include "mezzo/data/table.h"
#include "mezzo/interchange/numpy.h"
#include "mezzo/io.h"
#include "mezzo/nn.h"
#include "mezzo/ops.h"
#include "tests/support/folder.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using test::Folder;

namespace {

bool without_permissions = false;  // as on a FAT file system

}  // namespace

// Replaces fchmod() of the C library.
extern "C" int fchmod(int file, mode_t mode) noexcept {
    if (!without_permissions) return int(syscall(SYS_fchmod, file, mode));
    errno = EPERM;
    return -1;
}

namespace {

const std::string zeros_16(16, '\0');
const std::string smallest = std::string("\x3c\0\0\0\0\0\0\0", 8) +
                             R"({"test":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}})" + zeros_16;

// Every readable dtype, as the reference implementation (safetensors 0.8.0) wrote it, byte for byte.
const std::string every_dtype =
    std::string("\x20\x02\0\0\0\0\0\0", 8) +
    R"({"__metadata__":{"format":"pt"},"n":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
    R"("d":{"dtype":"F64","shape":[1],"data_offsets":[8,16]},)"
    R"("b":{"dtype":"F32","shape":[2],"data_offsets":[16,24]},)"
    R"("none":{"dtype":"F32","shape":[2,0],"data_offsets":[24,24]},)"
    R"("i":{"dtype":"I32","shape":[1],"data_offsets":[24,28]},)"
    R"("a":{"dtype":"BF16","shape":[1],"data_offsets":[28,30]},)"
    R"("h":{"dtype":"F16","shape":[1,1],"data_offsets":[30,32]},)"
    "\"\xc3\xa9\\\"\\n\""
    R"(:{"dtype":"U8","shape":[3],"data_offsets":[32,35]},)"
    R"("flag":{"dtype":"BOOL","shape":[2],"data_offsets":[35,37]}}     )" +
    std::string(
        "\x07\0\0\0\0\0\0\0\0\0\0\0\0\0\xd0?\0\0\xc0?\0\0\0\xc0\xff\xff\xff\xff\0?\0<\x01\x02\xff\x01\0", 37);

StateDict every_dtype_state() {
    const auto of = [](std::vector<double> values, const Shape& shape, Dtype dtype) {
        return Tensor::from<double>(values, shape).to(dtype);
    };
    return {{"b", of({1.5, -2}, {2}, float32)}, {"a", of({0.5}, {1}, bfloat16)},
            {"n", of({7}, {}, int64)},          {"\xc3\xa9\"\n", of({1, 2, 255}, {3}, uint8)},
            {"flag", of({1, 0}, {2}, boolean)}, {"h", of({1}, {1, 1}, float16)},
            {"d", of({0.25}, {1}, float64)},    {"i", of({-1}, {1}, int32)},
            {"none", of({}, {2, 0}, float32)}};
}

// A file without the digests in its metadata, as other programs write it.
std::string without_digests(const std::string& bytes) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    std::string header = bytes.substr(8, length);
    for (const std::string name : {"tensors", "header"}) {
        const std::string key = "\"mezzo.crc32." + name + "\":\"";
        const std::size_t begin = header.find(key), end = header.find('"', begin + key.size());
        REQUIRE(begin != header.npos);
        header.erase(begin, end + 1 - begin);
        if (header[begin] == ',') header.erase(begin, 1);
        if (header[begin - 1] == ',') header.erase(begin - 1, 1);
    }
    if (header.starts_with("{\"__metadata__\":{},")) header.erase(1, 18);
    header.resize((header.find_last_not_of(' ') + 8) / 8 * 8, ' ');
    length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), 8) + header +
           bytes.substr(8 + std::size_t(bytes[0] & 255) + (std::size_t(bytes[1] & 255) << 8));
}

}  // namespace

TEST_CASE("safetensors: the smallest file", "[io]") {
    const Folder folder;
    const io::SafeTensors file(folder.write("small", smallest));
    REQUIRE(file.names() == std::vector<std::string>{"test"});
    CHECK(file.contains("test"));
    CHECK_FALSE(file.contains("tes"));
    CHECK(file.metadata().empty());
    CHECK(file.info("test").dtype == "I32");
    CHECK(file.info("test").bytes == 16);
    const Tensor value = file.tensor("test");
    CHECK(value.dtype() == int32);
    CHECK(value.shape() == Shape{2, 2});
    CHECK(test::doubles(value) == std::vector<double>{0, 0, 0, 0});
    CHECK_THROWS_WITH(file.tensor("other"), Contains("small: no tensor \"other\" among 1"));
}

TEST_CASE("safetensors: written as the reference implementation writes, byte for byte but for the digests",
          "[io]") {
    const Folder folder;
    io::save_safetensors(folder.file("all"), every_dtype_state());
    CHECK(without_digests(folder.read("all")) == every_dtype);
    CHECK(folder.listing() == "all ");
    io::save_safetensors(folder.file("plain"), {{"test", zeros({2, 2}, {.dtype = int32})}}, {});
    std::string padded = smallest;
    padded[0] = '\x40';
    padded.insert(8 + 60, "    ");
    CHECK(without_digests(folder.read("plain")) == padded);
}

TEST_CASE("safetensors: every dtype is read back bit for bit", "[io]") {
    const Folder folder;
    const io::SafeTensors file(folder.write("all", every_dtype));
    CHECK(file.metadata() == io::Metadata{{"format", "pt"}});
    CHECK(file.infos().size() == 9);
    CHECK(file.names().front() == "n");
    for (const auto& [name, value] : every_dtype_state()) {
        const Tensor read = file.tensor(name);
        INFO(name);
        CHECK(read.dtype() == value.dtype());
        CHECK(read.shape() == value.shape());
        CHECK(test::doubles(read) == test::doubles(value));
    }
    CHECK(file.state_dict().size() == 9);
}

TEST_CASE("safetensors: any bits survive, NaN and negative zero among them", "[io]") {
    const Folder folder;
    const Tensor value = empty({4});
    const std::uint32_t bits[4] = {0x7fc12345u, 0xff800001u, 0x80000000u, 1u};
    std::memcpy(value.mutable_data<float>(), bits, sizeof bits);
    const Tensor half = empty({65536}, {.dtype = bfloat16});
    for (int i = 0; i < 65536; ++i)
        half.mutable_data<bfloat16_t>()[i] = bfloat16_t::from_bits(std::uint16_t(i));
    io::save_safetensors(folder.file("bits"), {{"value", value}, {"half", half}});
    const io::SafeTensors file(folder.file("bits"));
    const Tensor read = file.tensor("value"), read_half = file.tensor("half");
    CHECK(std::memcmp(read.data<float>(), bits, sizeof bits) == 0);
    CHECK(std::memcmp(read_half.data<bfloat16_t>(), half.data<bfloat16_t>(), 2 * 65536) == 0);
}

TEST_CASE("safetensors: tensors of any strides and device, shared ones too", "[io]") {
    const Folder folder;
    for (const Device device : test::devices()) {
        const Tensor x = arange(24).to(device).to(float32).reshape({2, 3, 4}).set_requires_grad();
        const Tensor y = mul(x, x);  // with history
        const StateDict state{{"x", x},
                              {"again", x},
                              {"y", y},
                              {"turned", x.permute({2, 0, 1})},
                              {"part", x.slice(2, 1, 4, 2).select(0, 1)},
                              {"wide", ones({1, 2}, {.device = device}).expand({3, 2})},
                              {"one", scalar(3, {.device = device})}};
        io::save_safetensors(folder.file("file"), state);
        const io::SafeTensors file(folder.file("file"));
        CHECK(file.infos().size() == state.size());
        for (const auto& [name, value] : state) {
            INFO(name);
            const Tensor read = file.tensor(name);
            CHECK(read.device() == cpu_device);
            CHECK(read.shape() == value.shape());
            CHECK(test::doubles(read) == test::doubles(value));
        }
    }
}

TEST_CASE("safetensors: names are only names, and metadata any text", "[io]") {
    const Folder folder;
    const Tensor one = ones({1});
    const std::string control("\x01\0\t", 3);
    const io::Metadata metadata{{"", "\"quoted\" \\ \n"}, {control, "\xf0\x9f\xa6\x99"}};
    const StateDict state{
        {"../../etc/passwd", one}, {"/a/b", one}, {"", one}, {control, one}, {"\xe2\x82\xac", one}};
    io::save_safetensors(folder.file("file"), state, metadata);
    CHECK(folder.listing() == "file ");
    const io::SafeTensors file(folder.file("file"));
    CHECK(file.metadata() == metadata);
    for (const auto& entry : state) CHECK(file.contains(entry.first));
}

TEST_CASE("safetensors: what cannot be written leaves the old file", "[io]") {
    const Folder folder;
    const std::string path = folder.write("file", "old");
    const Tensor one = ones({1});
    CHECK_THROWS_WITH(io::save_safetensors(path, {{"a", one}, {"a", one}}),
                      Contains("file: two tensors are named \"a\""));
    CHECK_THROWS_WITH(io::save_safetensors(path, {{"a", Tensor()}}), Contains("tensor \"a\" is undefined"));
    CHECK_THROWS_WITH(io::save_safetensors(path, {{"a\xff", one}}),
                      Contains("the name of a tensor at byte 1 is no valid UTF-8"));
    CHECK_THROWS_WITH(io::save_safetensors(path, {{"\xed\xa0\x80", one}}),
                      Contains("at byte 0 is no valid UTF-8"));
    CHECK_THROWS_WITH(io::save_safetensors(path, {{"__metadata__", one}}), Contains("cannot be named"));
    CHECK_THROWS_WITH(io::save_safetensors(path, {}, {{"a", "1"}, {"a", "2"}}),
                      Contains("two metadata entries are named \"a\""));
    CHECK_THROWS_WITH(io::save_safetensors(path, {}, {{"a", "\xc0\x80"}}),
                      Contains("text of a metadata entry"));
    CHECK_THROWS_WITH(io::save_safetensors(folder.file("absent/file"), {}),
                      Contains("cannot create") && Contains("absent/file") && Contains("No such file"));
    CHECK(folder.listing() == "file ");
    CHECK(folder.read("file") == "old");
    std::filesystem::create_directory(folder.file("folder"));
    CHECK_THROWS_WITH(io::save_safetensors(folder.file("folder"), {}), Contains("folder: it is a folder"));
    REQUIRE(mkfifo(folder.file("pipe").c_str(), 0600) == 0);
    CHECK_THROWS_WITH(io::save_safetensors(folder.file("pipe"), {}), Contains("pipe: it is no regular file"));
    CHECK(folder.listing() == "file folder pipe ");
}

TEST_CASE("safetensors: a full disk is an error, the old file stays, the partial one goes", "[io]") {
    const Folder folder;
    const std::string path = folder.write("file", "old");
    rlimit before{};
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    rlimit small = before;
    small.rlim_cur = 1000;
    REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
    std::string text;
    try {
        io::save_safetensors(path, {{"a", ones({1000})}});
    } catch (const Error& error) {
        text = error.what();
        CHECK(error.kind() == ErrorKind::io);
    }
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    CHECK_THAT(text, Contains("cannot write") && Contains("after 1000 bytes: File too large") &&
                         Contains("file is left as it was"));
    CHECK(folder.listing() == "file ");
    CHECK(folder.read("file") == "old");
    io::save_safetensors(path, {{"a", ones({1000})}});
    CHECK(io::SafeTensors(path).contains("a"));
}

TEST_CASE("safetensors: a partial file of a killed program is no obstacle", "[io]") {
    const Folder folder;
    folder.write("file.mezzo-partial", std::string(5000, 'x'));
    io::save_safetensors(folder.file("file"), every_dtype_state());
    CHECK(without_digests(folder.read("file")) == every_dtype);
    CHECK(folder.listing() == "file ");
    // If the partial file is a symbolic link, it is not followed.
    std::filesystem::create_symlink(folder.write("victim", "precious"), folder.file("file.mezzo-partial"));
    CHECK_THROWS_WITH(io::save_safetensors(folder.file("file"), {}), Contains("cannot create"));
    CHECK(folder.read("victim") == "precious");
}

TEST_CASE("files: while a file is saved, its owner alone may read it", "[io]") {
    const Folder folder;
    const std::string path = folder.write("file", "old"), partial = path + ".mezzo-partial";
    const auto mode = [](const std::string& name) {
        struct stat status = {};
        return stat(name.c_str(), &status) == 0 ? status.st_mode & 0777 : 0;
    };
    const mode_t mask = umask(0);
    for (const mode_t wanted : {0600, 0640, 0644, 0666}) {
        CHECK(chmod(path.c_str(), wanted) == 0);
        io::ReplacedFile file("save", path);
        CHECK(mode(partial) == 0600);
        file.write("new");
        CHECK(mode(partial) == 0600);
        file.commit();
        CHECK(mode(path) == wanted);
    }
    umask(027);
    io::ReplacedFile file("save", folder.file("fresh"));
    CHECK(mode(folder.file("fresh.mezzo-partial")) == 0600);
    file.commit();
    CHECK(mode(folder.file("fresh")) == 0640);
    umask(mask);
    CHECK(folder.listing() == "file fresh ");
}

TEST_CASE("files: a partial file that is not this user's own is left alone", "[io]") {
    const Folder folder;
    const std::string path = folder.file("file"), partial = path + ".mezzo-partial";
    std::filesystem::create_hard_link(folder.write("third", "precious"), partial);
    CHECK_THROWS_WITH(io::save_safetensors(path, {}), Contains("hard link") && Contains("remove it"));
    CHECK(folder.read("third") == "precious");
    CHECK(folder.listing() == "file.mezzo-partial third ");
    std::filesystem::remove(partial);
    folder.write("file.mezzo-partial", "theirs");
    if (geteuid() != 0 || chown(partial.c_str(), 65534, 65534) != 0) return;
    CHECK_THROWS_WITH(io::save_safetensors(path, {}), Contains("another user"));
    CHECK(folder.read("file.mezzo-partial") == "theirs");
}

TEST_CASE("files: a lock on a partial file does not stop a writer for ever", "[io]") {
    const Folder folder;
    const std::string path = folder.file("file"), partial = path + ".mezzo-partial";
    const auto locked = [&](mode_t mode) {
        folder.write("file.mezzo-partial", "left");
        CHECK(chmod(partial.c_str(), mode) == 0);
        const int descriptor = open(partial.c_str(), O_RDONLY);
        CHECK(flock(descriptor, LOCK_EX) == 0);
        return descriptor;
    };
    // The partial file is readable for others, so no writer of mezzo is alive.
    int other = locked(0644);
    io::save_safetensors(path, {});
    CHECK(folder.listing() == "file ");
    close(other);
    // If files cannot be made private there, the lock may be a writer's.
    other = locked(0644);
    without_permissions = true;
    CHECK_THROWS_WITH(io::ReplacedFile("save", path, std::chrono::milliseconds(20)),
                      Contains("another process has locked it"));
    without_permissions = false;
    CHECK(folder.listing() == "file file.mezzo-partial ");
    close(other);
    other = locked(0600);
    CHECK_THROWS_WITH(io::ReplacedFile("save", path, std::chrono::milliseconds(20)),
                      Contains("another process has locked it") && Contains("20 ms"));
    // A signal handler that restarts calls, as StopSignals installs it, ends the wait as well.
    struct sigaction action = {}, before = {};
    action.sa_handler = [](int) {};
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, &before);
    std::atomic<bool> done = false;
    std::thread sender([&, to = pthread_self()] {
        while (!done) {
            pthread_kill(to, SIGUSR1);
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    });
    CHECK_THROWS_WITH(io::ReplacedFile("save", path, std::chrono::hours(1)), Contains("a signal ended"));
    done = true;
    sender.join();
    sigaction(SIGUSR1, &before, nullptr);
    close(other);
    io::save_safetensors(path, {});
    CHECK(folder.listing() == "file ");
}

TEST_CASE("safetensors: a file of another format is named, and what to do with it", "[io]") {
    const Folder folder;
    using namespace std::string_literals;
    const std::pair<std::string, const char*> files[] = {
        {"PK\3\4"s + std::string(26, '\0') + "archive/data.pkl" + std::string(99, '\0'), "torch.save()"},
        {"\x80\2\x8a\nl\xfc\x9c\xf9 j\xa8P\x19.\x80\2M\xe9\3."s, "pickle"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "git lfs pull"},
        {"\n<!DOCTYPE html><html lang=\"en\"></html>", "HTML page"},
        {"<HTML><body>", "HTML page"},
        {"{\"weight_map\": {}}", "load_state_dict_file()"},
        {"\x93NUMPY\1\0v\0{'descr': "s, "load_npy()"},
        {"\x1f\x8b\b\0\0\0\0\0\0\3"s, "gunzip"},
        {"GGUF\3\0\0\0\1\0\0\0"s, "GGUF"},
        {"Entry not found", "Entry not found"},
        {std::string(100, '\0'), "zeros"},
    };
    for (const auto& [bytes, expected] : files) {
        CAPTURE(expected);
        CHECK_THROWS_WITH(io::SafeTensors(folder.write("model.safetensors", bytes)), Contains(expected));
        CHECK_THROWS_AS(io::SafeTensors(folder.file("model.safetensors")), Error);
    }
    // Readers of other formats recognise these files as well.
    const std::string pointer = folder.write("pointer", files[2].first),
                      page = folder.write("page", files[3].first);
    io::save_safetensors(folder.file("own"), {{"a", ones({2})}});
    CHECK_THROWS_WITH(io::load_npy(pointer), Contains("git lfs pull"));
    CHECK_THROWS_WITH(io::load_npz(page), Contains("HTML page"));
    CHECK_THROWS_WITH(io::load_npz(folder.write("pt", files[0].first)), Contains("load_npz"));
    CHECK_THROWS_WITH(io::load_npy(folder.file("own")), Contains("safetensors"));
    CHECK_THROWS_WITH(data::read_idx(pointer), Contains("git lfs pull"));
    CHECK_THROWS_WITH(data::read_csv(pointer), Contains("git lfs pull"));
    CHECK_THROWS_WITH(data::read_image(page), Contains("HTML page"));
    std::filesystem::copy_file(pointer, folder.file("model.safetensors.index.json"));
    CHECK_THROWS_WITH(io::load_state_dict_file(folder.file("model.safetensors.index.json")),
                      Contains("git lfs pull"));
    folder.write("empty.json", "{\"weight_map\": {}}");
    CHECK_THROWS_WITH(io::load_state_dict_file(folder.file("empty.json")), Contains("names no tensor"));
}

TEST_CASE("safetensors: integers that mezzo lacks become the next wider ones", "[io]") {
    const Folder folder;
    const auto loaded = [&](const std::string& dtype, const std::string& bytes) {
        const std::string header = "{\"a\":{\"dtype\":\"" + dtype + "\",\"shape\":[2],\"data_offsets\":[0," +
                                   std::to_string(bytes.size()) + "]}}";
        const std::string length{char(header.size()), 0, 0, 0, 0, 0, 0, 0};
        return io::SafeTensors(folder.write("file", length + header + bytes)).tensor("a");
    };
    using namespace std::string_literals;
    using Numbers = std::vector<std::int64_t>;
    const auto numbers = [](const Tensor& x) { return x.to(int64).to_vector<std::int64_t>(); };
    CHECK(numbers(loaded("I16", "\0\x80\xff\x7f"s)) == Numbers{-32768, 32767});
    CHECK(numbers(loaded("U16", "\0\x80\xff\xff"s)) == Numbers{32768, 65535});
    CHECK(loaded("U32", "\1\0\0\0\xff\xff\xff\xff"s).dtype() == int64);
    CHECK(numbers(loaded("U32", "\1\0\0\0\xff\xff\xff\xff"s)) == Numbers{1, 4294967295});
    CHECK(numbers(loaded("U64", "\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0"s)) == Numbers{1, 2});
    CHECK_THROWS_WITH(loaded("U64", std::string(16, '\xff')), Contains("does not fit int64"));
    CHECK_THROWS_WITH(loaded("F8_E4M3FNUZ", "ab"), Contains("F8_E4M3FNUZ"));
}

TEST_CASE("safetensors: int8 and float8 keep their codes", "[io]") {
    const Folder folder;
    StateDict state;
    for (const Dtype dtype : {int8, float8_e4m3fn, float8_e5m2, float8_e8m0fnu}) {
        const Tensor codes = empty({16, 16}, {.dtype = dtype});
        for (int i = 0; i < 256; ++i) codes->bytes()[i] = char(i);
        state.emplace_back(name(dtype), codes.t());
    }
    io::save_safetensors(folder.file("codes"), state);
    const io::SafeTensors file(folder.file("codes"));
    CHECK(file.names() == std::vector<std::string>{"float8_e8m0fnu", "float8_e4m3fn", "float8_e5m2", "int8"});
    CHECK(file.info("int8").dtype == "I8");
    CHECK(file.info("float8_e4m3fn").dtype == "F8_E4M3");
    CHECK(file.info("float8_e5m2").dtype == "F8_E5M2");
    CHECK(file.info("float8_e8m0fnu").dtype == "F8_E8M0");
    for (const auto& [name, codes] : state) {
        INFO(name);
        const Tensor read = file.tensor(name);
        CHECK(read.dtype() == codes.dtype());
        CHECK(read.shape() == Shape{16, 16});
        CHECK(std::memcmp(read->bytes(), codes.contiguous()->bytes(), 256) == 0);
    }
    // A layer's weight from codes in a file.
    nn::Linear layer(2, 1);
    layer.load_state_dict({{"weight", Tensor::from({1.5f, -448}, {1, 2}).to(float8_e4m3fn)},
                           {"bias", Tensor::from({-3}).to(int8)}});
    CHECK(layer.weight.to_vector<float>() == std::vector<float>{1.5f, -448});
    CHECK(layer.bias.item<float>() == -3);
}

TEST_CASE("safetensors: a private file stays private", "[io]") {
    const Folder folder;
    const std::string path = folder.write("file", "old");
    using std::filesystem::perms;
    std::filesystem::permissions(path, perms::owner_read | perms::owner_write);
    io::save_safetensors(path, every_dtype_state());
    CHECK(std::filesystem::status(path).permissions() == (perms::owner_read | perms::owner_write));
    CHECK(without_digests(folder.read("file")) == every_dtype);
}

TEST_CASE("safetensors: an open file goes on when another takes its name", "[io]") {
    const Folder folder;
    io::save_safetensors(folder.file("file"), {{"a", full({3}, 1)}});
    const io::SafeTensors old(folder.file("file"));
    io::save_safetensors(folder.file("file"), {{"a", full({3}, 2)}});
    CHECK(test::doubles(old.tensor("a")) == std::vector<double>{1, 1, 1});
    CHECK(test::doubles(io::SafeTensors(folder.file("file")).tensor("a")) == std::vector<double>{2, 2, 2});
    // Reading an open file that has been shortened is an error, not a crash.
    const io::SafeTensors open(folder.file("file"));
    std::filesystem::resize_file(folder.file("file"), std::filesystem::file_size(folder.file("file")) - 5);
    CHECK_THROWS_WITH(open.tensor("a"), Contains("something shortened it"));
}

TEST_CASE("safetensors: an object that was moved from throws", "[safetensors]") {
    const test::Folder folder;
    const std::string path = folder.path + "/a.safetensors";
    io::save_safetensors(path, {{"a", ones({2})}});
    io::SafeTensors from(path);
    const io::SafeTensors to = std::move(from);
    CHECK(to.names() == std::vector<std::string>{"a"});
    CHECK_THROWS_WITH(from.infos(), Catch::Contains("has been moved to another object"));
    CHECK_THROWS_WITH(from.contains("a"), Catch::Contains("has been moved to another object"));
    CHECK_THROWS_AS(from.state_dict(), Error);
    CHECK_THROWS_AS(from.metadata(), Error);
    CHECK_THROWS_AS(from.info("a"), Error);
    CHECK_THROWS_AS(from.tensor("a"), Error);
}
