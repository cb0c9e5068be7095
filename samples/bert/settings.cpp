#include "bert/settings.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

#include "bert/setup.h"

namespace mz = mezzo;

namespace bert {

namespace {

constexpr std::int64_t longest = 1 << 20;  // stored settings may have so many bytes

template <class T> std::string shown(const T& value) { return fmt::format("{}", value); }

std::string digest_of(const Corpus& corpus) {
    Digest digest;
    for (const std::string& text : corpus.texts) digest.add(text);
    for (const std::int64_t label : corpus.labels) digest.add(shown(label));
    return fmt::format("{} texts, digest {}", corpus.texts.size(), digest.text());
}

std::string digest_of(const std::vector<std::string>& lines) {
    Digest digest;
    for (const std::string& line : lines) digest.add(line);
    return fmt::format("{}, digest {}", lines.size(), digest.text());
}

std::string digest_of(const mz::StateDict& state) {
    if (state.empty()) return "none";
    Digest digest;
    for (const auto& [name, tensor] : state) {
        digest.add(name);
        digest.add(fmt::format("{} {}", mz::name(tensor.dtype()), tensor.dim()));
        const std::vector<double> values = tensor.to_vector<double>();
        digest.add({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)});
    }
    return fmt::format("{} tensors, digest {}", state.size(), digest.text());
}

// One line each; values have no line ends.
std::string joined(const Settings& settings) {
    std::string text;
    for (const auto& [name, value] : settings) text += name + "\t" + value + "\n";
    return text;
}

Settings parsed(const std::string& text, const std::string& path) {
    Settings settings;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = text.find('\n', at), tab = text.find('\t', at);
        if (end == text.npos || tab >= end) throw std::runtime_error(path + ": its settings are damaged");
        settings.emplace_back(text.substr(at, tab - at), text.substr(tab + 1, end - tab - 1));
        at = end + 1;
    }
    return settings;
}

const std::string* find(const Settings& settings, const std::string& name) {
    const auto found = std::find_if(settings.begin(), settings.end(),
                                    [&](const auto& entry) { return entry.first == name; });
    return found == settings.end() ? nullptr : &found->second;
}

}  // namespace

void Digest::add_bytes(std::string_view bytes) {
    for (const char c : bytes) value_ = (value_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
}
void Digest::add(std::string_view text) {
    const std::uint64_t size = text.size();
    add_bytes({reinterpret_cast<const char*>(&size), sizeof size});
    add_bytes(text);
}
std::string Digest::text() const { return fmt::format("{:016x}", value_); }

Settings settings_of(const Options& o, const Setup& setup, const mz::StateDict& weights) {
    const mz::nn::BertConfig& c = setup.config;
    return {
        {"--precision", o.precision},
        {"--seed", shown(o.seed)},
        {"--batch", shown(o.batch)},
        {"--accumulate", shown(o.accumulate)},
        {"--epochs", shown(o.epochs)},
        {"--pretrain-epochs", shown(o.pretrain_epochs)},
        {"--max-steps", shown(o.max_steps)},
        {"--lr", shown(o.lr)},
        {"--pretrain-lr", shown(o.pretrain_lr)},
        {"--weight-decay", shown(o.weight_decay)},
        {"--warmup", shown(o.warmup)},
        {"--clip", shown(o.clip)},
        {"--dropout", shown(o.dropout)},
        {"--max-length", shown(o.max_length)},
        {"--pad-to-max", shown(o.pad_to_max)},
        {"--bucket", shown(o.bucket)},
        {"--pooler", shown(o.pooler)},
        {"--layers", shown(c.num_hidden_layers)},
        {"--hidden", shown(c.hidden_size)},
        {"--heads", shown(c.num_attention_heads)},
        {"--intermediate", shown(c.intermediate_size)},
        {"the rest of the configuration",
         fmt::format("{}, {} positions, {} token types, vocabulary of {}, eps {}, initializer_range {}",
                     c.hidden_act, c.max_position_embeddings, c.type_vocab_size, c.vocab_size,
                     c.layer_norm_eps, c.initializer_range)},
        {"training data", digest_of(setup.corpora.train)},
        {"classes", digest_of(setup.classes)},
        {"vocabulary", digest_of(setup.vocabulary)},
        {"--weights", digest_of(weights)},
    };
}

mz::Tensor to_tensor(const Settings& settings) {
    const std::string text = joined(settings);
    return mz::Tensor::from(std::vector<std::uint8_t>(text.begin(), text.end()), {std::int64_t(text.size())});
}

void check_same_settings(const mz::Tensor& then, const Settings& now, const std::string& path) {
    if (then.dtype() != mz::uint8 || then.dim() != 1 || then.numel() > longest)
        throw std::runtime_error(path + ": its settings are damaged");
    const std::vector<std::uint8_t> bytes = then.to_vector<std::uint8_t>();
    const Settings before = parsed(std::string(bytes.begin(), bytes.end()), path);
    std::string list;
    for (const auto& [name, value] : now) {
        const std::string* const old = find(before, name);
        if (!old || *old != value)
            list += fmt::format("\n  {}: {}, now {}", name, old ? *old : "not stored", value);
    }
    for (const auto& [name, value] : before)
        if (!find(now, name)) list += fmt::format("\n  {}: {}, now unknown", name, value);
    if (!list.empty())
        throw std::runtime_error(fmt::format(
            "{}: cannot be resumed, because the training would be another one. Give the same settings, "
            "or another --checkpoint:{}",
            path, list));
}

}  // namespace bert
