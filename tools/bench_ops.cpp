// Times single ops. Reads a case per line from standard input, "op sizes dtype direction milliseconds", such as
// "softmax 12288,128 f32 fb 100", and answers with the median and the fastest call in microseconds, or "error"
// and a message. Direction f is the forward pass without history, fb is forward and backward with a given
// gradient. tools/torch_ops.py answers the same for PyTorch, tools/compare_ops.py asks both.
#include <mezzo/mezzo.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "samples/program.h"

namespace mz = mezzo;

namespace {

using mz::Tensor, mz::Tensors, mz::Shape;
using Call = std::function<Tensor()>;

// The sizes of a case, and its operands: floats() are the leaves that backward gives gradients.
struct Case {
    std::vector<std::int64_t> sizes;
    mz::Dtype dtype = mz::float32;
    bool backward = false;
    Tensors leaves = {};

    std::int64_t n(std::size_t i) const {
        if (i >= sizes.size()) throw std::invalid_argument(fmt::format("the op takes more than {} sizes", i));
        return sizes[i];
    }
    Shape all() const { return Shape(sizes.data(), int(sizes.size())); }
    Tensor leaf(const Tensor& values) {
        Tensor x = values.detach().to(dtype);
        if (!backward) return x;
        if (x.impl() == values.impl()) x = x.clone();
        x.set_requires_grad();
        leaves.push_back(x);
        return x;
    }
    Tensor floats(const Shape& shape) { return leaf(mz::randn(shape)); }
    Tensor floats() { return floats(all()); }
    Tensor constant(const Shape& shape) const { return mz::randn(shape).to(dtype); }
    Tensor constant() const { return constant(all()); }
    Tensor image() { return floats({n(0), n(2), n(3), n(1)}); }  // of n, c, h, w
    Tensor indices(std::int64_t below, const Shape& shape) const { return mz::randint(0, below, shape); }
    Tensor flags() const { return mz::randn(all()) > 0.0; }
    // As many parameters as sizes say, with gradients.
    Tensors parameters() const {
        Tensors list;
        for (std::int64_t i = 0; i < n(0); ++i) {
            list.push_back(mz::randn({n(1)}, {.requires_grad = true}));
            list.back().set_grad(mz::randn({n(1)}));
        }
        return list;
    }
};

using Make = std::function<Call(Case& c)>;
using Table = std::map<std::string, Make>;

#define OP(name, ...) ops[name] = []([[maybe_unused]] Case& c) -> Call { __VA_ARGS__; }
// Of one operand x, of two, of an operand that gets no gradient, and of an image with further numbers n.
#define OF_ONE(name, result) \
    OP(                      \
        name, const Tensor x = c.floats(); return [=] { return result; })
#define OF_TWO(name, result) \
    OP(                      \
        name, const Tensor x = c.floats(), y = c.floats(); return [=] { return result; })
#define OF_CONSTANT(name, operand, result) \
    OP(                                    \
        name, const Tensor x = operand; return [=] { return result; })
#define OF_IMAGE(name, result)                                                         \
    OP(                                                                                \
        name, const Tensor x = c.image(); const std::vector<std::int64_t> n = c.sizes; \
        return [=] { return result; })

void products(Table& ops) {
    OP(
        "mm_nn", const Tensor x = c.floats({c.n(0), c.n(2)}), w = c.floats({c.n(2), c.n(1)});
        return [=] { return mz::matmul(x, w); });
    OP(
        "mm_nt", const Tensor x = c.floats({c.n(0), c.n(2)}), w = c.floats({c.n(1), c.n(2)});
        return [=] { return mz::matmul(x, w.t()); });
    OP(
        "mm_tn", const Tensor x = c.floats({c.n(2), c.n(0)}), w = c.floats({c.n(2), c.n(1)});
        return [=] { return mz::matmul(x.t(), w); });
    OP(
        "linear", const Tensor x = c.floats({c.n(0), c.n(2)}), w = c.floats({c.n(1), c.n(2)}),
        b = c.floats({c.n(1)});
        return [=] { return mz::linear(x, w, b); });
    OP(
        "bmm", const Tensor x = c.floats({c.n(0), c.n(1), c.n(3)}), w = c.floats({c.n(0), c.n(3), c.n(2)});
        return [=] { return mz::matmul(x, w); });
    OP(
        "bmm_nt", const Tensor x = c.floats({c.n(0), c.n(1), c.n(3)}), w = c.floats({c.n(0), c.n(2), c.n(3)});
        return [=] { return mz::matmul(x, w.transpose(1, 2)); });
    OP(
        "einsum_bij_bkj", const Tensor x = c.floats({c.n(0), c.n(1), c.n(3)}),
        y = c.floats({c.n(0), c.n(2), c.n(3)});
        return [=] {
            return mz::einsum("bij,bkj->bik", {x, y});
        });
    OF_TWO("einsum_bshd_bthd", mz::einsum("bshd,bthd->bhst", {x, y}));
    OP(
        "einsum_bi_bj", const Tensor x = c.floats({c.n(0), c.n(1)}), y = c.floats({c.n(0), c.n(2)});
        return [=] {
            return mz::einsum("bi,bj->bij", {x, y});
        });
    OP(
        "outer", const Tensor x = c.floats({c.n(0)}), y = c.floats({c.n(1)});
        return [=] { return mz::outer(x, y); });
}

void attention_and_convolutions(Table& ops) {
    // batch, heads, length, dim, causal
    OP(
        "attention", const Shape shape({c.n(0), c.n(1), c.n(2), c.n(3)});
        const Tensor q = c.floats(shape), k = c.floats(shape), v = c.floats(shape);
        const bool causal = c.n(4) != 0;
        return [=] { return mz::scaled_dot_product_attention(q, k, v, {.causal = causal}); });
    // n, c, h, w, outputs, kernel, stride, padding, groups
    OP(
        "conv2d", const Tensor x = c.image(), w = c.floats({c.n(4), c.n(5), c.n(5), c.n(1) / c.n(8)});
        const mz::Conv2dOptions options{.stride = c.n(6), .padding = c.n(7), .groups = c.n(8)};
        return [=] { return mz::conv2d(x, w, {}, options); });
    OP(
        "conv_transpose2d", const Tensor x = c.image(), w = c.floats({c.n(1), c.n(5), c.n(5), c.n(4)});
        const mz::ConvTranspose2dOptions options{.stride = c.n(6), .padding = c.n(7)};
        return [=] { return mz::conv_transpose2d(x, w, {}, options); });
    // n, c, length, outputs, kernel, stride, padding
    OP(
        "conv1d", const Tensor x = c.floats({c.n(0), c.n(2), c.n(1)}), w = c.floats({c.n(3), c.n(4), c.n(1)});
        const mz::Conv1dOptions options{.stride = c.n(5), .padding = c.n(6)};
        return [=] { return mz::conv1d(x, w, {}, options); });
}

void elementwise(Table& ops) {
    OF_ONE("relu", mz::relu(x));
    OF_ONE("gelu", mz::gelu(x));
    OF_ONE("gelu_tanh", mz::gelu_tanh(x));
    OF_ONE("silu", mz::silu(x));
    OF_ONE("exp", mz::exp(x));
    OF_ONE("tanh", mz::tanh(x));
    OF_ONE("sigmoid", mz::sigmoid(x));
    OF_ONE("sin", mz::sin(x));
    OF_ONE("abs", mz::abs(x));
    OF_ONE("log1p", mz::log1p(mz::abs(x)));
    OF_ONE("pow_3", mz::pow(x, 3.0));
    OF_CONSTANT("pow_2.5", mz::rand(c.all()).to(c.dtype), mz::pow(x, 2.5));
    OF_ONE("square", x * x);
}

void binary_and_casts(Table& ops) {
    OF_CONSTANT("clone", c.constant(), x.clone());
    OF_TWO("add", x + y);
    OF_TWO("mul", x * y);
    OF_TWO("div", x / y);
    OP(
        "add_row", const Tensor x = c.floats(), y = c.floats({c.sizes.back()}); return [=] { return x + y; });
    OP(
        "add_column", const Tensor x = c.floats(), y = c.floats({c.n(0), 1}); return [=] { return x + y; });
    OP(
        "mul_middle", const Tensor x = c.floats(), y = c.floats({c.n(0), 1, c.n(2)});
        return [=] { return x * y; });
    OP(
        "add_transposed", const Tensor x = c.floats(), y = c.floats({c.n(1), c.n(0)});
        return [=] { return x + y.t(); });
    OP(
        "where", const Tensor x = c.floats(), y = c.floats(), flags = c.flags();
        return [=] { return mz::where(flags, x, y); });
    OP(
        "masked_fill", const Tensor x = c.floats(), flags = c.flags();
        return [=] { return mz::masked_fill(x, flags, -1.0); });
    OF_CONSTANT("gt", c.constant(), x > 0.0);
    OF_CONSTANT("to_bfloat16", mz::randn(c.all()), x.to(mz::bfloat16));
    OF_CONSTANT("to_float16", mz::randn(c.all()), x.to(mz::float16));
    OF_CONSTANT("int64_to_float32", c.indices(1000, c.all()), x.to(mz::float32));
    OF_CONSTANT("uint8_to_float32", c.indices(255, c.all()).to(mz::uint8), x.to(mz::float32));
    OF_ONE("dropout", mz::dropout(x, 0.1));
    OF_ONE("glu", mz::glu(x));
    OP(
        "rotary_embedding", const Tensor x = c.floats(), cosine = mz::randn({c.n(2), c.n(3) / 2}),
        sine = mz::randn({c.n(2), c.n(3) / 2});
        return [=] { return mz::rotary_embedding(x, cosine, sine); });
}

void reductions(Table& ops) {
    OF_ONE("sum", mz::sum(x));
    OF_ONE("sum_0", mz::sum(x, {0}));
    OF_ONE("sum_1", mz::sum(x, {1}));
    OF_ONE("sum_last", mz::sum(x, {-1}));
    OF_ONE("sum_0_2", mz::sum(x, {0, 2}));
    OF_ONE("mean_1", mz::mean(x, {1}));
    OF_ONE("amax", mz::max(x));
    OF_ONE("amax_0", mz::max(x, {0}));
    OF_ONE("amax_1", mz::max(x, {1}));
    OF_CONSTANT("argmax_0", c.constant(), mz::argmax(x, 0));
    OF_CONSTANT("argmax_1", c.constant(), mz::argmax(x, 1));
    OF_ONE("var_0", mz::var(x, {0}));
    OF_ONE("var_1", mz::var(x, {1}));
    OF_ONE("std", mz::std(x));
    OF_ONE("norm", mz::norm(x));
    OF_ONE("prod_1", mz::prod(x, {1}));
    OF_CONSTANT("any_1", c.flags(), mz::any(x, {1}));
    OF_CONSTANT("count_nonzero", c.flags(), mz::count_nonzero(x));
    OF_ONE("logsumexp_1", mz::logsumexp(x, {1}));
}

void rows(Table& ops) {
    OF_ONE("softmax", mz::softmax(x, -1));
    OF_ONE("softmax_0", mz::softmax(x, 0));
    OF_ONE("softmax_1", mz::softmax(x, 1));
    OF_ONE("log_softmax", mz::log_softmax(x, -1));
    OF_ONE("cumsum_0", mz::cumsum(x, 0));
    OF_ONE("cumsum_1", mz::cumsum(x, 1));
    OF_ONE("cumprod_1", mz::cumprod(x, 1));
}

void losses(Table& ops) {
    OP(
        "cross_entropy", const Tensor x = c.floats(), classes = c.indices(c.n(1), {c.n(0)});
        return [=] { return mz::cross_entropy(x, classes); });
    OP(
        "mse_loss", const Tensor x = c.floats(), y = c.constant(); return [=] { return mz::mse_loss(x, y); });
    OP(
        "l1_loss", const Tensor x = c.floats(), y = c.constant(); return [=] { return mz::l1_loss(x, y); });
    OP(
        "smooth_l1_loss", const Tensor x = c.floats(), y = c.constant();
        return [=] { return mz::smooth_l1_loss(x, y); });
    OP(
        "bce_with_logits", const Tensor x = c.floats(), y = mz::rand(c.all()).to(c.dtype);
        return [=] { return mz::binary_cross_entropy_with_logits(x, y); });
    OP(
        "kl_div", const Tensor x = c.leaf(mz::log_softmax(mz::randn(c.all()))),
        y = mz::softmax(mz::randn(c.all())).to(c.dtype);
        return [=] { return mz::kl_div(x, y); });
}

void layers(Table& ops) {
    OP(
        "layer_norm", const Tensor x = c.floats(), w = c.leaf(mz::ones({c.n(1)})),
        b = c.leaf(mz::zeros({c.n(1)}));
        return [=] { return mz::layer_norm(x, w, b); });
    OP(
        "rms_norm", const Tensor x = c.floats(), w = c.floats({c.n(1)});
        return [=] { return mz::rms_norm(x, w); });
    OP(
        "batch_norm", const Tensor x = c.image(), w = c.leaf(mz::ones({c.n(1)})),
        b = c.leaf(mz::zeros({c.n(1)})), mean = mz::zeros({c.n(1)}), var = mz::ones({c.n(1)});
        return [=] { return mz::batch_norm(x, mean, var, w, b); });
    OP(
        "group_norm", const Tensor x = c.image(), w = c.leaf(mz::ones({c.n(1)})),
        b = c.leaf(mz::zeros({c.n(1)}));
        const std::int64_t groups = c.n(4); return [=] { return mz::group_norm(x, groups, w, b); });
    // n, c, h, w, and what the op takes
    OF_IMAGE("max_pool2d", mz::max_pool2d(x, {.kernel_size = n[4], .stride = n[5], .padding = n[6]}));
    OF_IMAGE("avg_pool2d", mz::avg_pool2d(x, {.kernel_size = n[4], .stride = n[5], .padding = n[6]}));
    OF_IMAGE("adaptive_avg_pool2d", mz::adaptive_avg_pool2d(x, n[4]));
    OF_IMAGE("bilinear", mz::interpolate(x, n[4], {.mode = mz::InterpolateMode::bilinear}));
    OF_IMAGE("nearest", mz::interpolate(x, n[4]));
    OF_IMAGE("pad", mz::pad(x, {{1, n[4], n[4]}, {2, n[4], n[4]}}));
    OF_IMAGE("pad_reflect", mz::pad(x, {{1, n[4], n[4]}, {2, n[4], n[4]}}, mz::PadMode::reflect));
}

void indexing(Table& ops) {
    OP(
        "embedding", const Tensor w = c.floats({c.n(0), c.n(1)}), i = c.indices(c.n(0), {c.n(2)});
        return [=] { return mz::embedding(w, i); });
    OP(
        "index_select_0", const Tensor x = c.floats({c.n(0), c.n(1)}), i = c.indices(c.n(0), {c.n(2)});
        return [=] { return mz::index_select(x, 0, i); });
    OP(
        "index_select_1", const Tensor x = c.floats({c.n(0), c.n(1)}), i = c.indices(c.n(1), {c.n(2)});
        return [=] { return mz::index_select(x, 1, i); });
    OP(
        "gather_0", const Tensor x = c.floats({c.n(0), c.n(1)}), i = c.indices(c.n(0), {c.n(2), c.n(1)});
        return [=] { return mz::gather(x, 0, i); });
    OP(
        "gather_1", const Tensor x = c.floats({c.n(0), c.n(1)}), i = c.indices(c.n(1), {c.n(0), c.n(2)});
        return [=] { return mz::gather(x, 1, i); });
    OP(
        "scatter_add_0", const Tensor x = mz::zeros({c.n(0), c.n(1)}).to(c.dtype),
        source = c.floats({c.n(2), c.n(1)}), i = c.indices(c.n(0), {c.n(2), c.n(1)});
        return [=] { return mz::scatter_add(x, 0, i, source); });
    OP(
        "scatter_add_1", const Tensor x = mz::zeros({c.n(0), c.n(1)}).to(c.dtype),
        source = c.floats({c.n(0), c.n(2)}), i = c.indices(c.n(1), {c.n(0), c.n(2)});
        return [=] { return mz::scatter_add(x, 1, i, source); });
    OP(
        "masked_select", const Tensor x = c.floats(), flags = c.flags();
        return [=] { return mz::masked_select(x, flags); });
    OF_CONSTANT("nonzero", c.flags(), mz::nonzero(x));
}

void orders(Table& ops) {
    OF_CONSTANT("sort_0", c.constant(), mz::sort(x, 0).values);
    OF_CONSTANT("sort_1", c.constant(), mz::sort(x, 1).values);
    OF_CONSTANT("argsort_int64", c.indices(1000000, c.all()), mz::argsort(x, -1));
    OP(
        "topk", const Tensor x = c.constant({c.n(0), c.n(1)}); const std::int64_t k = c.n(2);
        return [=] { return mz::topk(x, k, 1).values; });
    OP(
        "kthvalue", const Tensor x = c.constant({c.n(0), c.n(1)}); const std::int64_t k = c.n(2);
        return [=] { return mz::kthvalue(x, k, 1).values; });
    OF_CONSTANT("unique", c.indices(c.n(1), {c.n(0)}), mz::unique(x).values);
    OF_CONSTANT("bincount", c.indices(c.n(1), {c.n(0)}), mz::bincount(x));
    OP(
        "searchsorted", const Tensor sorted = mz::sort(mz::randn({c.n(0)})).values, x = mz::randn({c.n(1)});
        return [=] { return mz::searchsorted(sorted, x); });
    OP(
        "one_hot", const std::int64_t classes = c.n(1); const Tensor x = c.indices(classes, {c.n(0)});
        return [=] { return mz::one_hot(x, classes); });
}

Tensor product_and_sum_of_thirds(const Tensor& x) {
    const Tensors parts = mz::chunk(x, 3, -1);
    return parts[0] * parts[1] + parts[2];
}

void copies(Table& ops) {
    OF_ONE("tril", mz::tril(x));
    OF_ONE("flip_0", mz::flip(x, {0}));
    OF_ONE("flip_1", mz::flip(x, {1}));
    OF_ONE("roll_1", mz::roll(x, {7}, {1}));
    OF_ONE("repeat", mz::repeat(x, {4, 1}));
    OF_ONE("repeat_interleave", mz::repeat_interleave(x, 4, 1));
    OF_TWO("cat_0", mz::cat({x, y}, 0));
    OF_TWO("cat_1", mz::cat({x, y}, 1));
    OF_TWO("stack_last", mz::stack({x, y}, -1));
    OF_ONE("transpose", x.t().contiguous());
    OF_ONE("permute_0213", x.permute({0, 2, 1, 3}).contiguous());
    OF_ONE("permute_0231", x.permute({0, 2, 3, 1}).contiguous());
    OF_ONE("permute_0312", x.permute({0, 3, 1, 2}).contiguous());
    OF_ONE("half", x.slice(1, 0, x.size(1) / 2).contiguous());
    OF_ONE("every_second", x.slice(1, 0, x.size(1), 2).contiguous());
    OF_ONE("chunk_3", product_and_sum_of_thirds(x));
}

template <class Net> Call recurrent(Case& c) {
    const auto net = std::make_shared<Net>(c.n(0), c.n(1));
    const Tensor x = c.constant({c.n(2), c.n(3), c.n(0)});
    if (c.backward) c.leaves = net->parameters();
    return [=] { return (*net)(x).output; };
}

template <class Optimizer, class Options> Call update(const Case& c, const Options& options) {
    const auto optimizer = std::make_shared<Optimizer>(c.parameters(), options);
    return [=] { return optimizer->step(), Tensor(); };
}

void others(Table& ops) {
    OP("lstm", return recurrent<mz::nn::LSTM>(c));
    // inputs, hidden, length, batch
    OP("gru", return recurrent<mz::nn::GRU>(c));
    OP("rnn", return recurrent<mz::nn::RNN>(c));
    OP(
        "randn", const Shape shape = c.all(); return [=] { return mz::randn(shape); });
    OP(
        "rand", const Shape shape = c.all(); return [=] { return mz::rand(shape); });
    OP(
        "randint", const Shape shape = c.all(); return [=] { return mz::randint(0, 1000, shape); });
    OP(
        "randperm", const std::int64_t n = c.n(0); return [=] { return mz::randperm(n); });
    OP(
        "zeros", const Shape shape = c.all(); return [=] { return mz::zeros(shape); });
    OP(
        "multinomial", const Tensor w = mz::rand({c.n(0), c.n(1)}); const std::int64_t count = c.n(2);
        return [=] { return mz::multinomial(w, count, {.replacement = true}); });
    // parameters, elements of each
    OP("adamw", return update<mz::optim::AdamW>(c, mz::optim::AdamWOptions{.lr = 1e-3}));
    OP("sgd_momentum", return update<mz::optim::SGD>(c, mz::optim::SGDOptions{.lr = 1e-3, .momentum = 0.9}));
    OP(
        "clip_grad_norm", const Tensors parameters = c.parameters();
        return [=] { return mz::nn::clip_grad_norm_(parameters, 1.0), Tensor(); });
}

const Table& table() {
    static const Table all = [] {
        Table joined;
        for (const auto add : {products, attention_and_convolutions, elementwise, binary_and_casts,
                               reductions, rows, losses, layers, indexing, orders, copies, others})
            add(joined);
        return joined;
    }();
    return all;
}

// A call of the whole case.
std::function<void()> whole(Case& c, const Call& call) {
    if (!c.backward)
        return [=] {
            const mz::NoGrad plain;
            call();
        };
    const Tensor y = call();
    const Tensor gradient = mz::randn(y.shape()).to(y.dtype());
    return [=, leaves = c.leaves] {
        call().backward({.gradient = gradient});
        for (const Tensor& leaf : leaves) leaf.set_grad({});
    };
}

std::string time_of(const std::string& line) {
    std::istringstream words(line);
    std::string op, sizes, dtype, direction, size;
    double milliseconds = 0;
    if (!(words >> op >> sizes >> dtype >> direction >> milliseconds)) return "error: not five words";
    Case c;
    if (dtype != "f32" && dtype != "bf16" && dtype != "f16")
        return "error: dtype " + dtype + "; f32, bf16, f16";
    if (direction != "f" && direction != "fb") return "error: direction " + direction + "; f or fb";
    c.dtype = dtype == "bf16" ? mz::bfloat16 : dtype == "f16" ? mz::float16 : mz::float32;
    c.backward = direction == "fb";
    for (std::istringstream parts(sizes); std::getline(parts, size, ',');) {
        c.sizes.push_back(0);
        if (!program::parse_number(size, c.sizes.back())) return "error: size " + size + " is not a number";
    }
    const auto found = table().find(op);
    if (found == table().end()) return "error: there is no op " + op;
    const std::function<void()> call = whole(c, found->second(c));
    // Not timed: kernels are chosen, memory comes from the system. Calls that take long are few.
    using Clock = std::chrono::steady_clock;
    const std::chrono::duration<double, std::milli> wanted(milliseconds), most = 10 * wanted;
    const auto first = Clock::now();
    call();
    if (Clock::now() - first < most) call();
    std::vector<double> times;
    for (const auto begin = Clock::now(); Clock::now() - begin < (times.size() < 3 ? most : wanted);) {
        const auto start = Clock::now();
        call();
        times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    }
    std::sort(times.begin(), times.end());
    return fmt::format("{:.3f} {:.3f}", times[times.size() / 2], times.front());
}

int parse_and_run(int argc, char** argv) {
    int threads = 1;
    bool list = false;
    CLI::App app{
        "Times ops: reads \"op sizes dtype direction milliseconds\", such as \"relu 4096,2048 f32 fb 100\"."};
    app.option_defaults()->always_capture_default();
    program::add_threads(app, threads);
    app.add_flag("--list", list, "print the names of the ops, and stop");
    if (const int code = program::parse(app, argc, argv); code >= 0) return code;
    if (list) {
        for (const auto& [name, make] : table()) fmt::print("{}\n", name);
        return 0;
    }
    mz::set_num_threads(threads);
    for (std::string line; std::getline(std::cin, line);) {
        std::string answer;
        try {
            answer = time_of(line);
        } catch (const std::exception& e) {
            answer = std::string("error: ") + e.what();
            std::replace(answer.begin(), answer.end(), '\n', ' ');
        }
        std::cout << answer << std::endl;
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("bench_ops", [&] { return parse_and_run(argc, argv); });
}
