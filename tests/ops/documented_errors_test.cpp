// Errors that the comments of include/mezzo document and that no other test file covers, and slice() with
// bounds out of range.
#include <catch2/catch.hpp>
#include <limits>

#include "mezzo/data/loader.h"
#include "mezzo/mezzo.h"
#include "mezzo/models/bert.h"
#include "mezzo/models/bert_config.h"
#include "mezzo/text/tokenizer.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

struct Documented {
    const char* what;
    ErrorKind kind;
    void (*attempt)();
};

Tensor f(const Shape& shape) { return zeros(shape); }
Tensor leaf(const Shape& shape) { return zeros(shape, {.requires_grad = true}); }
template <class T> void use(const T&) {}

const Documented tensors[] = {
    {"shape() of an undefined tensor", ErrorKind::state, [] { use(Tensor().shape()); }},
    {"reshape() of an undefined tensor", ErrorKind::value, [] { use(Tensor().reshape({1})); }},
    {"from: too few values", ErrorKind::shape,
     [] {
         use(Tensor::from({1, 2}, {3}));
     }},
    {"size() of a 0-dim tensor", ErrorKind::shape, [] { use(scalar(1).size(0)); }},
    {"size(): no such dimension", ErrorKind::shape, [] { use(f({2}).size(1)); }},
    {"data<T>(): another dtype", ErrorKind::dtype, [] { use(f({2}).data<double>()); }},
    {"item(): two elements", ErrorKind::shape, [] { use(f({2}).item<float>()); }},
    {"to(): no such device", ErrorKind::device, [] { use(f({2}).to(Device(DeviceType::cuda, 77))); }},
    {"reshape(): another number of elements", ErrorKind::shape, [] { use(f({6}).reshape({4})); }},
    {"reshape(): two -1", ErrorKind::shape,
     [] {
         use(f({6}).reshape({-1, -1}));
     }},
    {"permute(): an axis is missing", ErrorKind::shape,
     [] {
         use(f({2, 3}).permute({0}));
     }},
    {"permute(): an axis twice", ErrorKind::shape,
     [] {
         use(f({2, 3}).permute({0, 0}));
     }},
    {"t(): no matrix", ErrorKind::shape, [] { use(f({2}).t()); }},
    {"slice(): a step of 0", ErrorKind::value, [] { use(f({2}).slice(0, 0, 2, 0)); }},
    {"slice() of a 0-dim tensor", ErrorKind::shape, [] { use(scalar(1).slice(0, 0, 1)); }},
    {"slice(): no such dimension", ErrorKind::shape, [] { use(f({2}).slice(1, 0, 1)); }},
    {"select(): an index out of range", ErrorKind::shape, [] { use(f({2}).select(0, 2)); }},
    {"[]: an index out of range", ErrorKind::shape, [] { use(f({2})[-3]); }},
    {"expand(): does not broadcast", ErrorKind::shape, [] { use(f({2}).expand({3})); }},
    {"flatten(): the wrong way round", ErrorKind::shape,
     [] {
         use(f({2, 3}).flatten(1, 0));
     }},
    {"set_requires_grad(): integers", ErrorKind::dtype, [] { arange(3).set_requires_grad(); }},
    {"set_requires_grad(): no leaf", ErrorKind::state, [] { (leaf({2}) * 2.0).set_requires_grad(false); }},
    {"set_grad(): another shape", ErrorKind::shape, [] { leaf({2}).set_grad(f({3})); }},
    {"backward(): two elements", ErrorKind::shape, [] { (leaf({2}) * 2.0).backward(); }},
    {"backward(): no history", ErrorKind::state, [] { sum(f({2})).backward(); }},
    {"fill_(): recorded history", ErrorKind::state, [] { leaf({2}).fill_(1); }},
    {"fill_(): an expanded tensor", ErrorKind::state, [] { f({1}).expand({3}).fill_(1); }},
    {"copy_(): does not broadcast", ErrorKind::shape, [] { f({2}).copy_(f({3})); }},
    {"add_(): a floating operand of an integral tensor", ErrorKind::dtype, [] { arange(2).add_(f({2})); }},
    {"mul_(): a boolean tensor", ErrorKind::dtype, [] { zeros({2}, {.dtype = boolean}).mul_(2.0); }},
    {"uniform_(): integers", ErrorKind::dtype, [] { arange(2).uniform_(0, 1); }},
    {"uniform_(): low above high", ErrorKind::value, [] { f({2}).uniform_(1, 0); }},
    {"normal_(): a negative deviation", ErrorKind::value, [] { f({2}).normal_(0, -1); }},
    {"zeros(): a negative size", ErrorKind::shape, [] { use(zeros({-1})); }},
    {"zeros(): too many bytes", ErrorKind::shape,
     [] {
         use(zeros({std::int64_t(1) << 62, 4}));
     }},
    {"zeros(): no such device", ErrorKind::device,
     [] {
         use(zeros({1}, {.device = {DeviceType::cuda, 77}}));
     }},
    {"zeros(): requires_grad of integers", ErrorKind::dtype,
     [] { use(zeros({1}, {.dtype = int64, .requires_grad = true})); }},
    {"arange(): a negative end", ErrorKind::value, [] { use(arange(-1)); }},
    {"arange(): boolean", ErrorKind::dtype, [] { use(arange(1, {.dtype = boolean})); }},
    {"randn(): integers", ErrorKind::dtype, [] { use(randn({1}, {.dtype = int32})); }},
    {"randint(): low is high", ErrorKind::value, [] { use(randint(3, 3, {1})); }},
    {"randint(): too many values", ErrorKind::value,
     [] { use(randint(0, (std::int64_t(1) << 32) + 1, {1})); }},
    {"randperm(): negative", ErrorKind::value, [] { use(randperm(-1)); }},
    {"all_close(): different shapes", ErrorKind::shape, [] { use(all_close(f({2}), f({3}))); }},
    {"Shape: nine values", ErrorKind::shape,
     [] {
         use(Shape{1, 2, 3, 4, 5, 6, 7, 8, 9});
     }},
    {"Shape::insert()", ErrorKind::shape, [] { Shape{1}.insert(2, 1); }},
    {"Shape::erase()", ErrorKind::shape, [] { Shape{1}.erase(1); }},
};

