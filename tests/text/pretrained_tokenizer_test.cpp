// Tokenizers from tokenizer.json and related files: the rules one by one over small files, and refused files.
// tests/text/pretrained_reference_test.py compares whole tokenizers with the reference.
#include "mezzo/text/pretrained_tokenizer.h"

#include <fmt/format.h>
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "mezzo/error.h"
#include "tests/support/folder.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using data::Encoding;
using data::Span;
using data::TokenizeOptions;
using data::Tokenizer;
using Ids = std::vector<std::int64_t>;

namespace {

// A tokenizer.json of a model and further fields, each with a comma before it.
std::string file(const std::string& model, const std::string& fields = "") {
    return R"({"version": "1.0", "model": )" + model + fields + "}";
}

const std::string words_model =
    R"({"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "a": 1, "b": 2, "ab": 3, "<s>": 4, "</s>": 5, "A": 6}})";
const std::string blanks = R"(, "pre_tokenizer": {"type": "WhitespaceSplit"})";
// Byte-level BPE of "a", "b", a blank and their merges.
const std::string bytes_model =
    R"({"type": "BPE", "vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġa": 4, "Ġab": 5, "<e>": 6}, "merges": ["a b", "Ġ a", "Ġ ab"]})";
const std::string around =
    R"(, "post_processor": {"type": "BertProcessing", "cls": ["<s>", 4], "sep": ["</s>", 5]})";

Ids ids(const Tokenizer& tokenizer, std::string_view text) {
    return tokenizer.encode(text, {.max_length = 0, .add_special_tokens = false}).ids;
}
// The tokens of a text, separated by bars.
std::string split(const Tokenizer& tokenizer, std::string_view text) {
    std::string result;
    for (const std::int64_t id : ids(tokenizer, text))
        result += (result.empty() ? "" : "|") + tokenizer.token(id);
    return result;
}
std::string refusal(const std::string& text, const std::string& config = "{}") {
    try {
        (void)Tokenizer::from_json(text, config);
    } catch (const Error& error) {
        return error.what();
    }
    return "accepted";
}

}  // namespace

TEST_CASE("pretrained tokenizer: pairs are merged in the order of the merges, the leftmost first",
          "[tokenizer]") {
    const auto bpe = [](const std::string& merges, const std::string& more = "") {
        return Tokenizer::from_json(file(
            R"({"type": "BPE", "vocab": {"a": 0, "b": 1, "aa": 2, "ab": 3, "aaa": 4, "aab": 5}, "merges": [)" +
            merges + "]" + more + "}"));
    };
    CHECK(split(bpe(R"("a a", "a b")"), "aaab") == "aa|ab");
    CHECK(split(bpe(R"("a b", "a a")"), "aaab") == "aa|ab");
    CHECK(split(bpe(R"("a a", "aa b")"), "aab") == "aab");
    CHECK(split(bpe(R"("a a", "aa a", "aa b")"), "aaab") == "aaa|b");
    CHECK(split(bpe(R"("a a", "aa a")"), "aaaaa") == "aa|aaa");
    CHECK(split(bpe(R"(["a", "a"], ["a", "b"])"), "aaab") == "aa|ab");  // how newer files write merges
    CHECK(split(bpe(R"("a a")"), "axa") == "aa");  // no unknown token: x vanishes, as in the reference
    CHECK(split(bpe(R"("a b")", R"(, "ignore_merges": true)"), "aab") == "aab");
    CHECK(bpe(R"("a b")").encode("xab").offsets == std::vector<Span>{{1, 3}});
}

