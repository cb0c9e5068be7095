// WordPiece against the rules of BERT's tokenizer, one case for each rule, over small vocabularies;
// tools/tokenizer_peer.py compares with other implementations over real text.
#include <unistd.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "mezzo/device.h"
#include "mezzo/error.h"
#include "mezzo/text/tokenizer.h"
#include "tests/support/support.h"
#include "text/trie.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using data::Accents;
using data::Encoding;
using data::Span;
using data::WordPiece;
using data::WordPieceOptions;
using Ids = std::vector<std::int64_t>;

namespace {

const std::vector<std::string> special{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};

WordPiece tokenizer(const std::vector<std::string>& words, const WordPieceOptions& options = {}) {
    std::vector<std::string> tokens = special;
    tokens.insert(tokens.end(), words.begin(), words.end());
    return WordPiece::from_vocabulary(tokens, options);
}

// The tokens of a text without [CLS] and [SEP], separated by bars.
std::string split(const WordPiece& pieces, std::string_view text) {
    std::string result;
    for (const std::int64_t id : pieces.encode(text, {.max_length = 0, .add_special_tokens = false}).ids)
        result += (result.empty() ? "" : "|") + pieces.token(id);
    return result;
}

// The tokens of a text as it spells them, separated by bars.
std::string cut(const WordPiece& pieces, std::string_view text) {
    std::string result;
    for (const Span& span : pieces.encode(text, {.max_length = 0, .add_special_tokens = false}).offsets) {
        result += result.empty() ? "" : "|";
        result += text.substr(std::size_t(span.begin), std::size_t(span.end - span.begin));
    }
    return result;
}

std::string utf8(char32_t c) {
    if (c < 0x80) return {char(c)};
    if (c < 0x800) return {char(0xC0 | c >> 6), char(0x80 | (c & 63))};
    if (c < 0x10000) return {char(0xE0 | c >> 12), char(0x80 | (c >> 6 & 63)), char(0x80 | (c & 63))};
    return {char(0xF0 | c >> 18), char(0x80 | (c >> 12 & 63)), char(0x80 | (c >> 6 & 63)),
            char(0x80 | (c & 63))};
}

struct VocabFile {
    explicit VocabFile(const std::string& content) {
        path = (std::filesystem::temp_directory_path() / "mezzo-vocab-XXXXXX").string();
        const int file = mkstemp(path.data());
        if (file < 0) FAIL("no temporary file");
        close(file);
        std::ofstream(path, std::ios::binary) << content;
    }
    ~VocabFile() { std::filesystem::remove(path); }
    VocabFile(const VocabFile&) = delete;
    VocabFile& operator=(const VocabFile&) = delete;
    std::string path;
};

}  // namespace

TEST_CASE("wordpiece: longest piece first, and a word is whole or unknown", "[tokenizer]") {
    const WordPiece pieces = tokenizer({"un", "una", "unaff", "##aff", "##able", "##a", "##ff", "able", "x"});
    CHECK(split(pieces, "unaffable") == "unaff|##able");
    CHECK(split(pieces, "unaaff") == "una|##aff");
    CHECK(split(pieces, "able un") == "able|un");
    CHECK(split(pieces, "ableun") == "[UNK]");  // "##u" is missing: no piece of the word stays
    CHECK(split(pieces, "unaffably x") == "[UNK]|x");
    CHECK(split(pieces, "unax") == "[UNK]");  // x only begins words
    CHECK(split(pieces, "ff") == "[UNK]");    // ##ff only continues them
    CHECK(split(pieces, "") == "");
    CHECK(split(pieces, " \t\r\n ") == "");
    const WordPiece whole = tokenizer({"un", "x"});  // no token continues a word
    CHECK(split(whole, "un unx x") == "un|[UNK]|x");
}

