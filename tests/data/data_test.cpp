// IDX files, Fashion-MNIST, and the loader.
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "mezzo/data/loader.h"
#include "mezzo/io.h"
#include "mezzo/models/bert_config.h"
#include "mezzo/ops.h"
#include "mezzo/text/tokenizer.h"

using namespace mezzo;
using Catch::Matchers::Contains;

namespace {

const std::string installed = "/usr/share/datasets/fashion-mnist";

// A temporary folder that is removed at the end.
struct Folder {
    Folder() {
        const auto stem = std::filesystem::temp_directory_path() / "mezzo-data-XXXXXX";
        path = stem.string();
        if (!mkdtemp(path.data())) FAIL("no temporary folder");
    }
    ~Folder() { std::filesystem::remove_all(path); }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    std::string write(const std::string& name, const std::string& bytes, bool pack = false) const {
        const std::string file = path + "/" + name;
        if (pack) {
            const gzFile out = gzopen(file.c_str(), "wb");
            gzwrite(out, bytes.data(), unsigned(bytes.size()));
            gzclose(out);
        } else {
            std::ofstream(file, std::ios::binary) << bytes;
        }
        return file;
    }
    std::string path;
};

std::string idx(int type, const std::vector<int>& sizes, const std::string& elements) {
    std::string bytes{'\0', '\0', char(type), char(sizes.size())};
    for (const int size : sizes)
        for (const int shift : {24, 16, 8, 0}) bytes += char(size >> shift & 255);
    return bytes + elements;
}

std::vector<std::int64_t> integers(const Tensor& x) { return x.to_vector<std::int64_t>(); }

data::Dataset numbered(std::int64_t n) { return {arange(n).to(float32).reshape({n, 1}), arange(n)}; }

std::vector<std::int64_t> order(data::DataLoader& loader) {
    std::vector<std::int64_t> result;
    for (const auto& [x, y] : loader) {
        const std::vector<std::int64_t> labels = integers(y);
        const std::vector<float> values = x.to_vector<float>();
        for (std::size_t i = 0; i < labels.size(); ++i) CHECK(values[i] == float(labels[i]));
        result.insert(result.end(), labels.begin(), labels.end());
    }
    return result;
}

}  // namespace

TEST_CASE("idx: types, shapes, plain and packed", "[data]") {
    const Folder folder;
    for (const bool pack : {false, true}) {
        const Tensor bytes =
            data::read_idx(folder.write("u8", idx(8, {2, 3}, "\x01\x02\x03\xff\x05\x06"), pack));
        CHECK(bytes.dtype() == uint8);
        CHECK(bytes.shape() == Shape{2, 3});
        CHECK(integers(bytes) == std::vector<std::int64_t>{1, 2, 3, 255, 5, 6});
    }
    const Tensor whole =
        data::read_idx(folder.write("i32", idx(12, {2}, std::string("\x00\x00\x01\x02\xff\xff\xff\xfe", 8))));
    CHECK(whole.dtype() == int32);
    CHECK(integers(whole) == std::vector<std::int64_t>{258, -2});
    const Tensor real = data::read_idx(folder.write("f32", idx(13, {1}, std::string("\x3f\xc0\x00\x00", 4))));
    CHECK(real.item<float>() == 1.5f);
    const Tensor wide =
        data::read_idx(folder.write("f64", idx(14, {1}, std::string("\x3f\xf8\0\0\0\0\0\0", 8))));
    CHECK(wide.dtype() == float64);
    CHECK(wide.item<double>() == 1.5);
    CHECK(data::read_idx(folder.write("none", idx(8, {0, 28}, ""))).shape() == Shape{0, 28});
    for (const bool pack : {false, true}) {
        const Tensor bytes = data::read_idx(folder.write("i8", idx(9, {3}, "\x80\x7f\xff"), pack));
        CHECK(bytes.dtype() == int32);
        CHECK(bytes.to_vector<std::int32_t>() == std::vector<std::int32_t>{-128, 127, -1});
        const Tensor shorts =
            data::read_idx(folder.write("i16", idx(11, {1, 3}, "\x80\x01\x7f\xff\xff\xfe"), pack));
        CHECK(shorts.shape() == Shape{1, 3});
        CHECK(shorts.to_vector<std::int32_t>() == std::vector<std::int32_t>{-32767, 32767, -2});
    }
}

