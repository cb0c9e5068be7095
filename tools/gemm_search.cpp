// Compares mezzo's choice of GEMM algorithms with the best of cuBLASLt, for the products of training steps;
// prints one JSON object per product as soon as it is done.
#include <fmt/format.h>
#include <mezzo/mezzo.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor_impl.h"
#include "cuda/gemm/gemm.h"
#include "cuda/runtime/runtime.h"
#include "samples/program.h"
#include "tools/exhaustive_search.h"

namespace mz = mezzo;

namespace {

// A product of one layer's step, and its number in a training step.
struct Product {
    std::string step, name;
    int per_step;
    std::int64_t batch, in, out;
    enum Kind { forward, input_gradient, weight_gradient } kind;
    mz::Activation activation = mz::Activation::none;
};

// Adds Linear(in, out) on `batch` rows, `count` times: forward, and the gradients of input and weight.
void add_layer(std::vector<Product>& all, const std::string& step, const std::string& layer, int count,
               std::int64_t batch, std::int64_t in, std::int64_t out, mz::Activation activation) {
    all.push_back({step, layer + " forward", count, batch, in, out, Product::forward, activation});
    for (const auto& [name, kind] : {std::pair(" input gradient", Product::input_gradient),
                                     std::pair(" weight gradient", Product::weight_gradient)})
        all.push_back({step, layer + name, count, batch, in, out, kind});
}

// Adds the recipe's MLP: the gradients of its equal layers are one kind of product each, and so are the two
// forward products with a ReLU.
void add_recipe(std::vector<Product>& all, const std::string& step, std::int64_t batch, std::int64_t width) {
    all.push_back({step, "forward, ReLU", 2, batch, width, width, Product::forward, mz::Activation::relu});
    all.push_back({step, "forward, last", 1, batch, width, width, Product::forward});
    all.push_back({step, "input gradient", 2, batch, width, width, Product::input_gradient});
    all.push_back({step, "weight gradient", 3, batch, width, width, Product::weight_gradient});
}

std::vector<Product> products(std::int64_t divide) {
    std::vector<Product> all;
    const std::int64_t wide = 4096 / divide, hidden = 768 / divide, tokens = 16 * 128 / divide;
    add_recipe(all, "recipe512", 512 / divide, wide);
    add_recipe(all, "recipe513", 512 / divide + 1, wide);
    using mz::Activation;
    const int layers = 12;
    const std::string bert = "bert_base128";
    add_layer(all, bert, "query, key, value", layers, tokens, hidden, 3 * hidden, Activation::none);
    add_layer(all, bert, "attention output", layers, tokens, hidden, hidden, Activation::none);
    add_layer(all, bert, "intermediate", layers, tokens, hidden, 4 * hidden, Activation::gelu);
    add_layer(all, bert, "output", layers, tokens, 4 * hidden, hidden, Activation::none);
    return all;
}

// The operands. Their values are random, because zeros take less power and run at a higher clock rate.
struct Operands {
    mz::Tensor a, b, c, bias, before;
};

mz::Tensor matrix(std::int64_t rows, std::int64_t cols, mz::Dtype dtype) {
    return mz::randn({rows, cols}, {.device = mz::Device{mz::DeviceType::cuda}}).to(dtype);
}

// Describes the product as the linear layer calls it under float16 autocast.
mz::cuda::Gemm gemm_of(const Product& p, Operands& o) {
    const mz::Tensor x = matrix(p.batch, p.in, mz::float16), w = matrix(p.out, p.in, mz::float16),
                     dy = matrix(p.batch, p.out, mz::float16);
    mz::cuda::Gemm g;
    g.a_type = g.b_type = g.c_type = g.bias_type = mz::float16;
    if (p.kind == Product::forward) {  // y = activation(x w^T + bias)
        o = {x, w, dy, matrix(1, p.out, mz::float16), {}};
        g.m = p.batch, g.n = p.out, g.k = p.in;
        g.trans_b = true;
        g.bias = raw(o.bias);
        g.activation = p.activation;
        if (p.activation == mz::Activation::gelu) {
            o.before = matrix(p.batch, p.out, mz::float16);
            g.pre_activation = raw(o.before);
        }
    } else if (p.kind == Product::input_gradient) {  // dx = dy w
        o = {dy, w, x, {}, {}};
        g.m = p.batch, g.n = p.in, g.k = p.out;
    } else {  // dw = dy^T x, in float32
        o = {dy, x, matrix(p.out, p.in, mz::float32), {}, {}};
        g.m = p.out, g.n = p.in, g.k = p.batch;
        g.trans_a = true;
        g.c_type = mz::float32;
    }
    g.a = raw(o.a), g.b = raw(o.b), g.c = raw(o.c);
    g.lda = g.trans_a ? g.m : g.k;
    g.ldb = g.trans_b ? g.k : g.n;
    g.ldc = g.n;
    return g;
}

void print(const Product& p, const mz::cuda::Gemm& g, const mz::SearchResult& r) {
    fmt::print(
        "{{\"step\": \"{}\", \"product\": \"{}\", \"per_step\": {}, \"m\": {}, \"n\": {}, \"k\": {}, "
        "\"heuristic_us\": {:.3f}, \"autotuned_us\": {:.3f}, \"best_us\": {:.3f}, \"best\": \"{}\", "
        "\"configurations\": {}, \"tried\": {}, \"accepted\": {}, \"wrong\": {}, \"complete\": {}}}\n",
        p.step, p.name, p.per_step, g.m, g.n, g.k, r.heuristic_us, r.autotuned_us, r.best_us, r.best,
        r.configurations, r.tried, r.accepted, r.wrong, r.complete);
    std::fflush(stdout);  // so that no result is lost if a time limit ends the process
}

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void run(const std::string& step, std::size_t only, double seconds, std::int64_t divide) {
    std::vector<Product> todo = products(divide);
    if (!step.empty()) std::erase_if(todo, [&](const Product& p) { return p.step != step; });
    if (only > todo.size())
        throw std::runtime_error(fmt::format("--product {}: there are {} of them", only, todo.size()));
    if (only > 0) todo = {todo[only - 1]};
    const double end = now() + seconds;
    for (std::size_t i = 0; i < todo.size(); ++i) {
        Operands operands;
        const mz::cuda::Gemm g = gemm_of(todo[i], operands);
        const double share = (end - now()) / double(todo.size() - i);
        print(todo[i], g, mz::search_algorithms(g, {.seconds = std::max(share, 0.0)}));
    }
}

int parse_and_run(int argc, char** argv) {
    std::string step;
    std::size_t only = 0;
    double seconds = 60;
    std::int64_t divide = 1;
    CLI::App app{"Searches cuBLASLt's algorithms for the products of training steps."};
    app.option_defaults()->always_capture_default();
    app.add_option("--step", step, "of which step; all if empty")
        ->check(CLI::IsMember({"", "recipe512", "recipe513", "bert_base128"}));
    app.add_option("--product", only, "only the first, second, ... of these; 0 for all")
        ->transform(program::in_range<std::size_t>(0, 1000));
    app.add_option("--seconds", seconds, "of trying configurations, for all products together")
        ->transform(program::in_range(0.0, 1e6));
    app.add_option("--divide", divide, "sizes by this number, for a trial")
        ->transform(program::in_range(1, 64));
    if (const int code = program::parse(app, argc, argv); code >= 0) return code;
    mz::cuda::set_device(0);
    run(step, only, seconds, divide);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("gemm_search", [&] { return parse_and_run(argc, argv); });
}
