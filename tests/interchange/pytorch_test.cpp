// Files of torch.save(), put together here byte by byte: what is read, and what is refused.
// tests/interop/pytorch_test.py reads what PyTorch writes.
#include <catch2/catch.hpp>

#include "mezzo/interchange/numpy.h"
#include "mezzo/interchange/pytorch.h"
#include "mezzo/io.h"
#include "mezzo/nn.h"
#include "mezzo/ops.h"
#include "tests/support/folder.h"
#include "tests/support/support.h"
#include "tests/support/torch_files.h"

namespace {

using namespace mezzo;
using Catch::Matchers::Contains;
using io::PytorchKind;
using test::bytes_of;
using test::Pickle;
using test::torch_archive;
using test::torch_plain_file;
using Values = std::vector<double>;
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

// {"weight": [[1, 2], [3, 4]], "bias": [5, 6]} as an OrderedDict with _metadata.
Pickle linear_pickle() {
    return Pickle()
        .global("collections", "OrderedDict")
        .op(")R(")
        .text("weight")
        .tensor("torch.FloatStorage", "0", 4, 0, {2, 2}, {2, 1})
        .text("bias")
        .tensor("torch.FloatStorage", "1", 2, 0, {2}, {1})
        .op("u}")
        .text("_metadata")
        .op("}sb");
}
const test::Members linear_storages = {{"0", bytes_of<float>({1, 2, 3, 4})}, {"1", bytes_of<float>({5, 6})}};

}  // namespace

TEST_CASE("pytorch files: a state_dict() in an archive and in a plain file", "[io]") {
    const test::Folder folder;
    for (const std::string& bytes :
         {torch_archive(linear_pickle().str(), linear_storages),
          torch_archive(linear_pickle().str(), linear_storages, false),
          torch_plain_file(linear_pickle().str(),
                           {{"1", linear_storages[1].second, 2}, {"0", linear_storages[0].second, 4}})}) {
        const io::PytorchValue file = loaded(folder, bytes);
        CHECK(file.kind() == PytorchKind::dict);
        CHECK(file.names() == std::vector<std::string>{"weight", "bias"});
        nn::Linear net(2, 2);
        net.load_state_dict(file.state_dict());
        CHECK(test::doubles(net.weight) == Values{1, 2, 3, 4});
        CHECK(test::doubles(net.bias) == Values{5, 6});
        CHECK(test::doubles(file["bias"].tensor()) == Values{5, 6});
        CHECK_FALSE(file["bias"].tensor().requires_grad());
    }
}

