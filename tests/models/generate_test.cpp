// generate(), sample_token() and the key-value cache.
#include "mezzo/models/generate.h"

#include <catch2/catch.hpp>
#include <functional>
#include <limits>

#include "autograd/autocast_state.h"
#include "mezzo/amp.h"
#include "mezzo/device.h"
#include "mezzo/eval_mode.h"
#include "tests/models/causal_models.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using nn::generate;
using nn::GenerateOptions;
using nn::sample_token;

namespace {

using Texts = std::vector<std::vector<std::int64_t>>;

const Texts prompts{{3, 14, 1}, {7, 2, 9, 0, 5}, {11}};

}  // namespace

TEST_CASE("generate: the cache changes no token", "[generate]") {
    for (const Device device : test::devices()) {
        for (const Dtype dtype : {float32, bfloat16}) {
            for (const auto& model : test::filled_models(dtype, device)) {
                for (const double temperature : {0.0, 1.0}) {
                    CAPTURE(device.type(), name(dtype), model->type_name(), temperature);
                    // bfloat16 logits with and without the cache may differ in their last bit; likely tokens
                    // do not.
                    GenerateOptions options{.max_new_tokens = 11,
                                            .sampling = {.temperature = 0.3 * temperature, .top_k = 3},
                                            .seed = 5};
                    const Texts cached = generate(*model, prompts, options);
                    options.cache = false;
                    CHECK(generate(*model, prompts, options) == cached);
                    for (std::size_t i = 0; i < prompts.size(); ++i) {
                        CHECK(cached[i].size() == prompts[i].size() + 11);
                        CHECK(std::equal(prompts[i].begin(), prompts[i].end(), cached[i].begin()));
                    }
                }
            }
        }
    }
}

TEST_CASE("generate: a text does not depend on the prompts beside it", "[generate]") {
    for (const auto& model : test::filled_models()) {
        const GenerateOptions greedy{.max_new_tokens = 9, .sampling = {.temperature = 0}};
        const Texts together = generate(*model, prompts, greedy);
        for (std::size_t i = 0; i < prompts.size(); ++i)
            CHECK(generate(*model, {prompts[i]}, greedy)[0] == together[i]);
    }
}

TEST_CASE("generate: a seed is a text, with any number of threads", "[generate][threads]") {
    const auto models = test::filled_models();
    const nn::CausalLm& model = *models[1];
    GenerateOptions options{.max_new_tokens = 11, .sampling = {.temperature = 3}, .seed = 1};
    const int threads = num_threads();
    set_num_threads(1);
    const Texts first = generate(model, prompts, options);
    set_num_threads(3);
    CHECK(generate(model, prompts, options) == first);
    set_num_threads(threads);
    options.seed = 2;
    CHECK(generate(model, prompts, options) != first);
}

TEST_CASE("generate: under autocast the cache holds 16-bit numbers", "[generate]") {
    const auto models = test::filled_models();
    const amp::Autocast scope({.dtype = bfloat16});
    const NoGrad plain;
    for (const auto& model : models) {
        nn::KeyValueCache cache(16);
        (void)(*model)(Tensor::from(std::vector<std::int64_t>{1, 2, 3}, {1, 3}), {.cache = &cache});
        const std::int64_t heads = model == models[0] ? 4 : 2;  // of keys and values
        const Tensor nothing = zeros({1, heads, 0, 8}, {.dtype = bfloat16});
        const auto [keys, values] = cache.append(0, nothing, nothing);
        CHECK(keys.shape() == Shape{1, heads, 3, 8});
        CHECK(values.dtype() == bfloat16);
    }
}

TEST_CASE("generate: autocast converts each weight once, also of a frozen model", "[generate]") {
    const Tensor prompt = Tensor::from(std::vector<std::int64_t>{1, 2, 3}, {1, 3});
    for (const bool frozen : {false, true})
        for (const auto& model : test::filled_models()) {
            if (frozen) model->freeze();
            const amp::Autocast scope({.dtype = bfloat16});
            const InferenceMode plain;
            nn::KeyValueCache cache(16);
            const auto bytes_of = [&](const Tensor& ids) {
                const std::uint64_t before = autocast_counters().cast_bytes;
                (void)model->next_logits(ids, {.cache = &cache});
                return autocast_counters().cast_bytes - before;
            };
            CHECK(bytes_of(prompt) > 20000);  // two layers of some 12 x 32 x 32 weights
            CHECK(bytes_of(prompt[{Slice(), Slice(0, 1)}]) < 2000);  // hidden states of one token
        }
}