TEST_CASE("wordpiece: words of more than max_chars_per_word code points are unknown", "[tokenizer]") {
    const WordPiece pieces = tokenizer({"a", "##a"}, {.max_chars_per_word = 3});
    CHECK(split(pieces, "aaa") == "a|##a|##a");
    CHECK(split(pieces, "aaaa a") == "[UNK]|a");
    const WordPiece kept =
        tokenizer({"\u00e9", "##\u00e9"}, {.accents = Accents::keep, .max_chars_per_word = 3});
    CHECK(split(kept, "\u00e9\u00e9\u00e9") == "\u00e9|##\u00e9|##\u00e9");  // 6 bytes
    CHECK(split(kept, "\u00e9\u00e9\u00e9\u00e9") == "[UNK]");
    CHECK(cut(kept, "\u00e9\u00e9\u00e9\u00e9") == "\u00e9\u00e9\u00e9\u00e9");
    CHECK(split(pieces, "a\u0301a\u0301a\u0301") == "a|##a|##a");  // counted without their accents
    const std::string longest(100, 'a');
    CHECK(split(tokenizer({"a", "##a"}), longest + " " + longest + "a").ends_with("##a|[UNK]"));
}

TEST_CASE("wordpiece: control characters vanish, separators separate", "[tokenizer]") {
    const WordPiece pieces = tokenizer({"ab", "a", "b", "\u0378"});
    for (const char32_t dropped : {0x0, 0x1, 0x8, 0xB, 0xC, 0x1F, 0x7F, 0x85, 0x9F, 0xAD, 0x200B, 0x200D,
                                   0x2060, 0xFEFF, 0xFFFD, 0xE000, 0xF0000, 0xE0001})
        CHECK(split(pieces, "a" + utf8(dropped) + "b") == "ab");
    for (const char32_t space : {0x9, 0xA, 0xD, 0x20, 0xA0, 0x1680, 0x2003, 0x2028, 0x2029, 0x202F, 0x3000})
        CHECK(split(pieces, "a" + utf8(space) + "b") == "a|b");
    CHECK(split(pieces, utf8(0x378)) == utf8(0x378));  // a code point that no character has yet
    CHECK(split(pieces, utf8(0xFEFF) + utf8(0x200B)) == "");
}

TEST_CASE("wordpiece: CJK ideographs stand alone", "[tokenizer]") {
    for (const auto& [first, last] : {std::pair<char32_t, char32_t>{0x4E00, 0x9FFF},
                                      {0x3400, 0x4DBF},
                                      {0x20000, 0x2A6DF},
                                      {0x2A700, 0x2B73F},
                                      {0x2B740, 0x2B81F},
                                      {0x2B820, 0x2CEAF}}) {
        const auto ideograph = [](char32_t c) {
            return split(tokenizer({"a", "b", utf8(c)}), "a" + utf8(c) + "b") == "a|" + utf8(c) + "|b";
        };
        CHECK(ideograph(first));
        CHECK(ideograph(last));
        CHECK(ideograph(first - 1) == (first == 0x2B740 || first == 0x2B820));
        CHECK(ideograph(last + 1) == (last == 0x2B73F || last == 0x2B81F));
    }
    // Compatibility ideographs decompose to unified ones when accents are stripped.
    CHECK(split(tokenizer({"a", "b", "\u8c48"}), "a\uf900b") == "a|\u8c48|b");
    CHECK(split(tokenizer({"a", "\U0002f80a"}, {.accents = Accents::keep}), "a\U0002f80aa") ==
          "a|\U0002f80a|a");
    const std::vector<std::string> words{"\u6211",   "\u5929", "##\u5929", "\u304b",
                                         "##\u306a", "\u1112", "##\u1161"};
    CHECK(split(tokenizer(words), "\u6211\u5929") == "\u6211|\u5929");
    CHECK(cut(tokenizer(words), "\u6211\u5929") == "\u6211|\u5929");
    CHECK(split(tokenizer(words, {.tokenize_chinese_chars = false}), "\u6211\u5929") == "\u6211|##\u5929");
    CHECK(split(tokenizer(words), "\u304b\u306a \ud558") ==
          "\u304b|##\u306a|\u1112|##\u1161");  // kana, Hangul
}

