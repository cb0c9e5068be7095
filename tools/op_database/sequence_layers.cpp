// Recurrent layers, attention and Transformers.
#include "tools/op_database/layer.h"

namespace database {

namespace {

// Recurrent layers take a batch: without one, of one sequence.
template <class M, class O> M& recurrent(const Call& c, O options) {
    options.num_layers = c.integer("num_layers", 2, 1);
    options.bias = c.flag("bias", 99, true);
    options.batch_first = c.flag("batch_first", 99);
    options.bidirectional = c.flag("bidirectional", 99);
    return layer<M>(c, c.integer("input_size", 0, 1), c.integer("hidden_size", 1, 1), options);
}
nn::RNNOptions rnn_options(const Call& c) {
    nn::RNNOptions options;
    if (c.text("nonlinearity", 99, "tanh") == "relu") options.nonlinearity = nn::RNNNonlinearity::relu;
    return options;
}
bool packed(const Call& f) { return f.has("input", 0) && !f.is_tensor("input", 0); }

template <class M> Tensors states(const Call& c, const M& m) {
    const Call f = c.forward();
    if (packed(f)) throw NotHere("a packed sequence");
    const bool single = f.x().dim() == 2;
    const int batch = m.batch_first ? 0 : 1;
    const Tensor x = single ? f.x().unsqueeze(batch) : f.x();
    const Tensor h = f.tensor("hx", 1);
    const auto y = m(x, single && h.defined() ? h.unsqueeze(1) : h);
    return single ? Tensors{y.output.squeeze(batch), y.h_n.squeeze(1)} : Tensors{y.output, y.h_n};
}
Tensors lstm_states(const Call& c, const nn::LSTM& m) {
    const Call f = c.forward();
    if (packed(f)) throw NotHere("a packed sequence");
    const bool single = f.x().dim() == 2;
    const int batch = m.batch_first ? 0 : 1;
    const auto alone = [&](const Tensor& x) { return single ? x.unsqueeze(1) : x; };
    nn::LSTMState start;
    if (f.has("hx", 1))
        start = {alone(f.tensor(f.json("hx", 1).at(0))), alone(f.tensor(f.json("hx", 1).at(1)))};
    const auto y = m(single ? f.x().unsqueeze(batch) : f.x(), start);
    if (single) return {y.output.squeeze(batch), y.h_n.squeeze(1), y.c_n.squeeze(1)};
    return {y.output, y.h_n, y.c_n};
}
template <class M> Tensor cell(const Call& c, const M& m) {
    const Call f = c.forward();
    const bool single = f.x().dim() == 1;
    const Tensor h = f.tensor("hx", 1);
    const Tensor y = m(single ? f.x().unsqueeze(0) : f.x(), single && h.defined() ? h.unsqueeze(0) : h);
    return single ? y.squeeze(0) : y;
}

Table recurrent_layers() {
    return {
        {"nn.RNN", [](const Call& c) { return states(c, recurrent<nn::RNN>(c, rnn_options(c))); }},
        {"nn.GRU", [](const Call& c) { return states(c, recurrent<nn::GRU>(c, nn::GRUOptions{})); }},
        {"nn.LSTM", [](const Call& c) { return lstm_states(c, recurrent<nn::LSTM>(c, nn::LSTMOptions{.proj_size = c.integer("proj_size", 99, 0)})); }},
        LAYER("RNNCell", cell(c, layer<nn::RNNCell>(c, c.integer("input_size", 0, 1), c.integer("hidden_size", 1, 1),
                                                    nn::RNNCellOptions{.nonlinearity = rnn_options(c).nonlinearity, .bias = c.flag("bias", 2, true)}))),
        LAYER("GRUCell", cell(c, layer<nn::GRUCell>(c, c.integer("input_size", 0, 1), c.integer("hidden_size", 1, 1), nn::CellOptions{.bias = c.flag("bias", 2, true)}))),
        {"nn.LSTMCell", [](const Call& c) -> Tensors {
             const Call f = c.forward();
             const nn::LSTMCell& m = layer<nn::LSTMCell>(c, c.integer("input_size", 0, 1), c.integer("hidden_size", 1, 1), nn::CellOptions{.bias = c.flag("bias", 2, true)});
             const bool single = f.x().dim() == 1;
             const auto alone = [&](const Tensor& x) { return single ? x.unsqueeze(0) : x; };
             nn::LSTMState start;
             if (f.has("hx", 1)) start = {alone(f.tensor(f.json("hx", 1).at(0))), alone(f.tensor(f.json("hx", 1).at(1)))};
             const nn::LSTMState y = m(alone(f.x()), start);
             return single ? Tensors{y.h.squeeze(0), y.c.squeeze(0)} : Tensors{y.h, y.c};
         }},
    };
}

// PyTorch's masks hide where they are true, and their batches are second unless batch_first.
Tensor visible(const Tensor& mask) {
    return mask.defined() && mask.dtype() == mz::boolean ? mz::logical_not(mask) : mask;
}
struct Batches {
    bool first, single;
    Tensor in(const Tensor& x) const { return single ? x.unsqueeze(0) : first ? x : x.transpose(0, 1); }
    Tensor out(const Tensor& y) const { return single ? y.squeeze(0) : first ? y : y.transpose(0, 1); }
    Tensor keys(const Tensor& mask) const {
        if (mask.defined() && mask.dtype() != mz::boolean) throw NotHere("key padding with numbers");
        return mask.defined() && single ? visible(mask).unsqueeze(0) : visible(mask);
    }
};

nn::TransformerEncoderLayerOptions block(const Call& c) {
    nn::TransformerEncoderLayerOptions o{.dim_feedforward = c.integer("dim_feedforward", 2, 2048),
                                         .dropout = c.number("dropout", 3, 0.1),
                                         .layer_norm_eps = c.number("layer_norm_eps", 5, 1e-5),
                                         .norm_first = c.flag("norm_first", 7)};
    if (c.has("activation", 4)) {
        const Json& activation = c.json("activation", 4);
        const std::string name =
            activation.is_string() ? activation.get<std::string>() : activation.value("function", "");
        if (name == "gelu") o.activation = mz::LinearActivation::gelu;
        if (name != "gelu" && name != "relu") throw NotHere("activation " + activation.dump());
    }
    if (!c.flag("bias", 8, true)) throw NotHere("a block without bias");
    if (o.dropout > 0 && c.training()) throw NotHere("random");
    return o;
}

nn::AttentionMasks masks(const Call& f, const Batches& b, const std::string& mask, std::size_t at,
                         const std::string& keys, std::size_t keys_at) {
    return {.key_mask = b.keys(f.tensor(keys, keys_at)), .mask = visible(f.tensor(mask, at))};
}

Tensors attention(const Call& c) {
    const Call f = c.forward();
    const nn::MultiheadAttentionOptions o{.dropout = c.number("dropout", 2, 0),
                                          .bias = c.flag("bias", 3, true),
                                          .add_bias_kv = c.flag("add_bias_kv", 4),
                                          .add_zero_attn = c.flag("add_zero_attn", 5),
                                          .kdim = c.integer("kdim", 6, 0),
                                          .vdim = c.integer("vdim", 7, 0)};
    const auto& m =
        layer<nn::MultiheadAttention>(c, c.integer("embed_dim", 0, 1), c.integer("num_heads", 1, 1), o);
    const Batches b{c.flag("batch_first", 8), f.x().dim() == 2};
    const nn::AttentionMasks masked = masks(f, b, "attn_mask", 5, "key_padding_mask", 3);
    if (!f.flag("need_weights", 4, true)) return {b.out(m(b.in(f.x()), b.in(f.x(1)), b.in(f.x(2)), masked))};
    const auto y =
        m.attend(b.in(f.x()), b.in(f.x(1)), b.in(f.x(2)), masked, f.flag("average_attn_weights", 6, true));
    return {b.out(y.output), b.single ? y.weights.squeeze(0) : y.weights};
}

Table transformers() {
    return {
        {"nn.MultiheadAttention", attention},
        {"nn.TransformerEncoderLayer",
         [](const Call& c) -> Tensors {
             const Call f = c.forward();
             const auto& m = layer<nn::TransformerEncoderLayer>(c, c.integer("d_model", 0, 1),
                                                                c.integer("nhead", 1, 1), block(c));
             const Batches b{c.flag("batch_first", 6), f.x().dim() == 2};
             return {b.out(m(b.in(f.x()), masks(f, b, "src_mask", 1, "src_key_padding_mask", 2)))};
         }},
        {"nn.TransformerDecoderLayer",
         [](const Call& c) -> Tensors {
             const Call f = c.forward();
             const auto& m = layer<nn::TransformerDecoderLayer>(c, c.integer("d_model", 0, 1),
                                                                c.integer("nhead", 1, 1), block(c));
             const Batches b{c.flag("batch_first", 6), f.x().dim() == 2};
             return {b.out(m(b.in(f.x()), b.in(f.x(1)),
                             {.tgt = masks(f, b, "tgt_mask", 2, "tgt_key_padding_mask", 4),
                              .memory = masks(f, b, "memory_mask", 3, "memory_key_padding_mask", 5)}))};
         }},
        {"nn.Transformer",
         [](const Call& c) -> Tensors {
             const Call f = c.forward();
             nn::TransformerOptions o{.num_encoder_layers = c.integer("num_encoder_layers", 2, 6),
                                      .num_decoder_layers = c.integer("num_decoder_layers", 3, 6)};
             o.layer = {.dim_feedforward = c.integer("dim_feedforward", 4, 2048),
                        .dropout = c.number("dropout", 5, 0.1),
                        .norm_first = c.flag("norm_first", 99)};
             if (o.layer.dropout > 0 && c.training()) throw NotHere("random");
             if (!c.flag("bias", 99, true)) throw NotHere("blocks without bias");
             const auto& m =
                 layer<nn::Transformer>(c, c.integer("d_model", 0, 512), c.integer("nhead", 1, 8), o);
             const Batches b{c.flag("batch_first", 99), f.x().dim() == 2};
             return {b.out(m(b.in(f.x()), b.in(f.x(1)),
                             {.src = masks(f, b, "src_mask", 2, "src_key_padding_mask", 5),
                              .tgt = masks(f, b, "tgt_mask", 3, "tgt_key_padding_mask", 6),
                              .memory = masks(f, b, "memory_mask", 4, "memory_key_padding_mask", 7)}))};
         }},
    };
}

}  // namespace

Table sequence_layers() {
    Table table = recurrent_layers();
    for (const auto& [name, run] : transformers()) table[name] = run;
    return table;
}

}  // namespace database
