#include "bert/settings.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

#include "bert/setup.h"

namespace mz = mezzo;

namespace bert {

using training::Digest;

namespace {

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

}  // namespace

training::Settings settings_of(const Options& o, const Setup& setup, const mz::StateDict& weights) {
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
        {"--weights", training::digest_of(weights)},
    };
}

}  // namespace bert