TEST_CASE("generate: packs weights unless it shall not", "[generate]") {
    nn::Gpt model({.vocab_size = 4096, .n_positions = 16, .n_embd = 32, .n_layer = 1, .n_head = 4});
    model.eval();
    const auto packed = [&] {
        const std::lock_guard lock(packed_mutex);
        return bool(model.transformer.wte.weight->storage->packed);
    };
    GenerateOptions options{.max_new_tokens = 5, .sampling = {.temperature = 0}, .pack_weights = false};
    const Texts plain = generate(model, {{1, 2}}, options);
    CHECK_FALSE(packed());
    options.pack_weights = true;
    CHECK(generate(model, {{1, 2}}, options) == plain);
    CHECK(packed());
}

TEST_CASE("generate: ends at eos_token_id, max_new_tokens or a callback's word", "[generate]") {
    const auto models = test::filled_models();
    const nn::CausalLm& model = *models[0];
    GenerateOptions options{.max_new_tokens = 9, .sampling = {.temperature = 2}, .seed = 4};
    const Texts whole = generate(model, prompts, options);
    options.eos_token_id = whole[1][7];
    const Texts ended = generate(model, prompts, options);
    CHECK(ended[1].size() <= 8);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
        const auto begin = whole[i].begin(), end = whole[i].end();
        const auto eos = std::find(begin + std::ptrdiff_t(prompts[i].size()), end, *options.eos_token_id);
        CHECK(ended[i] == std::vector<std::int64_t>(begin, eos == end ? end : eos + 1));
    }

    options.eos_token_id = {};
    std::vector<std::int64_t> seen;
    options.on_token = [&](std::size_t i, std::int64_t token) {
        if (i == 2) seen.push_back(token);
        return seen.size() < 4;
    };
    const Texts stopped = generate(model, prompts, options);
    CHECK(stopped[2] == std::vector<std::int64_t>(whole[2].begin(), whole[2].begin() + 5));
    CHECK(seen == std::vector<std::int64_t>(whole[2].begin() + 1, whole[2].begin() + 5));
    CHECK(generate(model, prompts, {.max_new_tokens = 0}) == prompts);
}

TEST_CASE("generate refuses what it cannot do", "[generate]") {
    const auto models = test::filled_models();
    nn::CausalLm& model = *models[0];
    const auto refused = [&](const Texts& texts, const GenerateOptions& options,
                             ErrorKind kind = ErrorKind::value) {
        const std::string text = test::error_message([&] { (void)generate(model, texts, options); }, kind);
        CHECK_THAT(text, StartsWith("generate: "));
        return text;
    };
    CHECK_THAT(refused({}, {}), Contains("no prompts"));
    CHECK_THAT(refused({{1}, {}}, {}), Contains("prompt 1 is empty"));
    CHECK_THAT(refused(prompts, {.max_new_tokens = -1}), Contains("-1"));
    CHECK_THAT(refused(prompts, {.max_new_tokens = 12}), Contains("12 new tokens after 5") && Contains("16"));
    CHECK_THAT(refused(prompts, {.max_new_tokens = INT64_MAX}), Contains("16"));
    for (const std::int64_t token : {-1, 23})
        CHECK_THAT(refused(prompts, {.max_new_tokens = 0, .eos_token_id = token}),
                   Contains("eos_token_id " + std::to_string(token)) && Contains("vocabulary of 23"));
    // These errors come before anything is computed: the prompt has no token 99.
    CHECK_THAT(refused({{99}}, {.max_new_tokens = 1, .sampling = {.top_p = 2}}), Contains("top_p is 2"));
    CHECK_THAT(refused(prompts, {.max_new_tokens = 0, .sampling = {.temperature = -1}}),
               Contains("temperature is -1"));
    model.train();
    CHECK_THAT(refused(prompts, {.max_new_tokens = 1}, ErrorKind::state), Contains("eval()"));
    const nn::EvalMode evaluation(model);
    CHECK_THAT(test::error_message(
                   [&] {
                       (void)generate(model, {{1, 23}}, {.max_new_tokens = 1});
                   },
                   ErrorKind::value),
               Contains("23"));
    const NoGrad plain;
    model.parameters()[0][5].fill_(NAN);
    const std::string text =
        test::error_message([&] { (void)generate(model, {{5}}, {.max_new_tokens = 1}); }, ErrorKind::value);
    CHECK_THAT(text, StartsWith("sample_token: the logit of token 0 is nan"));
}

