// config.json of BERT models.
#include <catch2/catch.hpp>

#include "mezzo/io.h"
#include "mezzo/models/bert_config.h"
#include "tests/support/folder.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using nn::BertConfig;

namespace {

std::string refusal(const std::string& text) {
    try {
        io::parse_bert_config(text);
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

}  // namespace

TEST_CASE("bert config: defaults, known and unknown names", "[io]") {
    CHECK(io::parse_bert_config("{}") == BertConfig());
    const BertConfig mini = io::parse_bert_config(R"({
        "_name_or_path": "nreimers/MiniLM-L6-H384-uncased", "architectures": ["BertModel"], "model_type": "bert",
        "hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 12,
        "hidden_act": "gelu_new", "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0.25,
        "layer_norm_eps": 1e-5, "classifier_dropout": 0.5, "position_embedding_type": "absolute", "pad_token_id": 3,
        "type_vocab_size": 1, "max_position_embeddings": 128, "vocab_size": 1000, "initializer_range": 0.5,
        "id2label": {"0": "no", "1": "maybe", "2": "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2},
        "torch_dtype": "float32", "use_cache": true, "is_decoder": false, "unknown": [{"deep": null}]})");
    BertConfig expected{
        .vocab_size = 1000, .hidden_size = 384, .num_hidden_layers = 6, .intermediate_size = 1536};
    expected.hidden_act = "gelu_new";
    expected.hidden_dropout_prob = 0;
    expected.attention_probs_dropout_prob = 0.25;
    expected.layer_norm_eps = 1e-5;
    expected.classifier_dropout = 0.5;
    expected.pad_token_id = 3;
    expected.type_vocab_size = 1;
    expected.max_position_embeddings = 128;
    expected.initializer_range = 0.5;
    expected.num_labels = 3;
    CHECK(mini == expected);
    CHECK_FALSE(io::parse_bert_config(R"({"classifier_dropout": null})").classifier_dropout.has_value());
    CHECK(io::parse_bert_config(R"({"num_labels": 5})").num_labels == 5);
    CHECK(io::parse_bert_config(R"({"label2id": {"a": 0}})").num_labels == 1);
    CHECK(io::parse_bert_config(R"({"id2label": null, "num_labels": 4})").num_labels == 4);
}

TEST_CASE("bert config: written and read back exactly", "[io]") {
    CHECK(io::parse_bert_config(io::to_json(BertConfig())) == BertConfig());
    BertConfig odd{.vocab_size = 17, .hidden_size = 6, .num_attention_heads = 3, .hidden_act = "silu"};
    odd.initializer_range = 0.1 + 0.2;
    odd.layer_norm_eps = 1e-300;
    odd.classifier_dropout = 1;
    odd.num_labels = 7;
    CHECK(io::parse_bert_config(io::to_json(odd)) == odd);
    odd.hidden_act = "tanh";
    CHECK_THROWS_WITH(io::to_json(odd), Contains("hidden_act is \"tanh\""));
}

TEST_CASE("bert config: wrong values are named", "[io]") {
    CHECK_THAT(refusal(R"({"hidden_size": "768"})"),
               Contains("BERT configuration: hidden_size is \"768\"; a whole number is expected"));
    CHECK_THAT(refusal(R"({"hidden_size": 768.5})"), Contains("hidden_size is 768.5; a whole number"));
    CHECK_THAT(refusal(R"({"hidden_size": -768})"), Contains("hidden_size is -768"));
    CHECK_THAT(refusal(R"({"hidden_size": null})"), Contains("hidden_size is null"));
    CHECK_THAT(refusal(R"({"num_hidden_layers": 0})"), Contains("num_hidden_layers is 0; 1 to 16777216"));
    CHECK_THAT(refusal(R"({"hidden_size": 1000000000000})"),
               Contains("hidden_size is 1000000000000; 1 to 16777216"));
    CHECK_THAT(refusal(R"({"vocab_size": 18446744073709551615})"),
               Contains("vocab_size is 18446744073709551615; 1 to 16777216"));
    CHECK_THAT(refusal(R"({"vocab_size": 1e30})"), Contains("vocab_size is 1e+30"));
    CHECK_THAT(refusal(R"({"num_attention_heads": 7})"),
               Contains("hidden_size 768 is no multiple of num_attention_heads 7"));
    CHECK_THAT(refusal(R"({"num_attention_heads": 0})"), Contains("num_attention_heads is 0"));
    CHECK_THAT(refusal(R"({"pad_token_id": 30522})"),
               Contains("pad_token_id 30522 is not in a vocabulary of 30522"));
    CHECK_THAT(refusal(R"({"hidden_dropout_prob": 1.5})"), Contains("hidden_dropout_prob is 1.5; 0 to 1"));
    CHECK_THAT(refusal(R"({"hidden_dropout_prob": true})"), Contains("hidden_dropout_prob is true or false"));
    CHECK_THAT(refusal(R"({"classifier_dropout": -1})"), Contains("classifier_dropout is -1"));
    CHECK_THAT(refusal(R"({"layer_norm_eps": 0})"), Contains("layer_norm_eps is 0; more than 0"));
    CHECK_THAT(refusal(R"({"initializer_range": 2})"), Contains("initializer_range is 2"));
    CHECK_THAT(refusal(R"({"hidden_act": "gelu_10"})"),
               Contains("hidden_act is \"gelu_10\"; gelu, gelu_new"));
    CHECK_THAT(refusal(R"({"hidden_act": 1})"), Contains("hidden_act is a whole number; a string"));
    CHECK_THAT(refusal(R"({"position_embedding_type": "relative_key"})"),
               Contains("position_embedding_type is \"relative_key\"; absolute is expected"));
    CHECK_THAT(refusal(R"({"model_type": "roberta"})"),
               Contains("model_type is \"roberta\"; bert is expected"));
    CHECK_THAT(refusal(R"({"is_decoder": true})"), Contains("only encoders"));
}

TEST_CASE("bert config: labels", "[io]") {
    CHECK_THAT(refusal(R"({"num_labels": 3, "id2label": {"0": "a", "1": "b"}})"),
               Contains("num_labels is 3, but id2label has 2 labels"));
    CHECK_THAT(refusal(R"({"id2label": {"0": "a", "2": "b"}})"),
               Contains("id2label has 2 labels, one of them number \"2\"; 0 to 1 are expected"));
    CHECK_THAT(refusal(R"({"id2label": {"0": "a", "00": "b"}})"), Contains("one of them number \"00\""));
    CHECK_THAT(refusal(R"({"id2label": {"99999999999999999999999": "a"}})"), Contains("one of them number"));
    CHECK_THAT(refusal(R"({"id2label": {"0": 1}})"), Contains("a label of id2label is a whole number"));
    CHECK_THAT(refusal(R"({"id2label": ["a"]})"), Contains("id2label is an array"));
    CHECK_THAT(refusal(R"({"label2id": {}})"), Contains("num_labels is 0"));
}

TEST_CASE("bert config: what is no JSON object", "[io]") {
    CHECK_THAT(refusal(""), Contains("no valid JSON"));
    CHECK_THAT(refusal("[]"), Contains("the file holds an array, not an object"));
    CHECK_THAT(refusal(R"({"hidden_size": 768, "hidden_size": 384})"),
               Contains("\"hidden_size\" occurs twice"));
    CHECK_THAT(refusal(R"({"layer_norm_eps": NaN})"), Contains("no valid JSON at byte"));
    CHECK_THAT(refusal("{\"a\": \"\xff\"}"), Contains("no valid UTF-8"));
    CHECK_THAT(refusal(std::string(100000, '[')), Contains("more than 64 levels"));
    std::string many = "{\"a\":[0";
    for (int i = 0; i < 1000000; ++i) many += ",0";
    CHECK_THAT(refusal(many + "]}"), Contains("more than 1000000 values"));
    const test::Folder folder;
    CHECK_THROWS_WITH(io::load_bert_config(folder.write("config.json", "{")),
                      Contains("config.json: no valid JSON"));
    CHECK_THROWS_WITH(io::load_bert_config(folder.file("absent")), Contains("cannot open"));
    CHECK(io::load_bert_config(folder.write("config.json", R"({"num_labels": 9})")).num_labels == 9);
}
