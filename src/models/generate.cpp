// generate(): continues texts with a language model.
#include "mezzo/models/generate.h"

#include <algorithm>
#include <optional>

#include "mezzo/autograd.h"
#include "mezzo/ops.h"
#include "models/sampling.h"

namespace mezzo::nn {

namespace {

using Texts = std::vector<std::vector<std::int64_t>>;

std::size_t longest(const Texts& texts) {
    std::size_t length = 0;
    for (const auto& text : texts) length = std::max(length, text.size());
    return length;
}

// The texts that are being generated. All rows grow at once; those that have ended are filled with tokens
// that are never read.
class Generation {
public:
    Generation(const CausalLm& model, const Texts& prompts, const GenerateOptions& options)
        : model_(model),
          options_(options),
          texts_(prompts),
          ended_(prompts.size()),
          width_(std::int64_t(longest(prompts))),
          cache_(std::max<std::int64_t>(1, width_ + options.max_new_tokens)) {
        std::vector<std::int64_t> padding;
        for (const auto& prompt : prompts) padding.push_back(width_ - std::int64_t(prompt.size()));
        if (std::any_of(padding.begin(), padding.end(), [](std::int64_t n) { return n > 0; }))
            padding_ = Tensor::from(padding, rows()).to(model.device());
    }

    Texts run() {
        Texts given = texts_;
        for (std::size_t i = 0; i < given.size(); ++i)
            given[i].insert(given[i].begin(), std::size_t(width_) - given[i].size(), 0);
        for (std::int64_t step = 0; step < options_.max_new_tokens; ++step) {
            const std::vector<std::int64_t> next = choose(logits_after(given), step);
            if (next.empty()) break;
            for (std::size_t i = 0; i < next.size(); ++i) {
                if (options_.cache) given[i].clear();
                given[i].push_back(next[i]);
            }
        }
        return texts_;
    }

private:
    std::int64_t rows() const { return std::int64_t(texts_.size()); }

    // The logits of all rows, row after row, in float32.
    std::vector<float> logits_after(const Texts& given) {
        std::vector<std::int64_t> values;
        for (const auto& row : given) values.insert(values.end(), row.begin(), row.end());
        const Shape shape{rows(), std::int64_t(given[0].size())};
        const Tensor ids = Tensor::from(values, shape).to(model_.device());
        CausalInputs inputs;
        if (options_.cache) inputs.cache = &cache_;
        if (!options_.cache || cache_.length() == 0) inputs.padding = padding_;
        return model_.next_logits(ids, inputs).to_vector<float>();
    }

    // A token for each row; none if all texts have ended.
    std::vector<std::int64_t> choose(const std::vector<float>& logits, std::int64_t step) {
        const std::size_t vocabulary = logits.size() / texts_.size();
        std::vector<std::int64_t> next(texts_.size());
        std::vector<float> own;
        bool go_on = true, any = false;
        for (std::size_t i = 0; i < texts_.size() && go_on; ++i) {
            if (ended_[i]) continue;
            const auto first = logits.begin() + std::ptrdiff_t(i * vocabulary);
            if (texts_.size() > 1) own.assign(first, first + std::ptrdiff_t(vocabulary));
            next[i] = sample_token(texts_.size() > 1 ? own : logits, texts_[i], options_.sampling,
                                   {.seed = options_.seed, .row = i, .step = std::uint64_t(step)});
            texts_[i].push_back(next[i]);
            ended_[i] = next[i] == options_.eos_token_id;
            any = any || !ended_[i];
            go_on = options_.on_token(i, next[i]);
        }
        return any && go_on ? next : std::vector<std::int64_t>();
    }

    const CausalLm& model_;
    const GenerateOptions& options_;
    Texts texts_;
    std::vector<bool> ended_;
    std::int64_t width_;
    KeyValueCache cache_;
    Tensor padding_;
};

void check_request(const CausalLm& model, const Texts& prompts, const GenerateOptions& options) {
    check(options.max_new_tokens >= 0, ErrorKind::value, "generate: max_new_tokens is ",
          options.max_new_tokens, "; it must not be negative");
    check_sampling("generate", options.sampling);
    const std::int64_t eos = options.eos_token_id.value_or(0);
    check(eos >= 0 && eos < model.vocab_size(), ErrorKind::value, "generate: eos_token_id ", eos,
          " is outside of the vocabulary of ", model.vocab_size());
    check(!prompts.empty(), ErrorKind::value, "generate: there are no prompts");
    for (std::size_t i = 0; i < prompts.size(); ++i)
        check(!prompts[i].empty(), ErrorKind::value, "generate: prompt ", std::int64_t(i),
              " is empty; begin with a token such as that of the end of a text");
    const auto width = std::int64_t(longest(prompts));
    check(width <= model.max_length() && options.max_new_tokens <= model.max_length() - width,
          ErrorKind::value, "generate: ", options.max_new_tokens, " new tokens after ", width,
          " of the longest prompt are more than the ", model.max_length(), " of a text of ",
          model.type_name(), "; set max_new_tokens lower, or cut the prompt");
    check(!model.training(), ErrorKind::state, "generate: the ", model.type_name(),
          " is in training mode, where dropout changes what it says; call eval(), or open an EvalMode");
}

}  // namespace

Texts generate(const CausalLm& model, const Texts& prompts, const GenerateOptions& options) {
    check_request(model, prompts, options);
    const NoGrad plain;
    std::optional<InferenceMode> packing;
    if (options.pack_weights) packing.emplace();
    return Generation(model, prompts, options).run();
}

}  // namespace mezzo::nn