TEST_CASE("pretrained tokenizer: unknown characters are the unknown token, one or several, or bytes",
          "[tokenizer]") {
    const auto bpe = [](const std::string& more) {
        return Tokenizer::from_json(file(
            R"({"type": "BPE", "vocab": {"?": 0, "a": 1, "<0xC3>": 2, "<0xA9>": 3}, "merges": [], "unk_token": "?")" +
            more + "}"));
    };
    CHECK(split(bpe(""), "axya") == "a|?|?|a");
    CHECK(split(bpe(R"(, "fuse_unk": true)"), "axya") == "a|?|a");
    const Tokenizer bytes = bpe(R"(, "byte_fallback": true)");
    CHECK(split(bytes, "a\u00e9x") == "a|<0xC3>|<0xA9>|?");
    CHECK(bytes.encode("a\u00e9").offsets == std::vector<Span>{{0, 1}, {1, 3}, {1, 3}});
}

TEST_CASE("pretrained tokenizer: Unigram takes the cut with the best sum of scores", "[tokenizer]") {
    const Tokenizer unigram = Tokenizer::from_json(file(
        R"({"type": "Unigram", "unk_id": 0, "vocab": [["?", 0], ["a", -1], ["b", -1], ["ab", -1.5], ["ba", -3], ["aba", -2.4]]})"));
    CHECK(split(unigram, "ab") == "ab");
    CHECK(split(unigram, "ba") == "b|a");
    CHECK(split(unigram, "aba") == "aba");
    CHECK(split(unigram, "abab") == "ab|ab");
    CHECK(split(unigram, "axyb") == "a|?|b");
    const Tokenizer none =
        Tokenizer::from_json(file(R"({"type": "Unigram", "unk_id": null, "vocab": [["a", -1]]})"));
    CHECK_THROWS_WITH(none.encode("ax"), Contains("no token begins with \"x\""));
    CHECK(ids(none, "aa") == Ids{0, 0});
}

TEST_CASE("pretrained tokenizer: added tokens are found before the text is cut", "[tokenizer]") {
    const auto with = [](const std::string& token) {
        return Tokenizer::from_json(
            file(words_model,
                 blanks + R"(, "normalizer": {"type": "Lowercase"}, "added_tokens": [)" + token + "]"));
    };
    CHECK(split(with(R"({"id": 7, "content": "[X]", "special": true})"), "a[X]b") == "a|[X]|b");
    CHECK(split(with(R"({"id": 7, "content": "[X]", "special": true})"), "a[x]b") == "?");
    CHECK(split(with(R"({"id": 7, "content": "[X]", "special": false, "normalized": true})"), "a[x]b") ==
          "a|[X]|b");
    CHECK_THAT(refusal(file(words_model, R"(, "added_tokens": [{"id": 7, "content": "b"}])")),
               Contains("\"b\" has the id 7, but in the model it has 2"));
}

TEST_CASE("pretrained tokenizer: of added tokens that the normalizer makes equal the special one is found",
          "[tokenizer]") {
    const auto with = [](const char* upper, const char* lower) {
        const auto token = [](int id, const char* content, const char* special) {
            return fmt::format(R"({{"id": {}, "content": "{}", "normalized": true, "special": {}}})", id,
                               content, special);
        };
        return Tokenizer::from_json(
            file(words_model, blanks + R"(, "normalizer": {"type": "Lowercase"}, "added_tokens": [)" +
                                  token(7, "X", upper) + ", " + token(8, "x", lower) + "]"));
    };
    CHECK(ids(with("false", "false"), "a X x b") == Ids{1, 7, 7, 2});
    CHECK(ids(with("true", "true"), "a X x b") == Ids{1, 7, 7, 2});
    CHECK(ids(with("false", "true"), "a X x b") == Ids{1, 8, 8, 2});
}

TEST_CASE("pretrained tokenizer: a special token that the model has twice is left out under both ids",
          "[tokenizer]") {
    const Tokenizer tokenizer = Tokenizer::from_json(
        file(R"({"type": "Unigram", "unk_id": 0, "vocab": [["<u>", 0], ["a", -1], ["<u>", -9]]})",
             R"(, "added_tokens": [{"id": 2, "content": "<u>", "special": true}])"));
    CHECK(ids(tokenizer, "axa<u>") == Ids{1, 0, 1, 2});
    CHECK(tokenizer.decode(Ids{1, 0, 1, 2}) == "a a");
    CHECK(tokenizer.decode(Ids{1, 0, 1, 2}, false) == "a <u> a <u>");
}

