// learn_wordpiece(): vocabularies learned from texts.
#include <catch2/catch.hpp>

#include <algorithm>

#include "mezzo/error.h"
#include "mezzo/text/tokenizer.h"

using namespace mezzo;
using namespace mezzo::data;

namespace {

using Words = std::vector<std::string>;

bool contains(const Words& words, const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

TEST_CASE("learn_wordpiece merges the most frequent pair first") {
    // "ab" three times, "cd" twice: with room for one merge it is a + ##b, with two c + ##d follows.
    const Words texts{"ab ab cd", "AB cd"};
    const Words expected{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "c", "##d", "ab"};
    CHECK(learn_wordpiece(texts, {.size = 10}) == expected);
    Words longer = expected;
    longer.push_back("cd");
    CHECK(learn_wordpiece(texts, {.size = 11}) == longer);
    CHECK(learn_wordpiece(texts, {.size = 100}) == longer);
}

TEST_CASE("learn_wordpiece merges merged pieces again, and repeated pairs within a word") {
    const Words vocabulary = learn_wordpiece({"aaaa aaaa", "banana banana"}, {.size = 100});
    CHECK(contains(vocabulary, "##aa"));
    CHECK(contains(vocabulary, "aaaa"));
    CHECK(contains(vocabulary, "banana"));
    CHECK(std::count(vocabulary.begin(), vocabulary.end(), "##a") == 1);
}

TEST_CASE("learn_wordpiece leaves rare pairs alone") {
    const Words vocabulary = learn_wordpiece({"xy xy zw"}, {.size = 100, .min_count = 2});
    CHECK(contains(vocabulary, "xy"));
    CHECK_FALSE(contains(vocabulary, "zw"));
    CHECK(contains(learn_wordpiece({"xy xy zw"}, {.size = 100, .min_count = 1}), "zw"));
}

TEST_CASE("learn_wordpiece sees words as the tokenizer does") {
    const Words vocabulary = learn_wordpiece({"Führer, führer! FÜHRER"}, {.size = 100});
    CHECK(contains(vocabulary, "fuhrer"));
    CHECK(contains(vocabulary, "!"));
    const WordPiece tokenizer = WordPiece::from_vocabulary(vocabulary);
    CHECK(tokenizer.decode(tokenizer.encode("führer!").ids) == "fuhrer !");
    Words cased = learn_wordpiece({"Führer Führer"}, {.size = 100, .tokenizer = {.lower_case = false}});
    CHECK(contains(cased, "Führer"));
}

TEST_CASE("learn_wordpiece keeps the most frequent characters when not all fit") {
    const Words vocabulary = learn_wordpiece({"a a a b b c"}, {.size = 7});
    CHECK(vocabulary == Words{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"});
}

TEST_CASE("learn_wordpiece refuses sizes without room") {
    CHECK_THROWS_WITH(learn_wordpiece({"a"}, {.size = 4}),
                      Catch::Contains("learn_wordpiece: size 4 has no room for the 5 special tokens"));
    CHECK_THROWS_WITH(learn_wordpiece({"a"}, {.min_count = 0}), Catch::Contains("min_count 0"));
    CHECK(learn_wordpiece({}, {}).size() == 5);
}
