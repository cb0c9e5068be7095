// Exports to ONNX: the bytes of the file, and refused models. tests/interop/onnx_test.py runs exported
// models.
#include "mezzo/interchange/onnx.h"

#include <catch2/catch.hpp>

#include <filesystem>
#include <thread>

#include <fmt/format.h>

#include "interchange/onnx/graph.h"
#include "interchange/onnx_file.h"
#include "mezzo/models/bert.h"
#include "mezzo/module_scope.h"
#include "mezzo/nn.h"
#include "mezzo/ops.h"
#include "mezzo/quantize.h"
#include "mezzo/reduce_ops.h"
#include "mezzo/rnn.h"
#include "mezzo/shape_ops.h"
#include "mezzo/version.h"
#include "tests/support/folder.h"

namespace {

using namespace mezzo;
using Catch::Matchers::Contains;

std::string hex(const std::string& bytes) {
    std::string text;
    for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
    return text;
}

// A protobuf field of bytes: its key, its length, which protobuf writes in groups of 7 bits, and its content.
std::string field(const std::string& key, const std::string& content) {
    const std::size_t size = content.size() / 2;
    return key +
           (size < 128 ? fmt::format("{:02x}", size)
                       : fmt::format("{:02x}{:02x}", size % 128 + 128, size / 128)) +
           content;
}

// A layer whose forward call is the given function.
struct Calls : nn::Module {
    explicit Calls(const autograd::Callback<Tensor(const Tensor&)>& function) : f(function) {}
    Tensor operator()(const Tensor& x) const {
        const nn::ModuleScope here(*this);
        return f(x);
    }
    autograd::Callback<Tensor(const Tensor&)> f;
    MEZZO_MODULE(Calls)
};
// A layer whose parameter is named as the exporter names numbers.
struct Named : nn::Module {
    Tensor operator()(const Tensor& x) const { return relu(x * 2.0) * constant; }
    nn::Parameter constant{ones({3})};
    MEZZO_MODULE(Named, constant)
};
struct Outer : nn::Module {
    explicit Outer(const autograd::Callback<Tensor(const Tensor&)>& function) : inner(function) {}
    Tensor operator()(const Tensor& x) const { return inner(x * 2.0); }
    Calls inner;
    MEZZO_MODULE(Outer, inner)
};

// Error message of the export of a function of [4, 3]; no file is left.
std::string refusal(const autograd::Callback<Tensor(const Tensor&)>& function, bool dynamic_batch = true,
                    ErrorKind kind = ErrorKind::value) {
    const test::Folder folder;
    Outer model(function);
    try {
        io::export_onnx(model, {randn({4, 3})}, folder.file("model.onnx"), {.dynamic_batch = dynamic_batch});
    } catch (const Error& error) {
        CHECK(error.kind() == kind);
        CHECK(test::read_file(folder.file("model.onnx")).empty());
        CHECK(model.training());
        return error.what();
    }
    return "exported";
}

}  // namespace

TEST_CASE("onnx: the file, byte for byte", "[io]") {
    const test::Folder folder;
    const io::OnnxGraph graph{.name = "g",
                              .nodes = {{.type = "Elu",
                                         .name = "n",
                                         .inputs = {"x", ""},
                                         .outputs = {"y"},
                                         .attributes = {{"a", 1.5f},
                                                        {"i", std::int64_t(-1)},
                                                        {"s", std::vector<std::int64_t>{2, 300}},
                                                        {"t", std::string("ab")}}}},
                              .initializers = {{"w", Tensor::from({1.0f, -2.0f}, {2})}},
                              .inputs = {{"x", float32, {{0, "batch"}, {3, ""}}}},
                              .outputs = {{"y", boolean, {}}}};
    io::save_onnx("export_onnx", folder.file("model.onnx"), graph);
    CHECK(!std::filesystem::exists(folder.file("model.onnx.data")));
    const auto attribute = [](const char* name, const char* value, const char* type) {
        return field("2a", field("0a", name) + value + "a001" + type);
    };
    const std::string node = field("0a", "78") + field("0a", "") + field("12", "79") + field("1a", "6e") +
                             field("22", "456c75") + attribute("61", "150000c03f", "01") +
                             attribute("69", "18ffffffffffffffffff01", "02") +
                             attribute("73", "400240ac02", "07") + attribute("74", "22026162", "03");
    const std::string shape = field("0a", field("12", "6261746368")) + field("0a", "0803");
    const std::string input = field("0a", "78") + field("12", field("0a", "0801" + field("12", shape)));
    const std::string output = field("0a", "79") + field("12", field("0a", "0809" + field("12", "")));
    const std::string tensor = "08021001" + field("42", "77") + field("4a", "0000803f000000c0");
    const std::string body = field("0a", node) + field("12", "67") + field("5a", input) +
                             field("62", output) + field("2a", tensor);
    CHECK(hex(test::read_file(folder.file("model.onnx"))) == "0808" + field("12", hex("mezzo")) +
                                                                 field("1a", hex(version())) +
                                                                 field("42", "0a001011") + field("3a", body));
}

