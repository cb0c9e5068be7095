// Tokenizer: the public handle of a pretrained tokenizer.
#include <algorithm>
#include <mutex>

#include "cpu/parallel.h"
#include "mezzo/error.h"
#include "mezzo/text/pretrained_tokenizer.h"
#include "text/tokenizer/encoder.h"

namespace mezzo::data {

namespace {

using tokenizer::Encoder;
using tokenizer::Parts;

class State : public mezzo::detail::SharedObject {
public:
    explicit State(Parts made) : parts(std::move(made)) {}

    // Encoders cache the tokens of frequent words, so they are reused; there are as many as threads have used
    // at the same time.
    std::unique_ptr<Encoder> take() {
        const std::lock_guard lock(mutex_);
        if (idle_.empty()) return std::make_unique<Encoder>(parts);
        std::unique_ptr<Encoder> encoder = std::move(idle_.back());
        idle_.pop_back();
        return encoder;
    }
    void give_back(std::unique_ptr<Encoder> encoder) {
        const std::lock_guard lock(mutex_);
        idle_.push_back(std::move(encoder));
    }

    const Parts parts;

private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<Encoder>> idle_;
};

State& state_of(const mezzo::detail::SharedHandle<mezzo::detail::SharedObject>& handle) {
    return static_cast<State&>(*handle.operator->());
}

// Lends an encoder for the duration of a call. If the call throws, the encoder is not reused.
class Lease {
public:
    explicit Lease(State& state) : state_(state), encoder_(state.take()) {}
    template <class Call> auto operator()(const Call& call) {
        auto result = call(*encoder_);
        state_.give_back(std::move(encoder_));
        return result;
    }

private:
    State& state_;
    std::unique_ptr<Encoder> encoder_;
};

}  // namespace

Tokenizer::Tokenizer(const std::string& path) : Tokenizer(new State(tokenizer::load_parts(path))) {}

Tokenizer Tokenizer::from_json(std::string_view tokenizer_json, std::string_view config) {
    return Tokenizer(new State(tokenizer::parse_parts(tokenizer_json, config)));
}

Encoding Tokenizer::encode(std::string_view text, const TokenizeOptions& options) const {
    return Lease(state_of(state_))([&](Encoder& encoder) { return encoder.encode(text, options); });
}

Encoding Tokenizer::encode_pair(std::string_view first, std::string_view second,
                                const TokenizeOptions& options) const {
    return Lease(state_of(state_))(
        [&](Encoder& encoder) { return encoder.encode_pair(first, second, options); });
}

std::vector<Encoding> Tokenizer::encode_batch(const std::vector<std::string>& texts,
                                              const TokenizeOptions& options) const {
    State& state = state_of(state_);
    (void)tokenizer::room(state.parts, options, false);  // throws before any thread starts
    std::vector<Encoding> result(texts.size());
    cpu::parallel_for(std::int64_t(texts.size()), 16, [&](std::int64_t begin, std::int64_t end) {
        Lease{state}([&](Encoder& encoder) {
            for (std::size_t i = std::size_t(begin); i < std::size_t(end); ++i)
                result[i] = encoder.encode(texts[i], options);
            return end - begin;
        });
    });
    return result;
}

PadOptions Tokenizer::pad_options() const { return state_of(state_).parts.padding; }

std::string Tokenizer::decode(std::span<const std::int64_t> ids, bool skip_special) const {
    const Parts& parts = state_of(state_).parts;
    std::vector<std::string> texts;
    texts.reserve(ids.size());
    for (const std::int64_t id : ids) {
        const std::string& plain = token(id);
        const tokenizer::AddedToken* const added = parts.added.token(id);
        // The model may have a special token twice, with another id than the added one.
        const tokenizer::AddedToken* const same = added ? added : parts.added.token(parts.added.id(plain));
        if (same && same->special && skip_special) continue;
        texts.push_back(added ? *parts.added.decoded(id) : plain);
    }
    for (const tokenizer::Decoder& decoder : parts.decoders) decoder(texts);
    std::string text;
    for (std::size_t i = 0; i < texts.size(); ++i) {
        if (i > 0 && parts.decoders.empty()) text += ' ';
        text += texts[i];
    }
    return parts.clean_up ? tokenizer::clean(std::move(text)) : text;
}

std::int64_t Tokenizer::id(std::string_view token) const {
    const Parts& parts = state_of(state_).parts;
    const std::int64_t added = parts.added.id(token);
    return added >= 0 ? added : parts.model->vocabulary().id(token);
}

const std::string& Tokenizer::token(std::int64_t id) const {
    const Parts& parts = state_of(state_).parts;
    if (const tokenizer::AddedToken* const added = parts.added.token(id)) return added->content;
    const std::string* const own = parts.model->vocabulary().token(id);
    check(own != nullptr, ErrorKind::value, "tokenizer: no token has id ", id, "; ids are below ", size());
    return *own;
}

std::int64_t Tokenizer::size() const {
    const Parts& parts = state_of(state_).parts;
    return std::max(parts.added.end(), parts.model->vocabulary().end());
}

std::int64_t Tokenizer::bos_id() const { return state_of(state_).parts.role_ids[tokenizer::bos]; }
std::int64_t Tokenizer::eos_id() const { return state_of(state_).parts.role_ids[tokenizer::eos]; }
std::int64_t Tokenizer::unk_id() const { return state_of(state_).parts.role_ids[tokenizer::unk]; }
std::int64_t Tokenizer::sep_id() const { return state_of(state_).parts.role_ids[tokenizer::sep]; }
std::int64_t Tokenizer::pad_id() const { return state_of(state_).parts.role_ids[tokenizer::pad]; }
std::int64_t Tokenizer::cls_id() const { return state_of(state_).parts.role_ids[tokenizer::cls]; }
std::int64_t Tokenizer::mask_id() const { return state_of(state_).parts.role_ids[tokenizer::mask]; }
std::int64_t Tokenizer::model_max_length() const { return state_of(state_).parts.model_max_length; }

}  // namespace mezzo::data
