// BERT: names, counts, initial values, values and gradients against a plain float64 model, masks, heads.
#include "mezzo/models/bert.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "mezzo/amp.h"
#include "mezzo/autocast.h"
#include "mezzo/autograd.h"
#include "mezzo/optim.h"
#include "tests/nn/module_helpers.h"
#include "tests/support/grad_check.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using test::doubles;
using test::names_of;

namespace {

// Two layers, three heads, no dropout; weights so large that every part matters.
nn::BertConfig tiny() {
    return {.vocab_size = 17,
            .hidden_size = 6,
            .num_hidden_layers = 2,
            .num_attention_heads = 3,
            .intermediate_size = 10,
            .hidden_dropout_prob = 0,
            .attention_probs_dropout_prob = 0,
            .max_position_embeddings = 8,
            .initializer_range = 0.4,
            .num_labels = 3};
}

Tensor ids_of(const std::vector<std::int64_t>& values, const Shape& shape) {
    return Tensor::from(values, shape);
}

const Shape two_by_four{2, 4};
Tensor ids() { return ids_of({3, 5, 16, 1, 2, 5, 0, 0}, two_by_four); }
Tensor types() { return ids_of({0, 0, 1, 1, 0, 1, 0, 0}, two_by_four); }
Tensor mask() { return test::tensor_of({1, 1, 1, 1, 1, 1, 0, 0}, two_by_four, boolean); }

struct Precision {
    const char* name;
    bool mixed;
    Dtype dtype;
    test::Tolerance allowed;
};
const Precision precisions[] = {{"float32", false, float16, {5e-5, 2e-5}},
                                {"float16", true, float16, {1e-2, 2e-2}},
                                {"bfloat16", true, bfloat16, {8e-2, 1.5e-1}}};

amp::AutocastOptions options_of(const Precision& p, Device device) {
    return {.device = device.type(), .dtype = p.dtype, .enabled = p.mixed};
}

// BERT by the paper's equations, from named weights in float64 and the simplest ops.
class Plain {
public:
    Plain(const nn::BertConfig& config, const StateDict& named) : config_(config) {
        for (const auto& [name, value] : named)
            weights_.emplace_back(name, value.detach().to(cpu_device).to(float64).clone());
        for (const auto& [name, value] : weights_) value.set_requires_grad();
    }
    Tensor at(const std::string& name) const {
        for (const auto& [key, value] : weights_)
            if (key == name) return value;
        FAIL("no weight " << name);
        return {};
    }
    Tensor dense(const std::string& name, const Tensor& x) const {
        return matmul(x, at(name + ".weight").t()) + at(name + ".bias");
    }
    Tensor norm(const std::string& name, const Tensor& x) const {
        const Tensor c = x - mean(x, {-1}, {.keepdim = true});
        const Tensor variance = mean(c * c, {-1}, {.keepdim = true});
        return c / sqrt(variance + config_.layer_norm_eps) * at(name + ".weight") + at(name + ".bias");
    }
    Tensor hidden(const std::string& prefix, const Tensor& tokens, const Tensor& kinds,
                  const Tensor& real) const {
        Tensor x = looked_up(prefix + "embeddings.word_embeddings.weight", tokens) +
                   looked_up(prefix + "embeddings.token_type_embeddings.weight", kinds) +
                   at(prefix + "embeddings.position_embeddings.weight").slice(0, 0, tokens.size(1));
        x = norm(prefix + "embeddings.LayerNorm", x);
        for (std::int64_t i = 0; i < config_.num_hidden_layers; ++i)
            x = layer(prefix + "encoder.layer." + std::to_string(i) + ".", x, real);
        return x;
    }
    const StateDict& weights() const { return weights_; }

private:
    Tensor looked_up(const std::string& table, const Tensor& index) const {
        Tensors rows;
        for (const std::int64_t i : index.to_vector<std::int64_t>()) rows.push_back(at(table)[i]);
        return stack(rows).reshape({index.size(0), index.size(1), -1});
    }
    Tensor layer(const std::string& name, const Tensor& x, const Tensor& real) const {
        const std::int64_t heads = config_.num_attention_heads, width = config_.hidden_size / heads;
        const Tensor q = dense(name + "attention.self.query", x), k = dense(name + "attention.self.key", x),
                     v = dense(name + "attention.self.value", x);
        Tensors results;
        for (std::int64_t h = 0; h < heads; ++h) {
            const auto part = [&](const Tensor& t) { return t.slice(2, h * width, (h + 1) * width); };
            Tensor scores = matmul(part(q), part(k).transpose(1, 2)) / std::sqrt(double(width));
            scores = masked_fill(scores, logical_not(real).unsqueeze(1), -1e30);
            results.push_back(matmul(softmax(scores), part(v)));
        }
        const Tensor y = norm(name + "attention.output.LayerNorm",
                              x + dense(name + "attention.output.dense", cat(results, 2)));
        const Tensor inner = gelu(dense(name + "intermediate.dense", y));
        return norm(name + "output.LayerNorm", y + dense(name + "output.dense", inner));
    }
    nn::BertConfig config_;
    StateDict weights_;
};

}  // namespace

