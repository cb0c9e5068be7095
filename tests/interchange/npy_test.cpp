// .npy and .npz files: written and read, damaged, foreign dtypes and orders. tests/interop/numpy_test.py
// compares with NumPy.
#include <catch2/catch.hpp>
#include <fstream>

#include "mezzo/interchange/numpy.h"
#include "mezzo/ops.h"
#include "tests/support/folder.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;
using Catch::Matchers::Contains;
using test::Folder;
using test::read_file;

void write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}
// A .npy file with this header and these elements.
std::string npy(const std::string& header, const std::string& elements, int major = 1) {
    std::string text = "\x93NUMPY" + std::string(1, char(major)) + std::string(1, '\0');
    const int length_bytes = major == 1 ? 2 : 4;
    for (int i = 0; i < length_bytes; ++i) text += char(header.size() >> 8 * i & 0xff);
    return text + header + elements;
}
Tensor loaded(const Folder& folder, const std::string& file) {
    write(folder.file("x.npy"), file);
    return io::load_npy(folder.file("x.npy"));
}

}  // namespace

TEST_CASE("npy: what is saved is loaded, in every dtype and shape", "[io]") {
    const Folder folder;
    const std::string path = folder.file("x.npy");
    for (const Device device : test::devices())
        for (const Dtype dtype : all_dtypes)
            for (const Shape& shape : {Shape{}, Shape{3}, Shape{2, 3}, Shape{0, 4}, Shape{2, 1, 3, 2}}) {
                const std::vector<double> values =
                    test::random_values(count_elements(shape), 3, test::Domain::any);
                const Tensor x = test::tensor_of(values, shape, float32).to(dtype).to(device);
                io::save_npy(path, x);
                const Tensor y = io::load_npy(path);
                const bool lacking = dtype == bfloat16 || (is_storage_only(dtype) && dtype != int8);
                CHECK(y.dtype() == (lacking ? float32 : dtype));
                CHECK(y.shape() == shape);
                CHECK(test::doubles(y) == test::doubles(x));
            }
    const Tensor x = Tensor::from({1, 2, 3, 4, 5, 6}, {2, 3});
    io::save_npy(path, x.t().set_requires_grad(false));
    CHECK(io::load_npy(path).to_vector<float>() == std::vector<float>{1, 4, 2, 5, 3, 6});
    CHECK_THROWS_WITH(io::save_npy(path, {}), Contains("undefined"));
    CHECK_THROWS_AS(io::save_npy(folder.file("missing/x.npy"), x), Error);
    CHECK_THROWS_AS(io::load_npy(folder.file("missing.npy")), Error);
}

TEST_CASE("npy: the bytes are NumPy's", "[io]") {
    const Folder folder;
    io::save_npy(folder.file("x.npy"), Tensor::from({1, 2, 3, 4, 5, 6}, {2, 3}));
    const std::string text = read_file(folder.file("x.npy"));
    CHECK(text.size() == 128 + 24);
    CHECK(text.substr(0, 10) == std::string("\x93NUMPY\x01\x00\x76\x00", 10));
    CHECK(text.substr(10, 60) == "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } ");
    CHECK(text[127] == '\n');
    io::save_npy(folder.file("x.npy"), ones({3}));
    CHECK_THAT(read_file(folder.file("x.npy")), Contains("'shape': (3,), }"));
    io::save_npy(folder.file("x.npy"), scalar(1));
    CHECK_THAT(read_file(folder.file("x.npy")), Contains("'shape': (), }"));
}

TEST_CASE("npy: other orders, byte orders, versions and dtypes", "[io]") {
    const Folder folder;
    const auto values = [&](const std::string& file) { return test::doubles(loaded(folder, file)); };
    using Values = std::vector<double>;
    const std::string shorts("\x01\x00\xff\xff\x03\x00\x04\x00\x05\x00\x06\x00", 12);
    CHECK(values(npy("{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }", shorts)) ==
          Values{1, -1, 3, 4, 5, 6});
    CHECK(values(npy("{'descr': '<i2', 'fortran_order': True, 'shape': (2, 3)}", shorts)) ==
          Values{1, 3, 5, -1, 4, 6});
    CHECK(values(npy("{'shape':(6,),'fortran_order':False,\"descr\":'>u2'}\n", shorts, 2)) ==
          Values{256, 65535, 768, 1024, 1280, 1536});
    CHECK(
        loaded(folder, npy("{'descr': '<u2', 'fortran_order': False, 'shape': (6,), }", shorts, 3)).dtype() ==
        int32);
    const std::string small = npy("{'descr': '|i1', 'fortran_order': False, 'shape': (2,), }", "\xff\x7f");
    CHECK(loaded(folder, small).dtype() == int8);
    CHECK(values(small) == Values{-1, 127});
    CHECK(values(npy("{'descr': '|b1', 'fortran_order': False, 'shape': (3,), }",
                     std::string("\x00\x01\x07", 3))) == Values{0, 1, 1});
    CHECK(values(npy("{'descr': '<u4', 'fortran_order': False, 'shape': (1,), }", "\xff\xff\xff\xff")) ==
          Values{4294967295.0});
    CHECK(values(npy("{'descr': '>f4', 'fortran_order': False, 'shape': (), }",
                     std::string("\x40\x00\x00\x00", 4))) == Values{2});
    CHECK(values(npy("{'descr': '<u8', 'fortran_order': False, 'shape': (1,), }",
                     std::string("\x05\x00\x00\x00\x00\x00\x00\x00", 8))) == Values{5});
    CHECK_THROWS_WITH(
        values(npy("{'descr': '<u8', 'fortran_order': False, 'shape': (1,), }", std::string(8, '\xff'))),
        Contains("int64"));
}