TEST_CASE("idx: a header that claims more than the file has costs no memory", "[data]") {
    const Folder folder;
    const std::uint64_t before = memory_stats(cpu_device).allocations;
    CHECK_THROWS_WITH(data::read_idx(folder.write("all", idx(8, {0x7fffffff, 0x7fffffff, 0x7fffffff}, ""))),
                      Contains("claims shape [2147483647, 2147483647, 2147483647]"));
    // The machine could allocate these sizes.
    for (const bool pack : {false, true}) {
        CAPTURE(pack);
        CHECK_THROWS_WITH(data::read_idx(folder.write("much", idx(8, {1 << 30}, "ab"), pack)),
                          Contains("truncated: its elements have 1073741824 bytes, the whole file has "));
        CHECK_THROWS_WITH(data::read_idx(folder.write("wide", idx(14, {1 << 20, 100}, "ab"), pack)),
                          Contains("truncated: its elements have 838860800 bytes"));
    }
    CHECK(memory_stats(cpu_device).allocations == before);
    const Tensor zeros =
        data::read_idx(folder.write("zeros", idx(8, {1 << 20}, std::string(1 << 20, 'z')), true));
    CHECK(zeros.numel() == 1 << 20);  // as well compressed as deflate can
    CHECK(memory_stats(cpu_device).allocations == before + 1);
}

TEST_CASE("named pipes are refused at once", "[data]") {
    const Folder folder;
    const std::string pipe = folder.path + "/pipe";
    REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
    alarm(20);  // instead of waiting for a writer for ever
    CHECK_THROWS_WITH(data::read_idx(pipe),
                      Contains("read_idx: ") && Contains("pipe: is no regular file but a named pipe"));
    CHECK_THROWS_WITH(data::WordPiece(pipe),
                      Contains("WordPiece: ") && Contains("pipe: is no regular file but a named pipe"));
    CHECK_THROWS_WITH(io::SafeTensors(pipe), Contains("pipe: is no regular file but a named pipe"));
    CHECK_THROWS_WITH(io::load_bert_config(pipe), Contains("pipe: is no regular file but a named pipe"));
    REQUIRE(mkfifo((folder.path + "/train-images-idx3-ubyte.gz").c_str(), 0600) == 0);
    CHECK_THROWS_WITH(data::fashion_mnist({.directory = folder.path}),
                      Contains("is no regular file but a named pipe"));
    alarm(0);
}

TEST_CASE("idx: damaged files say what is wrong", "[data]") {
    const Folder folder;
    const auto reading = [&](const std::string& bytes, bool pack = false) {
        return [&folder, bytes, pack] { data::read_idx(folder.write("file", bytes, pack)); };
    };
    CHECK_THROWS_WITH(data::read_idx(folder.path + "/absent"),
                      Contains("cannot open") && Contains("No such file"));
    CHECK_THROWS_WITH(reading("")(), Contains("truncated: its magic bytes have 4 bytes, it ends after 0"));
    CHECK_THROWS_WITH(reading("\x89PNG\r\n")(), Contains("no IDX file"));
    CHECK_THROWS_WITH(reading(idx(10, {1}, "a"))(), Contains("elements of type 10"));
    CHECK_THROWS_WITH(reading(idx(8, {}, ""))(), Contains("0 dimensions"));
    CHECK_THROWS_WITH(reading(idx(8, {1, 1, 1, 1, 1, 1, 1, 1, 1}, "a"))(), Contains("9 dimensions"));
    CHECK_THROWS_WITH(reading(idx(8, {2, 3}, "12345"))(),
                      Contains("its elements have 6 bytes, it ends after 5"));
    CHECK_THROWS_WITH(reading(idx(8, {2}, "123"))(), Contains("goes on after its elements"));
    CHECK_THROWS_WITH(reading(idx(8, {2}, "1"), true)(), Contains("truncated"));

    const std::string packed =
        folder.write("packed", idx(8, {2000}, std::string(1000, 'x') + std::string(1000, 'y')), true);
    std::string content;
    {
        std::ifstream in(packed, std::ios::binary);
        content.assign(std::istreambuf_iterator<char>(in), {});
    }
    CHECK_THROWS_AS(data::read_idx(folder.write("cut", content.substr(0, content.size() - 9))), Error);
    content[content.size() - 6] = char(content[content.size() - 6] ^ 1);  // of the checksum
    CHECK_THROWS_WITH(data::read_idx(folder.write("sum", content)), Contains("damaged"));
}

