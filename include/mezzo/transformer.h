// Multi-head attention and the Transformer's encoder and decoder (Vaswani et al., arXiv 1706.03762), with
// PyTorch's parameter names and layouts. Batch first: activations are [batch, length, embed_dim].
//
//   const nn::TransformerEncoder encoder(512, 8, {.num_layers = 6, .layer = {.norm_first = true}});
//   y = encoder(x, {.key_mask = mask});  // x [batch, length, 512]; mask [batch, length], false for padding
//   const nn::Transformer model(512, 8);
//   y = model(x, y, {.tgt = {.causal = true}});  // source and target
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/nn.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

// Attention masks. True means that a query attends to a key, as everywhere in mezzo; key_padding_mask and
// attn_mask of PyTorch's nn.MultiheadAttention mean the opposite: apply logical_not() to them. For a query
// that attends to no key the result is a meaningless average if `mask` is floating, and 0 otherwise.
struct AttentionMasks {
    Tensor key_mask = {};  // boolean [batch, key]: true for real keys, false for padding
    // [query, key] or [batch * num_heads, query, key]; boolean: true where a query attends to a key;
    // floating: added to the scores.
    Tensor mask = {};
    bool causal = false;  // the last query attends to all keys, each earlier one to one key less
};

struct MultiheadAttentionOptions {
    double dropout = 0;  // of the attention weights while training, in [0, 1)
    bool bias = true;    // of all four projections
    // Appends a learnable row to key and to value (bias_k, bias_v), and a row of zeros to both. Every query
    // attends to them, whatever the masks.
    bool add_bias_kv = false, add_zero_attn = false;
    std::int64_t kdim = 0, vdim = 0;  // size of key and of value; 0: embed_dim
};

// The result of MultiheadAttention::attend().
struct AttentionResult {
    Tensor output;   // [batch, length, embed_dim]
    Tensor weights;  // [batch, length, key], or [batch, num_heads, length, key] per head
};

// out_proj(heads of softmax(q k^T / sqrt(embed_dim / num_heads)) v). Projections start as Xavier-uniform, all
// biases as 0, PyTorch's defaults. With kdim or vdim the projections are three parameters instead of one.
class MultiheadAttention : public Module {
public:
    // Error(value) unless embed_dim is a positive multiple of num_heads, the dropout in [0, 1), and kdim and
    // vdim not negative.
    MultiheadAttention(std::int64_t embed_dim, std::int64_t num_heads,
                       const MultiheadAttentionOptions& options = {});
    // query [batch, length, embed_dim], key [batch, key, kdim], value [batch, key, vdim] -> [batch, length,
    // embed_dim].
    // One tensor given as all three is projected by one product, one given as key and value by one for both.
    // Throws Error(shape) for inputs or masks of other shapes, and Error(dtype) for a key_mask that
    // is not boolean.
    [[nodiscard]] Tensor operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const AttentionMasks& masks = {}) const;
    // The same with the weights of the keys, after dropout: their mean over the heads, or those of each head.
    // PyTorch's need_weights and average_attn_weights. The scores are stored as a whole.
    [[nodiscard]] AttentionResult attend(const Tensor& query, const Tensor& key, const Tensor& value,
                                         const AttentionMasks& masks = {}, bool average_heads = true) const;
    // The input of out_proj: the concatenated results of the heads, [batch, length, embed_dim].
    [[nodiscard]] Tensor joined_heads(const Tensor& query, const Tensor& key, const Tensor& value,
                                      const AttentionMasks& masks = {}) const;
    std::string describe() const override;
    bool is_linear_weight(std::string_view path) const override { return path.ends_with("_proj_weight"); }

    Parameter in_proj_weight;  // [3 embed_dim, embed_dim]: of query, key, value
    // [embed_dim, embed_dim], [embed_dim, kdim], [embed_dim, vdim]: instead of in_proj_weight
    Parameter q_proj_weight, k_proj_weight, v_proj_weight;
    Parameter in_proj_bias;    // [3 embed_dim], undefined without bias
    Parameter bias_k, bias_v;  // [1, 1, embed_dim], undefined without add_bias_kv
    Linear out_proj;
    std::int64_t num_heads;
    double dropout_p;
    bool add_zero_attn;
    MEZZO_MODULE(MultiheadAttention, in_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight,
                 in_proj_bias, bias_k, bias_v, out_proj)

private:
    struct Heads;  // query, key and value by heads, and their mask
    Heads heads_of(const Tensor& query, const Tensor& key, const Tensor& value,
                   const AttentionMasks& masks) const;
};

struct TransformerEncoderLayerOptions {
    std::int64_t dim_feedforward = 2048;
    double dropout = 0.1;  // of attention weights, activations, and both results before they are added
    LinearActivation activation = LinearActivation::relu;  // or gelu, gelu_tanh
    double layer_norm_eps = 1e-5;
    bool norm_first = false;
};

// norm_first = false: x = norm1(x + attention(x)), x = norm2(x + linear2(activation(linear1(x)))), each
// addition, its dropout and norm in one op. norm_first = true: x = x + attention(norm1(x)), x = x +
// linear2(activation(linear1(norm2(x)))).
class TransformerEncoderLayer : public Module {
public:
    TransformerEncoderLayer(std::int64_t d_model, std::int64_t nhead,
                            const TransformerEncoderLayerOptions& options = {});
    // [batch, length, d_model] -> the same shape.
    [[nodiscard]] Tensor operator()(const Tensor& x, const AttentionMasks& masks = {}) const;