TEST_CASE("npy: headers of Python 2, and every name of an element type", "[io]") {
    const Folder folder;
    const auto values = [&](const std::string& file) { return test::doubles(loaded(folder, file)); };
    using Values = std::vector<double>;
    const std::string one(std::string(6, '\0') + "\xf0\x3f");  // 1 in float64
    CHECK(values(npy("{'descr': '<i2', 'fortran_order': False, 'shape': (3L,), }", "\1\2\3\4\5\6")) ==
          Values{0x201, 0x403, 0x605});
    CHECK(values(npy("{'descr': '|i1', 'fortran_order': False, 'shape': (1L, 2L), }", "\1\2")) ==
          Values{1, 2});
    CHECK(values(npy("{u'descr': u'f8', u'fortran_order': False, u'shape': (1L,), }", one)) == Values{1});
    for (const char* const descr : {"f8", "=f8", "<d", "d", "float64"}) {
        CAPTURE(descr);
        CHECK(values(npy(std::string("{'descr': '") + descr + "', 'fortran_order': False, 'shape': (1,), }",
                         one)) == Values{1});
    }
    for (const char* const descr : {"?", "|?", "b1", "bool"}) {
        CAPTURE(descr);
        const Tensor x = loaded(
            folder,
            npy(std::string("{'descr': '") + descr + "', 'fortran_order': False, 'shape': (2,), }", "\1\2"));
        CHECK(x.dtype() == boolean);
        CHECK(test::doubles(x) == Values{1, 1});
    }
    CHECK_THROWS_WITH(values(npy("{'descr': '<f16', 'fortran_order': False, 'shape': (1,), }", one)),
                      Contains("<f16"));
}

TEST_CASE("npy: the message about a damaged header is valid UTF-8", "[io]") {
    const Folder folder;
    CHECK_THROWS_WITH(
        loaded(folder, npy("{'desc\xa9': '<f4', 'fortran_order': False, 'shape': (), }", "1234")),
        Contains("the key \"desc?\""));
    CHECK_THROWS_WITH(
        loaded(folder, npy("{'desc\xc3\xa9': '<f4', 'fortran_order': False, 'shape': (), }", "1234")),
        Contains("the key \"desc\xc3\xa9\""));
}

TEST_CASE("npz: a member that cannot be read is no obstacle for the others", "[io]") {
    const Folder folder;
    const std::string path = folder.file("x.npz");
    io::save_npz(path, {{"a", ones({2})}, {"texts", ones({1}, {.dtype = int32})}, {"b", zeros({3})}});
    std::string bytes = read_file(path);
    const std::size_t at = bytes.find("'<i4'");
    REQUIRE(at != std::string::npos);
    bytes.replace(at, 5, "'<U1'");
    write(path, bytes);
    CHECK_THROWS_WITH(io::load_npz(path), Contains("<U1"));
    const io::NpzFile file(path);
    CHECK(file.names() == std::vector<std::string>{"a", "texts", "b"});
    CHECK(file.contains("b"));
    CHECK_FALSE(file.contains("c"));
    CHECK(test::doubles(file.tensor("b")) == std::vector<double>{0, 0, 0});
    CHECK(test::doubles(file.tensor("a")) == std::vector<double>{1, 1});
    CHECK_THROWS_WITH(file.tensor("texts"), Contains("<U1"));
    CHECK_THROWS_WITH(file.tensor("c"), Contains("no array \"c\" among 3"));
}

TEST_CASE("npz: members that overlap, or whose two names differ, are refused", "[io]") {
    const Folder folder;
    const std::string path = folder.file("x.npz");
    io::save_npz(path, {{"a", ones({4})}, {"b", zeros({4})}});
    const std::string good = read_file(path);
    const std::size_t first = good.find("PK\1\2"), second = good.find("PK\1\2", first + 1);
    REQUIRE(second != std::string::npos);
    // The second entry of the directory points at the first member: its header is the last field.
    const std::size_t entry_bytes = second - first;
    std::string bad = good;
    bad.replace(second + entry_bytes - 8, 8, good.substr(first + entry_bytes - 8, 8));
    write(path, bad);
    CHECK_THROWS_AS(io::load_npz(path), Error);
    CHECK_THROWS_WITH(io::NpzFile(path).tensor("b"), Contains("its local header has the name \"a.npy\""));
    bad = good;
    bad[bad.find("b.npy")] = 'c';
    write(path, bad);
    CHECK_THROWS_WITH(io::load_npz(path), Contains("its local header has the name \"c.npy\""));
    // One member, listed twice under its own name.
    io::save_npz(path, {{"a", ones({4})}, {"a2", ones({4})}});
    bad = read_file(path);
    const std::size_t directory = bad.find("PK\1\2"), next = bad.find("PK\1\2", directory + 1);
    // The first member claims the second's bytes as well: packed and unpacked size reach beyond its end.
    bad[directory + 46 + 5 + 4 + 8] = char(bad[directory + 46 + 5 + 4 + 8] + 64);
    CHECK(next > directory);
    write(path, bad);
    CHECK_THROWS_WITH(io::NpzFile(path).tensor("a"), Contains("overlap"));
}