TEST_CASE("pretrained tokenizer: added tokens take white space, stand alone, and the longest wins",
          "[tokenizer]") {
    const auto with = [](const std::string& flags) {
        return Tokenizer::from_json(file(
            words_model, blanks + R"(, "added_tokens": [{"id": 7, "content": "cd", "normalized": false)" +
                             flags + R"(}, {"id": 9, "content": "cdc", "normalized": false}])"));
    };
    CHECK(split(with(""), "acdcb cd") == "a|cdc|b|cd");
    CHECK(split(with(R"(, "single_word": true)"), "acd a-cd-") == "?|?|cd|?");
    CHECK(with(R"(, "lstrip": true)").encode("a  cd b").offsets == std::vector<Span>{{0, 1}, {1, 5}, {6, 7}});
    CHECK(with(R"(, "rstrip": true)").encode("a cd  b").offsets == std::vector<Span>{{0, 1}, {2, 6}, {6, 7}});
    CHECK(with("").size() == 10);
    CHECK(with("").id("cdc") == 9);
    CHECK(with("").id("a") == 1);
    CHECK(with("").id("zz") == -1);
    CHECK_THROWS_WITH(with("").token(8), Contains("no token has id 8"));
    CHECK_THROWS_WITH(with("").decode(Ids{8}), Contains("no token has id 8"));
}

TEST_CASE("pretrained tokenizer: truncation and padding of the file", "[tokenizer]") {
    const auto with = [](const std::string& truncation) {
        return Tokenizer::from_json(file(
            words_model, blanks + around + R"(, "truncation": {"max_length": 4)" + truncation +
                             R"(}, "padding": {"strategy": {"Fixed": 6}, "direction": "Left", "pad_id": 5,
            "pad_type_id": 1, "pad_token": "</s>", "pad_to_multiple_of": 4})"));
    };
    const Tokenizer right = with("");
    CHECK(right.encode("a b ab").ids == Ids{4, 1, 2, 5});
    CHECK(right.encode("a b ab", {.max_length = 0}).ids == Ids{4, 1, 2, 3, 5});
    CHECK(right.encode("a b ab", {.max_length = 3}).ids == Ids{4, 1, 5});
    CHECK(right.encode("a b ab", {.max_length = 2, .add_special_tokens = false}).ids == Ids{1, 2});
    CHECK(right.encode_pair("a b ab", "b b").ids == Ids{4, 1, 5, 5});
    CHECK(right.encode_pair("a b ab", "b b").token_type_ids == Ids{0, 0, 0, 1});
    CHECK_THROWS_WITH(right.encode("a", {.max_length = 1}), Contains("the special tokens alone are 2"));
    CHECK_THROWS_WITH(right.encode_batch({"a"}, {.max_length = 1}),
                      Contains("the special tokens alone are 2"));
    CHECK_THROWS_WITH(right.encode("a", {.max_length = -2}), Contains("max_length is -2"));
    CHECK(with(R"(, "direction": "Left")").encode("a b ab").ids == Ids{4, 2, 3, 5});
    CHECK(with(R"(, "strategy": "OnlyFirst")").encode_pair("a b ab", "").ids == Ids{4, 1, 5, 5});
    CHECK_THROWS_WITH(with(R"(, "strategy": "OnlyFirst")").encode_pair("a", "b b"),
                      Contains("truncates only the other"));
    CHECK_THROWS_WITH(with(R"(, "strategy": "OnlySecond")").encode("a b ab"),
                      Contains("only the second text"));

    const data::TokenBatch batch = data::pad(right.encode_batch({"a b", "ab"}), right.pad_options());
    CHECK(batch.input_ids.to_vector<std::int64_t>() == Ids{5, 5, 5, 5, 4, 1, 2, 5, 5, 5, 5, 5, 5, 4, 3, 5});
    CHECK(batch.token_type_ids.to_vector<std::int64_t>() ==
          Ids{1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0});
    CHECK(test::doubles(batch.attention_mask) ==
          std::vector<double>{0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1});
    CHECK(right.pad_id() == 5);
}

