// learn_bpe(): merges, limits and wrong input. tests/text/pretrained_reference_test.py compares with the
// reference.
#include <catch2/catch.hpp>

#include "mezzo/error.h"
#include "mezzo/text/pretrained_tokenizer.h"

using mezzo::Error;
using mezzo::data::learn_bpe;
using mezzo::data::Tokenizer;
using Texts = std::vector<std::string>;

namespace {

Tokenizer learned(const Texts& texts, const mezzo::data::BpeVocabularyOptions& options) {
    return Tokenizer::from_json(learn_bpe(texts, options));
}

}  // namespace

TEST_CASE("learn_bpe merges the most frequent pair first, and of equal ones the oldest") {
    // "ab" occurs three times, then "xy" and "ab" + "c" twice each.
    const Tokenizer tokenizer = learned({"abc abc", "ab", "xy xy"}, {.size = 259, .special_tokens = {}});
    CHECK(tokenizer.size() == 259);
    CHECK(tokenizer.token(256) == "ab");
    CHECK(tokenizer.token(257) == "xy");
    CHECK(tokenizer.token(258) == "abc");
    CHECK(tokenizer.encode("abcxy").ids.size() == 2);
}

TEST_CASE("learn_bpe begins with special tokens and the 256 bytes") {
    const Tokenizer tokenizer = learned({}, {.special_tokens = {"<s>", "</s>"}});
    CHECK(tokenizer.size() == 258);
    CHECK(tokenizer.id("<s>") == 0);
    CHECK(tokenizer.id("</s>") == 1);
    CHECK(tokenizer.id("!") == 2);
    const std::string text = std::string("a\0\x7f", 3) + "\u00e9\U0001f600";
    const auto ids = tokenizer.encode(text).ids;
    CHECK(ids.size() == text.size());
    CHECK(tokenizer.decode(ids) == text);
}

TEST_CASE("learn_bpe leaves rare pairs alone, and merges nothing across words") {
    CHECK(learned({"xy xy zw"}, {.min_count = 3}).size() == 257);
    CHECK(learned({"xy xy zw"}, {.min_count = 2}).id("xy") == 257);
    CHECK(learned({"xy xy zw"}, {.min_count = 2}).id("zw") == -1);
    const Tokenizer all = learned({"xy xy zw"}, {.min_count = 1});
    CHECK(all.id("\u0120zw") == all.size() - 1);  // a blank begins a word
    CHECK(all.id("xy\u0120") == -1);
}

TEST_CASE("learn_bpe merges repeated pairs within a word") {
    const Tokenizer tokenizer = learned({"aaaaaaa", "aaaaaaa"}, {.special_tokens = {}});
    CHECK(tokenizer.token(256) == "aa");
    CHECK(tokenizer.token(257) == "aaaa");
    CHECK(tokenizer.encode("aaaaaaa").ids.size() == 1);
}

TEST_CASE("learn_bpe refuses what makes no vocabulary") {
    using Catch::Matchers::Contains;
    CHECK_THROWS_WITH(learn_bpe({}, {.size = 256}), Contains("learn_bpe: size 256") && Contains("257"));
    CHECK_THROWS_WITH(learn_bpe({}, {.min_count = 0}), Contains("learn_bpe: min_count 0"));
    CHECK_THROWS_WITH(learn_bpe({}, {.special_tokens = {""}}), Contains("special token 0 is empty"));
    CHECK_THROWS_WITH(learn_bpe({}, {.special_tokens = {"a", "\xff"}}), Contains("special token 1"));
    CHECK_THROWS_WITH(learn_bpe({}, {.special_tokens = {"<s>", "<s>"}}), Contains("more than once"));
}