TEST_CASE("pytorch files: a checkpoint with values of all kinds", "[io]") {
    const test::Folder folder;
    Pickle pickle;
    pickle.op("}(").text("model").op("}").text("w").tensor("torch.FloatStorage", "0", 2, 0, {2}, {1}).op("s");
    pickle.text("optimizer")
        .op("}")
        .text("state")
        .op("}")
        .integer(7)
        .op("}")
        .text("step")
        .tensor("torch.FloatStorage", "1", 1, 0, {}, {})
        .op("sss");
    pickle.text("epoch").op("K\x03").text("lr").op("G\x3f\xb9\x99\x99\x99\x99\x99\x9a");
    pickle.text("done").op("\x88").text("none").op("N").text("note").text("caf\xc3\xa9");
    pickle.text("list").op("](K\x01M\x01\x01"s).op("J\xfe\xff\xff\xff").op("e");
    pickle.text("large").op("\x8a\x09"s + std::string(8, '\xff') + '\0');
    pickle.text("minus").op("\x8a\x01\xff").text("zero").op("\x8a\0"s);
    pickle.text("bytes").global("_codecs", "encode").text("a\xc3\xbf").text("latin1").op("\x86R");
    pickle.text("device").global("torch", "device").text("cuda").op("K\x01\x86R");
    pickle.text("dtype").global("torch", "bfloat16");
    pickle.text("size").global("torch", "Size").op("K\x02K\x03\x86\x85R");
    pickle.text("set").global("__builtin__", "set").op("](K\x05\x65\x85R");
    pickle.text("complex").global("__builtin__", "complex").op("K\x01K\x02\x86R").op("u");
    const io::PytorchValue run = loaded(
        folder, torch_archive(pickle.str(), {{"0", bytes_of<float>({1, 2})}, {"1", bytes_of<float>({9})}}));
    CHECK(run["epoch"].integer() == 3);
    CHECK(run["epoch"].number() == 3);
    CHECK(run["lr"].number() == 0.1);
    CHECK(run["done"].flag());
    CHECK(run["none"].kind() == PytorchKind::none);
    CHECK(run["note"].text() == "caf\xc3\xa9");
    CHECK(run["list"].size() == 3);
    CHECK(run["list"][1].integer() == 257);
    CHECK(run["list"][-1].integer() == -2);
    CHECK(run["large"].number() == 18446744073709551615.0);
    CHECK_THROWS_WITH(run["large"].integer(), Contains("\"large\": the integer does not fit"));
    CHECK(run["minus"].integer() == -1);
    CHECK(run["zero"].integer() == 0);
    CHECK(run["bytes"].text() == "a\xff");
    CHECK(run["device"].text() == "cuda:1");
    CHECK(run["dtype"].text() == "torch.bfloat16");
    CHECK(run["size"][1].integer() == 3);
    CHECK(run["set"][0].integer() == 5);
    CHECK(run["complex"].kind() == PytorchKind::other);
    CHECK(run["optimizer"]["state"].names() == std::vector<std::string>{"7"});
    CHECK(run["optimizer"]["state"][7]["step"].tensor().item<int>() == 9);
    CHECK(run["optimizer"]["state"]["7"].contains("step"));
    CHECK(run.state_dict().names() == std::vector<std::string>{"model.w", "optimizer.state.7.step"});
    CHECK(run["model"].state_dict().names() == std::vector<std::string>{"w"});
    CHECK_THAT(run.to_string(),
               Contains("dict of 17\n  model: dict of 1\n    w: float32 [2]\n  optimizer: dict"));
    CHECK_THAT(run.to_string(),
               Contains("  epoch: 3\n  lr: 0.1\n  done: True\n  none: None\n  note: \"caf\xc3\xa9\""));
    CHECK_THROWS_WITH(run["modle"], Contains("no entry \"modle\"; it has \"model\", \"optimizer\""));
    CHECK_THROWS_WITH(run["optimizer"]["state"][8],
                      Contains("\"optimizer.state\": no entry with the integer key 8"));
    CHECK_THROWS_WITH(run["list"][3], Contains("no item 3 in a list of 3"));
    CHECK_THROWS_WITH(run["note"].integer(), Contains("\"note\": it is a string, not an integer"));
    CHECK_THROWS_WITH(run["epoch"].tensor(), Contains("it is an integer, not a tensor"));
    CHECK_THROWS_WITH(run["epoch"].state_dict(), Contains("not a list or dict"));
    CHECK_THROWS_WITH(run["list"]["a"], Contains("it is a list, not a dict"));
}

TEST_CASE("pytorch files: every name of names() is found", "[io]") {
    const test::Folder folder;
    // {True: 1, None: 2, 1.5: 3, (): 4, 7: 5, "7": 6}
    const io::PytorchValue file = loaded(
        folder, torch_archive("\x80\x02}(\x88K\x01NK\x02G\x3f\xf8\0\0\0\0\0\0K\x03)K\x04K\x07K\x05U\x01"
                              "7K\x06u."s,
                              {}));
    const std::vector<std::string> names = file.names();
    CHECK(names == std::vector<std::string>{"True", "None", "1.5", "#3", "7", "7"});
    std::vector<std::int64_t> values;
    for (const std::string& name : names) {
        CHECK(file.contains(name));
        values.push_back(file.contains(name) ? file[name].integer() : 0);
    }
    CHECK(values == std::vector<std::int64_t>{1, 2, 3, 4, 6, 6});
    CHECK(file[7].integer() == 5);
    CHECK_FALSE(file.contains("#4"));
}

