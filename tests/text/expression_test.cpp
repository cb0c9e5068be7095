// Regular expressions of tokenizer.json: they match what they match in the reference, whose engine is
// Oniguruma.
#include <catch2/catch.hpp>

#include "mezzo/error.h"
#include "mezzo/text/pretrained_tokenizer.h"

using namespace mezzo;
using Catch::Matchers::Contains;

namespace {

data::Tokenizer splitting(std::string_view expression) {
    std::string escaped;
    for (const char c : expression) escaped += c == '\\' ? "\\\\" : std::string(1, c);
    return data::Tokenizer::from_json(
        R"({"version": "1.0", "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0}},
            "pre_tokenizer": {"type": "Split", "behavior": "Isolated", "pattern": {"Regex": ")" +
        escaped + R"("}}})");
}

bool lacks_pcre2() {
    try {
        (void)splitting("[a-z]");
    } catch (const Error& error) {
        CHECK_THAT(error.what(), Contains("needs PCRE2"));
        return true;
    }
    return false;
}

// Ends of the pieces of a text.
std::string ends(const data::Tokenizer& tokenizer, std::string_view text) {
    std::string result;
    for (const data::Span& span : tokenizer.encode(text).offsets)
        result += (result.empty() ? "" : " ") + std::to_string(span.end);
    return result;
}

}  // namespace

TEST_CASE("expressions: pieces are those of the reference", "[tokenizer]") {
    if (lacks_pcre2()) return;
    // The ends are those of Python's tokenizers 0.23.3.
    constexpr std::string_view text = "ab\u180ec d\u0301\u3001\u65e5f1_2345\n[x]\x0b$z\u00bd";
    constexpr std::pair<const char*, const char*> cases[] = {
        {R"(\s+)", "6 7 23 24 27 28 32"},
        {R"(\S+)", "6 7 23 24 27 28 32"},
        {R"(\w+)", "2 5 6 7 10 13 23 25 26 29 32"},
        {R"(\W)", "2 5 6 7 10 13 23 24 25 26 27 28 29 32"},
        {R"([^\W_]+)", "2 5 6 7 10 13 18 19 23 25 26 29 30 32"},
        {R"(\b\w)", "1 5 6 7 8 13 16 25 26 29 30 32"},
        {R"(\h+)", "2 5 6 7 8 16 18 19 23 32"},
        {R"(\v)", "27 28 32"},
        {R"(\p{Han}+)", "13 16 32"},
        {R"(\P{Han}+)", "13 16 32"},
        {R"([[:punct:]]+)", "10 13 18 19 24 25 26 27 28 29 32"},
        {R"([^[:^space:]])", "6 7 23 24 27 28 32"},
        {R"([^(\s|[a-d\d])]+)", "2 5 8 17 18 19 24 27 28 32"},
        {R"(\p{N}{1,3}+)", "17 18 19 23 30 32"},
        {R"(^.)", "1 24 25 32"},
        {R"(.$)", "22 23 30 32"},
        {R"((?m)5.)", "22 24 32"},
        {R"((?m:5.))", "22 24 32"},
        {R"([]x])", "25 26 27 32"},
        {R"(\B\d)", "17 18 19 20 21 22 23 32"},
        {R"([\w]+)", "2 5 6 7 10 13 23 25 26 29 30 32"},
        {R"([\W\d])", "2 5 6 7 10 13 17 18 19 20 21 22 23 24 25 26 27 28 29 30 32"},
        {R"(\x{3001}+)", "10 13 32"},
        {R"([\W^_]+)", "2 5 6 7 10 13 18 19 23 25 26 29 30 32"},
        {R"([^\W^_]+)", "2 5 6 7 10 13 18 19 23 25 26 29 30 32"},
        {R"(\d\d{,2})", "17 18 19 22 23 32"},
        {R"(2{0}+3)", "20 21 32"},
        {R"(2{1}+3)", "19 21 32"},
        {R"([\d-]+)", "17 18 19 23 32"},
        {R"([[a]-z]+)", "1 29 30 32"},
        {R"((?# [ )c)", "5 6 32"},
        {R"((?x)x # [ y)", "25 26 32"},
        {R"(x(?i)]|Z)", "25 27 32"},
        {R"((?i)A|B)", "1 2 32"},
        {R"((x(?i)])|Z)", "25 27 32"},
        {R"([[:word:]]+)", "2 5 6 7 10 13 23 25 26 29 30 32"},
        {R"([[:blank:]])", "6 7 32"},
        {R"(\u65e5f)", "13 17 32"},
        {R"([\u0301-\u3001])", "2 5 8 10 13 32"},
        {R"([\V\Qx])", "25 26 32"},
        {R"(\Q\E|d)", "7 8 32"},
    };
    for (const auto& [expression, expected] : cases) {
        INFO(expression);
        CHECK(ends(splitting(expression), text) == expected);
    }
    constexpr std::string_view marks = "x\u2160\u24b6\u00aa\u02b0V\u061c\u2066Q";
    constexpr std::pair<const char*, const char*> of_marks[] = {
        {R"([[:upper:]]+)", "1 7 11 12 17 18"},
        {R"([[:lower:]]+)", "1 7 11 18"},
        {R"([[:^upper:]])", "1 7 9 11 12 14 17 18"},
        {R"([[:graph:]]+)", "18"},
        {R"([^[:print:]])", "18"},
        {R"(\V)", "11 12 18"},
        {R"(\Q)", "17 18"},
    };
    for (const auto& [expression, expected] : of_marks) {
        INFO(expression);
        CHECK(ends(splitting(expression), marks) == expected);
    }
}

