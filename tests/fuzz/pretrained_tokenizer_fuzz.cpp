// libFuzzer target of pretrained tokenizers: any text as a tokenizer.json, followed by a text to encode. The
// file is refused with an Error, or it encodes and decodes with offsets inside the text. The first byte is
// the text's length in bytes.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "mezzo/error.h"
#include "mezzo/text/pretrained_tokenizer.h"

using namespace mezzo;

namespace {

void require(bool condition) {
    if (!condition) std::abort();
}

void encode(const data::Tokenizer& tokenizer, std::string_view text) {
    const data::Encoding encoding = tokenizer.encode(text);
    require(encoding.ids.size() == encoding.offsets.size() &&
            encoding.ids.size() == encoding.token_type_ids.size());
    for (const std::int64_t id : encoding.ids) require(id >= 0 && id < tokenizer.size());
    for (const data::Span span : encoding.offsets)
        require(0 <= span.begin && span.begin <= span.end && span.end <= std::int64_t(text.size()));
    (void)tokenizer.decode(encoding.ids, false);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const std::string_view all(reinterpret_cast<const char*>(data) + 1, size - 1);
    const std::size_t text = std::min<std::size_t>(data[0], all.size());
    try {
        encode(data::Tokenizer::from_json(all.substr(text)), all.substr(0, text));
    } catch (const Error& error) {
        require(std::strlen(error.what()) < 5000);
    }
    return 0;
}