TEST_CASE("onnx: a model of more than 2 GiB has its weights in a file of their own", "[io]") {
    const Tensor row = zeros({1, 1 << 20}).expand({513, 1 << 20});  // 2 GiB and 4 MiB without the memory
    const io::OnnxGraph graph{
        .name = "g", .nodes = {}, .initializers = {{"w", row}}, .inputs = {}, .outputs = {}};
    CHECK_THROWS_WITH(io::onnx_head("export_onnx", graph),
                      Contains("export_onnx: the model has 21516") && Contains("at most 2^31 - 1"));
    const io::OnnxLayout layout = io::onnx_layout(graph, "some/model.onnx", false);
    CHECK(layout.data_file == "model.onnx.data");
    CHECK(layout.offsets == std::vector<std::int64_t>{0});
    CHECK(io::onnx_head("export_onnx", graph, layout).size() < 1000);
}

TEST_CASE("onnx: elements in a file of their own", "[io]") {
    const test::Folder folder;
    const Tensor a = randn({300}), small = randn({255}), b = randn({16, 16});
    const io::OnnxGraph graph{.name = "g",
                              .nodes = {},
                              .initializers = {{"a", a}, {"small", small}, {"b", b}},
                              .inputs = {},
                              .outputs = {}};
    io::save_onnx("export_onnx", folder.file("m.onnx"), graph, true);
    const std::string data = test::read_file(folder.file("m.onnx.data")),
                      model = test::read_file(folder.file("m.onnx"));
    const auto elements = [](const Tensor& x) {
        return std::string(reinterpret_cast<const char*>(x.data<float>()), std::size_t(x.numel()) * 4);
    };
    CHECK(data == elements(a) + std::string(4096 - 1200, '\0') + elements(b));
    CHECK_THAT(model, Contains(elements(small)));
    const auto entry = [](const char* key, const char* value) {
        return field("6a", field("0a", hex(key)) + field("12", hex(value)));
    };
    const std::string at =
        entry("location", "m.onnx.data") + entry("offset", "4096") + entry("length", "1024");
    CHECK_THAT(hex(model), Contains("081008101001" + field("42", "62") + at + "7001"));
    CHECK_THROWS_WITH(io::save_onnx("export_onnx", folder.file("\xff"), graph, true),
                      Contains("is not valid UTF-8"));
}

TEST_CASE("onnx: transpositions, reshapes and expansions that change nothing are left out", "[io]") {
    onnx::Graph graph;
    const onnx::Value x = graph.input({2, 3, 4}, float32);
    const onnx::Value turned = graph.permuted(x, {2, 0, 1});
    CHECK(graph.shape(turned) == Shape{4, 2, 3});
    CHECK(graph.permuted(turned, {1, 2, 0}) == x);
    CHECK(graph.permutation(graph.permuted(turned, {1, 0, 2}))->axes == Axes{0, 2, 1});
    CHECK(graph.reshaped(graph.reshaped(x, {6, 4}), {2, 3, 4}) == x);
    CHECK(graph.before_reshape(graph.reshaped(graph.reshaped(x, {6, 4}), {24})) == x);
    CHECK(graph.expanded(x, {2, 3, 4}) == x);
    CHECK(graph.converted(x, float32) == x);
    const onnx::Value part = graph.sliced(turned, 0, 1, 2, 2);
    CHECK(graph.shape(part) == Shape{2, 2, 3});
    CHECK(graph.shape(graph.permutation(part)->of) == Shape{2, 3, 2});
}