TEST_CASE("npy: damaged and hostile files are refused", "[io]") {
    const Folder folder;
    const std::string four(16, 'x');
    const auto refused = [&](const std::string& file, const char* text) {
        INFO(text);
        CHECK_THROWS_WITH(loaded(folder, file), Contains(text));
    };
    const std::string good = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }", four);
    CHECK_NOTHROW(loaded(folder, good));
    for (std::size_t n = 0; n < good.size(); ++n) {
        INFO(n);
        CHECK_THROWS_AS(loaded(folder, good.substr(0, n)), Error);
    }
    refused("NUMPY" + good, "does not begin");
    refused(npy("{}", ""), "dict of descr");
    refused(npy("{'descr': '|O', 'fortran_order': False, 'shape': (4,), }", four), "|O");
    refused(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4,), }", four), "structured");
    refused(npy("{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }", four), "<c8");
    refused(npy("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (4,), }", four), "descr");
    refused(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4,), 'x': 1}", four), "key");
    refused(npy("{'descr': '<f4', 'fortran_order': 0, 'shape': (4,), }", four), "True");
    refused(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-4,), }", four), "no number");
    refused(npy("{'descr': '<f4', 'fortran_order': False, 'shape': 4, }", four), "header");
    refused(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", four),
            "63 bits");
    refused(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }", four),
            "load_npy");
    refused(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }", four), "promises");
    refused(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,4), }", four),
            "dimensions");
    refused(npy(std::string(20000, ' '), four), "20000");
    refused(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }x", four), "dict");
}

TEST_CASE("npz: what is saved is loaded, stored and deflated", "[io]") {
    const Folder folder;
    const std::string path = folder.file("x.npz");
    const StateDict state{{"a.weight", Tensor::from({1, 2, 3, 4}, {2, 2})},
                          {"ids", arange(100000)},
                          {"../x", zeros({0})},
                          {"\xc3\xbc", ones({2}, {.dtype = boolean})}};
    for (const bool compressed : {false, true}) {
        io::save_npz(path, state, {.compressed = compressed});
        const StateDict back = io::load_npz(path);
        REQUIRE(back.size() == state.size());
        for (std::size_t i = 0; i < state.size(); ++i) {
            CHECK(back[i].first == state[i].first);
            CHECK(back[i].second.dtype() == state[i].second.dtype());
            CHECK(test::doubles(back[i].second) == test::doubles(state[i].second));
        }
        CHECK((read_file(path).size() < 300000) == compressed);
    }
    io::save_npz(path, {});
    CHECK(io::load_npz(path).empty());
    CHECK_THROWS_WITH(io::save_npz(path, {{"", ones({1})}}), Contains("empty"));
    CHECK_THROWS_WITH(io::save_npz(path, {{"a", ones({1})}, {"a", ones({1})}}), Contains("twice"));
    CHECK_THROWS_WITH(io::save_npz(path, {{"\xff", ones({1})}}), Contains("UTF-8"));
    CHECK_THROWS_WITH(io::save_npz(path, {{"a", {}}}), Contains("undefined"));
    CHECK(io::load_npz(path).empty());
}

TEST_CASE("npz: every damaged byte is seen or harmless", "[io]") {
    const Folder folder;
    const std::string path = folder.file("x.npz");
    for (const bool compressed : {false, true}) {
        io::save_npz(path, {{"w", Tensor::from({1, 2, 3, 4}, {2, 2})}}, {.compressed = compressed});
        const std::string good = read_file(path);
        int refused = 0;
        for (std::size_t i = 0; i < good.size(); ++i) {
            std::string bad = good;
            bad[i] = char(bad[i] ^ 0x55);
            write(path, bad);
            try {
                const StateDict state = io::load_npz(path);
                // Times, versions, flags and the like changed: the elements are intact.
                REQUIRE(state.size() <= 1);
                if (!state.empty()) CHECK(test::doubles(state[0].second) == std::vector<double>{1, 2, 3, 4});
            } catch (const Error&) {
                ++refused;
            }
        }
        CHECK(refused > int(good.size()) / 3);
        for (std::size_t n = 0; n < good.size(); ++n) {
            write(path, good.substr(0, n));
            CHECK_THROWS_AS(io::load_npz(path), Error);
        }
    }
}