TEST_CASE("bert: names are those of Hugging Face's checkpoints", "[bert]") {
    nn::BertConfig config = tiny();
    config.num_hidden_layers = 1;
    const std::vector<std::string> encoder{"embeddings.word_embeddings.weight",
                                           "embeddings.position_embeddings.weight",
                                           "embeddings.token_type_embeddings.weight",
                                           "embeddings.LayerNorm.weight",
                                           "embeddings.LayerNorm.bias",
                                           "encoder.layer.0.attention.self.query.weight",
                                           "encoder.layer.0.attention.self.query.bias",
                                           "encoder.layer.0.attention.self.key.weight",
                                           "encoder.layer.0.attention.self.key.bias",
                                           "encoder.layer.0.attention.self.value.weight",
                                           "encoder.layer.0.attention.self.value.bias",
                                           "encoder.layer.0.attention.output.dense.weight",
                                           "encoder.layer.0.attention.output.dense.bias",
                                           "encoder.layer.0.attention.output.LayerNorm.weight",
                                           "encoder.layer.0.attention.output.LayerNorm.bias",
                                           "encoder.layer.0.intermediate.dense.weight",
                                           "encoder.layer.0.intermediate.dense.bias",
                                           "encoder.layer.0.output.dense.weight",
                                           "encoder.layer.0.output.dense.bias",
                                           "encoder.layer.0.output.LayerNorm.weight",
                                           "encoder.layer.0.output.LayerNorm.bias"};
    const auto in_model = [&](const std::vector<std::string>& heads) {
        std::vector<std::string> all;
        for (const std::string& name : encoder) all.push_back("bert." + name);
        all.insert(all.end(), heads.begin(), heads.end());
        return all;
    };
    std::vector<std::string> with_pooler = encoder;
    with_pooler.insert(with_pooler.end(), {"pooler.dense.weight", "pooler.dense.bias"});
    CHECK(names_of(nn::Bert(config).state_dict()) == with_pooler);
    CHECK(names_of(nn::Bert(config, {.pooler = false}).state_dict()) == encoder);
    CHECK(names_of(nn::BertForSequenceClassification(config).state_dict()) ==
          in_model({"bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight",
                    "classifier.bias"}));
    CHECK(names_of(nn::BertForSequenceClassification(config, {.pooler = false}).state_dict()) ==
          in_model({"classifier.weight", "classifier.bias"}));
    CHECK(names_of(nn::BertForMaskedLM(config).state_dict()) ==
          in_model({"cls.predictions.bias", "cls.predictions.transform.dense.weight",
                    "cls.predictions.transform.dense.bias", "cls.predictions.transform.LayerNorm.weight",
                    "cls.predictions.transform.LayerNorm.bias"}));
    CHECK_THAT(nn::Bert(config, {.pooler = false}).to_string(), Contains("(pooler): BertPooler()"));
}