const Documented devices_and_gradients[] = {
    {"parse_device(): no device", ErrorKind::device, [] { use(parse_device("gpu")); }},
    {"synchronize(): no such device", ErrorKind::device,
     [] {
         synchronize({DeviceType::cuda, 77});
     }},
    {"memory_stats(): no such device", ErrorKind::device,
     [] {
         use(memory_stats({DeviceType::cuda, 77}));
     }},
    {"set_num_threads(0)", ErrorKind::value, [] { set_num_threads(0); }},
    {"set_num_threads(1025)", ErrorKind::value, [] { set_num_threads(1025); }},
    {"set_gemm_options(): candidates", ErrorKind::value, [] { cuda::set_gemm_options({.candidates = 65}); }},
    {"grad(): no history", ErrorKind::state, [] { use(autograd::grad({sum(f({2}))}, {leaf({2})})); }},
    {"grad(): an input that is not used", ErrorKind::state,
     [] { use(autograd::grad({sum(leaf({2}))}, {leaf({2})})); }},
    {"grad(): two grad_outputs for one output", ErrorKind::value,
     [] {
         const Tensor x = leaf({2});
         use(autograd::grad({sum(x)}, {x}, {.grad_outputs = {scalar(1), scalar(1)}}));
     }},
    {"grad(): a grad_output of another shape", ErrorKind::shape,
     [] {
         const Tensor x = leaf({2});
         use(autograd::grad({x * 2.0}, {x}, {.grad_outputs = {f({3})}}));
     }},
    {"grad(): a released graph", ErrorKind::state,
     [] {
         const Tensor x = leaf({2}), y = sum(x * x);
         y.backward();
         use(autograd::grad({y}, {x}));
     }},
    {"grad(): a saved tensor was written to", ErrorKind::state,
     [] {
         const Tensor x = leaf({2}), y = sum(x * x);
         {
             const NoGrad plain;
             x.fill_(1);
         }
         y.backward();
     }},
    {"add_hook(): no gradient", ErrorKind::state,
     [] { autograd::add_hook(f({2}), [](const Tensor& g) { return g; }); }},
    {"a hook that returns another shape", ErrorKind::shape,
     [] {
         const Tensor x = leaf({2});
         autograd::add_hook(x, [](const Tensor&) { return f({3}); });
         sum(x * 2.0).backward();
     }},
    {"checkpoint(): an undefined result", ErrorKind::state,
     [] { use(autograd::checkpoint([](const Tensors&) { return Tensors{Tensor()}; }, {leaf({2})})); }},
    {"apply_function(): an undefined result", ErrorKind::state,
     [] {
         autograd::apply_function(
             {}, [](autograd::Context&, const Tensors&) { return Tensors{Tensor()}; },
             [](autograd::Context&, const Tensors& g) { return g; }, {leaf({2})});
     }},
    {"Autocast: float64", ErrorKind::dtype, [] { const amp::Autocast scope({.dtype = float64}); }},
    {"initialize(): an unknown level", ErrorKind::value,
     [] {
         nn::Linear layer(2, 2);
         optim::SGD optimizer(layer.parameters(), {.lr = 1});
         use(amp::initialize(layer, optimizer, {.opt_level = "O4"}).properties().autocast);
     }},
    {"initialize(): a 16-bit model", ErrorKind::dtype,
     [] {
         nn::Linear layer(2, 2, {.dtype = float16});
         optim::SGD optimizer(layer.parameters(), {.lr = 1});
         use(amp::initialize(layer, optimizer).properties().autocast);
     }},
};