TEST_CASE("pretrained tokenizer: tokenizer_config.json names special tokens, limits and sides",
          "[tokenizer]") {
    const std::string config =
        R"({"tokenizer_class": "LlamaTokenizer", "bos_token": {"content": "<s>", "lstrip": false},
        "eos_token": "</s>", "pad_token": "[PAD]", "add_bos_token": true, "add_eos_token": true, "padding_side": "left",
        "model_max_length": 128, "chat_template": "left alone", "added_tokens_decoder": {"9": {"content": "<x>", "special": true}}})";
    const Tokenizer tokenizer = Tokenizer::from_json(file(words_model, blanks), config);
    CHECK(tokenizer.encode("a").ids == Ids{4, 1, 5});
    CHECK(tokenizer.encode_pair("a", "b").ids == Ids{4, 1, 5, 4, 2, 5});
    CHECK(tokenizer.encode_pair("a", "b").token_type_ids == Ids{0, 0, 0, 1, 1, 1});
    CHECK(ids(tokenizer, "a</s><x>") == Ids{1, 5, 9});
    CHECK(tokenizer.decode(Ids{4, 1, 5}) == "a");
    CHECK(tokenizer.decode(Ids{4, 1, 5}, false) == "<s> a </s>");
    CHECK(tokenizer.bos_id() == 4);
    CHECK(tokenizer.eos_id() == 5);
    CHECK(tokenizer.unk_id() == 0);
    CHECK(tokenizer.pad_id() == 10);  // a token of its own, as transformers adds it
    CHECK(tokenizer.cls_id() == -1);
    CHECK(tokenizer.model_max_length() == 128);
    CHECK(tokenizer.pad_options().left);
    CHECK(tokenizer.pad_options().pad_id == 10);
    CHECK(Tokenizer::from_json(file(words_model), R"({"model_max_length": 1e30})").model_max_length() == 0);
    CHECK_THAT(refusal(file(words_model), R"({"model_max_length": "many"})"), Contains("model_max_length"));
    CHECK_THAT(refusal(file(words_model), R"({"padding_side": "up"})"), Contains("left and right are known"));
    CHECK_THAT(refusal(file(words_model), R"({"add_bos_token": true})"), Contains("names no bos_token"));
}

TEST_CASE("pretrained tokenizer: do_lower_case and its relatives decide for BertNormalizer", "[tokenizer]") {
    const std::string text =
        file(words_model, blanks + R"(, "normalizer": {"type": "BertNormalizer", "lowercase": true})");
    CHECK(split(Tokenizer::from_json(text), "A \u00e1") == "a|a");
    CHECK(split(Tokenizer::from_json(text, R"({"do_lower_case": false})"), "A \u00e1") == "A|?");
    CHECK(split(Tokenizer::from_json(text, R"({"do_lower_case": false, "strip_accents": true})"),
                "A \u00e1") == "A|a");
}

TEST_CASE("pretrained tokenizer: clean_up_tokenization_spaces is for models that have no blanks",
          "[tokenizer]") {
    const std::string config = R"({"clean_up_tokenization_spaces": true})";
    const std::string model = R"({"type": "WordLevel", "vocab": {"a": 0, ".": 1}})";
    CHECK(Tokenizer::from_json(file(model)).decode(Ids{0, 1}) == "a .");
    CHECK(Tokenizer::from_json(file(model), config).decode(Ids{0, 1}) == "a.");
    const std::string bpe = R"({"type": "BPE", "vocab": {"a": 0, ".": 1}, "merges": []})";
    CHECK(Tokenizer::from_json(file(bpe), config).decode(Ids{0, 1}) == "a .");
}