TEST_CASE("bert: parameter counts of published models", "[bert]") {
    nn::BertConfig base;
    CHECK(nn::BertEmbeddings(base).num_parameters() == 23'837'184);
    CHECK(nn::BertLayer(base).num_parameters() == 7'087'872);
    // bert-base-uncased has 12 layers, 109,482,240 parameters; layers are alike, so one is enough here.
    base.num_hidden_layers = 1;
    CHECK(nn::BertForSequenceClassification(base).num_parameters() == 109'482'240 - 11 * 7'087'872 + 1'538);
    CHECK(nn::Bert({.hidden_size = 384,
                    .num_hidden_layers = 6,
                    .num_attention_heads = 12,
                    .intermediate_size = 1536})
              .num_parameters() == 22'713'216);
    CHECK(
        nn::Bert(
            {.hidden_size = 128, .num_hidden_layers = 2, .num_attention_heads = 2, .intermediate_size = 512})
            .num_parameters() == 4'385'920);
}

TEST_CASE("bert: initial values", "[bert]") {
    manual_seed(1);
    nn::BertConfig config = tiny();
    config.hidden_size = 48;
    config.initializer_range = 0.05;
    config.pad_token_id = 4;
    const nn::BertForMaskedLM lm(config);
    const nn::BertForSequenceClassification classifier(config);
    for (const nn::Module* net : std::initializer_list<const nn::Module*>{&lm, &classifier})
        for (const auto& [name, p] : net->state_dict()) {
            INFO(name);
            const std::vector<double> values = doubles(p);
            if (p.dim() == 1) {
                const bool one = name.ends_with("LayerNorm.weight");
                CHECK(values == std::vector<double>(values.size(), one ? 1 : 0));
                continue;
            }
            double squares = 0;
            for (const double v : values) squares += v * v;
            const double deviation = std::sqrt(squares / double(values.size()));
            CHECK(deviation == Approx(0.05).epsilon(values.size() > 1000 ? 0.1 : 0.3));
        }
    CHECK(doubles(lm.bert.embeddings.word_embeddings.weight[4]) == std::vector<double>(48, 0));
    CHECK(doubles(lm.bert.embeddings.word_embeddings.weight[0]) != std::vector<double>(48, 0));
}

TEST_CASE("bert: values and gradients follow a plain float64 model", "[bert]") {
    manual_seed(2);
    nn::BertForSequenceClassification net(tiny());
    test::disturb(net);
    const Plain plain(tiny(), net.state_dict());
    const Tensor hidden = plain.hidden("bert.", ids(), types(), mask());
    const Tensor logits =
        plain.dense("classifier", tanh(plain.dense("bert.pooler.dense", hidden.select(1, 0))));
    const Tensor target = ids_of({2, 0}, {2});
    cross_entropy(logits, target).backward();
    for (const Device device : test::devices()) {
        net.to(device);
        for (const Precision& p : precisions) {
            INFO(p.name);
            net.zero_grad();
            const nn::BertInputs inputs{.attention_mask = mask().to(device),
                                        .token_type_ids = types().to(device)};
            Tensor loss;
            {
                const amp::Autocast scope(options_of(p, device));
                const nn::BertOutput y = net.bert(ids().to(device), inputs);
                CHECK(y.last_hidden_state.dtype() == float32);
                CHECK(test::difference(doubles(y.last_hidden_state), doubles(hidden), p.allowed) == "");
                const Tensor own = net(ids().to(device), inputs);
                CHECK(test::difference(doubles(own), doubles(logits), p.allowed) == "");
                loss = cross_entropy(own, target.to(device));
            }
            loss.backward();
            for (const auto& [name, parameter] : net.named_parameters()) {
                INFO(name);
                REQUIRE(parameter.grad().defined());
                CHECK(parameter.grad().dtype() == float32);
                std::vector<double> expected = doubles(plain.at(name).grad());
                if (name.ends_with("word_embeddings.weight")) std::fill_n(expected.begin(), 6, 0);  // padding
                CHECK(test::difference(doubles(parameter.grad()), expected, p.allowed) == "");
                // The key's bias adds the same to all scores of a query: its gradient is rounding error only.
                if (!name.ends_with("key.bias")) CHECK(norm(parameter.grad()).item<double>() > 1e-6);
            }
        }
    }
}

TEST_CASE("bert: padding changes nothing for real tokens", "[bert]") {
    manual_seed(3);
    const nn::Bert net(tiny());
    for (const Precision& p : precisions) {
        INFO(p.name);
        const amp::Autocast scope(options_of(p, cpu_device));
        const nn::BertOutput both = net(ids(), {.attention_mask = mask()});
        const nn::BertOutput alone = net(ids().slice(0, 1, 2).slice(1, 0, 2).contiguous());
        CHECK(test::difference(doubles(both.last_hidden_state.slice(0, 1, 2).slice(1, 0, 2)),
                               doubles(alone.last_hidden_state), p.allowed) == "");
        CHECK(test::difference(doubles(both.pooler_output.slice(0, 1, 2)), doubles(alone.pooler_output),
                               p.allowed) == "");
    }
    const std::vector<double> unmasked = doubles(net(ids()).pooler_output);
    CHECK(unmasked != doubles(net(ids(), {.attention_mask = mask()}).pooler_output));
    CHECK(unmasked == doubles(net(ids(), {.token_type_ids = zeros({2, 4}, {.dtype = int64})}).pooler_output));
}

TEST_CASE("bert: dropout and training flag", "[bert]") {
    for (const int which : {0, 1, 2}) {
        INFO(which);
        manual_seed(4);
        nn::BertConfig config = tiny();
        if (which == 0) config.hidden_dropout_prob = 0.5, config.classifier_dropout = 0.0;
        if (which == 1) config.attention_probs_dropout_prob = 0.5;
        if (which == 2) config.classifier_dropout = 0.5;
        nn::BertForSequenceClassification net(config), without(tiny());
        without.load_state_dict(net.state_dict());
        CHECK(doubles(net(ids())) != doubles(net(ids())));
        CHECK((doubles(net.bert(ids()).last_hidden_state) != doubles(net.bert(ids()).last_hidden_state)) ==
              (which < 2));
        net.eval();
        CHECK(doubles(net(ids())) == doubles(without(ids())));
    }
}

TEST_CASE("bert: a classifier without pooler reads the first token", "[bert]") {
    manual_seed(5);
    const nn::BertForSequenceClassification net(tiny(), {.pooler = false});
    const nn::BertOutput y = net.bert(ids());
    CHECK_FALSE(y.pooler_output.defined());
    CHECK(all_close(net(ids()), net.classifier(y.last_hidden_state.select(1, 0))));
}

TEST_CASE("bert: activations by name", "[bert]") {
    const Tensor x = randn({2, 6});
    const auto inner = [&](const char* name) {
        manual_seed(6);
        nn::BertConfig config = tiny();
        config.hidden_act = name;
        const nn::BertDense dense(5, config);
        return std::pair{dense(x), dense.dense(x)};
    };
    const auto same = [](const Tensor& a, const Tensor& b) { return all_close(a, b, 1e-5, 1e-6); };
    CHECK(same(inner("gelu").first, gelu(inner("gelu").second)));
    CHECK(same(inner("gelu_new").first, gelu_tanh(inner("gelu").second)));
    CHECK(same(inner("gelu_pytorch_tanh").first, gelu_tanh(inner("gelu").second)));
    CHECK(same(inner("relu").first, relu(inner("gelu").second)));
    CHECK(same(inner("silu").first, silu(inner("gelu").second)));
    CHECK_THROWS_WITH(inner("mish"), Contains("hidden_act is \"mish\""));
}

namespace {

Tensor classified(In in) {
    static nn::BertForSequenceClassification net(tiny());
    test::assign_parameters(net, in);
    return net(ids(), {.attention_mask = mask(), .token_type_ids = types()});
}

Tensor predicted(In in) {
    static nn::BertForMaskedLM net(tiny());
    test::assign_parameters(net, in);
    return net.logits_at(ids(), ids_of({1, 5}, {2}), {.attention_mask = mask()});
}

}  // namespace

TEST_CASE("bert: first and second derivatives", "[bert]") {
    manual_seed(7);
    const nn::BertForSequenceClassification classifier(tiny());
    test::disturb(classifier);
    CHECK(test::check_gradient(classified, test::with_parameters({}, classifier)) == "");
    CHECK(test::check_second_gradient(classified, test::with_parameters({}, classifier)) == "");
    const nn::BertForMaskedLM lm(tiny());
    CHECK(test::check_gradient(predicted, test::with_parameters({}, lm)) == "");
    CHECK(test::check_second_gradient(predicted, test::with_parameters({}, lm)) == "");
}

TEST_CASE("bert: checkpointed layers give the same gradients", "[bert]") {
    manual_seed(8);
    nn::BertConfig config = tiny();
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.2;
    nn::BertForSequenceClassification net(config);
    for (const Precision& p : precisions) {
        std::vector<double> gradients[2];
        for (const bool again : {false, true}) {
            net.bert.encoder.checkpoint_layers = again;
            net.zero_grad();
            manual_seed(9);
            Tensor loss;
            {
                const amp::Autocast scope(options_of(p, cpu_device));
                loss = sum(square(net(ids(), {.attention_mask = mask()})));
            }
            loss.backward();
            for (const Tensor& parameter : net.parameters())
                for (const double g : doubles(parameter.grad())) gradients[again].push_back(g);
        }
        CHECK(gradients[0] == gradients[1]);
    }
}

TEST_CASE("bert: the masked language model predicts masked tokens only", "[bert]") {
    manual_seed(10);
    const nn::BertForMaskedLM net(tiny());
    test::disturb(net);
    const Tensor labels = ids_of({-100, 7, -100, -100, 3, -100, -100, 16}, two_by_four);
    const nn::MaskedTokens masked = nn::masked_tokens(labels);
    CHECK(masked.positions.to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 4, 7});
    CHECK(masked.labels.to_vector<std::int64_t>() == std::vector<std::int64_t>{7, 3, 16});
    const Tensor all = net(ids());
    CHECK(all.shape() == Shape{2, 4, 17});
    const Tensor flat = all.reshape({8, 17});
    CHECK(all_close(net.logits_at(ids(), masked.positions), stack({flat[1], flat[4], flat[7]}), 1e-5, 1e-5));
    const double expected = cross_entropy(flat, labels.reshape({8})).item<double>();
    CHECK(net.loss(ids(), masked).item<double>() == Approx(expected).epsilon(1e-5));
    const Plain plain(tiny(), net.state_dict());
    const Tensor hidden =
        plain.hidden("bert.", ids(), zeros({2, 4}, {.dtype = int64}), ones({2, 4}, {.dtype = boolean}));
    const Tensor transformed = plain.norm("cls.predictions.transform.LayerNorm",
                                          gelu(plain.dense("cls.predictions.transform.dense", hidden)));
    const Tensor logits = matmul(transformed, plain.at("bert.embeddings.word_embeddings.weight").t()) +
                          plain.at("cls.predictions.bias");
    CHECK(test::difference(doubles(all), doubles(logits), {5e-5, 5e-5}) == "");
}