TEST_CASE("wordpiece: case and accents", "[tokenizer]") {
    const std::vector<std::string> words{"fuhrer", "f\u00fchrer", "Fuhrer", "F\u00fchrer", "\u03c3\u03c3",
                                         "i",      "i\u0307",     "\u044f", "\u00e5",      "a\u030a"};
    const auto with = [&](bool lower, Accents accents) {
        return tokenizer(words, {.lower_case = lower, .accents = accents});
    };
    CHECK(split(with(true, Accents::follow_lower_case), "F\u00fchrer") == "fuhrer");
    CHECK(split(with(true, Accents::strip), "F\u00dcHRER") == "fuhrer");
    CHECK(split(with(true, Accents::keep), "F\u00fcHRER") == "f\u00fchrer");
    CHECK(split(with(false, Accents::follow_lower_case), "F\u00fchrer") == "F\u00fchrer");
    CHECK(split(with(false, Accents::keep), "F\u00fchrer") == "F\u00fchrer");
    CHECK(split(with(false, Accents::strip), "F\u00fchrer Fu\u0308hrer") == "Fuhrer|Fuhrer");
    const WordPiece plain = with(true, Accents::follow_lower_case), kept = with(true, Accents::keep);
    CHECK(split(plain, "fuhrer FUHRER") == "fuhrer|fuhrer");
    CHECK(split(with(false, Accents::keep), "FUHRER") == "[UNK]");
    CHECK(split(plain, "\u03a3\u03a3") == "\u03c3\u03c3");  // the plain sigma also at the end of a word
    CHECK(split(plain, "\u0130") == "i");
    CHECK(split(kept, "\u0130") == "i\u0307");
    CHECK(split(plain, "\u042f") == "\u044f");
    CHECK(split(kept, "\u212b") == "\u00e5");    // the angstrom sign
    CHECK(split(kept, "a\u030a") == "a\u030a");  // nothing is composed or decomposed
    CHECK(split(plain, "\u0301 \u0301") == "");
}

TEST_CASE("wordpiece: marks that stay are put into canonical order", "[tokenizer]") {
    // Two spacing marks of combining classes 224 and 216, and a nonspacing one of class 0 that stops the
    // reordering.
    const std::string late = "\u302e", early = "\U0001d165", joiner = "\u034f";
    const WordPiece pieces =
        tokenizer({"a" + early + late, "a" + late + early, "a", "##" + early, "##" + late});
    CHECK(split(pieces, "a" + late + early) == "a" + early + late);
    CHECK(split(pieces, "a" + late + joiner + early) == "a" + late + early);
    CHECK(cut(pieces, "a" + late + early) == "a" + late + early);
    const WordPiece apart = tokenizer({"a", "##" + early, "##" + late});
    CHECK(split(apart, "a" + late + early) == "a|##" + early + "|##" + late);
    CHECK(cut(apart, "a" + late + early) == "a|" + late + early + "|" + late + early);
}

TEST_CASE("wordpiece: punctuation stands alone", "[tokenizer]") {
    for (int c = 33; c < 127; ++c) {
        if (std::isalnum(c)) continue;
        const std::string sign(1, char(c));
        CHECK(split(tokenizer({"a", "b", sign}), "a" + sign + sign + "b") == "a|" + sign + "|" + sign + "|b");
    }
    for (const char32_t c : {0xA1, 0xAB, 0xBF, 0x2014, 0x2019, 0x2026, 0x3001, 0xFF01, 0x10100})
        CHECK(split(tokenizer({"a", "b", utf8(c)}), "a" + utf8(c) + "b") == "a|" + utf8(c) + "|b");
    for (const char32_t c : {0xA3, 0xB0, 0xD7, 0x20AC, 0x2192, 0x1F600})  // symbols are no punctuation
        CHECK(split(tokenizer({"a" + utf8(c) + "b"}), "a" + utf8(c) + "b") == "a" + utf8(c) + "b");
    CHECK(split(tokenizer({"a", "`"}), "a\u1fefa") == "a|`|a");  // a sign that decomposes to punctuation
    CHECK(split(tokenizer({"a", "!"}), "a!\u0301a") == "a|!|a");
    CHECK(split(tokenizer({"y", "'", "all"}), "Y'all\u00b4") == "y|'|[UNK]");
}

