// Multi-head attention and the Transformer encoder (Vaswani et al., arXiv 1706.03762), with PyTorch's
// parameter names and layouts. Batch first: activations are [batch, length, embed_dim].
//
//   const nn::TransformerEncoder encoder(512, 8, {.num_layers = 6, .layer = {.norm_first = true}});
//   y = encoder(x, {.key_mask = mask});  // x [batch, length, 512]; mask [batch, length], false for padding
#pragma once

#include <cstdint>
#include <string>
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
};

// out_proj(heads of softmax(q k^T / sqrt(embed_dim / num_heads)) v). Projections start as Xavier-uniform, all
// biases as 0, PyTorch's defaults. Weights of the heads are not returned.
class MultiheadAttention : public Module {
public:
    // Error(value) unless embed_dim is a positive multiple of num_heads and the dropout in [0, 1).
    MultiheadAttention(std::int64_t embed_dim, std::int64_t num_heads,
                       const MultiheadAttentionOptions& options = {});
    // query [batch, length, embed_dim], key and value [batch, key, embed_dim] -> [batch, length, embed_dim].
    // One tensor given as all three is projected by one product, one given as key and value by one for both.
    // Throws Error(shape) for inputs or masks of other shapes, and Error(dtype) for a key_mask that
    // is not boolean.
    [[nodiscard]] Tensor operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const AttentionMasks& masks = {}) const {
        return out_proj(joined_heads(query, key, value, masks));
    }
    // The input of out_proj: the concatenated results of the heads, [batch, length, embed_dim].
    [[nodiscard]] Tensor joined_heads(const Tensor& query, const Tensor& key, const Tensor& value,
                                      const AttentionMasks& masks = {}) const;
    std::string describe() const override;

    Parameter in_proj_weight;  // [3 embed_dim, embed_dim]: of query, key, value
    Parameter in_proj_bias;    // [3 embed_dim], undefined without bias
    Linear out_proj;
    std::int64_t num_heads;
    double dropout_p;
    MEZZO_MODULE(MultiheadAttention, in_proj_weight, in_proj_bias, out_proj)
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
    Tensor feed_forward(const Tensor& x, const Tensor& last_bias) const;
    Tensor normed_last(const Tensor& x, const AttentionMasks& masks) const;
    Tensor normed_first(const Tensor& x, const AttentionMasks& masks) const;
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

}  // namespace mezzo::nn

#pragma GCC visibility pop