TEST_CASE("sample_token: greedy, top_k and top_p", "[generate]") {
    const std::vector<float> logits{1, 3, 3, -2, 2.5f};
    CHECK(sample_token(logits, {}, {.temperature = 0}) == 1);
    std::vector<int> counts(5), of_two(5), of_most(5);
    const int draws = 4000;
    for (int i = 0; i < draws; ++i) {
        const nn::SamplingPosition position{.seed = 9, .row = 3, .step = std::uint64_t(i)};
        ++counts[std::size_t(sample_token(logits, {}, {.temperature = 2}, position))];
        ++of_two[std::size_t(sample_token(logits, {}, {.top_k = 2}, position))];
        // Probabilities: 0.05, 0.36, 0.36, 0.002, 0.22.
        ++of_most[std::size_t(sample_token(logits, {}, {.top_p = 0.75}, position))];
        CHECK(sample_token(logits, {}, {.top_p = 1e-9}, position) == 1);
        CHECK(sample_token(logits, {}, {.top_k = 1}, position) == 1);
    }
    double sum = 0;
    for (const float x : logits) sum += std::exp(x / 2);
    for (std::size_t i = 0; i < 5; ++i)
        CHECK(counts[i] == Approx(draws * std::exp(logits[i] / 2) / sum).margin(4 * std::sqrt(draws * 0.25)));
    CHECK(of_two[1] + of_two[2] == draws);
    CHECK(of_two[1] == Approx(draws / 2).margin(130));
    CHECK((of_most[0] == 0 && of_most[3] == 0 && of_most[4] > 0));
}

TEST_CASE("sample_token: tokens that are there already get less likely", "[generate]") {
    CHECK(sample_token({2, 1.5f, -1}, {0, 0}, {.repetition_penalty = 1.5, .temperature = 0}) == 1);
    CHECK(sample_token({2, 1.5f, -1}, {0, 0}, {.repetition_penalty = 1.2, .temperature = 0}) ==
          0);  // once, not twice
    CHECK(sample_token({-1, -1.5f}, {0}, {.repetition_penalty = 2, .temperature = 0}) == 1);
    CHECK(sample_token({-1, -1.5f}, {-3, 99}, {.repetition_penalty = 2, .temperature = 0}) == 0);
    // A logit that the penalty takes beyond float32 is the largest finite number, not infinite.
    int drawn[3] = {};
    for (std::uint64_t step = 0; step < 64; ++step)
        ++drawn[sample_token({1, -5, 2}, {0, 2}, {.repetition_penalty = 1e-39}, {.step = step})];
    CHECK((drawn[0] > 0 && drawn[1] == 0 && drawn[2] > 0));
    CHECK(sample_token({-INFINITY, -2}, {0, 1}, {.repetition_penalty = 1e39}) == 1);
}