nn::BertConfig small_bert() {
    return {.vocab_size = 10,
            .hidden_size = 4,
            .num_hidden_layers = 1,
            .num_attention_heads = 2,
            .intermediate_size = 4,
            .max_position_embeddings = 3};
}

const Documented modules_and_data[] = {
    {"Parameter: integers", ErrorKind::dtype, [] { nn::Parameter{arange(2)}; }},
    {"load_state_dict(): a name is missing", ErrorKind::value, [] { nn::Linear(2, 2).load_state_dict({}); }},
    {"Module::to(): integers", ErrorKind::dtype, [] { nn::Linear(2, 2).to(int64); }},
    {"Module::to(): no such device", ErrorKind::device,
     [] { nn::Linear(2, 2).to(Device(DeviceType::cuda, 77)); }},
    {"Linear: a negative size", ErrorKind::value, [] { nn::Linear(-1, 2); }},
    {"Embedding: padding_idx", ErrorKind::value, [] { nn::Embedding(2, 2, {.padding_idx = 2}); }},
    {"LayerNorm: no elements", ErrorKind::value, [] { nn::LayerNorm(0); }},
    {"RMSNorm: a negative eps", ErrorKind::value, [] { nn::RMSNorm(2, {.eps = -1}); }},
    {"Dropout: above 1", ErrorKind::value, [] { nn::Dropout(1.5); }},
    {"Sequential: no such module", ErrorKind::value, [] { use(nn::Sequential()[0].training()); }},
    {"Sequential: a module of another type", ErrorKind::value,
     [] { use(nn::Sequential(nn::ReLU()).at<nn::Linear>(0).training()); }},
    {"clip_grad_norm_(): negative", ErrorKind::value, [] { nn::clip_grad_norm_({}, -1); }},
    {"clip_grad_value_(): negative", ErrorKind::value, [] { nn::clip_grad_value_({}, -1); }},
    {"MultiheadAttention: heads", ErrorKind::value, [] { nn::MultiheadAttention(6, 4); }},
    {"MultiheadAttention: dropout", ErrorKind::value, [] { nn::MultiheadAttention(4, 2, {.dropout = 1}); }},
    {"MultiheadAttention: a mask of another shape", ErrorKind::shape,
     [] {
         const Tensor x = f({1, 2, 4});
         use(nn::MultiheadAttention(4, 2)(x, x, x, {.mask = f({3, 3})}));
     }},
    {"MultiheadAttention: a floating padding mask", ErrorKind::dtype,
     [] {
         const Tensor x = f({1, 2, 4});
         use(nn::MultiheadAttention(4, 2)(x, x, x, {.key_mask = f({1, 2})}));
     }},
    {"Bert: too long", ErrorKind::value,
     [] {
         use(nn::Bert(small_bert())(zeros({1, 4}, {.dtype = int64})));
     }},
    {"Bert: floating ids", ErrorKind::dtype,
     [] {
         use(nn::Bert(small_bert())(f({1, 2})));
     }},
    {"Bert: one dimension", ErrorKind::shape, [] { use(nn::Bert(small_bert())(arange(2))); }},
    {"masked_tokens(): floating labels", ErrorKind::dtype,
     [] {
         use(nn::masked_tokens(f({1, 2})));
     }},
    {"masked_tokens(): none", ErrorKind::value,
     [] {
         use(nn::masked_tokens(full({1, 2}, -100, {.dtype = int64})));
     }},
    {"DataLoader: undefined", ErrorKind::value,
     [] {
         data::DataLoader({f({2}), Tensor()});
     }},
    {"DataLoader: different sizes", ErrorKind::shape,
     [] {
         data::DataLoader({f({2}), arange(3)});
     }},
    {"DataLoader: batch_size", ErrorKind::value,
     [] {
         data::DataLoader({f({2}), arange(2)}, {.batch_size = 0});
     }},
    {"DataLoader: stddev", ErrorKind::value,
     [] {
         data::DataLoader({f({2}), arange(2)}, {.stddev = 0});
     }},
    {"DataLoader: no such device", ErrorKind::device,
     [] {
         data::DataLoader({f({2}), arange(2)}, {.device = {DeviceType::cuda, 77}}).begin();
     }},
    {"pad(): multiple_of", ErrorKind::value, [] { use(data::pad({}, {.multiple_of = 0})); }},
    {"learn_wordpiece(): min_count", ErrorKind::value,
     [] { use(data::learn_wordpiece({}, {.min_count = 0})); }},
    {"learn_wordpiece(): size", ErrorKind::value, [] { use(data::learn_wordpiece({}, {.size = 1})); }},
    {"CapturedStep: warmup", ErrorKind::value,
     [] { cuda::CapturedStep([](const Tensors& in) { return in; }, {.warmup = 0, .device = cpu_device}); }},
    {"CapturedStep: an undefined input", ErrorKind::value,
     [] {
         cuda::CapturedStep step([](const Tensors& in) { return in; }, {.device = cpu_device});
         step({Tensor()});
     }},
    {"CapturedStep: inside Autocast", ErrorKind::state,
     [] {
         cuda::CapturedStep step([](const Tensors& in) { return in; }, {.device = cpu_device});
         const amp::Autocast scope;
         step({f({1})});
     }},
};

