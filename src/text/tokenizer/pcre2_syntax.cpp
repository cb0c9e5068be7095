// Translates regular expressions of Oniguruma, the engine of the reference, into PCRE2's syntax. Both engines
// read most expressions alike, but not these: \w \b \s \h \v, [:alpha:] [:alnum:] [:punct:] [:space:],
// \p{Han}, classes in classes, (?m) and {1,3}+.
#include "text/tokenizer/pcre2_syntax.h"

#include <array>
#include <charconv>
#include <utility>

#include "mezzo/error.h"

namespace mezzo::data::tokenizer {

namespace {

using namespace std::string_view_literals;

// Sets of characters, as they are written in a class.
constexpr auto space = R"(\t-\r\x{85}\p{Z})"sv, hex_digit = "0-9A-Fa-f"sv,
               word = R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24b6}-\x{24e9})"
                      R"(\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})"sv;
// Characters that \w and \b have besides, but not \w in a class.
constexpr auto numbers_of_words = R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})"sv;
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> posix_sets{{
    {"space", space},
    {"punct", R"(\p{P}\p{S})"},
    {"alpha", R"(\p{Alphabetic})"},
    {"alnum", R"(\p{Alphabetic}\p{Nd})"},
}};

std::string_view set_of(char letter) {
    switch (letter) {
        case 's':
        case 'S':
            return space;
        case 'w':
        case 'W':
            return word;
        case 'h':
        case 'H':
            return hex_digit;
        default:
            return {};
    }
}
bool is_upper(char letter) { return letter >= 'A' && letter <= 'Z'; }
std::string class_of(const std::string& contents, bool negated = false) {
    return (negated ? "[^" : "[") + contents + "]";
}

std::string all_of_words() { return std::string(word).append(numbers_of_words); }

class Translator {
public:
    Translator(std::string_view expression, bool (*is_script)(const std::string&), const std::string& where)
        : rest_(expression), is_script_(is_script), where_(where) {}

    std::string run() {
        std::string out;
        while (!rest_.empty()) {
            if (rest_.front() == '\\')
                out += escape();
            else if (rest_.front() == '[')
                out += character_class();
            else if (rest_.starts_with("(?"))
                out += group();
            else if (rest_.front() == '{')
                out += interval();
            else
                out += take(1);
        }
        return out;
    }

private:
    std::string_view take(std::size_t count) {
        const std::string_view taken = rest_.substr(0, count);
        rest_.remove_prefix(taken.size());
        return taken;
    }
    char second() const { return rest_.size() > 1 ? rest_[1] : '\0'; }
    void refuse(bool wrong, const char* what) const {
        check(!wrong, ErrorKind::value, where_, ": the regular expression has ", what,
              ", which is not supported");
    }

    std::string escape() {
        const char letter = second();
        if (const std::string_view set = set_of(letter); !set.empty()) {
            take(2);
            const bool of_words = set.data() == word.data();
            return class_of(of_words ? all_of_words() : std::string(set), is_upper(letter));
        }
        if (letter != 'b' && letter != 'B') return shared_escape();
        take(2);
        const std::string in = class_of(all_of_words()),
                          other = letter == 'b' ? "(?!" : "(?=", same = letter == 'b' ? "(?=" : "(?!";
        return "(?:(?<=" + in + ")" + other + in + ")|(?<!" + in + ")" + same + in + "))";
    }

    // An escape that is translated alike in a class and outside of one.
    std::string shared_escape() {
        if (second() == 'v') return take(2), "\\x0b";
        const std::size_t end = rest_.find('}');
        if ((second() != 'p' && second() != 'P') || !rest_.substr(2).starts_with('{') || end == rest_.npos)
            return std::string(take(2));
        std::string begin(take(3)), name(take(end - 3));
        if (name.starts_with('^')) {
            begin += '^';
            name.erase(0, 1);
        }
        // \p{Han} of PCRE2 also has characters of no script that are used with Han, unlike \p{sc:Han}.
        return begin + (is_script_("sc:" + name) ? "sc:" : "") + name;
    }

    // A class and the classes in it become one. Complements in it, such as \W, become alternatives.
    std::string character_class() {
        const bool negated = second() == '^';
        take(negated ? 2 : 1);
        std::string items, complements;
        if (rest_.starts_with(']')) items += '\\', items += take(1);
        for (int depth = 1; depth > 0;) {
            refuse(rest_.empty(), "a class without an end");
            refuse(rest_.starts_with("&&"), "an intersection of classes");
            refuse(rest_.starts_with("[^"), "a negated class in a class");
            const char letter = second();
            if (rest_.front() == ']')
                take(1), --depth;
            else if (rest_.starts_with("[:"))
                posix_set(items, complements);
            else if (rest_.front() == '[')
                take(1), ++depth;
            else if (rest_.front() != '\\')
                items += take(1);
            else if (set_of(letter).empty())
                items += shared_escape();
            else if (take(2); is_upper(letter))
                add_complement(complements, set_of(letter));
            else
                items += set_of(letter);
        }
        if (complements.empty()) return class_of(items, negated);
        const std::string all = items.empty() ? complements : class_of(items) + "|" + complements;
        return negated ? "(?:(?!" + all + ")(?s:.))" : "(?:" + all + ")";
    }

    void posix_set(std::string& items, std::string& complements) {
        const std::size_t end = rest_.find(":]");
        refuse(end == rest_.npos, "\"[:\" without \":]\"");
        const std::string whole(take(end + 2));
        for (const auto& [name, set] : posix_sets) {
            if (whole == "[:" + std::string(name) + ":]") return void(items += set);
            if (whole == "[:^" + std::string(name) + ":]") return add_complement(complements, set);
        }
        items += whole;
    }
    static void add_complement(std::string& complements, std::string_view set) {
        complements += (complements.empty() ? "" : "|") + class_of(std::string(set), true);
    }

    // The letter m of (?m) and (?m:…) means what s means to PCRE2.
    std::string group() {
        std::string begin(take(2));
        const std::size_t end = rest_.find_first_not_of("imx-");
        if (end == rest_.npos || (rest_[end] != ':' && rest_[end] != ')')) return begin;
        for (const char c : take(end)) begin += c == 'm' ? 's' : c;
        return begin;
    }

    // {1,3}+ repeats {1,3}, and does not make it possessive.
    std::string interval() {
        const std::size_t end = rest_.find_first_not_of("0123456789,", 1);
        if (end == rest_.npos || end == 1 || !rest_.substr(end).starts_with("}+"))
            return std::string(take(1));
        const std::string_view numbers = take(end + 2).substr(1, end - 1);
        const std::size_t comma = numbers.find(',');
        int least = 0;
        std::from_chars(numbers.data(), numbers.data() + std::min(comma, numbers.size()), least);
        refuse(least > 1, "a repeated interval of two or more");
        return least == 0 ? "*" : "+";
    }

    std::string_view rest_;
    bool (*is_script_)(const std::string&);
    const std::string& where_;
};

}  // namespace

std::string to_pcre2_syntax(std::string_view expression, bool (*is_script)(const std::string&),
                            const std::string& where) {
    return Translator(expression, is_script, where).run();
}

}  // namespace mezzo::data::tokenizer
