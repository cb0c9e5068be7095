// CausalLm, the base class of language models that predict the next token (nn::Gpt, nn::Llama), and
// KeyValueCache, with which a text is continued without computing its beginning again.
//
//   gpt.eval();
//   const NoGrad no_grad;
//   nn::KeyValueCache cache(gpt.max_length());
//   y = gpt.next_logits(ids, {.cache = &cache});                         // of the whole text once,
//   y = gpt.next_logits(y.argmax(-1).unsqueeze(-1), {.cache = &cache});  // then of new tokens alone
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

// Keys and values of all layers for the tokens that a model has read so far. The memory of a layer, [batch,
// heads, max_length, head_dim] each for keys and values, is allocated with its first keys, in their dtype and
// on their device. A cache belongs to one text (or batch of texts), one model and one thread at a time.
class KeyValueCache {
public:
    explicit KeyValueCache(std::int64_t max_length);  // Error(value) unless it is positive
    KeyValueCache(KeyValueCache&&) noexcept = default;
    KeyValueCache& operator=(KeyValueCache&&) & noexcept = default;
    KeyValueCache(const KeyValueCache&) = delete;  // two copies would write to the same memory
    KeyValueCache& operator=(const KeyValueCache&) = delete;

    [[nodiscard]] std::int64_t length() const { return length_; }  // tokens of each text, padding included
    [[nodiscard]] std::int64_t max_length() const { return max_length_; }
    // Removes the tokens from `length` on, so that a text can be continued differently. Throws Error(value)
    // unless `length` is in [0, length()].
    void truncate(std::int64_t length);

    // begin(), append() and end() are for implementations of CausalLm. begin() starts a call for `count` more
    // tokens of each text. Throws Error(value) if they do not fit, Error(shape) if the batch size differs
    // from earlier calls, Error(state) if gradients are recorded. `padding` is that of CausalInputs, and may
    // only be set in the first call.
    void begin(std::int64_t batch, std::int64_t count, const Tensor& padding);
    [[nodiscard]] const Tensor& padding() const { return padding_; }
    // Appends keys and values [batch, heads, count, head_dim] of a layer, and returns all of its keys and
    // values as views [batch, heads, length() + count, head_dim]. Throws Error(shape) or Error(dtype) if they
    // differ from earlier ones, Error(state) if the layer has none although the cache holds tokens.
    std::pair<Tensor, Tensor> append(std::size_t layer, const Tensor& key, const Tensor& value);
    // Ends the call and adds its tokens to length(). A call that ends with an exception changes nothing.
    void end() { length_ += std::exchange(count_, 0); }

private:
    struct Layer {
        Tensor key, value;
    };
    std::vector<Layer> layers_;
    Tensor padding_;
    std::int64_t max_length_, length_ = 0, count_ = 0, batch_ = 0;
};

// Inputs of a CausalLm besides the token ids.
struct CausalInputs {
    // int64 [batch]: number of ids at the start of each row that are padding, which is masked and takes no
    // position; undefined: none. Texts of different lengths are padded on the left, so that all of them end
    // in the last column. On the CPU a number outside [0, length] throws Error(value); other devices do not
    // check, because that would wait for the device, and treat numbers below 0 as 0.
    Tensor padding = {};
    // If set, the ids continue the tokens in the cache and are added to it. Throws Error(state) while
    // gradients are recorded.
    KeyValueCache* cache = nullptr;
};

// A model that predicts each next token from those before it.
class CausalLm : public Module {
public:
    // ids int64 [batch, length] -> the last hidden states [batch, length, width], normalised. Throws
    // Error(shape) or Error(dtype) for other ids or padding, and Error(value) for a length of 0, for more
    // tokens than max_length(), cached ones included, and where the cache is full; for an id out of range,
    // see embedding() in ops.h.
    [[nodiscard]] virtual Tensor hidden(const Tensor& ids, const CausalInputs& inputs = {}) const = 0;
    // hidden [..., width] -> [..., vocab_size].
    [[nodiscard]] virtual Tensor logits(const Tensor& hidden) const = 0;
    [[nodiscard]] virtual std::int64_t max_length() const = 0;  // largest number of tokens of a text
    [[nodiscard]] virtual std::int64_t vocab_size() const = 0;
    [[nodiscard]] virtual Device device() const = 0;  // of the parameters

    // Logits of the token after each position: [batch, length, vocab_size]. No token attends to later ones.
    [[nodiscard]] Tensor operator()(const Tensor& ids, const CausalInputs& inputs = {}) const {
        return logits(hidden(ids, inputs));
    }
    // Logits of the token after the last one: [batch, vocab_size].
    [[nodiscard]] Tensor next_logits(const Tensor& ids, const CausalInputs& inputs = {}) const;
    // Mean cross-entropy, in nats per token. targets int64 [batch, length] are the ids shifted by one
    // position, as in loss(x[{ellipsis, Slice(0, -1)}], x[{ellipsis, Slice(1)}]); a target of -100 does not
    // count.
    [[nodiscard]] Tensor loss(const Tensor& ids, const Tensor& targets) const;
};

}  // namespace mezzo::nn

#pragma GCC visibility pop
