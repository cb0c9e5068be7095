// What language models that predict the next token have in common (nn::Gpt, nn::Llama), and the cache of keys
// and values with which a text is continued without computing its beginning again.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

// Keys and values of all layers for the tokens that a model has seen so far. The memory of a layer, [batch,
// heads, max_length, head_dim] for each of the two, is taken when its first keys come, in their dtype and on
// their device. A cache belongs to one text (or batch of texts), one model and one thread at a time.
class KeyValueCache {
public:
    explicit KeyValueCache(std::int64_t max_length);  // Error(value) unless it is positive
    KeyValueCache(KeyValueCache&&) noexcept = default;
    KeyValueCache& operator=(KeyValueCache&&) & noexcept = default;
    KeyValueCache(const KeyValueCache&) = delete;  // two copies would write to the same memory
    KeyValueCache& operator=(const KeyValueCache&) = delete;

    [[nodiscard]] std::int64_t length() const { return length_; }  // tokens of each text, padding included
    [[nodiscard]] std::int64_t max_length() const { return max_length_; }
    // Forgets the tokens from `length` on: a text can be continued in another way. Error(value) unless it is
    // in [0, length()].
    void truncate(std::int64_t length);

    // What a model does. It begins a call for `count` more tokens of each text: Error(value) where they do
    // not fit, Error(shape) for another batch than before, Error(state) where gradients are recorded.
    // `padding` is that of CausalInputs, and may be given in the first call alone.
    void begin(std::int64_t batch, std::int64_t count, const Tensor& padding);
    [[nodiscard]] const Tensor& padding() const { return padding_; }
    // Writes keys and values [batch, heads, count, head_dim] of layer i behind those that are there, and
    // returns all of them, as views [batch, heads, length() + count, head_dim]. Error(shape) or Error(dtype)
    // where they differ from those before, Error(state) where the layer has none yet although the cache holds
    // tokens.
    std::pair<Tensor, Tensor> append(std::size_t layer, const Tensor& key, const Tensor& value);
    // Ends the call: only now the tokens count. A call that an exception has ended has changed nothing.
    void end() { length_ += std::exchange(count_, 0); }

private:
    struct Layer {
        Tensor key, value;
    };
    std::vector<Layer> layers_;
    Tensor padding_;
    std::int64_t max_length_, length_ = 0, count_ = 0, batch_ = 0;
};

// Besides the token ids.
struct CausalInputs {
    // int64 [batch]: how many of the first ids of each row are padding, which nobody looks at and which takes
    // no position; undefined: none. Texts of different lengths are padded on the left, so that all of them
    // end in the last column. On the CPU a number outside [0, length] throws Error(value); elsewhere, where
    // looking would wait for the device, less than 0 counts as none.
    Tensor padding = {};
    // The ids continue what the cache holds, and are added to it. Only where no gradient is recorded.
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
    [[nodiscard]] virtual std::int64_t max_length() const = 0;  // most tokens of a text
    [[nodiscard]] virtual std::int64_t vocab_size() const = 0;
    [[nodiscard]] virtual Device device() const = 0;  // of the parameters

    // Logits of the token behind each one: [batch, length, vocab_size]. No token sees those after it.
    [[nodiscard]] Tensor operator()(const Tensor& ids, const CausalInputs& inputs = {}) const {
        return logits(hidden(ids, inputs));
    }
    // Those behind the last token alone: [batch, vocab_size].
    [[nodiscard]] Tensor next_logits(const Tensor& ids, const CausalInputs& inputs = {}) const;
    // Mean cross-entropy, in nats per token: targets int64 [batch, length] are the ids one place further on,
    // so loss(x[{ellipsis, Slice(0, -1)}], x[{ellipsis, Slice(1)}]); a target of -100 does not count.
    [[nodiscard]] Tensor loss(const Tensor& ids, const Tensor& targets) const;
};

}  // namespace mezzo::nn

#pragma GCC visibility pop