TEST_CASE("pretrained tokenizer: byte-level offsets are trimmed as the file asks", "[tokenizer]") {
    const auto with = [](const std::string& processor) {
        return Tokenizer::from_json(
            file(bytes_model, R"(, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true},
            "decoder": {"type": "ByteLevel"}, "post_processor": {"type": "ByteLevel", )" +
                                  processor + "}"));
    };
    const std::vector<Span> whole{{0, 2}, {2, 5}}, trimmed{{0, 2}, {3, 5}};
    const Tokenizer tokenizer = with(R"("trim_offsets": false)");
    CHECK(split(tokenizer, "ab ab") == "\u0120ab|\u0120ab");
    CHECK(tokenizer.encode("ab ab").offsets == whole);
    CHECK(with(R"("trim_offsets": true)").encode("ab ab").offsets == trimmed);
    CHECK(tokenizer.decode(ids(tokenizer, "ab ab")) == " ab ab");
}

TEST_CASE("pretrained tokenizer: invalid UTF-8 counts as U+FFFD, byte by byte", "[tokenizer]") {
    const Tokenizer tokenizer = Tokenizer::from_json(file(
        R"({"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "a\ufffdb": 1, "\ufffd\ufffd": 2}})",
        blanks));
    CHECK(tokenizer
              .encode("a\xff"
                      "b \xe2\x82")
              .ids == Ids{1, 2});
    CHECK(tokenizer
              .encode("a\xff"
                      "b \xe2\x82")
              .offsets == std::vector<Span>{{0, 3}, {4, 6}});
}

TEST_CASE("pretrained tokenizer: folders of older files", "[tokenizer]") {
    const test::Folder folder;
    const std::string mark = "\xef\xbb\xbf";  // a byte order mark, which readers of text files skip
    CHECK_THROWS_WITH(Tokenizer(folder.path), Contains("there is no tokenizer.json"));
    CHECK_THROWS_WITH(Tokenizer(folder.file("missing.json")), Contains("missing.json"));
    (void)folder.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##able\r\n!\n");
    const Tokenizer bert(folder.path);
    CHECK(bert.encode("UNABLE![MASK]").ids == Ids{2, 5, 6, 7, 4, 3});
    CHECK(bert.decode(Ids{2, 5, 6, 7, 3}) == "unable!");
    CHECK(bert.mask_id() == 4);
    CHECK(bert.encode("unable").ids == data::WordPiece(folder.file("vocab.txt")).encode("unable").ids);
    (void)folder.write("vocab.txt", mark + folder.read("vocab.txt"));
    CHECK(Tokenizer(folder.path).encode("unable").ids == bert.encode("unable").ids);
    CHECK(data::WordPiece(folder.file("vocab.txt")).encode("unable").ids == bert.encode("unable").ids);
    (void)folder.write("tokenizer_config.json", R"({"tokenizer_class": "MPNetTokenizer"})");
    CHECK_THROWS_WITH(Tokenizer(folder.path), Contains("MPNetTokenizer"));

    (void)folder.write("vocab.json", R"({"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4, "<|endoftext|>": 5})");
    (void)folder.write("merges.txt", "#version: 0.2\na b\n\u0120 ab\n");
    (void)folder.write("tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer"})");
    const Tokenizer gpt2(folder.path);
    CHECK(gpt2.encode("ab ab<|endoftext|>").ids == Ids{3, 4, 5});
    CHECK(gpt2.eos_id() == 5);
    CHECK(gpt2.decode(Ids{3, 4, 5}) == "ab ab");
    (void)folder.write("merges.txt", mark + "a b\n\u0120 ab\n");
    (void)folder.write("vocab.json", mark + folder.read("vocab.json"));
    CHECK(Tokenizer(folder.path).encode("ab ab").ids == Ids{3, 4});
    (void)folder.write("merges.txt", "a b\na b c\n");
    CHECK_THROWS_WITH(Tokenizer(folder.path), Contains("line 2 of merges.txt is \"a b c\""));
    (void)folder.write("tokenizer.json", file(words_model));
    (void)folder.write("special_tokens_map.json", R"({"eos_token": "</s>"})");
    CHECK(Tokenizer(folder.path).eos_id() == 5);  // tokenizer.json comes before older files
}