TEST_CASE("pytorch files: dtypes", "[io]") {
    const test::Folder folder;
    struct Line {
        const char* storage;
        Dtype dtype;
        std::string two, big_endian;  // elements 1 and 2
    };
    for (const Line& line :
         {Line{"Half", float16, "\x00\x3c\x00\x40"s, "\x3c\x00\x40\x00"s},
          Line{"BFloat16", bfloat16, "\x80\x3f\x00\x40"s, "\x3f\x80\x40\x00"s},
          Line{"Float", float32, bytes_of<float>({1, 2}), "\x3f\x80\0\0\x40\0\0\0"s},
          Line{"Double", float64, bytes_of<double>({1, 2}), "\x3f\xf0\0\0\0\0\0\0\x40\0\0\0\0\0\0\0"s},
          Line{"Long", int64, "\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0"s, "\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2"s},
          Line{"Int", int32, "\1\0\0\0\2\0\0\0"s, "\0\0\0\1\0\0\0\2"s},
          Line{"Short", int32, "\1\0\2\0"s, "\0\1\0\2"s}, Line{"Char", int8, "\1\2", "\1\2"},
          Line{"Byte", uint8, "\1\2", "\1\2"}, Line{"cuda.Byte", uint8, "\1\2", "\1\2"}}) {
        CAPTURE(line.storage);
        const Pickle pickle = Pickle().tensor("torch."s + line.storage + "Storage", "0", 2, 0, {2}, {1});
        for (const bool big : {false, true}) {
            const Tensor x =
                loaded(folder, torch_archive(pickle.str(), {{"0", big ? line.big_endian : line.two}}, true,
                                             big ? "big" : "little"))
                    .tensor();
            CHECK(x.dtype() == line.dtype);
            CHECK(test::doubles(x) == Values{1, 2});
        }
    }
    const Pickle flags = Pickle().tensor("torch.BoolStorage", "0", 3, 0, {3}, {1});
    const Tensor x = loaded(folder, torch_archive(flags.str(), {{"0", "\0\1\x07"s}})).tensor();
    CHECK(x.dtype() == boolean);
    CHECK(test::doubles(x) == Values{0, 1, 1});
    CHECK_THAT(error_of(folder, torch_archive(flags.str(), {{"0", "abc"}}, true, "middle")),
               Contains("byteorder"));
    // _rebuild_tensor_v3: a storage of bytes, and the dtype apart.
    const auto other = [&](const char* dtype, std::int64_t offset, std::int64_t size) {
        return Pickle()
            .global("torch._utils", "_rebuild_tensor_v3")
            .op("(")
            .storage("torch.storage.UntypedStorage", "0", 8)
            .integer(offset)
            .sizes({size})
            .sizes({1})
            .op("\x89")
            .global("collections", "OrderedDict")
            .op(")R")
            .global("torch", dtype)
            .op("tR")
            .str();
    };
    const test::Members eight = {{"0", "\xff\xff\1\0\0\0\0\x80"s}};
    CHECK(test::doubles(loaded(folder, torch_archive(other("uint16", 0, 4), eight)).tensor()) ==
          Values{65535, 1, 0, 32768});
    CHECK(test::doubles(loaded(folder, torch_archive(other("uint32", 1, 1), eight)).tensor()) ==
          Values{2147483648.0});
    const auto of_codes = [&](const char* dtype, const std::string& codes) {
        return loaded(folder, torch_archive(other(dtype, 2, 2), {{"0", "\0\0"s + codes + "\0\0\0\0"s}}))
            .tensor();
    };
    const Tensor e4m3 = of_codes("float8_e4m3fn", "\x38\xfe"), e5m2 = of_codes("float8_e5m2", "\x3c\xfc");
    CHECK(e4m3.dtype() == float8_e4m3fn);
    CHECK(test::doubles(e4m3) == Values{1, -448});
    CHECK(e5m2.dtype() == float8_e5m2);
    CHECK(test::doubles(e5m2) == Values{1, -HUGE_VAL});
    CHECK(test::doubles(of_codes("float8_e8m0fnu", "\x80\x01")) == Values{2, 0x1p-126});
    CHECK(test::doubles(of_codes("int8", "\x80\x01")) == Values{-128, 1});
    CHECK_THROWS_WITH(of_codes("float8_e4m3fnuz", "\1\1"), Contains("float8_e4m3fnuz"));
    CHECK_THROWS_WITH(loaded(folder, torch_archive(other("uint64", 0, 1), eight)).tensor(),
                      Contains("does not fit int64"));
    CHECK_THAT(error_of(folder, torch_archive(other("uint16", 1, 4), eight)),
               Contains("do not fit its storage"));
}