void check_all(std::span<const Documented> claims) {
    for (const auto& [what, kind, attempt] : claims) {
        INFO(what);
        try {
            attempt();
            FAIL_CHECK("nothing is thrown");
        } catch (const Error& error) {
            INFO(error.what());
            CHECK(int(error.kind()) == int(kind));
        }
    }
}

}  // namespace

TEST_CASE("documented errors: tensors") { check_all(tensors); }
TEST_CASE("documented errors: devices and gradients") { check_all(devices_and_gradients); }
TEST_CASE("documented errors: modules and data") { check_all(modules_and_data); }

TEST_CASE("slice: bounds count from the end, are moved to the ends, and never throw") {
    const Tensor x = arange(5).to(float32).set_requires_grad();
    constexpr std::int64_t far = std::numeric_limits<std::int64_t>::max();
    struct {
        std::int64_t start, end, step;
        std::vector<double> values;
    } const cases[] = {
        {1, 3, 1, {1, 2}},   {-2, 5, 1, {3, 4}},   {0, -1, 2, {0, 2}}, {-far - 1, far, 2, {0, 2, 4}},
        {3, 100, 1, {3, 4}}, {-100, 2, 1, {0, 1}}, {0, far, far, {0}}, {-100, 100, 1, {0, 1, 2, 3, 4}},
        {4, 2, 1, {}},       {5, 100, 1, {}},      {100, 200, 1, {}},  {-200, -100, 1, {}},
        {2, 2, 1, {}},       {-1, -2, 1, {}},
    };
    for (const auto& [start, end, step, values] : cases) {
        INFO(start << " to " << end << " by " << step);
        const Tensor part = x.slice(0, start, end, step);
        CHECK(part.shape() == Shape{std::int64_t(values.size())});
        CHECK(doubles(part) == values);
        std::vector<double> slope(5, 0.0);
        for (const double v : values) slope[std::size_t(v)] = 1;
        CHECK(doubles(autograd::grad({sum(part)}, {x})[0]) == slope);
    }
}