TEST_CASE("pretrained tokenizer: what is not known is refused by its name", "[tokenizer]") {
    const std::vector<std::pair<std::string, std::string>> refused{
        {file(R"({"type": "Mystery", "vocab": {}})"), "model is of the type \"Mystery\""},
        {file(words_model, R"(, "normalizer": {"type": "Mystery"})"),
         "normalizer is of the type \"Mystery\""},
        {file(words_model,
              R"(, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "UnicodeScripts"}]})"),
         "pre_tokenizer.pretokenizers[0] is of the type \"UnicodeScripts\""},
        {file(words_model, R"(, "decoder": {"type": "CTC"})"), "decoder is of the type \"CTC\""},
        {file(words_model, R"(, "post_processor": {"type": "Mystery"})"),
         "post_processor is of the type \"Mystery\""},
        {file(words_model, R"(, "extra": 1)"), "has a field \"extra\", which is not known"},
        {file(words_model, R"(, "pre_tokenizer": {"type": "Whitespace", "extra": 1})"),
         "has a field \"extra\""},
        {file(R"({"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 0.1})"), "has dropout"},
        {R"({"version": "2.0"})", "has the version \"2.0\""},
        {R"({"version": "1.0"})", "has no field \"model\""},
        {"[]", "is an array; an object is expected"}};
    for (const auto& [text, reason] : refused) CHECK_THAT(refusal(text), Contains(reason));
}

TEST_CASE("pretrained tokenizer: fields of other types of components are ignored", "[tokenizer]") {
    const Tokenizer tokenizer = Tokenizer::from_json(file(
        R"({"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "a": 1}, "dropout": null, "unk_id": 0})",
        R"(, "normalizer": {"type": "NFC", "lowercase": true, "add_prefix_space": true},
        "pre_tokenizer": {"type": "Sequence", "use_regex": true, "pretokenizers": [
            {"type": "Digits", "individual_digits": true, "use_regex": true},
            {"type": "WhitespaceSplit", "add_prefix_space": false, "trim_offsets": true}]},
        "decoder": {"type": "Fuse", "prefix": "##", "cleanup": true},
        "post_processor": {"type": "ByteLevel", "individual_digits": true})"));
    CHECK(split(tokenizer, "a 1a A") == "a|?|a|?");
}

TEST_CASE("pretrained tokenizer: texts in front of a known expression need no PCRE2", "[tokenizer]") {
    const auto with = [](const std::string& expression) {
        return Tokenizer::from_json(file(
            R"({"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "<|e|>": 1, "a": 2, "'s": 3, "1": 4}})",
            R"(, "pre_tokenizer": {"type": "Split", "behavior": "Removed", "invert": true,
                "pattern": {"Regex": ")" +
                expression + "\"}}"));
    };
    const std::string clip = R"('s|'t|'re|'ve|'m|'ll|'d|[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+)";
    CHECK(split(with(R"(<\\|s\\|>|<\\|e\\|>|)" + clip), "a's 11<|e|>a<|") == "a|'s|1|1|<|e|>|a|?");
    CHECK(split(with(clip), "a<|e|>") == "a|?|?|?");
}