TEST_CASE("pytorch files: tensors that mezzo lacks are errors where they are asked for", "[io]") {
    const test::Folder folder;
    Pickle pickle;
    pickle.op("}(").text("good").tensor("torch.FloatStorage", "0", 2, 0, {2}, {1});
    pickle.text("c").tensor("torch.ComplexFloatStorage", "1", 1, 0, {1}, {1});
    pickle.text("nine").tensor("torch.FloatStorage", "0", 2, 0, {1, 1, 1, 1, 1, 1, 1, 1, 2},
                               {2, 2, 2, 2, 2, 2, 2, 2, 1});
    pickle.text("negated").global("torch._utils", "_rebuild_tensor_v2").op("(");
    pickle.storage("torch.FloatStorage", "0", 2)
        .op("K\x01K\x01\x85K\x01\x85\x89N}")
        .text("neg")
        .op("\x88stR");
    pickle.text("sparse").global("torch._utils", "_rebuild_sparse_tensor").op("NN\x86R").op("u");
    const io::PytorchValue file = loaded(
        folder, torch_archive(pickle.str(), {{"0", bytes_of<float>({1, 2})}, {"1", std::string(8, '\0')}}));
    CHECK(test::doubles(file["good"].tensor()) == Values{1, 2});
    const auto refused = [&](const char* name, const char* text) {
        CHECK(file[name].kind() == PytorchKind::tensor);
        try {
            (void)file[name].tensor();
            FAIL();
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::dtype);
            CHECK_THAT(error.what(), Contains("\""s + name + "\"") && Contains(text));
        }
    };
    refused("c", "complex64");
    refused("nine", "more than 8 dimensions");
    refused("negated", "negated view");
    refused("sparse", "a sparse tensor");
    CHECK_THROWS_WITH(file.state_dict(), Contains("\"c\" is of dtype complex64"));
    CHECK_THAT(file.to_string(), Contains("c: complex64 [1]") && Contains("sparse: a sparse tensor"));
}

