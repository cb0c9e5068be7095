// Runs the ops that tools/random_ops.py has drawn, on its inputs, and writes results and gradients, which it
// compares with PyTorch's.
//
//   random_ops FOLDER   reads cases.txt ("id layout op argument..." per line) and inputs.safetensors
//                       ("id.0", "id.1", ...), writes results.safetensors ("id.y0", ..., gradients "id.g0", ...)
//                       and errors.txt ("id message")
#include <mezzo/data/table.h>
#include <mezzo/mezzo.h>

#include <cmath>
#include <exception>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "samples/program.h"

namespace mz = mezzo;

namespace {

using mz::Tensor, mz::Tensors;

// The words after an op's name: "-" means none, numbers of a list are separated by commas.
struct Arguments {
    std::vector<std::string> words;

    const std::string& word(std::size_t i) const { return words.at(i); }
    double number(std::size_t i) const { return std::stod(words.at(i)); }
    std::int64_t integer(std::size_t i) const { return std::stoll(words.at(i)); }
    bool flag(std::size_t i) const { return words.at(i) == "1"; }
    std::vector<std::int64_t> list(std::size_t i) const {
        std::vector<std::int64_t> values;
        if (words.at(i) == "-") return values;
        std::istringstream parts(words.at(i));
        for (std::string part; std::getline(parts, part, ',');) values.push_back(std::stoll(part));
        return values;
    }
    mz::Axes axes(std::size_t i) const {
        mz::Axes axes;
        for (const std::int64_t axis : list(i)) axes.push_back(axis);
        return axes;
    }
    mz::Reduction reduction(std::size_t i) const {
        return word(i) == "none"  ? mz::Reduction::none
               : word(i) == "sum" ? mz::Reduction::sum
                                  : mz::Reduction::mean;
    }
    std::optional<mz::Dtype> dtype(std::size_t i) const {
        for (const mz::Dtype dtype : mz::all_dtypes)
            if (word(i) == mz::name(dtype)) return dtype;
        return {};
    }
    mz::QuantileOptions quantile(std::size_t i) const {
        const std::map<std::string, mz::Interpolation> modes{{"linear", mz::Interpolation::linear},
                                                             {"lower", mz::Interpolation::lower},
                                                             {"higher", mz::Interpolation::higher},
                                                             {"nearest", mz::Interpolation::nearest},
                                                             {"midpoint", mz::Interpolation::midpoint}};
        mz::QuantileOptions options{.keepdim = flag(i + 1), .interpolation = modes.at(word(i + 2))};
        if (word(i) != "-") options.dim = integer(i);
        return options;
    }
    mz::VarOptions var(std::size_t i) const { return {.keepdim = flag(i), .correction = number(i + 1)}; }
    mz::ReduceOptions reduce(std::size_t i) const {
        const auto asked = dtype(i + 1);
        return {
            .keepdim = flag(i), .dtype = asked.value_or(mz::float32), .explicit_dtype = asked.has_value()};
    }
};

using Run = std::function<Tensors(const Tensors& x, const Arguments& a)>;
using Table = std::map<std::string, Run>;

#define OP(name, ...)                                                                                 \
    {                                                                                                 \
        name, []([[maybe_unused]] const Tensors& x, [[maybe_unused]] const Arguments& a) -> Tensors { \
            __VA_ARGS__;                                                                              \
        }                                                                                             \
    }

Tensors both(const mz::Sorted& sorted) { return {sorted.values, sorted.indices}; }

Table reductions() {
    return {
        OP("sum", return {mz::sum(x[0], a.axes(0), a.reduce(1))}),
            OP("mean", return {mz::mean(x[0], a.axes(0), a.reduce(1))}),
            OP("prod", return {mz::prod(x[0], a.axes(0), a.reduce(1))}),
            OP("var", return {mz::var(x[0], a.axes(0), a.var(1))}),
            OP("std", return {mz::std(x[0], a.axes(0), a.var(1))}),
            OP("var_mean", const mz::VarMean both = mz::var_mean(x[0], a.axes(0), a.var(1));
               return {both.var, both.mean}),
            OP("argmin", return {mz::argmin(x[0], a.integer(0), {.keepdim = a.flag(1)})}),
            OP("any", return {mz::any(x[0], a.axes(0), {.keepdim = a.flag(1)})}),
            OP("all", return {mz::all(x[0], a.axes(0), {.keepdim = a.flag(1)})}),
            OP("count_nonzero", return {mz::count_nonzero(x[0], a.axes(0))}),
            OP("quantile", return {mz::quantile(x[0], a.number(0), a.quantile(1))}),
            OP("cumsum", return {mz::cumsum(x[0], a.integer(0), a.dtype(1))}),
            OP("cumprod", return {mz::cumprod(x[0], a.integer(0), a.dtype(1))}),
            OP("softmax", return {mz::softmax(x[0], a.integer(0), *a.dtype(1))}),
            OP("log_softmax", return {mz::log_softmax(x[0], a.integer(0), *a.dtype(1))}),
            OP("softmin", return {mz::softmin(x[0], a.integer(0))}),
            OP("logsumexp", return {mz::logsumexp(x[0], a.axes(0), {.keepdim = a.flag(1)})}),
    };
}

Table orders() {
    return {
        OP("sort", return both(mz::sort(x[0], a.integer(0), {.descending = a.flag(1)}))),
            OP("topk", return {mz::topk(x[0], a.integer(0), a.integer(1), {.largest = a.flag(2)}).values}),
            OP("kthvalue",
               return {mz::kthvalue(x[0], a.integer(0), a.integer(1), {.keepdim = a.flag(2)}).values}),
            OP("searchsorted", return {mz::searchsorted(mz::sort(x[0]).values, x[1], {.right = a.flag(0)})}),
            OP("isin", return {mz::isin(x[0], x[1])}),
            OP("unique", const mz::Unique u = mz::unique(x[0], {.inverse = true, .counts = true});
               return {u.values, u.inverse, u.counts}),
            OP("bincount", return {mz::bincount(x[0], x.size() > 1 ? x[1] : Tensor(), a.integer(0))}),
            OP("nonzero", return {mz::nonzero(x[0])}),
            OP("masked_select", return {mz::masked_select(x[0], x[1])}),
            OP("one_hot", return {mz::one_hot(x[0], a.integer(0))}),
    };
}

Table arrangements() {
    return {
        OP("tril", return {mz::tril(x[0], a.integer(0))}),
        OP("triu", return {mz::triu(x[0], a.integer(0))}),
        OP("diag", return {mz::diag(x[0], a.integer(0))}),
        OP("flip", return {mz::flip(x[0], a.axes(0))}),
        OP("roll", return {mz::roll(x[0], a.list(0), a.axes(1))}),
        OP("roll_all", return {mz::roll(x[0], a.integer(0))}),
        OP("repeat", return {mz::repeat(x[0], a.axes(0))}),
        OP("repeat_interleave", return {mz::repeat_interleave(x[0], a.integer(0), a.integer(1))}),
        OP("repeat_interleave_counts", return {mz::repeat_interleave(x[0], x[1], a.integer(0))}),
        OP("split", return mz::split(x[0], a.integer(0), a.integer(1))),
        OP("chunk", return mz::chunk(x[0], a.integer(0), a.integer(1))),
        OP("unbind", return mz::unbind(x[0], a.integer(0))),
        OP("stack", return {mz::stack(x, a.integer(0))}),
    };
}

Table pointwise() {
    return {
        OP("floor", return {mz::floor(x[0])}),
        OP("ceil", return {mz::ceil(x[0])}),
        OP("round", return {mz::round(x[0])}),
        OP("trunc", return {mz::trunc(x[0])}),
        OP("mish", return {mz::mish(x[0])}),
        OP("elu", return {mz::elu(x[0], a.number(0))}),
        OP("leaky_relu", return {mz::leaky_relu(x[0], a.number(0))}),
        OP("hardtanh", return {mz::hardtanh(x[0], a.number(0), a.number(1))}),
        OP("remainder", return {mz::remainder(x[0], x[1])}),
        OP("remainder_scalar", return {mz::remainder(x[0], a.number(0))}),
        OP("atan2", return {mz::atan2(x[0], x[1])}),
        OP("isnan", return {mz::isnan(x[0])}),
        OP("isinf", return {mz::isinf(x[0])}),
        OP("lerp", return {mz::lerp(x[0], x[1], x[2])}),
        OP("lerp_scalar", return {mz::lerp(x[0], x[1], a.number(0))}),
        OP("addcmul", return {mz::addcmul(x[0], x[1], x[2], a.number(0))}),
        OP("addcdiv", return {mz::addcdiv(x[0], x[1], x[2], a.number(0))}),
        OP("glu", return {mz::glu(x[0], a.integer(0))}),
        OP("swiglu", return {mz::swiglu(x[0], x[1])}),
    };
}

Table products() {
    return {
        OP("outer", return {mz::outer(x[0], x[1])}),
        OP("dot", return {mz::dot(x[0], x[1])}),
        OP("bmm", return {mz::bmm(x[0], x[1])}),
        OP("addmm", return {mz::addmm(x[0], x[1], x[2], {.beta = a.number(0), .alpha = a.number(1)})}),
        OP("baddbmm", return {mz::baddbmm(x[0], x[1], x[2], {.beta = a.number(0), .alpha = a.number(1)})}),
        OP("einsum", return {mz::einsum(a.word(0), x)}),
        OP("cosine_similarity", return {mz::cosine_similarity(x[0], x[1], a.integer(0))}),
        OP("pairwise_distance",
           return {mz::pairwise_distance(x[0], x[1], {.p = a.number(0), .keepdim = a.flag(1)})}),
        OP("normalize", return {mz::normalize(x[0], a.number(0), a.integer(1))}),
    };
}

Table losses() {
    return {
        OP("kl_div", return {mz::kl_div(x[0], x[1],
                                        {.reduction = a.reduction(0),
                                         .batch_mean = a.word(0) == "batchmean",
                                         .log_target = a.flag(1)})}),
        OP("huber_loss",
           return {mz::huber_loss(x[0], x[1], {.delta = a.number(1), .reduction = a.reduction(0)})}),
        OP("hinge_embedding_loss", return {mz::hinge_embedding_loss(
                                       x[0], x[1], {.margin = a.number(1), .reduction = a.reduction(0)})}),
        OP("cosine_embedding_loss",
           return {mz::cosine_embedding_loss(x[0], x[1], x[2],
                                             {.margin = a.number(1), .reduction = a.reduction(0)})}),
        OP("triplet_margin_loss",
           return {mz::triplet_margin_loss(
               x[0], x[1], x[2],
               {.margin = a.number(1), .p = a.number(2), .swap = a.flag(3), .reduction = a.reduction(0)})}),
        OP("cross_entropy", return {mz::cross_entropy(x[0], x[1],
                                                      {.label_smoothing = a.number(1),
                                                       .reduction = a.reduction(0),
                                                       .weight = x.size() > 2 ? x[2] : Tensor()})}),
        OP("nll_loss",
           return {mz::nll_loss(mz::log_softmax(x[0]), x[1],
                                {.reduction = a.reduction(0), .weight = x.size() > 2 ? x[2] : Tensor()})}),
    };
}

const Table& table() {
    static const Table all = [] {
        Table joined;
        for (const auto& family : {reductions(), orders(), arrangements(), pointwise(), products(), losses()})
            joined.insert(family.begin(), family.end());
        return joined;
    }();
    return all;
}

// Returns the same elements in another layout: "t" with the first and last dimension swapped in memory, "s"
// every second element of a longer row.
Tensor laid_out(const Tensor& x, const std::string& layout) {
    if (layout == "t" && x.dim() >= 2) return x.transpose(0, -1).contiguous().transpose(0, -1);
    if (layout == "s" && x.dim() >= 1)
        return mz::stack({x, x}, -1).flatten(-2).slice(-1, 0, 2 * x.size(-1), 2);
    return x;
}

// The same as in random_ops.py.
Tensor waves(const Tensor& y) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < y.numel(); ++i) values.push_back(std::sin(1.3 * double(i) + 0.25));
    return Tensor::from(values, y.shape()).to(y.dtype());
}