TEST_CASE("wordpiece: text that spells a special token is that token", "[tokenizer]") {
    const WordPiece pieces = tokenizer({"a", "[", "]", "mask"});
    CHECK(split(pieces, "a[MASK]a [SEP][PAD]") == "a|[MASK]|a|[SEP]|[PAD]");
    CHECK(split(pieces, "[mask]") == "[|mask|]");
    CHECK(split(pieces, "[[MASK]]") == "[|[MASK]|]");
    CHECK(split(pieces, "[MASK") == "[|mask");
    CHECK(cut(pieces, "\u00e1 [MASK]a") == "\u00e1|[MASK]|a");
    const Encoding encoding = pieces.encode("a [MASK]");
    CHECK(encoding.ids == Ids{pieces.cls_id(), 5, pieces.mask_id(), pieces.sep_id()});
    for (const std::size_t i : {0, 1, 2, 3}) CHECK(encoding.is_special(i) == (i == 0 || i == 3));

    const std::vector<std::string> other{"<s>", "</s>", "<s>x", "u", "a", "PAD"};
    const WordPiece named = WordPiece::from_vocabulary(other, {.unk_token = "u",
                                                               .sep_token = "</s>",
                                                               .pad_token = "PAD",
                                                               .cls_token = "<s>",
                                                               .mask_token = "<s>x"});
    CHECK(named.encode("a<s>x<s>PADb").ids == Ids{0, 4, 2, 0, 5, 3, 1});  // the longest one that fits
    CHECK(named.unk_id() == 3);
    CHECK(named.sep_id() == 1);
    CHECK(named.pad_id() == 5);
    CHECK(named.cls_id() == 0);
    CHECK(named.mask_id() == 2);
    CHECK(WordPiece::from_vocabulary({"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[", "]", "mask"})
              .encode("[MASK]")
              .ids == Ids{2, 4, 6, 5, 3});
}

TEST_CASE("wordpiece: offsets are bytes of the text as given", "[tokenizer]") {
    const WordPiece pieces = tokenizer({"hello", "wor", "##ld", "!", "e", "##tude", "\u6211"});
    const std::string text = "  HELLO w\u00f6rl\u200bd!\u00c9tude\u6211 e\u0301 xyz";
    const Encoding encoding = pieces.encode(text);
    REQUIRE(encoding.size() == 11);
    CHECK(encoding.token_type_ids == Ids(11, 0));
    CHECK(encoding.offsets.front() == Span{});
    CHECK(encoding.offsets.back() == Span{});
    CHECK(split(pieces, text) == "hello|wor|##ld|!|e|##tude|\u6211|e|[UNK]");
    CHECK(cut(pieces, text) == "HELLO|w\u00f6r|l\u200bd|!|\u00c9|tude|\u6211|e|xyz");
}

TEST_CASE("wordpiece: invalid UTF-8 in a text is dropped", "[tokenizer]") {
    const WordPiece pieces = tokenizer({"ab", "a", "b", "\u20ac"});
    for (const std::string& bad :
         {std::string("\x80"), std::string("\xff\xfe"), std::string("\xc3"), std::string("\xe2\x82"),
          std::string("\xc0\xaf"), std::string("\xed\xa0\x80"), std::string("\xf4\x90\x80\x80"),
          std::string("\xf0\x9f\x98")}) {
        CHECK(split(pieces, "a" + bad + "b") == "ab");
        CHECK(split(pieces, "a " + bad + " b") == "a|b");
        CHECK(split(pieces, "b a" + bad) == "b|a");
        CHECK(cut(pieces, "a" + bad + "b a") == "a" + bad + "b|a");
    }
    CHECK(split(pieces, "\xe2\x82\u20ac") == "\u20ac");  // the start of a character does not swallow the next
}

TEST_CASE("wordpiece: max_length cuts the end and keeps the special tokens", "[tokenizer]") {
    const WordPiece pieces = tokenizer({"a", "b", "##b", "\u6211"});
    CHECK(pieces.encode("a b a b", {.max_length = 4}).ids == Ids{2, 5, 6, 3});
    CHECK(pieces.encode("abbb a", {.max_length = 4}).ids == Ids{2, 5, 7, 3});
    CHECK(pieces.encode("a[MASK]b", {.max_length = 4}).ids == Ids{2, 5, 4, 3});
    CHECK(pieces.encode("\u6211\u6211\u6211", {.max_length = 4}).ids == Ids{2, 8, 8, 3});
    CHECK(pieces.encode("\u6211\u6211\u6211", {.max_length = 4}).offsets ==
          std::vector<Span>{{}, {0, 3}, {3, 6}, {}});
    CHECK(pieces.encode("a b a b", {.max_length = 2}).ids == Ids{2, 3});
    CHECK(pieces.encode("a b a b", {.max_length = 2, .add_special_tokens = false}).ids == Ids{5, 6});
    CHECK(pieces.encode("a b a b", {.max_length = 6}).size() == 6);
    std::string text;
    for (int i = 0; i < 2000; ++i) text += "a ";
    CHECK(pieces.encode(text).size() == 512);
    CHECK(pieces.encode(text, {.max_length = 0}).size() == 2002);
    CHECK_THROWS_WITH(pieces.encode("a", {.max_length = 1}),
                      Contains("max_length is 1, but the special tokens alone are 2"));
    CHECK_THROWS_WITH(pieces.encode("a", {.max_length = -1}), Contains("max_length is -1"));
    CHECK_THROWS_WITH(pieces.encode_pair("a", "b", {.max_length = 2}), Contains("alone are 3"));
    CHECK_THROWS_WITH(pieces.encode_batch({"a"}, {.max_length = 1}), Contains("alone are 2"));
    CHECK_THROWS_WITH(pieces.encode_batch({}, {.max_length = 1}), Contains("alone are 2"));
    CHECK(pieces.encode("a", {.max_length = 1, .add_special_tokens = false}).ids == Ids{5});
}