TEST_CASE("pytorch files: views, shared and tied storages", "[io]") {
    const test::Folder folder;
    Pickle pickle;
    const std::string type = "torch.FloatStorage";
    pickle.op("}(").text("whole").tensor(type, "0", 6, 0, {2, 3}, {3, 1});
    pickle.text("t").tensor(type, "0", 6, 0, {3, 2}, {1, 3}).op("q\x05").text("tied").op("h\x05");
    pickle.text("column")
        .tensor(type, "0", 6, 1, {2}, {3})
        .text("expanded")
        .tensor(type, "0", 6, 4, {2, 2}, {0, 0});
    pickle.text("windows")
        .tensor(type, "0", 6, 0, {4, 3}, {1, 1})
        .text("number")
        .tensor(type, "0", 6, 5, {}, {});
    pickle.text("none")
        .tensor(type, "0", 6, 6, {0, 4}, {4, 1})
        .text("empty")
        .tensor(type, "1", 0, 0, {0}, {1});
    pickle.text("p")
        .global("torch._utils", "_rebuild_parameter")
        .op("(")
        .tensor(type, "0", 6, 0, {1}, {9})
        .op("\x88");
    pickle.global("collections", "OrderedDict").op(")RtRu");
    const test::Members storages = {{"0", bytes_of<float>({0, 1, 2, 3, 4, 5})}, {"1", ""}};
    StateDict state = loaded(folder, torch_archive(pickle.str(), storages)).state_dict();
    CHECK(test::doubles(state["whole"]) == Values{0, 1, 2, 3, 4, 5});
    CHECK(test::doubles(state["t"]) == Values{0, 3, 1, 4, 2, 5});
    CHECK(test::doubles(state["column"]) == Values{1, 4});
    CHECK(test::doubles(state["expanded"]) == Values{4, 4, 4, 4});
    CHECK(test::doubles(state["windows"]) == Values{0, 1, 2, 1, 2, 3, 2, 3, 4, 3, 4, 5});
    CHECK(test::doubles(state["number"]) == Values{5});
    CHECK(state["none"].shape() == Shape{0, 4});
    CHECK(state["empty"].shape() == Shape{0});
    CHECK(state["p"].shape() == Shape{1});
    CHECK(state["tied"].data<float>() == state["t"].data<float>());
    state["whole"].add_(scalar(1));
    CHECK(test::doubles(state["column"]) == Values{2, 5});
    // Each has elements beyond the storage.
    using Sizes = Pickle::Sizes;
    for (const auto& [offset, sizes, strides] : std::vector<std::tuple<std::int64_t, Sizes, Sizes>>{
             {0, {7}, {1}},
             {4, {3}, {1}},
             {6, {}, {}},
             {-1, {1}, {1}},
             {0, {-1}, {1}},
             {5, {-1}, {1}},
             {3, {2}, {-1}},
             {0, {2}, {-1}},
             {0, {2, 2}, {1}},
             {0, {2}, {std::int64_t(1) << 62}},
             {std::int64_t(1) << 62, {2}, {std::int64_t(1) << 62}},
             {0, {std::int64_t(1) << 62, 4}, {4, 1}}}) {
        const Pickle bad = Pickle().tensor(type, "0", 6, offset, sizes, strides);
        CHECK_THAT(error_of(folder, torch_archive(bad.str(), storages)), Contains("tensor"));
    }
    // More elements than bytes: fine as a view, an error where they cannot be counted.
    const Pickle large = Pickle().tensor(type, "0", 6, 0, {1 << 30, 1 << 30, 1 << 30}, {0, 0, 0});
    CHECK_THROWS_WITH(loaded(folder, torch_archive(large.str(), storages)).tensor(),
                      Contains("more elements"));
}

TEST_CASE("pytorch files: plain files of Python 2, with views of storages", "[io]") {
    const test::Folder folder;
    // OrderedDict([["w", ...], ["n", 5L]]) with short strings, as Python 2 writes them.
    Pickle pickle;
    pickle.global("collections", "OrderedDict")
        .op("](](U\x01w")
        .global("torch._utils", "_rebuild_tensor")
        .op("((U\x07storage")
        .global("torch", "FloatStorage");
    pickle.op("U\x03key")
        .op("U\x03"
            "cpuK\x04")
        .op("(U\x04viewK\x01K\x03ttQK\x01K\x02\x85K\x01\x85tRe](U\x01nL5L\nee\x85R");
    const std::string bytes = torch_plain_file(pickle.str(), {{"key", bytes_of<float>({1, 2, 3, 4}), 4}});
    const io::PytorchValue file = loaded(folder, bytes);
    CHECK(test::doubles(file["w"].tensor()) == Values{3, 4});
    CHECK(file["n"].integer() == 5);
    CHECK_THAT(error_of(folder, bytes.substr(0, bytes.size() - 1)), Contains("has 16 bytes, 15 are there"));
    CHECK_THAT(error_of(folder, torch_plain_file(pickle.str(), {{"key", bytes_of<float>({1, 2, 3}), 3}})),
               Contains("has 3 elements, the pickle says 4"));
    CHECK_THAT(error_of(folder, torch_plain_file(pickle.str(), {})), Contains("\"key\" is missing"));
    CHECK_THAT(error_of(folder, torch_plain_file(pickle.str(), {{"other", "", 0}})),
               Contains("that no tensor has"));
    CHECK_THAT(error_of(folder, Pickle().op("}").str()), Contains("torch.save() has not written"));
}

