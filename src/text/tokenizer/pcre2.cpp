// Regular expressions that are not known by their text, matched by PCRE2. Only in builds with PCRE2.
#include <memory>

#include "text/tokenizer/pattern.h"
#include "text/tokenizer/pcre2_syntax.h"

#ifdef MEZZO_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

namespace mezzo::data::tokenizer {

#ifdef MEZZO_HAVE_PCRE2

namespace {

std::string message(int error) {
    PCRE2_UCHAR text[256] = {};
    pcre2_get_error_message(error, text, sizeof text);
    return reinterpret_cast<const char*>(text);
}

pcre2_code* compile(const std::string& expression, int& error) {
    PCRE2_SIZE position = 0;
    // UCP: classes use Unicode properties. MULTILINE: ^ and $ match at lines. Both as in the reference.
    return pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &position,
                         nullptr);
}

bool is_script(const std::string& property) {
    int error = 0;
    pcre2_code* const code = compile("\\p{" + property + "}", error);
    pcre2_code_free(code);
    return code != nullptr;
}

class Expression {
public:
    Expression(const std::string& expression, const std::string& where) : where_(where) {
        int error = 0;
        code_.reset(compile("(*LF)" + to_pcre2_syntax(expression, is_script, where), error), pcre2_code_free);
        check(code_ != nullptr, ErrorKind::value, where, ": the regular expression ", io::shown(expression),
              " is not valid: ", message(error));
        std::uint32_t empty = 0;
        pcre2_pattern_info(code_.get(), PCRE2_INFO_MATCHEMPTY, &empty);
        check(empty == 0, ErrorKind::value, where, ": the regular expression ", io::shown(expression),
              " matches an empty text, which is not supported");
        // Without a JIT compiler for this machine PCRE2's interpreter runs.
        pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
    }

    bool operator()(std::string_view text, std::size_t from, TextRange& match) const {
        const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
            pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
        check(data != nullptr, ErrorKind::memory, where_, ": no memory for a match");
        const auto run = [&](std::uint32_t options) {
            return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                               PCRE2_NO_UTF_CHECK | options, data.get(), nullptr);
        };
        int count = run(0);
        // Compiled code has a stack of 32 KiB; the interpreter uses the heap.
        if (count == PCRE2_ERROR_JIT_STACKLIMIT) count = run(PCRE2_NO_JIT);
        if (count == PCRE2_ERROR_NOMATCH) return false;
        check(count >= 0, ErrorKind::value, where_, ": the regular expression gave up on a text of ",
              text.size(), " bytes: ", message(count));
        const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(data.get());
        match = {ends[0], ends[1]};
        return match.end > match.begin;
    }

private:
    std::string where_;
    std::shared_ptr<pcre2_code> code_;
};

}  // namespace

Pattern pcre2_expression(const std::string& expression, const std::string& where) {
    return Expression(expression, where);
}

#else

Pattern pcre2_expression(const std::string& expression, const std::string& where) {
    fail(ErrorKind::value, where, ": the regular expression ", io::shown(expression),
         " needs PCRE2, which this build of mezzo lacks; install libpcre2-dev and configure with "
         "-Dpcre2=enabled");
}

#endif

}  // namespace mezzo::data::tokenizer