TEST_CASE("wordpiece: pairs share the room as the fast reference does", "[tokenizer]") {
    const WordPiece pieces = tokenizer({"a", "b"});
    const Encoding pair = pieces.encode_pair("a a", "b b b");
    CHECK(pair.ids == Ids{2, 5, 5, 3, 6, 6, 6, 3});
    CHECK(pair.token_type_ids == Ids{0, 0, 0, 0, 1, 1, 1, 1});
    CHECK(pair.offsets == std::vector<Span>{{}, {0, 1}, {2, 3}, {}, {0, 1}, {2, 3}, {4, 5}, {}});
    CHECK(pieces.encode_pair("a", "b", {.add_special_tokens = false}).ids == Ids{5, 6});
    CHECK(pieces.encode_pair("", "").ids == Ids{2, 3, 3});
    // Lengths of both texts, max_length, and the lengths that tokenizers 0.23.3 keeps of each.
    struct Row {
        int a, b, max_length, kept_a, kept_b;
    };
    for (const Row& row :
         {Row{6, 2, 9, 4, 2}, Row{2, 6, 9, 2, 4}, Row{6, 6, 9, 3, 3}, Row{6, 6, 8, 2, 3}, Row{7, 6, 10, 4, 3},
          Row{6, 7, 10, 3, 4}, Row{9, 1, 3, 0, 0}, Row{3, 3, 9, 3, 3}, Row{0, 9, 5, 0, 2}, Row{4, 3, 9, 3, 3},
          Row{20, 3, 9, 3, 3}, Row{3, 20, 9, 3, 3}}) {
        std::string a, b;
        for (int i = 0; i < row.a; ++i) a += "a ";
        for (int i = 0; i < row.b; ++i) b += "b ";
        const Ids ids = pieces.encode_pair(a, b, {.max_length = row.max_length}).ids;
        INFO(row.a << " and " << row.b << " to " << row.max_length);
        CHECK(std::count(ids.begin(), ids.end(), 5) == row.kept_a);
        CHECK(std::count(ids.begin(), ids.end(), 6) == row.kept_b);
        CHECK(pieces.encode_pair(a, b, {.max_length = row.max_length - 3, .add_special_tokens = false})
                  .size() == (row.max_length == 3 ? row.a + row.b : row.kept_a + row.kept_b));
    }
}

TEST_CASE("wordpiece: vocabulary files", "[tokenizer]") {
    const std::string head = "[PAD]\n[UNK]\r\n[CLS]\n[SEP]\n\n";
    const VocabFile file(head + "a\n##b \nc\u00e9");
    const WordPiece pieces(file.path);
    CHECK(pieces.size() == 8);
    CHECK(pieces.token(1) == "[UNK]");
    CHECK(pieces.token(4).empty());  // a blank line has a number too
    CHECK(pieces.token(6) == "##b ");
    CHECK(pieces.id("") == 4);
    CHECK(pieces.id("c\u00e9") == 7);
    CHECK(pieces.id("c") == -1);
    CHECK(pieces.id("missing") == -1);
    CHECK(pieces.mask_id() == -1);
    CHECK(WordPiece(VocabFile(head + "a\n").path).size() == 6);  // the last line may have an end

    CHECK_THROWS_WITH(WordPiece("/absent/vocab.txt"),
                      Contains("cannot open /absent/vocab.txt: No such file"));
    CHECK_THROWS_WITH(WordPiece("/"), Contains("/: is no regular file but a directory"));
    CHECK_THROWS_WITH(WordPiece(VocabFile("").path), Contains("has no token"));
    CHECK_THROWS_WITH(WordPiece(VocabFile(head + "a\nb\xff\n").path),
                      Contains("token 6 of") && Contains("UTF-8"));
    CHECK_THROWS_WITH(WordPiece(VocabFile("[PAD]\n[UNK]\n[SEP]\n").path),
                      Contains("has no token \"[CLS]\"; set cls_token"));
}