TEST_CASE("pretrained tokenizer: offsets of an added token leave out the white space that it takes",
          "[tokenizer]") {
    const auto with = [](const std::string& flags, bool special) {
        return Tokenizer::from_json(
            file(bytes_model, R"(, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
            "post_processor": {"type": "RobertaProcessing", "cls": ["<e>", 6], "sep": ["<e>", 6],
                "trim_offsets": true, "add_prefix_space": false},
            "added_tokens": [{"id": 7, "content": "<m>", "normalized": )" +
                                  std::string(special ? "false" : "true") + flags + "}]"));
    };
    for (const bool special : {false, true}) {
        CHECK(with(R"(, "lstrip": true)", special)
                  .encode("ab \u3000<m> ab", {.add_special_tokens = false})
                  .offsets == std::vector<Span>{{0, 2}, {6, 9}, {10, 12}});
        CHECK(
            with(R"(, "rstrip": true)", special).encode(" <m>  ab", {.add_special_tokens = false}).offsets ==
            std::vector<Span>{{1, 1}, {1, 4}, {6, 8}});
        CHECK(with("", special).encode("ab<m>", {.add_special_tokens = false}).offsets ==
              std::vector<Span>{{0, 2}, {2, 5}});
    }
}

TEST_CASE("pretrained tokenizer: long matches of an expression", "[tokenizer]") {
    const std::string text = file(
        R"({"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0}})",
        R"(, "pre_tokenizer": {"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "([a-z])+"}})");
    std::string message;
    try {
        const Tokenizer tokenizer = Tokenizer::from_json(text);
        CHECK(tokenizer.encode(std::string(100000, 'a') + " " + std::string(4000, 'b')).size() == 3);
    } catch (const Error& error) {
        message = error.what();
    }
    if (!message.empty()) CHECK_THAT(message, Contains("needs PCRE2"));  // a build without it
}

TEST_CASE("pretrained tokenizer: steps that grow a text without limit are errors", "[tokenizer]") {
    const auto chain = [](const std::string& step) {
        std::string steps = step;
        for (int i = 0; i < 40; ++i) steps += ", " + step;
        return steps;
    };
    const std::string replace = R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"})",
                      prepend = R"({"type": "Prepend", "prepend": ")" + std::string(100, 'b') + "\"}",
                      bytes = R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})";
    const auto model = R"({"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "a": 1}})";
    for (const std::string& step : {replace, prepend, std::string(R"({"type": "ByteLevel"})")}) {
        const Tokenizer tokenizer = Tokenizer::from_json(
            file(model, R"(, "normalizer": {"type": "Sequence", "normalizers": [)" + chain(step) + "]}"));
        CHECK_THROWS_WITH(tokenizer.encode("a\u00e9"), Contains("make more than 1216 bytes of 3 bytes"));
        CHECK(tokenizer.encode("").ids.empty());
    }
    const Tokenizer cut = Tokenizer::from_json(
        file(model, R"(, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [)" + chain(bytes) + "]}"));
    CHECK_THROWS_WITH(cut.encode("\u00e9"), Contains("make more than 1152 bytes of 2 bytes"));
    const Tokenizer decoder = Tokenizer::from_json(
        file(model, R"(, "decoder": {"type": "Sequence", "decoders": [)" + chain(replace) + "]}"));
    CHECK_THROWS_WITH(decoder.decode(Ids{1}), Contains("makes a text of more than 67108864 bytes"));
}

