// Syntax of regular expressions of the reference, for PCRE2.
#pragma once

#include <string>
#include <string_view>

namespace mezzo::data::tokenizer {

// Returns an expression that matches in PCRE2 what `expression` matches in Oniguruma. is_script() returns
// whether PCRE2 has the property of that name, such as "sc:Han". Throws Error(value) in the name of `where`
// for what PCRE2 cannot express so, such as intersections, negated classes in classes, {2}? and {2,3}+.
std::string to_pcre2_syntax(std::string_view expression, bool (*is_script)(const std::string& property),
                            const std::string& where);

}  // namespace mezzo::data::tokenizer