TEST_CASE("sample_token refuses numbers that mean nothing", "[generate]") {
    const auto refused = [](const std::vector<float>& logits, const nn::SamplingOptions& options) {
        const std::string text =
            test::error_message([&] { (void)sample_token(logits, {}, options); }, ErrorKind::value);
        CHECK_THAT(text, StartsWith("sample_token: "));
        return text;
    };
    CHECK_THAT(refused({1, NAN}, {}), Contains("token 1 is nan"));
    CHECK_THAT(refused({1, INFINITY}, {}), Contains("token 1 is inf"));
    CHECK_THAT(refused({-INFINITY, -INFINITY}, {}), Contains("all 2"));
    CHECK_THAT(refused({}, {}), Contains("no logits"));
    CHECK_THAT(refused({1}, {.temperature = -1}), Contains("temperature is -1"));
    CHECK_THAT(refused({1}, {.temperature = NAN}), Contains("temperature is nan"));
    CHECK_THAT(refused({1}, {.top_k = -1}), Contains("top_k is -1"));
    CHECK_THAT(refused({1}, {.top_p = 0}), Contains("top_p is 0"));
    CHECK_THAT(refused({1}, {.repetition_penalty = 0}), Contains("repetition_penalty is 0"));
    const double infinity = std::numeric_limits<double>::infinity();
    CHECK_THAT(refused({1}, {.repetition_penalty = infinity}),
               Contains("is inf; it must be positive and finite"));
    CHECK_THAT(refused({1}, {.temperature = infinity}), Contains("is inf; it must be finite"));
    CHECK(sample_token({-INFINITY, 0}, {}, {}) == 1);
}

TEST_CASE("key-value cache: parts of a text give the logits of the whole", "[generate]") {
    const NoGrad plain;
    const Tensor ids = Tensor::from(std::vector<std::int64_t>{3, 1, 4, 1, 5, 9, 2, 6, 5, 3}, {2, 5});
    for (const auto& model : test::filled_models()) {
        const Tensor whole = (*model)(ids);
        nn::KeyValueCache cache(5);
        for (const auto& [first, end] : {std::pair(0, 2), std::pair(2, 3), std::pair(3, 5)}) {
            const Tensor part = (*model)(ids[{ellipsis, Slice(first, end)}], {.cache = &cache});
            CHECK(all_close(part, whole[{Slice(), Slice(first, end), Slice()}], 1e-5, 1e-4));
        }
        CHECK(cache.length() == 5);
        const auto next = [&] { (void)(*model)(ids[{ellipsis, Slice(0, 1)}], {.cache = &cache}); };
        CHECK_THAT(test::error_message(next, ErrorKind::value),
                   StartsWith("KeyValueCache: 1 more tokens after 5"));
        cache.truncate(2);  // continues in another way
        const Tensor again = (*model)(ids[{ellipsis, Slice(2)}], {.cache = &cache});
        CHECK(all_close(again, whole[{Slice(), Slice(2), Slice()}], 1e-5, 1e-4));
    }
}

TEST_CASE("key-value cache refuses what does not continue its text", "[generate]") {
    const auto models = test::filled_models();
    const nn::CausalLm& model = *models[0];
    const Tensor ids = Tensor::from(std::vector<std::int64_t>{3, 1, 4, 1}, {2, 2});
    nn::KeyValueCache cache(8);
    const auto refused = [&](const Tensor& given, const Tensor& padding, ErrorKind kind) {
        return test::error_message([&] { (void)model(given, {.padding = padding, .cache = &cache}); }, kind);
    };
    CHECK_THAT(refused(ids, {}, ErrorKind::state), StartsWith("KeyValueCache: gradients"));
    const NoGrad plain;
    CHECK(cache.length() == 0);
    (void)model(ids, {.cache = &cache});
    CHECK_THAT(refused(ids[Slice(0, 1)], {}, ErrorKind::shape), Contains("2 texts") && Contains("of 1"));
    CHECK_THAT(refused(ids, zeros({2}, {.dtype = int64}), ErrorKind::state), Contains("padding"));
    {
        const amp::Autocast scope({.dtype = bfloat16});
        CHECK_THAT(refused(ids, {}, ErrorKind::dtype), Contains("float32") && Contains("bfloat16"));
    }
    CHECK(cache.length() == 2);
    (void)model(ids, {.cache = &cache});  // usable after all that
    CHECK(cache.length() == 4);
    CHECK_THAT(test::error_message([&] { cache.truncate(5); }, ErrorKind::value), Contains("5"));
    CHECK_THAT(test::error_message([] { nn::KeyValueCache{0}; }, ErrorKind::value), Contains("0"));
    cache.truncate(0);
    (void)model(ids[Slice(0, 1)],
                {.padding = zeros({1}, {.dtype = int64}), .cache = &cache});  // another batch
}