TEST_CASE("fashion-mnist: images and labels belong together", "[data]") {
    const Folder folder;
    folder.write("t10k-images-idx3-ubyte", idx(8, {2, 2, 2}, "abcdefgh"));
    folder.write("t10k-labels-idx1-ubyte", idx(8, {2}, std::string("\x03\x09", 2)));
    const data::Dataset test = data::fashion_mnist({.train = false, .directory = folder.path});
    CHECK(test.size() == 2);
    CHECK(integers(test.y) == std::vector<std::int64_t>{3, 9});
    CHECK(test.y.dtype() == int64);
    CHECK_THROWS_WITH(data::fashion_mnist({.directory = folder.path}), Contains("train-images-idx3-ubyte"));
    folder.write("t10k-labels-idx1-ubyte", idx(8, {3}, "abc"));
    CHECK_THROWS_WITH(data::fashion_mnist({.train = false, .directory = folder.path}),
                      Contains("labels of shape"));
}

TEST_CASE("fashion-mnist: files that are missing or empty", "[data]") {
    const Folder folder;
    CHECK_THROWS_WITH(data::fashion_mnist({.train = false, .directory = folder.path}),
                      Contains(folder.path + " holds neither t10k-images-idx3-ubyte.gz nor") &&
                          Contains("the package dataset-fashion-mnist has the files"));
    folder.write("t10k-images-idx3-ubyte", idx(8, {0, 2, 2}, ""));
    folder.write("t10k-labels-idx1-ubyte", idx(8, {0}, ""));
    CHECK_THROWS_WITH(data::fashion_mnist({.train = false, .directory = folder.path}),
                      Contains("t10k-images-idx3-ubyte holds no images"));
}

TEST_CASE("loader: what does not belong together is refused with its shapes", "[data]") {
    CHECK_THROWS_WITH(data::DataLoader({zeros({5, 2}), arange(4)}, {}),
                      Contains("DataLoader: x [5, 2] and y [4] differ in their first sizes"));
    CHECK_THROWS_WITH(data::DataLoader({zeros({}), arange(4)}, {}), Contains("x [] and y [4]"));
    CHECK_THROWS_WITH(data::DataLoader({zeros({5, 2}), Tensor()}, {}),
                      Contains("DataLoader: y is undefined"));
}

TEST_CASE("fashion-mnist: the installed test images", "[data]") {
    if (!std::filesystem::exists(installed + "/t10k-images-idx3-ubyte.gz")) {
        WARN("the package dataset-fashion-mnist is not installed");
        return;
    }
    const data::Dataset test = data::fashion_mnist({.train = false});
    CHECK(test.x.shape() == Shape{10000, 28, 28});
    std::vector<int> counts(10);
    for (const std::int64_t label : integers(test.y)) ++counts.at(std::size_t(label));
    CHECK(counts == std::vector<int>(10, 1000));
}

