// Provokes the errors that users meet most often, one by one. docs/reference/errors.md shows the same lines
// with their messages: the hidden case prints its tables, and tests/docs/errors_doc_test.py compares them.
#include <catch2/catch.hpp>

#include <iostream>
#include <map>
#include <regex>

#include "mezzo/mezzo.h"
#include "tests/support/folder.h"

namespace {

using namespace mezzo;

struct Entry {
    ErrorKind kind;
    const char* code;  // as it stands below
    void (*attempt)();
    const char* help;
};

const char* name(ErrorKind kind) {
    const std::map<ErrorKind, const char*> names{
        {ErrorKind::shape, "shape"}, {ErrorKind::dtype, "dtype"},    {ErrorKind::device, "device"},
        {ErrorKind::value, "value"}, {ErrorKind::state, "state"},    {ErrorKind::memory, "memory"},
        {ErrorKind::io, "io"},       {ErrorKind::backend, "backend"}};
    return names.at(kind);
}

Tensor leaf() { return ones({2}).set_requires_grad(); }
std::string damaged() {
    static const test::Folder folder;
    return folder.write("weights", "not weights");
}

// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): the code is shown as it is compiled
#define ENTRY(kind, help, ...)                                   \
    {                                                            \
        ErrorKind::kind, #__VA_ARGS__, [] { __VA_ARGS__; }, help \
    }

const Entry entries[] = {
    ENTRY(shape, "print `x.shape()`; broadcasting wants equal sizes, or 1, counted from the right",
          ones({2, 3}) + ones({4, 3})),
    ENTRY(shape, "the inner sizes must be equal: `b.transpose(0, 1)`?", matmul(ones({2, 3}), ones({2, 3}))),
    ENTRY(shape, "the layer's first number is the last size of its input", nn::Linear(8, 2)(ones({4, 6}))),
    ENTRY(shape, "one size may be -1, and follows from the others", ones({2, 3}).reshape({4, 2})),
    ENTRY(shape, "sizes other than that of `dim` must be equal", cat({ones({2, 3}), ones({2, 4})}, 0)),
    ENTRY(shape, "reduce to a number first: `mean()` or `sum()`", leaf().backward()),
    ENTRY(dtype, "class numbers are int64: `y.to(int64)`", cross_entropy(ones({2, 3}), ones({2}))),
    ENTRY(dtype, "`x.to(float32)` before it takes part in training",
          zeros({2}, {.dtype = int64}).set_requires_grad()),
    ENTRY(dtype, "conditions are comparisons: `x != 0.0`", where(ones({2}), ones({2}), zeros({2}))),
    ENTRY(dtype, "int8 and float8 are for storage: `x.to(float32) + y`", ones({2}).to(int8) + ones({2})),
    ENTRY(dtype, "8-bit weights are for inference: train first, and call `quantize_weights()` at the end",
          nn::Linear net(32, 2);
          nn::quantize_weights(net); optim::SGD sgd(net.parameters(), {.lr = 1})),
    ENTRY(device, "`best_device()` takes what there is; `mezzo-info` says why there is no CUDA device",
          ones({2}).to(parse_device("gpu"))),
    ENTRY(value, "an option out of its range: the header says it", optim::SGD({leaf()}, {.lr = -1})),
    ENTRY(value, "a tensor that was declared and never given a value", exp(Tensor())),
    ENTRY(value, "class numbers run from 0 to classes - 1", one_hot(arange(4), 3)),
    ENTRY(value, "a float8 history is of whole tensors: `Granularity::tensor`, the default",
          amp::Autocast({.fp8 = amp::Fp8{.recipe = amp::Recipe::delayed, .granularity = Granularity::row}})),
    ENTRY(state,
          "no `freeze()` of all parameters and no `NoGrad` around the forward pass; `{.create_graph = true}` "
          "for a gradient of a gradient",
          ones({2}).sum().backward()),
    ENTRY(state, "`backward({.retain_graph = true})`, or compute the loss again",
          Tensor y = leaf().exp().sum();
          y.backward(); y.backward()),
    ENTRY(state, "write out of place, `x = x * 2.0`, or under `NoGrad` outside of the graph",
          leaf().mul_(full({2}, 2))),
    ENTRY(state, "an in-place write came between forward and backward: use the op's result instead",
          Tensor w = leaf();
          Tensor y = w.exp(); Tensor loss = y.sum(); y.detach().add_(ones({2})); loss.backward()),
    ENTRY(state, "`scale(loss).backward()` comes first, then `unscale_()`, `step()`, `update()`",
          optim::SGD sgd({leaf()}, {.lr = 1});
          amp::GradScaler scaler; scaler.step(sgd)),
    ENTRY(state, "one `unscale_()` per optimizer and `update()`", Tensor w = leaf();
          optim::SGD sgd({w}, {.lr = 1}); amp::GradScaler scaler; scaler.scale(w.sum()).backward();
          scaler.unscale_(sgd); scaler.unscale_(sgd)),
    ENTRY(memory,
          "a smaller batch, autocast, or checkpointing: "
          "[Debugging](../guide/debugging.md#memory-grows-or-is-too-little)",
          empty({1'000'000, 1'000'000, 1'000})),
    ENTRY(io, "the path, as seen from the program's folder", io::load_state_dict_file("none")),
    ENTRY(io, "the file is damaged, or has another format", io::load_state_dict_file(damaged())),
    ENTRY(value, "other names than the module's: `io::load_weights()` renames and reports",
          nn::Linear(2, 2).load_state_dict({})),
};

// Message that the entry throws, without the parts that differ between runs: names of temporary folders,
// memory in use.
std::string thrown(const Entry& entry) {
    try {
        entry.attempt();
    } catch (const Error& error) {
        if (error.kind() != entry.kind)
            return std::string("kind ") + name(error.kind()) + ": " + error.what();
        return std::regex_replace(std::string(error.what()),
                                  std::regex("/[^ ]*mezzo-test-\\w+/|; allocated [^;]*"), "");
    }
    return "nothing";
}

// Cells of a Markdown table: code, or text, in which < would begin HTML.
std::string cell(const std::string& text) { return std::regex_replace(text, std::regex("\\|"), "\\|"); }
std::string text_cell(const std::string& text) {
    return std::regex_replace(cell(text), std::regex("<"), "&lt;");
}

}  // namespace

TEST_CASE("errors document: each line throws its kind of error, with a text", "[errors]") {
    for (const Entry& entry : entries) {
        INFO(entry.code);
        const std::string text = thrown(entry);
        CHECK(text != "nothing");
        CHECK(text.find("kind ") != 0);
        CHECK(text.find(':') != std::string::npos);
    }
}

TEST_CASE("errors document: the table", "[.errors_markdown]") {
    std::cout << "| kind | code | what is thrown | what helps |\n| --- | --- | --- | --- |\n";
    for (const Entry& entry : entries)
        std::cout << "| " << name(entry.kind) << " | `" << cell(entry.code) << "` | "
                  << text_cell(thrown(entry)) << " | " << cell(entry.help) << " |\n";
}
