// Translates regular expressions of Oniguruma, the engine of the reference, into PCRE2's syntax. Both engines
// read most expressions alike, but not these: \w \b \s \h \v \u, letters whose escapes only one engine
// knows, most sets such as [:alpha:], \p{Han}, classes in classes, options, and intervals that are repeated.
#include "text/tokenizer/pcre2_syntax.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

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
constexpr std::array<std::pair<std::string_view, std::string_view>, 10> posix_sets{{
    {"space", space},
    {"blank", R"(\t\p{Zs})"},
    {"punct", R"(\p{P}\p{S})"},
    {"alpha", R"(\p{Alphabetic})"},
    {"alnum", R"(\p{Alphabetic}\p{Nd})"},
    {"upper", R"(\p{Uppercase})"},
    {"lower", R"(\p{Lowercase})"},
    {"word", word},
    {"graph", R"(\p{L}\p{M}\p{N}\p{P}\p{S}\p{Cf}\p{Co})"},
    {"print", R"(\p{Zs}\p{L}\p{M}\p{N}\p{P}\p{S}\p{Cf}\p{Co})"},
}};
// Letters that stand for themselves behind a backslash, and those that do so in a class.
constexpr auto plain_letters = "EFIJLQTUVijlmq"sv, plain_letters_of_class = "ABEFGIJKLNOQRTUVXYZgijklmqyz"sv;
bool contains(std::string_view letters, char letter) { return letters.find(letter) != letters.npos; }

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
        while (!rest_.empty()) out += next();
        if (groups_.size() == 1) out.append(groups_[0].options, ')');
        return out;
    }

