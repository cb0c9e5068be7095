// Pickles that no torch.save() writes: broken, too large, or made to reach beyond what the file holds.
#include <catch2/catch.hpp>

#include "mezzo/interchange/pytorch.h"
#include "tests/support/folder.h"
#include "tests/support/support.h"
#include "tests/support/torch_files.h"

namespace {

using namespace mezzo;
using Catch::Matchers::Contains;
using test::bytes_of;
using test::Pickle;
using test::torch_archive;
using namespace std::string_literals;

io::PytorchValue loaded(const test::Folder& folder, const std::string& bytes) {
    return io::load_pytorch(folder.write("file.pt", bytes));
}
std::string error_of(const test::Folder& folder, const std::string& bytes) {
    try {
        (void)loaded(folder, bytes);
    } catch (const Error& error) {
        return error.what();
    }
    return "no error";
}

}  // namespace

TEST_CASE("pytorch files: hostile pickles", "[io]") {
    const test::Folder folder;
    const auto refused = [&](const std::string& pickle, const char* text) {
        CAPTURE(text);
        CHECK_THAT(error_of(folder, torch_archive(pickle, {})), Contains(text) && Contains("data.pkl"));
    };
    refused("", "needs 1 more bytes, 0 are there");
    refused("\x80\x06.", "protocol 6");
    refused("\x80\x02.", "more or less than one value");
    refused("\x80\x02NN.", "more or less than one value");
    refused("\x80\x02R.", "stack is empty");
    refused("\x80\x02N(0.", "stack is empty");
    refused("\x80\x02Nt.", "no mark");
    refused("\x80\x02h\x01.", "memo");
    refused(
        "\x80\x02X\xff\xff\xff\xff"
        "abc",
        "needs 4294967295 more bytes, 3 are there");
    refused(
        "\x80\x02\x8e\xff\xff\xff\xff\xff\xff\xff\xff"
        "abc",
        "more bytes, 3 are there");
    refused("\x80\x02\x8c\x01\xff.", "UTF-8");
    refused(
        "\x80\x02}K\x01"
        "a.",
        "no list or set");
    refused("\x80\x02](K\x01K\x02u.", "no dict");
    refused("\x80\x02}(K\x01u.", "key without a value");
    refused(
        "\x80\x02"
        "cno line feed",
        "has no end");
    refused("\x80\x02I1x\n.", "no integer");
    CHECK_THAT(error_of(folder, torch_archive("\x80\x02}(K\x01NK\x01Nu.", {})), Contains("the key 1 twice"));
    CHECK_THAT(error_of(folder, torch_archive("\x80\x02}(U\x01xNX\x01\0\0\0xNu."s, {})),
               Contains("the key \"x\" twice"));
    // A list in itself, and a list of ten times the list before, 30 times over.
    const io::PytorchValue ring = loaded(folder, torch_archive("\x80\x02]q\x01h\x01"
                                                               "a.",
                                                               {}));
    CHECK_THROWS_WITH(ring.state_dict(), Contains("64 levels"));
    CHECK_THAT(ring.to_string(), Contains("deeper"));
    for (const std::size_t levels : {64, 65}) {
        Pickle deep;
        deep.op(std::string(levels, ']'))
            .tensor("torch.FloatStorage", "0", 1, 0, {}, {})
            .op(std::string(levels, 'a'));
        const io::PytorchValue file =
            loaded(folder, torch_archive(deep.str(), {{"0", bytes_of<float>({1})}}));
        if (levels == 64)
            CHECK(file.state_dict().size() == 1);
        else
            CHECK_THROWS_WITH(file.state_dict(), Contains("64 levels"));
    }
    std::string laughs = "]q\x01";
    for (int i = 1; i < 30; ++i) {
        laughs += "](";
        for (int j = 0; j < 10; ++j) laughs += "h"s + char(i);
        laughs += "eq"s + char(i + 1);
    }
    const io::PytorchValue many = loaded(folder, torch_archive("\x80\x02(" + laughs + "l.", {}));
    CHECK_THROWS_WITH(many.state_dict(), Contains("2000000 tensors, lists and dicts"));
    CHECK(many.to_string().size() < 100000);
    // One byte each: NONE, MARK and MEMOIZE.
    const std::string limit = "more than 20 million values";
    refused("\x80\x02" + std::string(20000000, 'N') + ".", limit.c_str());
    refused("\x80\x02" + std::string(20000000, '(') + ".", limit.c_str());
    refused("\x80\x04" + std::string(19999000, '(') + "N" + std::string(1000, '\x94') + ".", limit.c_str());
    CHECK_NOTHROW(loaded(
        folder, torch_archive("\x80\x02" + std::string(100000, ']') + std::string(99999, 'a') + ".", {})));
}

TEST_CASE("pytorch files: sizes and strides that change after the call", "[io]") {
    const test::Folder folder;
    const test::Members storages = {{"0", bytes_of<float>({1, 2, 3, 4})}};
    // {"w": a tensor}, whose sizes and strides are in the memo as 1 and 2.
    const auto with_tensor = [](const Pickle& sizes, const Pickle& strides) {
        return Pickle()
            .op("}")
            .text("w")
            .global("torch._utils", "_rebuild_tensor_v2")
            .op("(")
            .storage("torch.FloatStorage", "0", 4)
            .integer(0)
            .op(sizes.ops())
            .op("q\x01")
            .op(strides.ops())
            .op("q\x02\x89}tRs");
    };
    const Pickle lists =
        with_tensor(Pickle().op("]").integer(4).op("a"), Pickle().op("]").integer(1).op("a"));
    const Pickle tuples = with_tensor(Pickle().integer(4).op("\x85"), Pickle().integer(1).op("\x85"));
    const auto append = [](const char* memo, std::int64_t value) {
        return Pickle().op("h").op(memo).integer(value).op("a0").ops();
    };
    const auto extend_set = [](const char* memo, std::int64_t value) {
        return Pickle()
            .global("builtins", "set")
            .op("(h")
            .op(memo)
            .op("tR(")
            .integer(value)
            .op("\x90")
            .op("0")
            .ops();
    };
    const auto text_of = [](Pickle pickle, const std::string& more) { return pickle.op(more).str(); };
    for (const std::string& pickle :
         {text_of(lists, append("\x01", 1000) + append("\x02", 1000)), text_of(lists, append("\x01", 1000)),
          text_of(lists, append("\x01", 1) + append("\x02", 1) + append("\x02", 1)),
          text_of(lists, Pickle().op("h\x01").text("x").op("a0h\x02").text("y").op("a0").ops()),
          text_of(tuples, extend_set("\x01", 1000) + extend_set("\x02", 1000))}) {
        CHECK_THAT(error_of(folder, torch_archive(pickle, storages)),
                   Contains("do not fit its storage") && Contains("data.pkl"));
    }
    std::string deep;
    for (int d = 0; d < 12; ++d) deep += append("\x01", 1) + append("\x02", 1);
    const io::PytorchValue file = loaded(folder, torch_archive(text_of(lists, deep), storages));
    CHECK_THROWS_WITH(file["w"].tensor(), Contains("more than 8 dimensions"));
    CHECK(loaded(folder, torch_archive(text_of(lists, append("\x01", 1) + append("\x02", 1)), storages))["w"]
              .tensor()
              .shape() == Shape{4, 1});
    CHECK(test::doubles(loaded(folder, torch_archive(tuples.str(), storages))["w"].tensor()) ==
          std::vector<double>{1, 2, 3, 4});
}
