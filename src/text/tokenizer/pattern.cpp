#include "text/tokenizer/pattern.h"

namespace mezzo::data::tokenizer {

namespace {

class Literal : public Pattern {
public:
    explicit Literal(std::string text) : text_(std::move(text)) {}
    bool find(std::string_view text, std::size_t from, TextRange& match) const override {
        if (text_.empty()) return false;
        const std::size_t at = text.find(text_, from);
        match = {at, at + text_.size()};
        return at != std::string_view::npos;
    }

private:
    std::string text_;
};

class EachOf : public Pattern {
public:
    explicit EachOf(bool (*belongs)(char32_t)) : belongs_(belongs) {}
    bool find(std::string_view text, std::size_t from, TextRange& match) const override {
        while (from < text.size()) {
            const Decoded next = first_character(text.substr(from));
            match = {from, from + next.bytes};
            if (belongs_(next.character)) return true;
            from += next.bytes;
        }
        return false;
    }

private:
    bool (*belongs_)(char32_t);
};

}  // namespace

std::unique_ptr<Pattern> literal(std::string text) { return std::make_unique<Literal>(std::move(text)); }
std::unique_ptr<Pattern> each_of(bool (*belongs)(char32_t)) { return std::make_unique<EachOf>(belongs); }

std::unique_ptr<Pattern> read_pattern(Fields& owner, const char* key) {
    Fields pattern = owner.fields(key);
    std::unique_ptr<Pattern> result;
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