void run(const std::string& id, const std::string& layout, const std::string& op, const Arguments& arguments,
         const Tensors& given, mz::StateDict& results) {
    Tensors x;
    for (const Tensor& input : given) {
        x.push_back(laid_out(input.clone(), layout).detach());
        if (mz::is_floating(input.dtype())) x.back().set_requires_grad();
    }
    const Tensors y = table().at(op)(x, arguments);
    Tensor total;
    for (std::size_t i = 0; i < y.size(); ++i) {
        results.emplace_back(id + ".y" + std::to_string(i), y[i].detach().contiguous());
        if (!y[i].requires_grad()) continue;
        const Tensor part = mz::sum((y[i] * waves(y[i])).to(mz::float64));
        total = total.defined() ? total + part : part;
    }
    if (!total.defined()) return;
    total.backward();
    for (std::size_t i = 0; i < x.size(); ++i)
        if (x[i].grad().defined())
            results.emplace_back(id + ".g" + std::to_string(i), x[i].grad().contiguous());
}

void run_all(const std::string& folder) {
    std::map<std::string, Tensor> inputs;
    for (const auto& [name, tensor] : mz::io::load_state_dict_file(folder + "/inputs.safetensors"))
        inputs[name] = tensor;
    std::ifstream cases(folder + "/cases.txt");
    std::ofstream errors(folder + "/errors.txt");
    mz::StateDict results;
    for (std::string line; std::getline(cases, line);) {
        std::istringstream words(line);
        std::string id, layout, op;
        words >> id >> layout >> op;
        Arguments arguments;
        for (std::string word; words >> word;) arguments.words.push_back(word);
        Tensors x;
        for (auto found = inputs.find(id + ".0"); found != inputs.end();
             found = inputs.find(id + "." + std::to_string(x.size())))
            x.push_back(found->second);
        try {
            run(id, layout, op, arguments, x, results);
        } catch (const std::exception& e) {
            errors << id << ' ' << e.what() << '\n';
        }
    }
    mz::io::save_safetensors(folder + "/results.safetensors", results);
}

int parse_and_run(int argc, char** argv) {
    std::string folder;
    CLI::App app{
        "Runs the ops that tools/random_ops.py has drawn, on its inputs, for a comparison with PyTorch."};
    app.add_option("folder", folder, "where the files are")->required()->check(CLI::ExistingDirectory);
    if (const int code = program::parse(app, argc, argv); code >= 0) return code;
    run_all(folder);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("random_ops", [&] { return parse_and_run(argc, argv); });
}