TEST_CASE("bert: the tied embedding has one gradient, summed in float32", "[bert]") {
    for (const Device device : test::devices()) {
        manual_seed(11);
        nn::BertForMaskedLM net(tiny());
        net.to(device);
        optim::AdamW optimizer(net.named_parameters());
        const Tensor table = net.bert.embeddings.word_embeddings.weight;
        const nn::MaskedTokens masked{ids_of({0, 5}, {2}).to(device), ids_of({4, 5}, {2}).to(device)};
        for (const Precision& p : precisions) {
            INFO(p.name);
            // Gradients of the embedding: of both uses, of the decoder alone, of the look-up alone.
            std::vector<double> gradients[3];
            for (const int part : {0, 1, 2}) {
                net.zero_grad();
                Tensor loss;
                {
                    const amp::Autocast scope(options_of(p, device));
                    Tensor hidden = net.bert(ids().to(device)).last_hidden_state.reshape({8, 6});
                    if (part == 1) hidden = hidden.detach();
                    const Tensor decoder = part == 2 ? table.detach().clone() : table;
                    loss = part == 0 ? net.loss(ids().to(device), masked)
                                     : cross_entropy(
                                           net.cls.predictions(embedding(hidden, masked.positions), decoder),
                                           masked.labels);
                }
                loss.backward();
                CHECK(table.grad().dtype() == float32);
                gradients[part] = doubles(table.grad());
            }
            std::vector<double> sums = gradients[1];
            for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += gradients[2][i];
            CHECK(test::difference(gradients[0], sums, {2e-6, 1e-7}) == "");
            CHECK(gradients[1] != std::vector<double>(sums.size(), 0));
            CHECK(gradients[2] != std::vector<double>(sums.size(), 0));
            optimizer.step();  // later rounds read the weights' 16-bit copies
        }
    }
}

