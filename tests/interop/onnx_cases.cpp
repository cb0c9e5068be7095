// Models that the interop test exports, together with inputs and mezzo's own results as .npy files. C
// functions as in bridge.cpp.
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "mezzo/autograd.h"
#include "mezzo/conv_layers.h"
#include "mezzo/image_ops.h"
#include "mezzo/interchange/numpy.h"
#include "mezzo/interchange/onnx.h"
#include "mezzo/models/bert.h"
#include "mezzo/models/gpt.h"
#include "mezzo/models/llama.h"
#include "mezzo/models/resnet.h"
#include "mezzo/ops.h"
#include "mezzo/pool_layers.h"
#include "mezzo/reduce_ops.h"
#include "mezzo/rnn.h"
#include "mezzo/shape_ops.h"
#include "mezzo/sort_ops.h"

namespace {

using namespace mezzo;

using MakeInputs = std::function<Tensors(std::int64_t batch)>;

// Gives weights and statistics the values of a trained model: none of them 0 or 1.
void train_a_little(nn::Module& model) {
    const NoGrad plain;
    for (const auto& [name, x] : model.named_parameters())
        if (x.dim() == 1) x.add_(randn_like(x), 0.2);
    for (const auto& [name, x] : model.named_buffers()) {
        if (name.ends_with("running_mean")) x.normal_(0, 0.3);
        if (name.ends_with("running_var")) x.uniform_(0.5, 2);
    }
}

// Writes the ONNX file and, for each batch size, the inputs and results.
template <class M> void write_case(M& model, const MakeInputs& inputs, const io::OnnxForward& forward,
                                   const std::string& folder, const std::vector<std::int64_t>& batches,
                                   const io::OnnxOptions& options = {}) {
    train_a_little(model);
    io::export_onnx(model, inputs(batches[0]), folder + "/model.onnx", forward, options);
    model.eval();
    const NoGrad plain;
    for (std::size_t run = 0; run < batches.size(); ++run) {
        const Tensors in = inputs(batches[run]), out = forward(in);
        const auto save = [&](const char* what, const Tensors& all) {
            for (std::size_t i = 0; i < all.size(); ++i)
                io::save_npy(folder + "/" + what + std::to_string(run) + "_" + std::to_string(i) + ".npy",
                             all[i].contiguous());
        };
        save("in", in);
        save("out", out);
    }
}

const std::vector<std::int64_t> some_batches{4, 1, 7};

MakeInputs noise(const Shape& item) {
    return [item](std::int64_t batch) {
        Shape shape = item;
        shape.insert(0, batch);
        return Tensors{randn(shape)};
    };
}

void mlp(const std::string& folder) {
    nn::Sequential net(nn::Linear(12, 32), nn::ReLU(), nn::Linear(32, 32), nn::GELU(),
                       nn::Linear(32, 16, {.bias = false}), nn::GELU({.approximate_tanh = true}),
                       nn::Dropout(0.5), nn::LayerNorm(16), nn::Tanh(), nn::Linear(16, 3));
    train_a_little(net);
    const MakeInputs inputs = noise({12});
    write_case(
        net, inputs, [&](const Tensors& in) { return Tensors{net(in[0])}; }, folder, some_batches);
    // Uses the overload that calls the model itself, with names.
    io::export_onnx(net, inputs(1), folder + "/model.onnx",
                    {.input_names = {"features"}, .output_names = {"logits"}});
}

// A model whose weights are in a file of their own.
void external(const std::string& folder) {
    nn::Sequential net(nn::Linear(12, 64), nn::ReLU(), nn::Linear(64, 48, {.bias = false}), nn::ReLU(),
                       nn::Linear(48, 3));
    write_case(net, noise({12}), [&](const Tensors& in) { return Tensors{net(in[0])}; }, folder, some_batches,
               {.external_data = true});
}

nn::BertConfig small_bert() {
    nn::BertConfig config;
    config.vocab_size = 50;
    config.hidden_size = 32;
    config.num_hidden_layers = 2;
    config.num_attention_heads = 4;
    config.intermediate_size = 64;
    config.max_position_embeddings = 24;
    config.num_labels = 3;
    return config;
}

// The first text is as long as the ids, the others are shorter.
Tensors texts(std::int64_t batch, bool masked, bool types) {
    const std::int64_t length = 11;
    Tensors in{randint(0, 50, {batch, length}, {.dtype = int64})};
    const Tensor place = arange(length, {.dtype = int64}), row = arange(batch, {.dtype = int64}).unsqueeze(1);
    if (masked) in.push_back(lt(place + row, double(length)).contiguous());
    if (types) in.push_back(cast(gt(place + row, 5), int64).contiguous());
    return in;
}

void bert(const std::string& folder) {
    nn::BertForSequenceClassification model(small_bert());
    write_case(
        model, [](std::int64_t batch) { return texts(batch, false, false); },
        [&](const Tensors& in) { return Tensors{model(in[0])}; }, folder, some_batches);
}

void bert_mask(const std::string& folder) {
    nn::BertForSequenceClassification model(small_bert());
    const MakeInputs inputs = [](std::int64_t batch) { return texts(batch, true, true); };
    write_case(
        model, inputs,
        [&](const Tensors& in) {
            return Tensors{model(in[0], {in[1], in[2]})};
        },
        folder, some_batches);
    io::export_onnx(model, inputs(2), folder + "/model.onnx",
                    {.input_names = {"input_ids", "attention_mask", "token_type_ids"}});
}

void bert_encoder(const std::string& folder) {
    nn::BertConfig config = small_bert();
    config.hidden_act = "silu";
    nn::Bert model(config);
    write_case(
        model, [](std::int64_t batch) { return texts(batch, true, false); },
        [&](const Tensors& in) {
            const nn::BertOutput y = model(in[0], {.attention_mask = in[1]});
            return Tensors{y.last_hidden_state, y.pooler_output};
        },
        folder, some_batches);
}

void resnet(const std::string& folder, std::int64_t depth, std::int64_t size,
            const std::vector<std::int64_t>& batches) {
    nn::ResNet model(nn::resnet_config(depth));
    write_case(
        model, noise({size, size, 3}), [&](const Tensors& in) { return Tensors{model(in[0])}; }, folder,
        batches);
}

// Options of convolutions and pools, in PyTorch's usual order: activations are modules of their own.
struct Images : nn::Module {
    Tensors operator()(const Tensor& x) const {
        const Tensor a = relu(norm(grouped(x))),
                     b = conv2d_add_relu(silu(a), dilated.weight, {}, a, {.padding = 2, .dilation = 2});
        const Tensor up = transposed(max_pool2d(b, {.kernel_size = 3, .stride = 2, .ceil_mode = true}));
        return {up,
                avg_pool2d(b, {.kernel_size = 2, .padding = 1, .count_include_pad = false}),
                adaptive_avg_pool2d(b, 3),
                adaptive_max_pool2d(b, 2),
                group(b),
                interpolate(b, {5, 13}, {.mode = InterpolateMode::bilinear}),
                signal(b.reshape({b.size(0), b.size(1) * b.size(2), b.size(3)}))};
    }
    nn::Conv2d grouped{4, 8, 3, {.stride = 1, .padding = 1, .groups = 2}};
    nn::BatchNorm2d norm{8};
    nn::Conv2d dilated{8, 8, 3, {.padding = 2, .dilation = 2, .bias = false}};
    nn::ConvTranspose2d transposed{8, 6, 3, {.stride = 2, .padding = 1, .output_padding = 1}};
    nn::GroupNorm group{4, 8};
    nn::Conv1d signal{8, 5, 3, {.padding = 1}};
    MEZZO_MODULE(Images, grouped, norm, dilated, transposed, group, signal)
};

void images(const std::string& folder) {
    Images model;
    write_case(
        model, noise({9, 12, 4}), [&](const Tensors& in) { return model(in[0]); }, folder, some_batches);
}

// One result of each op that has a mapping and is in no other case.
struct Ops : nn::Module {
    Tensors operator()(const Tensor& x, const Tensor& index) const {
        const Tensor positive = abs(x) + 0.5, scaled = x * scale, bound = clamp(x, -0.9, 0.9);
        Tensors results{-x,
                        sign(x),
                        square(x),
                        exp(bound),
                        expm1(bound),
                        log(positive),
                        log1p(positive),
                        sqrt(positive),
                        rsqrt(positive),
                        reciprocal(positive),
                        sin(x),
                        cos(x),
                        erf(x),
                        tanh(x),
                        sigmoid(x),
                        relu(x),
                        gelu(x),
                        gelu_tanh(x),
                        silu(x),
                        softplus(x),
                        softsign(x),
                        mish(x),
                        floor(x * 3.0),
                        ceil(x * 3.0),
                        round(x * 3.0),
                        trunc(x * 3.0)};
        const Tensors more{2.0 - x,
                           x / 3.0,
                           2.0 / positive,
                           pow(positive, 1.5),
                           clamp(x, -0.2, 0.3),
                           elu(x, 0.7),
                           leaky_relu(x, 0.2),
                           scaled - x,
                           x / positive,
                           pow(positive, bound),
                           maximum(x, scaled),
                           minimum(x, scaled),
                           where(gt(x, 0.1), x, scaled),
                           masked_fill(x, logical_or(le(x, -0.5), ge(x, 0.5)), 7)};
        const Tensors flags{eq(index, 1),       ne(index, 1),
                            lt(x, scaled),      logical_and(gt(x, 0), lt(index, 2)),
                            logical_not(index), isfinite(x / 1e-30)};
        const Tensors parts{x.permute({0, 2, 1}).slice(1, 1, 4, 2),
                            x.select(1, 2),
                            cat({x, scaled}, 1),
                            pad(x, {{.dim = 2, .before = 1, .after = 2}}, PadMode::constant, 0.5),
                            pad(x, {{.dim = 1, .before = 1, .after = 1}}, PadMode::reflect),
                            index_select(x, 1, Tensor::from<std::int64_t>({3, 0, 0}, {3})),
                            gather(x, 2, index),
                            cumsum(one_hot(index, 4) * x.unsqueeze(-1), 1),
                            x.unsqueeze(1).expand({-1, 2, -1, -1})};
        const Sorted sorted = sort(x, 1), first = topk(x, 2, 2), last = topk(x, 3, 1, {.largest = false});
        const Tensors order{sorted.values,
                            sorted.indices,
                            first.values,
                            first.indices,
                            last.values,
                            argsort(index, 2, {.descending = true}),
                            argsort(gt(x, 0), 1),
                            kthvalue(x, 2, 2).values,
                            remainder(x * 3.0, scaled),
                            remainder(x * 3.0, full({5}, 1.5)),
                            remainder(index - 2, cast(index * 2 - 3, int64)),
                            prod(x, {1}),
                            prod(index + 1, {2}),
                            scatter_add(x, 2, index, scaled)};
        const Tensors sums{sum(x, {1}),
                           sum(index, {2}),
                           mean(x, {1, 2}, {.keepdim = true}),
                           max(x, {2}),
                           min(x, {1}),
                           norm(x, {2}),
                           logsumexp(x, {2}),
                           argmax(x, 1),
                           argmin(x, 2),
                           softmax(x, 1),
                           log_softmax(x, 2),
                           var(x, {2}),
                           matmul(x, scaled.transpose(1, 2)),
                           rms_norm(x, scale),
                           cast(index, float32) * 0.5,
                           cast(index, int32)};
        for (const Tensors& list : {more, flags, parts, order, sums})
            results.insert(results.end(), list.begin(), list.end());
        return results;
    }
    nn::Parameter scale{randn({5})};
    MEZZO_MODULE(Ops, scale)
};

void ops(const std::string& folder) {
    Ops model;
    const MakeInputs inputs = [](std::int64_t batch) {
        return Tensors{randn({batch, 4, 5}), randint(0, 4, {batch, 4, 5}, {.dtype = int64})};
    };
    write_case(
        model, inputs, [&](const Tensors& in) { return model(in[0], in[1]); }, folder, some_batches);
}

// Integers and booleans in ops whose ONNX operators take real numbers only, and reductions of a single
// number.
struct Integers : nn::Module {
    Tensors operator()(const Tensor& x, const Tensor& index) const {
        const Tensor bytes = cast(index + 4.0, uint8), flags = gt(x, 0), others = lt(x, 0.5);
        return {floor(index),
                ceil(index),
                round(index),
                trunc(index),
                relu(index),
                relu(bytes),
                -index,
                -bytes,
                clamp(index, -1, 2),
                clamp(bytes, -1, 300),
                clamp(bytes, 3, 300),
                lt(flags, others),
                ge(flags, others),
                eq(flags, others),
                ne(flags, others),
                argmax(flags, 1),
                argmin(flags, 2),
                norm(offset) * x,
                cast(flags, int64) + index};
    }
    nn::Parameter offset{full({}, -3)};
    MEZZO_MODULE(Integers, offset)
};

void integers(const std::string& folder) {
    Integers model;
    const MakeInputs inputs = [](std::int64_t batch) {
        return Tensors{randn({batch, 4, 5}), randint(-4, 4, {batch, 4, 5}, {.dtype = int64})};
    };
    write_case(
        model, inputs, [&](const Tensors& in) { return model(in[0], in[1]); }, folder, some_batches);
}

Tensors token_ids(std::int64_t batch) { return {randint(0, 40, {batch, 9}, {.dtype = int64})}; }

void gpt(const std::string& folder) {
    nn::GptConfig config;
    config.vocab_size = 40;
    config.n_positions = 16;
    config.n_embd = 32;
    config.n_layer = 2;
    config.n_head = 4;
    nn::Gpt model(config);
    write_case(
        model, token_ids, [&](const Tensors& in) { return Tensors{model(in[0])}; }, folder, some_batches);
}

void llama(const std::string& folder) {
    nn::LlamaConfig config;
    config.vocab_size = 40;
    config.max_position_embeddings = 16;
    config.hidden_size = 32;
    config.intermediate_size = 48;
    config.num_hidden_layers = 2;
    config.num_attention_heads = 4;
    config.num_key_value_heads = 2;
    nn::Llama model(config);
    write_case(
        model, token_ids, [&](const Tensors& in) { return Tensors{model(in[0])}; }, folder, some_batches);
}

// Dimension 0 is time, so the batch size is fixed.
void lstm(const std::string& folder) {
    nn::LSTM model(6, 8, {.num_layers = 2, .bidirectional = true});
    write_case(model, noise({5, 6}), [&](const Tensors& in) { return Tensors{model(in[0]).output}; }, folder,
               {3}, {.dynamic_batch = false});
}

// Recurrent layers over [B, T, 6] with all results, default and given states, with and without lengths.
struct Recurrent : nn::Module {
    Tensors operator()(const Tensor& x, const Tensor& lengths) const {
        const Tensor h0 = stack({x.select(1, 0), x.select(1, 1)}, 0), c0 = tanh(h0);
        Tensors results;
        for (const auto& y : {lstm(x), lstm(x, {}, lengths), projected(x), projected(x, {}, lengths),
                              turned(x.transpose(0, 1)), turned(x.transpose(0, 1), {h0, c0})})
            results.insert(results.end(), {y.output, y.h_n, y.c_n});
        for (const auto& y : {gru(x), gru(x, {}, lengths), rnn(x), rnn(x, {}, lengths)})
            results.insert(results.end(), {y.output, y.h_n});
        const Tensor step = x.select(1, 2);
        const nn::LSTMState first = lstm_cell(step), second = lstm_cell(step, first);
        const Tensors states{first.h,       first.c, second.h, second.c, gru_cell(step, gru_cell(step)),
                             rnn_cell(step)};
        results.insert(results.end(), states.begin(), states.end());
        return results;
    }
    nn::LSTM lstm{6, 5, {.num_layers = 2, .batch_first = true, .bidirectional = true}};
    nn::LSTM projected{6, 5, {.num_layers = 2, .batch_first = true, .bidirectional = true, .proj_size = 3}};
    nn::LSTM turned{6, 6, {.num_layers = 2}};
    nn::GRU gru{6, 5, {.num_layers = 2, .batch_first = true, .bidirectional = true}};
    nn::RNN rnn{6, 5, {.nonlinearity = nn::RNNNonlinearity::relu, .batch_first = true}};
    nn::LSTMCell lstm_cell{6, 4};
    nn::GRUCell gru_cell{6, 4};
    nn::RNNCell rnn_cell{6, 4};
    MEZZO_MODULE(Recurrent, lstm, projected, turned, gru, rnn, lstm_cell, gru_cell, rnn_cell)
};

void recurrent_layers(const std::string& folder) {
    Recurrent model;
    const MakeInputs inputs = [](std::int64_t batch) {
        return Tensors{randn({batch, 4, 6}), randint(1, 5, {batch}, {.dtype = int64})};
    };
    write_case(
        model, inputs, [&](const Tensors& in) { return model(in[0], in[1]); }, folder, some_batches);
}

// Tensors created in forward, whose sizes depend on the batch size.
struct Created : nn::Module {
    Tensors operator()(const Tensor& x) const {
        const std::int64_t b = x.size(0), t = x.size(1);
        const Tensor row = arange(b), twice = cat({x, -x}, 0);
        std::vector<float> items;  // what a program fills on the host: the same for each item of the batch
        for (std::int64_t i = 0; i < b * 3; ++i) items.push_back(float(i % 3));
        const Tensor causal = triu(ones({t, t}, {.dtype = boolean}), 1);
        const Tensor scores = masked_fill(matmul(x, x.transpose(1, 2)), causal, -1e4);
        return {cat({x, zeros({b, 2, 5})}, 1),
                cat({x, ones({b, t, 1})}, 2),
                cat({zeros_like(x), full_like(x, 2), x}, 2),
                zeros({b, 3}),
                full({b}, 0.5),
                full({2 * b, 1}, 7, {.dtype = int64}),
                cat({full({b}, 3), x.reshape({-1})}, 0),
                cat({ones({b}, {.dtype = boolean}), gt(x, 0).reshape({-1})}, 0),
                row,
                arange(0, 2 * b, 2),
                arange(3, 3 + b, {.dtype = float32}),
                arange(b * 3).reshape({b, 3}),
                cat({Tensor::from(items, {b, 3}), x.select(1, 0)}, 1),
                index_select(x.reshape({b * t, 5}), 0, row * double(t) + 1),
                cat({token.expand({b, 1, 5}), x}, 1) + arange(t + 1, {.dtype = float32}).unsqueeze(1),
                x.reshape({t, b, 5}),
                x.reshape({b, 1, t, 5}).expand({b, 2, t, 5}).reshape({2 * b, t * 5}),
                x.reshape({b * t * 5}).unsqueeze(0).expand({b, -1}),
                ones({b, b}) + x.select(2, 0).select(1, 0),
                x.slice(0, 0, b),
                twice.slice(0, 0, b) - twice.slice(0, b, 2 * b),
                topk(x.select(1, 0), b, 0).values,
                softmax(scores, 2)};
    }
    nn::Parameter token{randn({1, 1, 5})};
    MEZZO_MODULE(Created, token)
};

void created(const std::string& folder) {
    Created model;
    write_case(
        model, noise({4, 5}), [&](const Tensors& in) { return model(in[0]); }, folder, some_batches);
}

struct Case {
    const char* name;
    std::function<void(const std::string&)> write;
};
const std::vector<Case>& cases() {
    static const std::vector<Case> all{
        {"mlp", mlp},
        {"external", external},
        {"bert", bert},
        {"bert_mask", bert_mask},
        {"bert_encoder", bert_encoder},
        {"resnet8", [](const std::string& folder) { resnet(folder, 8, 16, some_batches); }},
        {"resnet20",
         [](const std::string& folder) {
             resnet(folder, 20, 32, {2, 3});
         }},
        {"resnet18",
         [](const std::string& folder) {
             resnet(folder, 18, 64, {1, 2});
         }},
        {"resnet50", [](const std::string& folder) { resnet(folder, 50, 32, {1}); }},
        {"images", images},
        {"ops", ops},
        {"integers", integers},
        {"gpt", gpt},
        {"llama", llama},
        {"lstm", lstm},
        {"recurrent", recurrent_layers},
        {"created", created},
    };
    return all;
}

std::string last_error;

}  // namespace

extern "C" {

const char* onnx_error() { return last_error.c_str(); }

// The name of case i, or null after the last one.
const char* onnx_case(int i) {
    return std::size_t(i) < cases().size() ? cases()[std::size_t(i)].name : nullptr;
}

// Writes case i into an existing folder. Returns 0, or 1 after a failure.
int write_onnx_case(int i, const char* folder) {
    try {
        manual_seed(std::uint64_t(i) + 1);
        cases()[std::size_t(i)].write(folder);
        return 0;
    } catch (const std::exception& error) {
        last_error = error.what();
        return 1;
    }
}

}  // extern "C"