TEST_CASE("wordpiece: a vocabulary that cannot work is refused", "[tokenizer]") {
    CHECK_THROWS_WITH(WordPiece::from_vocabulary({}), Contains("the vocabulary has no token"));
    for (std::size_t i = 0; i < 4; ++i) {
        std::vector<std::string> tokens = special;
        tokens[i] = "other";
        CHECK_THROWS_WITH(WordPiece::from_vocabulary(tokens),
                          Contains("has no token \"" + special[i] + "\""));
    }
    CHECK_THROWS_WITH(tokenizer({""}, {.sep_token = ""}), Contains("has no token \"\"; set sep_token"));
    CHECK_THROWS_WITH(tokenizer({}, {.max_chars_per_word = 0}), Contains("max_chars_per_word is 0"));
    CHECK_THROWS_WITH(tokenizer({}, {.max_chars_per_word = -1}), Contains("max_chars_per_word is -1"));
    CHECK_THROWS_WITH(tokenizer({"\xc3"}), Contains("token 5 of the vocabulary is no valid UTF-8"));

    const WordPiece twice = tokenizer({"a", "b", "a"});  // as a dictionary filled line by line
    CHECK(twice.id("a") == 7);
    CHECK(twice.token(5) == "a");
    CHECK(split(twice, "a") == "a");
    CHECK(twice.encode("a").ids == Ids{2, 7, 3});
}

TEST_CASE("wordpiece: decoding", "[tokenizer]") {
    const WordPiece pieces = tokenizer({"un", "##aff", "##able", "!", ""});
    CHECK(pieces.decode(pieces.encode("Unaffable! [MASK] un").ids) == "unaffable ! un");
    CHECK(pieces.decode(pieces.encode("un [MASK]").ids, false) == "[CLS] un [MASK] [SEP]");
    CHECK(pieces.decode(Ids{2, 6, 1, 7}) == "##affable");
    CHECK(pieces.decode(Ids{9, 6}) == "aff");
    CHECK(pieces.decode(Ids{}).empty());
    CHECK_THROWS_WITH(pieces.decode(Ids{5, 10}), Contains("no token has id 10, the vocabulary has 10"));
    CHECK_THROWS_WITH(pieces.decode(Ids{-1}), Contains("id -1"));
    CHECK_THROWS_WITH(pieces.token(10), Contains("id 10"));
}

TEST_CASE("wordpiece: random words as a dictionary and a loop find them", "[tokenizer]") {
    std::mt19937 random(7);
    const auto word = [&](int longest) {
        std::string text;
        for (int n = 1 + int(random() % unsigned(longest)); n > 0; --n) text += char('a' + random() % 3);
        return text;
    };
    std::vector<std::string> tokens = special;
    for (int i = 0; i < 300; ++i) tokens.push_back((i % 2 ? "##" : "") + word(5));
    for (int i = 0; i < 5000; ++i)
        tokens.push_back(utf8(0x4E00 + random() % 5000) + utf8(0x400 + random() % 256));
    std::map<std::string, std::int64_t> ids;
    for (std::size_t i = 0; i < tokens.size(); ++i) ids[tokens[i]] = std::int64_t(i);
    const data::Trie trie(tokens);
    const WordPiece pieces = WordPiece::from_vocabulary(tokens);
    for (const auto& [token, id] : ids) {
        CHECK(trie.value(trie.find(token)) == id);
        CHECK(pieces.id(token) == id);
        CHECK(pieces.id(token + "\n") == -1);
    }
    CHECK(trie.value(data::Trie::root) == data::Trie::none);
    for (int i = 0; i < 2000; ++i) {
        const std::string text = word(12);
        Ids expected{2};
        for (std::size_t begin = 0; begin < text.size();) {
            std::size_t end = text.size();
            const auto piece = [&] { return (begin ? "##" : "") + text.substr(begin, end - begin); };
            while (end > begin && !ids.count(piece())) --end;
            if (end == begin) {
                expected = {2, 1};
                break;
            }
            expected.push_back(ids.at(piece()));
            begin = end;
        }
        expected.push_back(3);
        CHECK(pieces.encode(text).ids == expected);
    }
}