TEST_CASE("pytorch files: opcodes of protocols 4 and 5", "[io]") {
    const test::Folder folder;
    const std::string pickle =
        "\x80\x05\x95\0\0\0\0\0\0\0\0}\x94(\x8c\x01"
        "a\x94\x8c\x0b"
        "collections\x94\x8c\x0bOrderedDict\x94\x93\x94)R\x94"
        "\x8c\x03set\x94\x8f\x94(K\x01K\x02\x90\x8c\x01z(K\x03\x91\x8c\x01"
        "b\x96\x02\0\0\0\0\0\0\0xy\x8c\x01"
        "c"
        "C\x01z\x8c\x01"
        "d"
        "h\x01u."s;
    const io::PytorchValue file = loaded(folder, torch_archive(pickle, {}));
    CHECK(file.to_string() ==
          "dict of 6\n  a: dict of 0\n  set: list of 2\n    0: 1\n    1: 2\n  z: list of 1\n    0: 3\n  b: 2 "
          "bytes\n  c: 1 bytes\n  d: \"a\"");
}

TEST_CASE("pytorch files: code is named and not run", "[io]") {
    const test::Folder folder;
    const std::string command = "touch " + folder.file("trace");
    const auto refused = [&](const Pickle& pickle, const char* name) {
        CAPTURE(name);
        for (const std::string& bytes : {torch_archive(pickle.str(), {}), torch_plain_file(pickle.str(), {})})
            CHECK_THAT(error_of(folder, bytes), Contains(name) && Contains("file.pt"));
    };
    refused(Pickle().global("os", "system").text(command).op("\x85R"), "\"os.system\"");
    refused(Pickle().global("posix", "system").text(command).op("\x85R"), "\"posix.system\"");
    refused(Pickle().text("builtins").text("eval").op("\x93").text("1").op("\x85R"), "\"builtins.eval\"");
    refused(Pickle().global("__builtin__", "exec"), "\"builtins.exec\"");
    refused(Pickle().global("torch", "load").text("x").op("\x85R"), "\"torch.load\"");
    refused(Pickle().global("torch._utils", "_rebuild_xla_tensor"), "\"torch._utils._rebuild_xla_tensor\"");
    refused(Pickle().global("torch.nn.modules.linear", "Linear").op(")\x81}b"),
            "torch.nn.modules.linear.Linear");
    refused(Pickle().global("numpy.core.multiarray", "scalar"), "numpy.core.multiarray.scalar");
    refused(Pickle().op("(").text(command).op("ios\nsystem\n"), "opcode 0x69");  // INST
    refused(Pickle().op("(").text("module").op("NNNtQ"), "no storage");
    refused(
        Pickle().op("(").text("module").global("torch", "FloatStorage").text("0").text("cpu").op("K\x01tQ"),
        "no storage");
    refused(Pickle().global("torch", "float32").op(")R"), "none of the calls");
    refused(Pickle().global("torch", "FloatStorage").op("K\x01\x85R"), "none of the calls");
    refused(Pickle().op("K\x01)R"), "no function");
    refused(Pickle().op("K\x01}b"), "attributes");
    CHECK(folder.listing() == "file.pt ");
}