TEST_CASE("onnx: ops without a form in ONNX are named with their module, but only if they matter", "[io]") {
    const std::string none =
        "export_onnx: atan2: its result [4, 3] in module inner has no form in ONNX opset 17; use other ops, "
        "or "
        "compute it outside of the model";
    CHECK(refusal([](const Tensor& x) { return atan2(x, x + 1.0); }, false) == none);
    CHECK(refusal([](const Tensor& x) { return relu(atan2(x, x + 1.0)) + x; }, false) == none);
    CHECK(refusal([](const Tensor& x) {
              static_cast<void>(atan2(x, x + 1.0));
              return relu(x);
          }) == "exported");
}

TEST_CASE("onnx: writes in place are refused", "[io]") {
    CHECK_THAT(refusal([](const Tensor& x) {
                   const Tensor y = zeros({3});
                   y.add_(x.select(0, 0));
                   return x + y;
               }),
               Contains("reads a tensor [3] that has been written in place"));
    CHECK_THAT(refusal([](const Tensor& x) {
                   const Tensor y = relu(x);
                   y.mul_(2.0);
                   return y + x;
               }),
               Contains("written in place"));
}

TEST_CASE("onnx: what another thread has computed is refused", "[io]") {
    const auto elsewhere = [](const auto& f) {
        Tensor y;
        std::thread([&] { y = f(); }).join();
        return y;
    };
    const auto other = Contains("module inner reads a tensor [4, 3] that another thread has made");
    CHECK_THAT(refusal([&](const Tensor& x) { return x + elsewhere([&] { return relu(x); }); }, false),
               other);
    CHECK_THAT(
        refusal([&](const Tensor& x) { return x + elsewhere([&] {
                                                  return cat({x, x}, 0).slice(0, 0, 4);
                                              }); },
                false),
        other);
    CHECK_THAT(refusal([&](const Tensor& x) {
                   const Tensor y = relu(x);
                   elsewhere([&] { return Tensor(y).mul_(2.0); });
                   return y + x;
               }),
               Contains("written in place"));
    const Tensor before = elsewhere([] { return ones({4, 3}); });  // a constant, whoever has made it
    CHECK(refusal([&](const Tensor& x) { return x + before; }, false) == "exported");
}

TEST_CASE("onnx: errors name the op that was called, not what it is made of", "[io]") {
    CHECK_THAT(refusal([](const Tensor& x) { return var(x, {0}); }),
               Contains("export_onnx: var: ") && Contains("module inner computes with 1 for a batch of 2"));
    CHECK_THAT(refusal([](const Tensor& x) { return x - double(x.size(0)); }),
               Contains("export_onnx: sub: ") && Contains("computes with -2 for a batch of 2"));
    CHECK_THAT(refusal([](const Tensor& x) { return triu(x + randn({3})); }), Contains("export_onnx: add: "));
    CHECK_THAT(refusal([](const Tensor& x) {
                   return stack({x, randn({x.size(0), 3})}, 0);
               }),
               Contains("export_onnx: stack: "));
    const auto attention = [](const Tensor& x, const Tensor& v, const Tensor& mask = {}) {
        const Tensor q = x.reshape({-1, 1, 3, 1});
        return scaled_dot_product_attention(q, q, v.defined() ? v : q, {.mask = mask});
    };
    CHECK_THAT(refusal([&](const Tensor& x) {
                   return attention(x, {}, randn({3, 3}));
               }),
               Contains("export_onnx: scaled_dot_product_attention: the batch cannot be of any size"));
    CHECK_THAT(refusal([&](const Tensor& x) {
                   return attention(x, randn({x.size(0), 1, 3, 1}));
               }),
               Contains("export_onnx: scaled_dot_product_attention: the batch cannot be of any size"));
    CHECK_THAT(refusal([&](const Tensor& x) {
                   return attention(x, zeros({x.size(0), 1, 3, 1}).fill_(1));
               }),
               Contains("export_onnx: scaled_dot_product_attention: module inner reads a tensor [2, 1, 3, 1] "
                        "that has been written in place; use ops that return a new tensor"));
}

TEST_CASE("onnx: one_hot is exported as the ops that it is made of elsewhere", "[io]") {
    const auto classes = [](const Tensor& x) { return one_hot(argmax(x, -1), 3).to(float32); };
    CHECK(refusal(classes) == "exported");
}

