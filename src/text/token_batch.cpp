// Pads encodings to tensors.
#include <algorithm>
#include <limits>

#include "mezzo/error.h"
#include "mezzo/text/tokenizer.h"

namespace mezzo::data {

namespace {

std::int64_t row_length(std::span<const Encoding> encodings, const PadOptions& options) {
    check(options.length >= 0, ErrorKind::value, "pad: length is ", options.length,
          "; 0 stands for the longest encoding");
    check(options.multiple_of >= 1, ErrorKind::value, "pad: multiple_of is ", options.multiple_of,
          "; it must be positive");
    std::int64_t longest = 0;
    for (std::size_t i = 0; i < encodings.size(); ++i) {
        const Encoding& encoding = encodings[i];
        check(encoding.token_type_ids.size() == encoding.ids.size(), ErrorKind::value, "pad: encoding ", i,
              " has ", encoding.size(), " ids and ", encoding.token_type_ids.size(), " token types");
        check(options.length == 0 || encoding.size() <= options.length, ErrorKind::value, "pad: encoding ", i,
              " has ", encoding.size(), " tokens, length is ", options.length, "; encode with max_length ",
              options.length);
        longest = std::max(longest, encoding.size());
    }
    const std::int64_t length = options.length > 0 ? options.length : longest;
    const std::int64_t over = length % options.multiple_of;
    const std::int64_t missing = over == 0 ? 0 : options.multiple_of - over;
    check(length <= std::numeric_limits<std::int64_t>::max() - missing, ErrorKind::value, "pad: length ",
          length, " has no multiple of ", options.multiple_of, " above it");
    return length + missing;
}

}  // namespace

TokenBatch pad(std::span<const Encoding> encodings, const PadOptions& options) {
    const std::int64_t length = row_length(encodings, options);
    const Shape shape{std::int64_t(encodings.size()), length};
    TokenBatch batch{full(shape, double(options.pad_id), {.dtype = int64}),
                     full(shape, double(options.pad_type_id), {.dtype = int64}),
                     zeros(shape, {.dtype = boolean})};
    std::int64_t* ids = batch.input_ids.mutable_data<std::int64_t>();
    std::int64_t* types = batch.token_type_ids.mutable_data<std::int64_t>();
    bool* mask = batch.attention_mask.mutable_data<bool>();
    for (const Encoding& encoding : encodings) {
        const std::int64_t begin = options.left ? length - encoding.size() : 0;
        std::copy(encoding.ids.begin(), encoding.ids.end(), ids + begin);
        std::copy(encoding.token_type_ids.begin(), encoding.token_type_ids.end(), types + begin);
        std::fill_n(mask + begin, encoding.size(), true);
        ids += length;
        types += length;
        mask += length;
    }
    return {batch.input_ids.to(options.device), batch.token_type_ids.to(options.device),
            batch.attention_mask.to(options.device)};
}

}  // namespace mezzo::data
