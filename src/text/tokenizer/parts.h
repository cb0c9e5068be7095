// All parts of a tokenizer, as its files describe them, and functions that read them.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/text/tokenizer.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/model.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/post_processor.h"
#include "text/tokenizer/pre_tokenizer.h"

namespace mezzo::data::tokenizer {

struct Truncation {
    enum class Strategy : unsigned char { longest_first, only_first, only_second };
    std::int64_t max_length = 0;  // 0: no limit
    Strategy strategy = Strategy::longest_first;
    bool left = false;  // truncates at the beginning of a text
};

enum Role { bos, eos, unk, sep, pad, cls, mask, roles };
inline constexpr const char* role_names[roles] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                  "pad_token", "cls_token", "mask_token"};

// Contents of tokenizer_config.json and special_tokens_map.json.
struct Config {
    std::string tokenizer_class;
    std::array<std::string, roles> role_tokens;  // empty: not in the file
    std::vector<AddedToken> tokens;              // all tokens that it describes
    std::int64_t model_max_length = 0;
    bool add_bos = false, add_eos = false, clean_up = false, pad_left = false, truncate_left = false,
         add_prefix_space = false;
    BertOverrides bert;  // point into the JSON that the configuration was read from
};
// Reads a configuration. Fields for other programs, such as chat_template, are ignored.
Config read_config(const JsonValue& config, const JsonValue& special_tokens_map, const std::string& where);

struct Parts {
    Normalizers normalizers;
    PreTokenizers pre_tokenizers;
    std::unique_ptr<Model> model;
    AddedTokens added;
    PostProcessor post_processor;
    std::vector<Decoder> decoders;  // none: tokens are joined by blanks
    Truncation truncation;
    PadOptions padding;
    std::array<std::int64_t, roles> role_ids{};  // -1: not set
    std::int64_t model_max_length = 0;
    bool clean_up = false;
};

// Reads tokenizer.json. Error messages begin with `where`.
Parts read_tokenizer_json(const JsonValue& tokenizer, const Config& config, const std::string& where);
// Reads vocab.json and merges.txt of GPT-2 and RoBERTa; the configuration names the class.
Parts gpt2_parts(const JsonValue& vocabulary, std::string_view merges, Config config,
                 const std::string& where);
// Reads vocab.txt of BERT.
Parts bert_parts(std::string_view vocabulary, Config config, const std::string& where);

// Sets the parts that depend only on the configuration: added tokens, roles and limits.
void finish(Parts& parts, std::vector<AddedToken> tokens, const Config& config, const std::string& where);
// Applies add_bos_token and add_eos_token if there is no post-processor.
void add_bos_eos(Parts& parts, const Config& config, const std::string& where);
// Sets the pad token and its side if there is no "padding".
void pad_by_config(Parts& parts, const Config& config);

// Both read a whole tokenizer: from a file or folder (files.cpp), or from JSON texts.
Parts load_parts(const std::string& path);
Parts parse_parts(std::string_view tokenizer, std::string_view config);

}  // namespace mezzo::data::tokenizer