TEST_CASE("wordpiece: copies and threads give the same", "[tokenizer]") {
    WordPiece copy = tokenizer({"x"});
    {
        const WordPiece pieces = tokenizer({"a", "##b", "b", "!"});
        copy = pieces;
    }
    const WordPiece other(copy);
    std::vector<std::string> texts;
    for (int i = 0; i < 500; ++i) {
        texts.emplace_back();
        for (int j = 0; j < i % 37; ++j) texts.back() += j % 5 == 0 ? "\u00c1b! " : "ab";
    }
    const int threads = num_threads();
    for (const int n : {1, 4}) {
        set_num_threads(n);
        const std::vector<Encoding> batch = copy.encode_batch(texts, {.max_length = 20});
        REQUIRE(batch.size() == texts.size());
        for (std::size_t i = 0; i < texts.size(); ++i) {
            const Encoding single = other.encode(texts[i], {.max_length = 20});
            CHECK(batch[i].ids == single.ids);
            CHECK(batch[i].token_type_ids == single.token_type_ids);
            CHECK(batch[i].offsets == single.offsets);
        }
    }
    set_num_threads(threads);
    CHECK(copy.encode_batch({}).empty());
}

TEST_CASE("pad: rows of one length, with a mask", "[tokenizer]") {
    const WordPiece pieces = tokenizer({"a", "b"});
    const std::vector<Encoding> encodings{pieces.encode("a"), pieces.encode_pair("a", "b b")};
    for (const Device device : test::devices()) {
        const data::TokenBatch batch = data::pad(encodings, {.pad_id = 9, .device = device});
        CHECK(batch.input_ids.device() == device);
        CHECK(batch.token_type_ids.device() == device);
        CHECK(batch.attention_mask.device() == device);
        CHECK(batch.input_ids.shape() == Shape{2, 6});
        CHECK(batch.input_ids.dtype() == int64);
        CHECK(batch.token_type_ids.dtype() == int64);
        CHECK(batch.attention_mask.dtype() == boolean);
        CHECK(batch.input_ids.to_vector<std::int64_t>() == Ids{2, 5, 3, 9, 9, 9, 2, 5, 3, 6, 6, 3});
        CHECK(batch.token_type_ids.to_vector<std::int64_t>() == Ids{0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1});
        CHECK(batch.attention_mask.to_vector<std::int64_t>() == Ids{1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1});
    }
    CHECK(data::pad(encodings, {.length = 7}).input_ids.shape() == Shape{2, 7});
    CHECK(data::pad(encodings, {.multiple_of = 8}).input_ids.shape() == Shape{2, 8});
    CHECK(data::pad(encodings, {.length = 9, .multiple_of = 4}).attention_mask.shape() == Shape{2, 12});
    CHECK(data::pad(encodings, {.length = 6, .multiple_of = 3}).attention_mask.shape() == Shape{2, 6});
    CHECK(data::pad({}).input_ids.shape() == Shape{0, 0});
    CHECK_THROWS_WITH(data::pad(encodings, {.length = 5}), Contains("encoding 1 has 6 tokens, length is 5"));
    CHECK_THROWS_WITH(data::pad(encodings, {.length = -1}), Contains("length is -1"));
    CHECK_THROWS_WITH(data::pad(encodings, {.multiple_of = 0}), Contains("multiple_of is 0"));
    CHECK_THROWS_WITH(data::pad(encodings, {.length = INT64_MAX, .multiple_of = 8}),
                      Contains("no multiple of 8"));
    Encoding torn = encodings[0];
    torn.token_type_ids.pop_back();
    CHECK_THROWS_WITH(data::pad(std::vector{torn}), Contains("3 ids and 2 token types"));
}
