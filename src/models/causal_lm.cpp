// Code shared by causal language models, and the cache of keys and values.
#include "mezzo/models/causal_lm.h"

#include "models/causal_parts.h"
#include "nn/heads.h"

namespace mezzo::nn {

KeyValueCache::KeyValueCache(std::int64_t max_length) : max_length_(max_length) {
    check(max_length > 0, ErrorKind::value, "KeyValueCache: max_length is ", max_length,
          "; it must be positive");
}

void KeyValueCache::truncate(std::int64_t length) {
    check(length >= 0 && length <= length_, ErrorKind::value, "KeyValueCache: truncate(", length,
          ") of a cache that holds ", length_, " tokens");
    length_ = length;
}

void KeyValueCache::begin(std::int64_t batch, std::int64_t count, const Tensor& padding) {
    check(!grad_enabled(), ErrorKind::state,
          "KeyValueCache: gradients are being recorded; open a NoGrad scope, or leave the cache out");
    check(length_ == 0 || batch == batch_, ErrorKind::shape, "KeyValueCache: it holds ", batch_,
          " texts, and the ids are of ", batch, "; truncate(0) begins anew");
    check(count <= max_length_ - length_, ErrorKind::value, "KeyValueCache: ", count, " more tokens after ",
          length_, " do not fit its max_length of ", max_length_);
    check(length_ == 0 || !padding.defined(), ErrorKind::state,
          "KeyValueCache: padding is given for ids that continue ", length_,
          " tokens; only the first call has padding");
    if (length_ == 0) padding_ = padding;
    batch_ = batch;
    count_ = count;
}

std::pair<Tensor, Tensor> KeyValueCache::append(std::size_t layer, const Tensor& key, const Tensor& value) {
    check(layer <= layers_.size(), ErrorKind::state, "KeyValueCache: layer ", std::int64_t(layer), " after ",
          std::int64_t(layers_.size()), " layers");
    const NoGrad plain;
    if (layer == layers_.size()) layers_.emplace_back();
    const auto written = [&](Tensor& all, const Tensor& part) {
        const Shape& s = part.shape();
        check(length_ == 0 || all.defined(), ErrorKind::state, "KeyValueCache: it holds ", length_,
              " tokens, but no keys of layer ", std::int64_t(layer),
              "; it was filled by another model, or has been moved from");
        const bool fits = all.defined() && all.size(0) == s[0] && all.dtype() == part.dtype() &&
                          all.device() == part.device();
        if (length_ == 0 && !fits)
            all = empty({s[0], s[1], max_length_, s[3]}, {.dtype = part.dtype(), .device = part.device()});
        check(all.dtype() == part.dtype(), ErrorKind::dtype, "KeyValueCache: it holds ", all.dtype(),
              " and gets ", part.dtype(), "; continue a text under the same autocast as its beginning");
        check(s == Shape{all.size(0), all.size(1), count_, all.size(3)}, ErrorKind::shape,
              "KeyValueCache: layer ", std::int64_t(layer), " has keys and values ", all.shape(),
              " and gets ", s);
        all.slice(2, length_, length_ + count_).copy_(part);
        return all.slice(2, 0, length_ + count_);
    };
    Layer& own = layers_[layer];
    Tensor keys = written(own.key, key);
    return {std::move(keys), written(own.value, value)};
}

CausalPlaces places_of(const char* model, const Tensor& ids, const CausalInputs& inputs,
                       std::int64_t max_length) {
    check(ids.defined() && ids.dim() == 2, ErrorKind::shape, model, ": ids must be [batch, length], not ",
          ids.defined() ? ids.shape() : Shape{});
    check(ids.dtype() == int64, ErrorKind::dtype, model, ": ids are ", ids.dtype(),
          ", but must be int64; convert them with to(int64)");
    const std::int64_t batch = ids.size(0), length = ids.size(1);
    const std::int64_t before = inputs.cache ? inputs.cache->length() : 0;
    check(length > 0, ErrorKind::value, model, ": there are no ids; each text needs at least one");
    check(length <= max_length - before, ErrorKind::value, model, ": ", length, " ids after ", before,
          " in the cache are more than the ", max_length, " of a text; cut the text");
    Tensor padding = inputs.padding;
    if (padding.defined()) {
        check(padding.dtype() == int64, ErrorKind::dtype, model, ": padding is ", padding.dtype(),
              ", but must be int64: how many of the first ids are padding");
        check(padding.shape() == Shape{batch}, ErrorKind::shape, model, ": padding ", padding.shape(),
              " does not fit the ids ", ids.shape(), "; it must be ", Shape{batch});
        if (padding.device().type() == DeviceType::cpu)
            for (const std::int64_t n : padding.to_vector<std::int64_t>())
                check(n >= 0 && n <= length, ErrorKind::value, model, ": padding ", n, " is not in [0, ",
                      length, "]; it counts the first ids of a row that are none");
    }
    if (inputs.cache) {
        inputs.cache->begin(batch, length, padding);
        padding = inputs.cache->padding();
    }
    CausalPlaces places{.first = before, .cache = inputs.cache};
    if (!padding.defined()) return places;
    const NoGrad plain;
    const TensorOptions integers{.dtype = int64, .device = ids.device()};
    // If the host has not checked the values, less than 0 counts as no padding.
    const Tensor none = zeros({}, integers), hidden = maximum(padding.reshape({batch, 1}), none);
    // Padding gets position 0, which changes nothing, because no query attends to it.
    places.positions = maximum(arange(before, before + length, integers) - hidden, none);
    places.mask = ge(arange(before + length, integers), hidden).reshape({batch, 1, 1, before + length});
    return places;
}

Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, const CausalPlaces& places,
                        std::size_t layer, const AttentionOptions& options) {
    AttentionOptions all = options;
    all.mask = places.mask;
    all.causal = true;
    if (!places.cache) return join_heads(scaled_dot_product_attention(q, k, v, all));
    const auto [keys, values] = places.cache->append(layer, k, v);
    return join_heads(scaled_dot_product_attention(q, keys, values, all));
}

Tensor CausalLm::next_logits(const Tensor& ids, const CausalInputs& inputs) const {
    return logits(hidden(ids, inputs).select(1, -1));
}

Tensor CausalLm::loss(const Tensor& ids, const Tensor& targets) const {
    check(targets.defined() && targets.shape() == ids.shape(), ErrorKind::shape, type_name(),
          ": loss: the targets ", targets.defined() ? targets.shape() : Shape{}, " differ from the ids ",
          ids.shape());
    return cross_entropy((*this)(ids), targets);
}

}  // namespace mezzo::nn