TEST_CASE("expressions: what PCRE2 cannot express is refused", "[tokenizer]") {
    if (lacks_pcre2()) return;
    CHECK_THROWS_WITH(splitting("[a-z&&[^b]]"), Contains("intersection of classes"));
    CHECK_THROWS_WITH(splitting("[a[^b]]"), Contains("negated class in a class"));
    CHECK_THROWS_WITH(splitting("a{2,3}+"), Contains("repeated interval"));
    CHECK_THROWS_WITH(splitting("a{1,2}++"), Contains("repeated twice"));
    CHECK_THROWS_WITH(splitting("a?{1,2}+"), Contains("does not follow a repeatable item"));
    CHECK_THROWS_WITH(splitting("a{1,2}{0,1}+b"), Contains("does not follow a repeatable item"));
    CHECK_THROWS_WITH(splitting("a{2}?b"), Contains("interval of one number"));
    CHECK_THROWS_WITH(splitting("[a-[b]]"), Contains("hyphen in front of a class"));
    CHECK_THROWS_WITH(splitting("a{99999999999}"), Contains("number too big"));
    for (const char* bytes : {"\\xe9", "[\\xE9]", "\\351", "[a\\351]"})
        CHECK_THROWS_WITH(splitting(bytes), Contains("the number of a byte above 127"));
    for (const char* set : {"(?i:[[:upper:]])", "(?i)([^[:lower:]])", "(?i)a|[[:^lower:]]"})
        CHECK_THROWS_WITH(splitting(set), Contains("[:upper:] or [:lower:] under (?i)"));
    for (const char* set : {"(?i)[\\p{Lu}]", "(?i)[^a\\P{^Ll}]", "(?i:[\\p{Uppercase}])"})
        CHECK_THROWS_WITH(splitting(set), Contains("upper or lower case in a class under (?i)"));
    CHECK_NOTHROW(splitting("((?i)a\\p{Lu}[\\p{L}])[[:upper:]\\p{Lu}]|(?i-i:[[:lower:]])"));
    for (const char* cut : {"a\\x", "[\\x]", "\\xg"})
        CHECK_THROWS_WITH(splitting(cut), Contains("\\x without digits"));
    CHECK_THROWS_WITH(splitting("\\u12"), Contains("without four hexadecimal digits"));
    CHECK_THROWS_WITH(splitting("a\\X"), Contains("\\K or \\X"));
    CHECK_THROWS_WITH(splitting("[a"), Contains("class without an end"));
    CHECK_THROWS_WITH(splitting("(a"), Contains("is not valid: missing closing parenthesis"));
    for (const char* cut :
         {"\\", "\\p", "\\p{", "\\p{L", "[\\", "[[:", "[^", "(?", "(?m", "[", "(?#", "(?i)(", ")"}) {
        INFO(cut);
        CHECK_THROWS_AS(splitting(cut), Error);
    }
}
