// Checks of the sizes of nn::Gpt and nn::Llama.
#include <cmath>

#include "models/causal_parts.h"

namespace mezzo::nn {

namespace {

// Throws errors that begin with the name of a config.
class Checks {
public:
    explicit Checks(const char* config) : config_(config) {}
    void positive(const char* name, std::int64_t n) const {
        check(n > 0, ErrorKind::value, config_, ": ", name, " is ", n, "; it must be positive");
    }
    void not_negative(const char* name, double x) const {
        check(x >= 0 && std::isfinite(x), ErrorKind::value, config_, ": ", name, " is ", x,
              "; it must be finite and not negative");
    }
    void probability(const char* name, double p) const {
        check(p >= 0 && p < 1, ErrorKind::value, config_, ": ", name, " is ", p, "; it must be in [0, 1)");
    }
    void multiple(const char* name, std::int64_t n, const char* of, std::int64_t unit) const {
        check(n % unit == 0, ErrorKind::value, config_, ": ", name, " ", n, " is no multiple of ", of, " ",
              unit);
    }

private:
    const char* config_;
};

}  // namespace

const GptConfig& checked(const GptConfig& c) {
    const Checks checks("GptConfig");
    checks.positive("vocab_size", c.vocab_size);
    checks.positive("n_positions", c.n_positions);
    checks.positive("n_embd", c.n_embd);
    checks.not_negative("n_layer", double(c.n_layer));
    checks.positive("n_head", c.n_head);
    checks.multiple("n_embd", c.n_embd, "n_head", c.n_head);
    if (c.n_inner) checks.positive("n_inner", *c.n_inner);
    checks.probability("resid_pdrop", c.resid_pdrop);
    checks.probability("embd_pdrop", c.embd_pdrop);
    checks.probability("attn_pdrop", c.attn_pdrop);
    checks.not_negative("initializer_range", c.initializer_range);
    return c;
}

std::int64_t key_value_heads(const LlamaConfig& c) {
    return c.num_key_value_heads.value_or(c.num_attention_heads);
}

std::int64_t head_dim(const LlamaConfig& c) {
    return c.head_dim.value_or(c.hidden_size / c.num_attention_heads);
}

const LlamaConfig& checked(const LlamaConfig& c) {
    const Checks checks("LlamaConfig");
    checks.positive("vocab_size", c.vocab_size);
    checks.positive("max_position_embeddings", c.max_position_embeddings);
    checks.positive("hidden_size", c.hidden_size);
    checks.positive("intermediate_size", c.intermediate_size);
    checks.not_negative("num_hidden_layers", double(c.num_hidden_layers));
    checks.positive("num_attention_heads", c.num_attention_heads);
    checks.positive("num_key_value_heads", key_value_heads(c));
    checks.multiple("num_attention_heads", c.num_attention_heads, "num_key_value_heads", key_value_heads(c));
    if (!c.head_dim)
        checks.multiple("hidden_size", c.hidden_size, "num_attention_heads", c.num_attention_heads);
    checks.positive("head_dim", head_dim(c));
    checks.multiple("head_dim", head_dim(c), "an even number, as its halves are turned:", 2);
    check(c.rope_theta > 0 && std::isfinite(c.rope_theta), ErrorKind::value, "LlamaConfig: rope_theta is ",
          c.rope_theta, "; it must be finite and positive");
    checks.not_negative("initializer_range", c.initializer_range);
    return c;
}

}  // namespace mezzo::nn