TEST_CASE("pretrained tokenizer: hostile files are errors", "[tokenizer]") {
    const auto bpe = [](const std::string& vocabulary, const std::string& merges) {
        return file(R"({"type": "BPE", "vocab": {)" + vocabulary + R"(}, "merges": [)" + merges + "]}");
    };
    const std::vector<std::pair<std::string, std::string>> refused{
        {bpe(R"("a": 0, "b": 0)", ""), "\"a\" and \"b\" have the same id 0"},
        {bpe(R"("a": 0, "a": 1)", ""), "\"a\" occurs twice"},
        {bpe(R"("a": 0)", R"("a b")"), "merge 0 of \"a\" and \"b\" needs the token \"b\""},
        {bpe(R"("a": 0, "b": 1)", R"("a b")"), "needs the token \"ab\""},
        {bpe(R"("a": 0)", R"("a")"), "two tokens with a blank between them"},
        {bpe(R"("a": 0)", R"(["a"])"), "has 1 tokens"},
        {bpe(R"("a": 4000000000)", ""), "is 4000000000; a whole number from 0 to"},
        {bpe(R"("a": -1)", ""), "is a negative number"},
        {bpe("\"\xff\": 0", ""), "no valid UTF-8"},
        {file(R"({"type": "Unigram", "unk_id": 3, "vocab": [["a", 0]]})"), "unk_id is 3"},
        {file(R"({"type": "Unigram", "vocab": []})"), "has 0 tokens"},
        {file(R"({"type": "Unigram", "vocab": [["a"]]})"), "is no array of a token and its score"},
        {file(R"({"type": "WordPiece", "vocab": {"a": 0}})"), "has no token \"[UNK]\""},
        {file(words_model,
              R"(, "post_processor": {"type": "BertProcessing", "cls": ["x", 99], "sep": ["y", 5]})"),
         "adds the id 99, which no token has"},
        {file(words_model, R"(, "truncation": {"max_length": 1})" + around), "max_length 1"},
        {file(words_model, R"(, "added_tokens": [{"id": 9, "content": "x"}, {"id": 9, "content": "y"}])"),
         "the id 9, which another token has"},
        {file(words_model, R"(, "normalizer": {"type": "Precompiled", "precompiled_charsmap": "!"})"),
         "no base64"},
        {file(words_model, R"(, "normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="})"),
         "of which the trie takes"},
        {std::string(100000, '['), "more than 64 levels"},
        {"{", "no valid JSON"}};
    for (const auto& [text, reason] : refused) CHECK_THAT(refusal(text), Contains(reason));
}

TEST_CASE("pretrained tokenizer: long words take time n log n", "[tokenizer]") {
    std::string vocabulary = R"("a": 0)", merges;
    std::string token = "a";
    for (int i = 1; i < 12; ++i) {
        merges += (i > 1 ? ", " : "") + std::string("[\"") + token + "\", \"" + token + "\"]";
        token += token;
        vocabulary += ", \"" + token + "\": " + std::to_string(i);
    }
    const Tokenizer tokenizer = Tokenizer::from_json(
        file(R"({"type": "BPE", "vocab": {)" + vocabulary + R"(}, "merges": [)" + merges + "]}"));
    const std::string word(1 << 20, 'a');  // quadratic time would be an hour
    CHECK(tokenizer.encode(word).size() == (1 << 20) / 2048);
}

TEST_CASE("pretrained tokenizer: a call that throws leaves it usable, and threads share it", "[tokenizer]") {
    const Tokenizer tokenizer = Tokenizer::from_json(
        file(R"({"type": "WordLevel", "unk_token": "?", "vocab": {"a": 0, "b": 1}})", blanks));
    CHECK(ids(tokenizer, "a b") == Ids{0, 1});
    CHECK_THROWS_WITH(tokenizer.encode("a x"), Contains("\"x\" is no token"));
    CHECK(ids(tokenizer, "a b a") == Ids{0, 1, 0});
    std::vector<std::string> texts(500, "a b");
    const auto encodings = tokenizer.encode_batch(texts);
    bool same = true;
    for (const Encoding& encoding : encodings) same = same && encoding.ids == Ids{0, 1};
    CHECK(same);
    std::vector<std::thread> threads;
    std::atomic<int> wrong = 0;
    for (int i = 0; i < 4; ++i)
        threads.emplace_back([&] {
            for (int k = 0; k < 200; ++k) wrong += ids(tokenizer, "b a") != Ids{1, 0};
        });
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
}