TEST_CASE("pytorch files: damage is found", "[io]") {
    const test::Folder folder;
    const std::string good = torch_archive(linear_pickle().str(), linear_storages);
    const std::string plain = torch_plain_file(
        linear_pickle().str(), {{"0", linear_storages[0].second, 4}, {"1", linear_storages[1].second, 2}});
    const auto weights = [](const io::PytorchValue& file) {
        const StateDict state = file.state_dict();
        Values values = test::doubles(state["weight"]);
        for (const double value : test::doubles(state["bias"])) values.push_back(value);
        return values;
    };
    for (std::size_t n = 0; n < good.size(); ++n) CHECK(error_of(folder, good.substr(0, n)) != "no error");
    for (std::size_t n = 0; n < plain.size(); ++n) CHECK(error_of(folder, plain.substr(0, n)) != "no error");
    int refused = 0;
    for (std::size_t i = 0; i < good.size(); ++i) {
        std::string bad = good;
        bad[i] = char(bad[i] ^ 0x55);
        try {
            const Values read = weights(loaded(folder, bad));
            CHECK(read == Values{1, 2, 3, 4, 5, 6});  // a time, a flag or the like was changed
        } catch (const Error&) {
            ++refused;
        }
    }
    CHECK(refused > int(good.size()) / 2);
    const auto changed = [&](const char* from, const std::string& to) {
        std::string bad = good;
        bad.replace(bad.rfind(from), to.size(), to);
        return bad;
    };
    CHECK_THAT(error_of(folder, changed("data/1", "data/2")), Contains("archive/data/1"));
    const Pickle longer = Pickle().tensor("torch.FloatStorage", "0", 5, 0, {2}, {1});
    CHECK_THAT(error_of(folder, torch_archive(longer.str(), linear_storages)),
               Contains("has 16 bytes, the pickle says 20"));
    std::string flipped = good;
    flipped[flipped.find(linear_storages[1].second)] = 1;
    CHECK_THROWS_WITH(loaded(folder, flipped).state_dict(),
                      Contains("archive/data/1") && Contains("checksum"));
    CHECK(loaded(folder, flipped)["weight"].tensor().numel() == 4);
}

TEST_CASE("pytorch files: files of other formats are named", "[io]") {
    const test::Folder folder;
    std::string tar(600, '\0');
    tar.replace(0, 6, "pickle").replace(257, 5, "ustar");
    CHECK_THAT(error_of(folder, tar), Contains("tar archive, as PyTorch 0.1 wrote"));
    CHECK_THAT(error_of(folder, test::zip_archive({{"m/data.pkl", "\x80\x02N."}, {"m/constants.pkl", ""}})),
               Contains("TorchScript"));
    CHECK_THAT(error_of(folder, test::zip_archive({{"a.npy", ""}})), Contains("load_npz"));
    CHECK_THAT(error_of(folder, test::zip_archive({{"m/version", "3\n"}})),
               Contains("no member data.pkl") && Contains("broke off"));
    CHECK_THAT(error_of(folder, "version https://git-lfs.github.com/spec/v1\n"), Contains("git lfs pull"));
    CHECK_THAT(error_of(folder, ""), Contains("torch.save() has not written"));
    CHECK_THAT(error_of(folder, "\x01\x02\x03\x04"), Contains("torch.save() has not written"));
    io::save_safetensors(folder.file("x.safetensors"), {{"a", ones({2})}});
    CHECK_THROWS_WITH(io::load_pytorch(folder.file("x.safetensors")), Contains("safetensors file"));
    CHECK_THROWS_WITH(io::load_pytorch(folder.file("missing.pt")), Contains("missing.pt"));
    // The other way round.
    const std::string path = folder.write("x.pt", torch_archive(linear_pickle().str(), linear_storages));
    CHECK_THROWS_WITH(io::load_state_dict_file(path), Contains("io::load_pytorch() reads it"));
    CHECK_THROWS_WITH(io::load_npz(path), Contains("io::load_pytorch() reads it"));
}