TEST_CASE("onnx: isfinite() of booleans and integers is exported", "[io]") {
    CHECK(refusal([](const Tensor& x) { return isfinite(gt(x, 0)); }) == "exported");
    CHECK(refusal([](const Tensor& x) { return isfinite(cast(x, int64)); }) == "exported");
}

TEST_CASE("onnx: what depends on the size of the batch is refused, or fixed", "[io]") {
    const auto mean_of_batch = [](const Tensor& x) { return x / double(x.size(0)); };
    CHECK(
        refusal(mean_of_batch) ==
        "export_onnx: div: the batch cannot be of any size, because module inner computes with 2 for a batch "
        "of 2 and with 3 for one of 3; have the batch in dimension 0 of each input, compute what follows "
        "from "
        "it with ops of the inputs, or export with dynamic_batch = false");
    CHECK(refusal(mean_of_batch, false) == "exported");
    CHECK_THAT(refusal([](const Tensor& x) { return x.size(0) == 2 ? relu(x) : tanh(relu(x)); }),
               Contains("export_onnx: tanh: ") &&
                   Contains("because module inner does not run it for a batch of 2 and does for one of 3"));
    CHECK_THAT(refusal([](const Tensor& x) { return x.size(0) == 2 ? relu(x) : tanh(x); }),
               Contains("export_onnx: relu: ") && Contains("runs it for a batch of 2 and runs tanh instead"));
    CHECK_THAT(refusal([](const Tensor& x) { return cat(x.unbind(0), 0); }),
               Contains("export_onnx: cat: ") && Contains("runs unbind instead for one of 3"));
    CHECK_THAT(refusal([](const Tensor& x) {
                   return cat({x, randn({x.size(0), 3})}, 1);
               }),
               Contains("export_onnx: cat: ") &&
                   Contains("computes with a tensor [2, 3] that no op has made for a batch of 2 and with a "
                            "tensor [3, 3] that no op has made"));
    CHECK_THAT(refusal([](const Tensor& x) { return x + randn({3}); }),
               Contains("export_onnx: add: ") && Contains("and of other elements for one of 3"));
    CHECK_THAT(refusal([](const Tensor& x) {
                   return cat({x, ones({x.size(0) * x.size(0), 3})}, 0);
               }),
               Contains("export_onnx: cat: ") && Contains("with [4, 3] for a batch of 2 and with [9, 3]"));
    CHECK_THAT(refusal([](const Tensor& x) { return x.select(0, x.size(0) - 1); }),
               Contains("export_onnx: select: ") && Contains("computes with 1 for a batch of 2 and with 2"));
    CHECK_THAT(refusal([](const Tensor& x) { return x.slice(0, 0, x.size(0) - 1); }),
               Contains("export_onnx: slice: ") && Contains("with [1] for a batch of 2 and with [2]"));
}

TEST_CASE("onnx: sizes and constants that follow from the batch are in the file as operators", "[io]") {
    const auto exports = [](const autograd::Callback<Tensor(const Tensor&)>& f) {
        CHECK(refusal(f) == "exported");
    };
    exports([](const Tensor& x) { return x + ones({x.size(0), 3}); });
    exports([](const Tensor& x) { return cat({x, ones({x.size(0), 3})}, 1); });
    exports([](const Tensor& x) { return cat({x.reshape({-1}), arange(x.size(0), {.dtype = float32})}, 0); });
    exports([](const Tensor& x) { return x.reshape({x.size(0) * 3}).unsqueeze(0).expand({x.size(0), -1}); });
    exports([](const Tensor& x) { return x.reshape({x.size(0) * 3}); });
    const nn::LSTMCell cell(3, 2);
    exports([&](const Tensor& x) { return cell(x).c; });
}

