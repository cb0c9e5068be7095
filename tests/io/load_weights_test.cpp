// load_weights(): reports, renaming, BERT's names.
#include <catch2/catch.hpp>

#include "mezzo/io.h"
#include "mezzo/models/bert_config.h"
#include "mezzo/nn.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using Catch::Matchers::Equals;

namespace {

// A module whose fields have the names of a BERT's.
struct Tiny : nn::Module {
    nn::Linear dense{2, 3};
    nn::Parameter scale{ones({2})};
    nn::Buffer count{zeros({}, {.dtype = int64})};
    MEZZO_MODULE(Tiny, dense, scale, count)
};

StateDict full_state() {
    return {{"dense.weight", full({3, 2}, 2, {.dtype = float64})},
            {"dense.bias", full({3}, 0.1, {.dtype = float64})},
            {"scale", full({2}, 4, {.dtype = bfloat16})},
            {"count", full({}, 5, {.dtype = int32})}};
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("load_weights: dtype and device follow the module", "[io]") {
    for (const Device device : test::devices()) {
        Tiny model;
        model.to(device);
        const io::LoadReport report = io::load_weights(model, full_state(), {.strict = true});
        CHECK(report.loaded == Names{"dense.weight", "dense.bias", "scale", "count"});
        CHECK(report.missing.empty());
        CHECK(report.to_string() == "loaded 4, missing 0, of another shape 0, unexpected 0");
        CHECK(model.dense.bias.dtype() == float32);
        CHECK(model.dense.bias.device() == device);
        CHECK(model.dense.bias.to_vector<float>() == std::vector<float>(3, 0.1f));
        CHECK(model.count.item<std::int64_t>() == 5);
        CHECK(model.dense.weight.requires_grad());
        CHECK(model.dense.weight.is_leaf());
    }
}

TEST_CASE("load_weights: the report lists what did not fit", "[io]") {
    Tiny model;
    StateDict state = full_state();
    state.erase(state.begin() + 1);
    state.emplace_back("cls.bias", ones({1}));
    const io::LoadReport report = io::load_weights(model, state);
    CHECK(report.missing == Names{"dense.bias"});
    CHECK(report.unexpected == Names{"cls.bias"});
    CHECK(report.loaded.size() == 3);
    CHECK(report.to_string() ==
          "loaded 3, missing 1, of another shape 0, unexpected 1\n  missing     dense.bias\n  unexpected  "
          "cls.bias");

    state.back().first = "\x1b[31mred\n";
    CHECK_THAT(io::load_weights(model, state).to_string(), Contains("unexpected  \"\\u001b[31mred\\n\""));

    Tiny fresh;
    CHECK_THROWS_WITH(
        io::load_weights(fresh, state, {.strict = true}),
        Contains("load_weights: Tiny: names are missing") && Contains("missing     dense.bias"));
    CHECK(fresh.scale.to_vector<float>() == std::vector<float>{1, 1});
}

TEST_CASE("load_weights: with entries of another shape nothing is loaded", "[io]") {
    StateDict state = full_state();
    state[1].second = ones({4});
    Tiny model;
    try {
        io::load_weights(model, state);
        FAIL("loaded");
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::shape);
        CHECK_THAT(error.what(), Contains("shape       dense.bias: [4] in the file, [3] in the model"));
    }
    CHECK(model.scale.to_vector<float>() == std::vector<float>{1, 1});
    const io::LoadReport report = io::load_weights(model, state, {.ignore_mismatched = true});
    REQUIRE(report.mismatched.size() == 1);
    CHECK(report.mismatched[0].name == "dense.bias");
    CHECK(report.mismatched[0].in_file == Shape{4});
    CHECK(report.mismatched[0].in_model == Shape{3});
    CHECK(report.loaded == Names{"dense.weight", "scale", "count"});
    CHECK(model.scale.to_vector<float>() == std::vector<float>{4, 4});
}

TEST_CASE("load_weights: a rename can move, drop and collide", "[io]") {
    Tiny model;
    const auto rename = [](const std::string& name) {
        if (name == "count") return std::string();
        return name.starts_with("old.") ? "dense." + name.substr(4) : name;
    };
    const StateDict state{{"old.weight", full({3, 2}, 7)}, {"count", ones({})}};
    const io::LoadReport report = io::load_weights(model, state, {.rename = rename});
    CHECK(report.loaded == Names{"dense.weight"});
    CHECK(report.unexpected.empty());
    CHECK(report.missing == Names{"dense.bias", "scale", "count"});
    CHECK(model.dense.weight.to_vector<float>() == std::vector<float>(6, 7.f));

    StateDict both = state;
    both.emplace_back("dense.weight", zeros({3, 2}));
    CHECK_THROWS_WITH(io::load_weights(model, both, {.rename = rename}),
                      Contains("old.weight and dense.weight are both dense.weight, with other values"));
    CHECK(model.dense.weight.to_vector<float>() == std::vector<float>(6, 7.f));
    both.back().second = full({3, 2}, 7, {.dtype = float64});
    CHECK(io::load_weights(model, both, {.rename = rename}).loaded == Names{"dense.weight"});
}

TEST_CASE("load_weights: bert names", "[io]") {
    const auto same = [](const std::string& from, const std::string& to) {
        CHECK_THAT(io::bert_name(from), Equals(to));
    };
    same("bert.embeddings.word_embeddings.weight", "embeddings.word_embeddings.weight");
    same("embeddings.word_embeddings.weight", "embeddings.word_embeddings.weight");
    same("bert.encoder.layer.11.attention.output.LayerNorm.gamma",
         "encoder.layer.11.attention.output.LayerNorm.weight");
    same("encoder.layer.0.output.LayerNorm.beta", "encoder.layer.0.output.LayerNorm.bias");
    same("bert.embeddings.LayerNorm.weight", "embeddings.LayerNorm.weight");
    same("bert.pooler.dense.bias", "pooler.dense.bias");
    same("bert.embeddings.position_ids", "");
    same("embeddings.position_ids", "");
    same("classifier.weight", "classifier.weight");
    same("cls.predictions.transform.LayerNorm.gamma", "cls.predictions.transform.LayerNorm.weight");
    same("cls.seq_relationship.bias", "cls.seq_relationship.bias");
    same("gamma_net.LayerNorm.gamma.x", "gamma_net.LayerNorm.gamma.x");  // only at the end
    same("", "");
    CHECK(io::bert_name("embeddings.LayerNorm.beta", "bert.") == "bert.embeddings.LayerNorm.bias");
    CHECK(io::bert_name("bert.pooler.dense.bias", "bert.") == "bert.pooler.dense.bias");
    CHECK(io::bert_name("classifier.bias", "bert.") == "classifier.bias");
}