TEST_CASE("loader: batches in order, the last one smaller", "[data]") {
    data::DataLoader loader(numbered(7), {.batch_size = 3});
    CHECK(loader.size() == 3);
    std::vector<std::int64_t> sizes;
    for (const auto& [x, y] : loader) sizes.push_back(x.size(0));
    CHECK(sizes == std::vector<std::int64_t>{3, 3, 1});
    CHECK(order(loader) == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6});
    data::DataLoader dropping(numbered(7), {.batch_size = 3, .drop_last = true});
    CHECK(dropping.size() == 2);
    CHECK(order(dropping).size() == 6);
    data::DataLoader none(numbered(0), {.batch_size = 3});
    CHECK(order(none).empty());
}

TEST_CASE("loader: shuffling is a permutation fixed by seed and epoch", "[data]") {
    data::DataLoader a(numbered(100), {.batch_size = 7, .shuffle = true, .seed = 5});
    data::DataLoader b(numbered(100), {.batch_size = 9, .shuffle = true, .seed = 5});
    data::DataLoader c(numbered(100), {.batch_size = 7, .shuffle = true, .seed = 6});
    const auto first = order(a), second = order(a);
    CHECK(std::set<std::int64_t>(first.begin(), first.end()).size() == 100);
    CHECK(first != second);
    CHECK(order(b) == first);
    CHECK(order(c) != first);
    CHECK(a.epoch() == 2);
    a.set_epoch(1);
    CHECK(order(a) == second);
    manual_seed(1);
    const RandomState before = random_state();
    order(a);
    CHECK(random_state().offset == before.offset);
}

TEST_CASE("loader: every place is equally likely", "[data]") {
    // 5 elements, 2,000 epochs: element 0 is expected 400 times at each index, with a standard deviation of
    // 18.
    data::DataLoader loader(numbered(5), {.batch_size = 5, .shuffle = true});
    std::vector<int> counts(5);
    for (int epoch = 0; epoch < 2000; ++epoch)
        for (const auto& [x, y] : loader) {
            const std::vector<std::int64_t> labels = integers(y);
            ++counts[std::size_t(std::find(labels.begin(), labels.end(), 0) - labels.begin())];
        }
    for (const int count : counts) CHECK(std::abs(count - 400) < 90);
}

TEST_CASE("loader: normalisation", "[data]") {
    const std::vector<std::uint8_t> pixels{0, 255, 51, 102};
    data::DataLoader images({Tensor::from(pixels, {2, 2}), arange(2)},
                            {.batch_size = 2, .mean = 0.5, .stddev = 0.25});
    for (const auto& [x, y] : images) {
        CHECK(x.dtype() == float32);
        CHECK(x.shape() == Shape{2, 2});
        const std::vector<float> v = x.to_vector<float>();
        CHECK(v[0] == -2);
        CHECK(v[1] == 2);
        CHECK(v[2] == Approx(-1.2));
        CHECK(v[3] == Approx(-0.4));
    }
    const Tensor samples = Tensor::from({1, 3}, {2, 1});
    data::DataLoader real({samples, arange(2)}, {.batch_size = 2, .mean = 1, .stddev = 2});
    for (const auto& [x, y] : real) CHECK(x.to_vector<float>() == std::vector<float>{0, 1});
    CHECK(samples.to_vector<float>() == std::vector<float>{1, 3});
}

TEST_CASE("loader: options are validated", "[data]") {
    CHECK_THROWS_AS(data::DataLoader({arange(3), arange(2)}), Error);
    CHECK_THROWS_AS(data::DataLoader(data::Dataset{}), Error);
    CHECK_THROWS_WITH(data::DataLoader(numbered(3), {.batch_size = 0}), Contains("batch_size is 0"));
    CHECK_THROWS_WITH(data::DataLoader(numbered(3), {.stddev = 0}), Contains("stddev 0"));
    const data::Dataset codes{ones({3, 2}).to(int8), arange(3)};
    CHECK_THROWS_WITH(data::DataLoader(codes, {.mean = 0.5}), Contains("x is int8"));
    for (const data::Batch& batch : data::DataLoader(codes, {.batch_size = 3}))
        CHECK(batch.x.dtype() == int8);
}