TEST_CASE("onnx: inputs, names and dtypes that cannot be exported", "[io]") {
    const test::Folder folder;
    const std::string path = folder.file("model.onnx");
    nn::Linear net(3, 2);
    const Tensor x = randn({2, 3});
    const auto names = [&](const std::vector<std::string>& in, const std::vector<std::string>& out) {
        io::export_onnx(net, {x}, path, {.input_names = in, .output_names = out});
    };
    CHECK_THROWS_WITH(names({"a", "b"}, {}), Contains("2 names for 1 inputs"));
    CHECK_THROWS_WITH(names({}, {"a", "b"}), Contains("2 names for 1 outputs"));
    CHECK_THROWS_WITH(names({""}, {}), Contains("must be different and not empty"));
    CHECK_THROWS_WITH(names({"\xff"}, {}), Contains("is not valid UTF-8"));
    CHECK_THROWS_WITH(names({"a"}, {"a"}), Contains("an input and an output are named a"));
    // Weights keep their names, even if a number would get the same name.
    CHECK_THROWS_WITH(names({"weight"}, {}), Contains("an input or output is named weight, as a parameter"));
    CHECK_THROWS_WITH(names({}, {"bias"}), Contains("is named bias, as a parameter or buffer of the model"));
    Named named;
    io::export_onnx(named, {x}, path);
    CHECK_THAT(test::read_file(path), Contains("\x42\x08"
                                               "constant") &&
                                          Contains("constant_1"));
    // Hooks, also those of backward, add no operator.
    io::export_onnx(net, {x}, path);
    const std::string plain = test::read_file(path);
    net.register_full_backward_hook([](Tensors&, const Tensors&) {});
    io::export_onnx(net, {x}, path);
    CHECK(test::read_file(path) == plain);
    std::filesystem::remove(path);
    CHECK_THROWS_WITH(io::export_onnx(net, {}, path), Contains("the list of inputs is empty"));
    CHECK_THROWS_WITH(io::export_onnx(net, {x, x}, path), Contains("Linear does not take 2 tensors"));
    CHECK_THROWS_WITH(io::export_onnx(net, {x, x, x, x, x}, path), Contains("5 inputs"));
    CHECK_THROWS_WITH(io::export_onnx(net, {Tensor()}, path), Contains("undefined"));
    CHECK_THROWS_WITH(io::export_onnx(net, {x.to(float64)}, path), Contains("an input is float64"));
    CHECK_THAT(refusal([](const Tensor& y) { return y.to(float8_e5m2).to(float32); }, true, ErrorKind::dtype),
               Contains("opset 17 has no float8_e5m2"));
    nn::BertConfig small;
    small.hidden_size = 8;
    small.num_hidden_layers = 1;
    small.num_attention_heads = 2;
    small.vocab_size = 9;
    nn::BertForSequenceClassification bert(small);
    const Tensor ids = zeros({2, 4}, {.dtype = int64}), mask = ones({3, 4}, {.dtype = boolean});
    CHECK_THROWS_WITH(io::export_onnx(bert, {ids, mask}, path), Contains("no common batch in dimension 0"));
    CHECK_THROWS_WITH(io::export_onnx(bert, {scalar(0)}, path), Contains("no common batch"));
    CHECK_THROWS_WITH(io::export_onnx(net, {x}, folder.file("no/folder/model.onnx")),
                      Contains("export_onnx"));
    net.to(float16);
    CHECK_THROWS_WITH(io::export_onnx(net, {x}, path),
                      Contains("weight is float16; convert the model with to(float32)"));
    CHECK(test::read_file(path).empty());
}

TEST_CASE("onnx: 8-bit weights are refused", "[io]") {
    const test::Folder folder;
    nn::Sequential net(nn::Linear(32, 4));
    nn::quantize_weights(net);
    CHECK_THROWS_WITH(io::export_onnx(net, {ones({2, 32})}, folder.file("model.onnx")),
                      Contains("0.weight is an 8-bit weight") && Contains("dequantize_weight()"));
}

TEST_CASE("onnx: an export leaves model and inputs as they were", "[io]") {
    const test::Folder folder;
    nn::Sequential net(nn::Linear(3, 4), nn::BatchNorm1d(4), nn::Dropout(0.5));
    net[1].eval();
    const StateDict before = net.snapshot();
    const Tensor x = randn({5, 3}), x_before = x.clone();
    io::export_onnx(net, {x}, folder.file("model.onnx"));
    CHECK(net[0].training());
    CHECK(!net[1].training());
    const StateDict after = net.state_dict();
    for (const auto& [name, value] : before) CHECK(all_close(value, after.at(name), 0, 0));
    CHECK(all_close(x, x_before, 0, 0));
    for (const Tensor& p : net.parameters()) CHECK((p.requires_grad() && !p.grad().defined()));
}