    MultiheadAttention self_attn;
    Linear linear1, linear2;
    LayerNorm norm1, norm2;
    double dropout_p;
    LinearActivation activation;
    bool norm_first;
    MEZZO_MODULE(TransformerEncoderLayer, self_attn, linear1, linear2, norm1, norm2)

private:
    Tensor run(const Tensor& x, const AttentionMasks& masks) const;
};

struct TransformerEncoderOptions {
    std::int64_t num_layers = 6;
    TransformerEncoderLayerOptions layer = {};
    bool final_norm = false;  // a LayerNorm after the last layer, usual with norm_first
    // Activation checkpointing: backward recomputes each layer's activations. Needs memory for one layer plus
    // one activation per layer, and about a third more time; no second derivatives.
    bool checkpoint_layers = false;
};

// num_layers layers, each with weights of its own.
class TransformerEncoder : public Module {
public:
    TransformerEncoder(std::int64_t d_model, std::int64_t nhead,
                       const TransformerEncoderOptions& options = {});
    // [batch, length, d_model] -> the same shape.
    [[nodiscard]] Tensor operator()(const Tensor& x, const AttentionMasks& masks = {}) const;

    const char* type_name() const override { return "TransformerEncoder"; }
    void visit_fields(FieldVisitor& visitor) override;

    std::vector<TransformerEncoderLayer> layers;
    LayerNorm norm;  // used and listed only with final_norm
    bool final_norm, checkpoint_layers;
};

using TransformerDecoderLayerOptions = TransformerEncoderLayerOptions;

// Masks of a decoder: of the target's attention to itself and to the encoder's result. {.causal = true} is
// PyTorch's generate_square_subsequent_mask().
struct DecoderMasks {
    AttentionMasks tgt = {}, memory = {};
};

// norm_first = false: x = norm1(x + self_attn(x)), x = norm2(x + multihead_attn(x, memory)), x = norm3(x +
// linear2(activation(linear1(x)))). norm_first = true: the norms come before each part, as in the encoder.
class TransformerDecoderLayer : public Module {
public:
    TransformerDecoderLayer(std::int64_t d_model, std::int64_t nhead,
                            const TransformerDecoderLayerOptions& options = {});
    // tgt [batch, length, d_model], memory [batch, source length, d_model] -> the shape of tgt.
    [[nodiscard]] Tensor operator()(const Tensor& tgt, const Tensor& memory,
                                    const DecoderMasks& masks = {}) const;

    MultiheadAttention self_attn, multihead_attn;
    Linear linear1, linear2;
    LayerNorm norm1, norm2, norm3;
    double dropout_p;
    LinearActivation activation;
    bool norm_first;
    MEZZO_MODULE(TransformerDecoderLayer, self_attn, multihead_attn, linear1, linear2, norm1, norm2, norm3)

private:
    Tensor run(const Tensor& tgt, const Tensor& memory, const DecoderMasks& masks) const;
};

struct TransformerDecoderOptions {
    std::int64_t num_layers = 6;
    TransformerDecoderLayerOptions layer = {};
    bool final_norm = false;
    bool checkpoint_layers = false;  // as of TransformerEncoderOptions
};

// num_layers layers, each with weights of its own.
class TransformerDecoder : public Module {
public:
    TransformerDecoder(std::int64_t d_model, std::int64_t nhead,
                       const TransformerDecoderOptions& options = {});
    // tgt [batch, length, d_model], memory [batch, source length, d_model] -> the shape of tgt.
    [[nodiscard]] Tensor operator()(const Tensor& tgt, const Tensor& memory,
                                    const DecoderMasks& masks = {}) const;

    const char* type_name() const override { return "TransformerDecoder"; }
    void visit_fields(FieldVisitor& visitor) override;

    std::vector<TransformerDecoderLayer> layers;
    LayerNorm norm;  // used and listed only with final_norm
    bool final_norm, checkpoint_layers;
};

struct TransformerOptions {
    std::int64_t num_encoder_layers = 6, num_decoder_layers = 6;
    TransformerEncoderLayerOptions layer = {};  // of both
    bool checkpoint_layers = false;
};
struct TransformerMasks {
    AttentionMasks src = {}, tgt = {}, memory = {};
};

// decoder(tgt, encoder(src)), both with a norm after the last layer. All matrices start as Xavier-uniform.
class Transformer : public Module {
public:
    explicit Transformer(std::int64_t d_model = 512, std::int64_t nhead = 8,
                         const TransformerOptions& options = {});
    // src [batch, source length, d_model], tgt [batch, length, d_model] -> the shape of tgt.
    [[nodiscard]] Tensor operator()(const Tensor& src, const Tensor& tgt,
                                    const TransformerMasks& masks = {}) const;

    TransformerEncoder encoder;
    TransformerDecoder decoder;
    MEZZO_MODULE(Transformer, encoder, decoder)
};

}  // namespace mezzo::nn

#pragma GCC visibility pop