private:
    struct Group {
        bool extended = false;    // (?x): # begins a comment
        bool caseless = false;    // (?i)
        std::size_t options = 0;  // in it without a group of their own, such as (?i)
    };

    std::string next() {
        const char c = rest_.front();
        if (c == '\\') return escape();
        if (c == '[') return character_class();
        if (c == '{') return interval();
        if (rest_.starts_with("(?#") && rest_.find(')') != rest_.npos) return take_past(')'), "";
        if (c == '(') return open_group();
        if (c == ')') return close_group();
        if (c == '#' && groups_.back().extended) return take_past('\n'), "";
        return std::string(take(1));
    }

    std::string_view take(std::size_t count) {
        const std::string_view taken = rest_.substr(0, count);
        rest_.remove_prefix(taken.size());
        return taken;
    }
    // Takes all up to `last`, and that, or the whole rest without one.
    std::string_view take_past(char last) {
        const std::size_t end = rest_.find(last);
        return take(end == rest_.npos ? end : end + 1);
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
        refuse(contains("KX", letter), "\\K or \\X");
        if (contains(plain_letters, letter)) return std::string(take(2).substr(1));
        if (letter != 'b' && letter != 'B') return shared_escape();
        take(2);
        const std::string in = class_of(all_of_words()),
                          other = letter == 'b' ? "(?!" : "(?=", same = letter == 'b' ? "(?=" : "(?!";
        return "(?:(?<=" + in + ")" + other + in + ")|(?<!" + in + ")" + same + in + "))";
    }

    // An escape that is translated alike in a class and outside of one.
    std::string shared_escape() {
        const char letter = second();
        if (letter == 'v') return take(2), "\\x0b";
        if (letter == 'u') return code_point();
        refuse_bytes();
        refuse(letter == 'x' && !contains("{0123456789abcdefABCDEF", rest_.size() > 2 ? rest_[2] : '\0'),
               "\\x without digits");
        const std::size_t end = rest_.find('}');
        if (end == rest_.npos || rest_[2] != '{') return std::string(take(2));
        if (letter == 'x' || letter == 'o') return std::string(take(end + 1));
        if (letter != 'p' && letter != 'P') return std::string(take(2));
        std::string begin(take(3)), name(take(end - 3));
        if (name.starts_with('^')) {
            begin += '^';
            name.erase(0, 1);
        }
        // \p{Han} of PCRE2 also has characters of no script that are used with Han, unlike \p{sc:Han}.
        return begin + (is_script_("sc:" + name) ? "sc:" : "") + name + std::string(take(1));
    }

    // Whether \p{...} or \P{...} is next with a property such as Lu or Uppercase.
    bool names_letters_of_one_case() const {
        if (!contains("pP", second())) return false;
        const std::size_t begin = rest_.substr(2).starts_with("{^") ? 4 : 3;
        std::string name;
        for (const char c : rest_.substr(std::min(begin, rest_.size()), rest_.find('}') - begin))
            name += char(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
        const auto is = [&](const char* property) { return name.starts_with(property); };
        return name == "lu" || name == "ll" || name == "lt" || is("upper") || is("lower") || is("title");
    }

    // \u and four digits.
    std::string code_point() {
        const std::string_view number = rest_.substr(2, 4);
        refuse(number.size() < 4 || number.find_first_not_of("0123456789abcdefABCDEF") != number.npos,
               "\\u without four hexadecimal digits");
        return "\\x{" + std::string(take(6).substr(2)) + "}";
    }
    // \xe9 and \351 are bytes of UTF-8 to Oniguruma, and characters to PCRE2.
    void refuse_bytes() const {
        const auto in = [&](std::size_t i, std::string_view digits) {
            return i < rest_.size() && contains(digits, rest_[i]);
        };
        const bool hex = second() == 'x' && in(2, "89abcdefABCDEF") && in(3, "0123456789abcdefABCDEF");
        refuse(hex || (in(1, "23") && in(2, "01234567") && in(3, "01234567")),
               "the number of a byte above 127; write \\x{...}");
    }

    // A class and the classes in it become one. Complements in it, such as \W, become alternatives.
    std::string character_class() {
        const bool negated = second() == '^';
        take(negated ? 2 : 1);
        Class parts;
        if (rest_.starts_with(']')) parts.add('\\' + std::string(take(1)));
        for (int depth = 1; depth > 0;) {
            refuse(rest_.empty(), "a class without an end");
            refuse(rest_.starts_with("&&"), "an intersection of classes");
            refuse(rest_.starts_with("[^"), "a negated class in a class");
            refuse(rest_.starts_with("-["), "a hyphen in front of a class");
            const char letter = second();
            if (rest_.front() == ']')
                take(1), --depth, parts.begins = true;
            else if (rest_.starts_with("[:"))
                posix_set(parts);
            else if (rest_.front() == '[')
                take(1), ++depth, parts.begins = true;
            else if (rest_.front() == '-')
                take(1), parts.add(parts.begins || rest_.starts_with(']') ? "\\-" : "-");
            else if (rest_.front() != '\\')
                parts.add(rest_.front() == '^' ? take(1), "\\^" : take(1));
            else if (contains(plain_letters_of_class, letter))
                parts.add(take(2).substr(1));
            else if (set_of(letter).empty()) {
                refuse(groups_.back().caseless && names_letters_of_one_case(),
                       "a property of upper or lower case in a class under (?i)");
                parts.add(shared_escape()), parts.begins = contains("dDpP", letter);
            } else
                take(2), parts.add_set(set_of(letter), is_upper(letter));
        }
        if (parts.complements.empty()) return class_of(parts.items, negated);
        const std::string all =
            parts.items.empty() ? parts.complements : class_of(parts.items) + "|" + parts.complements;
        return negated ? "(?:(?!" + all + ")(?s:.))" : "(?:" + all + ")";
    }

    struct Class {
        std::string items, complements;
        bool begins = true;  // no character is in front of a hyphen here, so it is one itself
        void add(std::string_view character) { items += character, begins = false; }
        void add_set(std::string_view set, bool complement) {
            if (complement)
                complements += (complements.empty() ? "" : "|") + class_of(std::string(set), true);
            else
                items += set;
            begins = true;
        }
    };

    void posix_set(Class& parts) {
        const std::size_t end = rest_.find(":]");
        refuse(end == rest_.npos, "\"[:\" without \":]\"");
        const std::string whole(take(end + 2));
        refuse(groups_.back().caseless && whole.ends_with("er:]"), "[:upper:] or [:lower:] under (?i)");
        for (const auto& [name, set] : posix_sets) {
            if (whole == "[:" + std::string(name) + ":]") return parts.add_set(set, false);
            if (whole == "[:^" + std::string(name) + ":]") return parts.add_set(set, true);
        }
        parts.add_set(whole, false);
    }

    // The letter m of (?m) and (?m:...) means what s means to PCRE2. Options such as (?i) reach to the end of
    // the group that they stand in, across its alternatives: they open a group here.
    std::string open_group() {
        std::string begin(take(1));
        Group inner{groups_.back().extended, groups_.back().caseless};
        const std::size_t end = rest_.find_first_not_of("imx-", 1);
        const bool options =
            rest_.starts_with('?') && end != rest_.npos && (rest_[end] == ':' || rest_[end] == ')');
        if (!options) return groups_.push_back(inner), begin;
        bool on = true;
        for (const char c : take(end)) {
            on = on && c != '-';
            if (c == 'x') inner.extended = on;
            if (c == 'i') inner.caseless = on;
            begin += c == 'm' ? 's' : c;
        }
        if (take(1) == ":") {
            groups_.push_back(inner);
        } else {
            groups_.back().extended = inner.extended;
            groups_.back().caseless = inner.caseless;
            ++groups_.back().options;
        }
        return begin + ":";
    }
    std::string close_group() {
        take(1);
        std::string out = ")";
        if (groups_.size() == 1) return out;
        out.append(groups_.back().options, ')');
        groups_.pop_back();
        return out;
    }

    // {,3} is {0,3}, and {1,3}+ repeats {1,3} instead of making it possessive.
    std::string interval() {
        const std::size_t end = rest_.find_first_not_of("0123456789,", 1);
        const std::string_view numbers = rest_.substr(1, end == rest_.npos ? 0 : end - 1);
        const std::size_t comma = numbers.find(',');
        const bool exact = comma == numbers.npos;
        if (numbers.empty() || numbers == "," || rest_[end] != '}' || (!exact && numbers.rfind(',') != comma))
            return take(1), "\\{";
        take(end + 1);
        const std::string least(comma == 0 ? "0" : numbers.substr(0, comma)),
            most(exact ? least : numbers.substr(comma + 1));
        refuse(exact && rest_.starts_with('?'), "an interval of one number in front of a question mark");
        const std::string same = "{" + least + (exact ? "" : "," + most) + "}";
        if (!rest_.starts_with('+')) return same;
        take(1);
        refuse(rest_.starts_with('+') || rest_.starts_with('?'), "an interval that is repeated twice");
        const std::string_view low = digits(least);
        if (!most.empty() && digits(most).empty()) return "{0}";
        refuse(low.size() > 1 || low > "1", "a repeated interval of two or more");
        return low.empty() ? "{0,}" : "{1,}";  // not +, which makes a quantifier before it possessive
    }
    // A number without leading zeros; zero is empty.
    static std::string_view digits(std::string_view number) {
        return number.substr(std::min(number.find_first_not_of('0'), number.size()));
    }

    std::string_view rest_;
    bool (*is_script_)(const std::string&);
    const std::string& where_;
    std::vector<Group> groups_{Group{}};  // those that are open; the first one is the whole expression
};

}  // namespace

std::string to_pcre2_syntax(std::string_view expression, bool (*is_script)(const std::string&),
                            const std::string& where) {
    return Translator(expression, is_script, where).run();
}

}  // namespace mezzo::data::tokenizer
