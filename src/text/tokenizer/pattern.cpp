#include "text/tokenizer/pattern.h"

namespace mezzo::data::tokenizer {

Pattern literal(std::string sought) {
    return [literal = std::move(sought)](std::string_view text, std::size_t from, TextRange& match) {
        if (literal.empty()) return false;
        const std::size_t at = text.find(literal, from);
        match = {at, at + literal.size()};
        return at != std::string_view::npos;
    };
}

Pattern each_of(bool (*belongs)(char32_t)) {
    return [belongs](std::string_view text, std::size_t from, TextRange& match) {
        while (from < text.size()) {
            const Decoded next = first_character(text.substr(from));
            match = {from, from + next.bytes};
            if (belongs(next.character)) return true;
            from += next.bytes;
        }
        return false;
    };
}

Pattern read_pattern(Fields& owner, const char* key) {
    Fields pattern = owner.fields(key);
    Pattern result;
    if (pattern.find("String")) {
        result = literal(pattern.text("String"));
    } else {
        const std::string& expression = pattern.text("Regex");
        result = known_expression(expression);
        if (!result) result = pcre2_expression(expression, pattern.where());
    }
    pattern.done();
    return result;
}

}  // namespace mezzo::data::tokenizer