TEST_CASE("bert: autocast converts no result of a norm", "[bert]") {
    manual_seed(12);
    const nn::BertForSequenceClassification net(tiny());
    optim::AdamW optimizer(net.named_parameters());
    const auto loss = [&] {
        const amp::Autocast scope({.dtype = bfloat16});
        return sum(square(net(ids())));
    };
    for (int step = 0; step < 2; ++step) {  // from then on the optimizer keeps 16-bit copies of the weights
        loss().backward();
        optimizer.step();
        optimizer.zero_grad();
    }
    amp::clear_autocast_report();
    amp::collect_autocast_report(true);
    loss();
    amp::collect_autocast_report(false);
    std::uint64_t conversions = 0;
    for (const amp::AutocastReportLine& line : amp::autocast_report()) {
        INFO(line.op);
        if (line.policy == "low") CHECK(line.computed == bfloat16);
        if (line.op == "cast" && line.result == bfloat16) conversions += line.calls;
    }
    CHECK(conversions ==
          1);  // the pooler's, which reads a slice; the norms have written what the layers read
}

TEST_CASE("bert: errors", "[bert]") {
    const nn::Bert net(tiny());
    CHECK_THROWS_WITH(net(zeros({1, 9}, {.dtype = int64})), Contains("length 9") && Contains("1 to 8"));
    CHECK_THROWS_WITH(net(zeros({1, 0}, {.dtype = int64})), Contains("length 0"));
    CHECK_THROWS_WITH(net(zeros({4}, {.dtype = int64})), Contains("[batch, length], not [4]"));
    CHECK_THROWS_WITH(net(zeros({2, 4})), Contains("ids is float32"));
    CHECK_THROWS_WITH(net(ids_of({3, 17, 2, 1}, {2, 2})), Contains("index 17 at position 1"));
    CHECK_THROWS_WITH(net(ids(), {.token_type_ids = full({2, 4}, 2, {.dtype = int64})}),
                      Contains("index 2 at position 0"));
    CHECK_THROWS_WITH(net(ids(), {.attention_mask = ones({2, 4}, {.dtype = int64})}),
                      Contains("attention_mask is int64") && Contains("ne(mask, 0)"));
    CHECK_THROWS_WITH(net(ids(), {.attention_mask = ones({2, 5}, {.dtype = boolean})}),
                      Contains("attention_mask [2, 5]"));
    CHECK_THROWS_WITH(net(ids(), {.token_type_ids = zeros({2, 4})}), Contains("token_type_ids is float32"));
    CHECK_THROWS_WITH(nn::masked_tokens(full({2, 4}, -100, {.dtype = int64})),
                      Contains("all 8 labels are -100"));
    CHECK_THROWS_WITH(nn::masked_tokens(zeros({2, 4})), Contains("must be int64"));
    const auto broken = [](auto change) {
        nn::BertConfig config = tiny();
        change(config);
        return nn::BertForSequenceClassification(config);
    };
    CHECK_THROWS_WITH(broken([](auto& c) { c.num_attention_heads = 4; }), Contains("hidden_size 6"));
    CHECK_THROWS_WITH(broken([](auto& c) { c.vocab_size = 0; }), Contains("vocab_size is 0"));
    CHECK_THROWS_WITH(broken([](auto& c) { c.hidden_dropout_prob = 1; }), Contains("hidden_dropout_prob"));
    CHECK_THROWS_WITH(broken([](auto& c) { c.pad_token_id = 17; }), Contains("pad_token_id 17"));
    CHECK_THROWS_WITH(broken([](auto& c) { c.num_hidden_layers = -1; }), Contains("num_hidden_layers"));
    CHECK_THROWS_WITH(broken([](auto& c) { c.num_labels = 0; }), Contains("num_labels is 0"));
    CHECK_THROWS_WITH(broken([](auto& c) { c.initializer_range = INFINITY; }),
                      Contains("initializer_range is inf"));
}
