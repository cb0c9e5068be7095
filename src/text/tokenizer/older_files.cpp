// Reads the file formats before tokenizer.json: vocab.json with merges.txt of GPT-2 and RoBERTa, vocab.txt of
// BERT. Settings that are not in these files are those of the configuration's tokenizer class in
// transformers.
#include <algorithm>

#include "text/tokenizer/parts.h"

namespace mezzo::data::tokenizer {

namespace {

// Calls on_line for each line without its end, \n or \r\n; the last line may lack it.
template <class OnLine> void each_line(std::string_view text, const OnLine& on_line) {
    while (!text.empty()) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        std::string_view line = text.substr(0, end);
        if (line.ends_with('\r')) line.remove_suffix(1);
        on_line(line);
        text.remove_prefix(std::min(end + 1, text.size()));
    }
}

MergePairs read_merges(std::string_view text, const std::string& where) {
    MergePairs merges;
    std::size_t number = 0;
    each_line(text, [&](std::string_view line) {
        ++number;
        if (line.empty() || line.starts_with("#version")) return;
        const std::size_t blank = line.find(' ');
        check(blank != std::string_view::npos && line.find(' ', blank + 1) == std::string_view::npos,
              ErrorKind::value, where, ": line ", number, " of merges.txt is ", io::shown(line),
              "; two tokens with a blank between them are expected");
        merges.emplace_back(line.substr(0, blank), line.substr(blank + 1));
    });
    return merges;
}

// Gives the class's default tokens to roles that the configuration does not set.
void default_roles(Config& config, std::initializer_list<std::pair<Role, const char*>> defaults) {
    for (const auto& [role, content] : defaults) {
        if (!config.role_tokens[role].empty()) continue;
        config.role_tokens[role] = content;
        config.tokens.push_back({.content = content, .special = true, .normalized = false});
    }
}

// Parses an object of tokenizer.json, for the readers of its parts.
JsonValue json(const char* text) { return io::parse_json_tree(text, "tokenizer"); }

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
    return std::any_of(names.begin(), names.end(), [&](std::string_view known) {
        return name == known || (name.starts_with(known) && name.substr(known.size()) == "Fast");
    });
}

}  // namespace

Parts gpt2_parts(const JsonValue& vocabulary, std::string_view merges, Config config,
                 const std::string& where) {
    const bool roberta = is_one_of(
        config.tokenizer_class, {"RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "LEDTokenizer"});
    check(roberta || config.tokenizer_class.empty() || is_one_of(config.tokenizer_class, {"GPT2Tokenizer"}),
          ErrorKind::value, where, ": vocab.json and merges.txt of the class ",
          io::shown(config.tokenizer_class),
          " are not known, only those of GPT2Tokenizer, RobertaTokenizer, BartTokenizer, LongformerTokenizer "
          "and LEDTokenizer; save the tokenizer as tokenizer.json");
    Parts parts;
    parts.model =
        bpe(read_vocabulary(vocabulary, where + ": vocab.json"), read_merges(merges, where), {}, where);
    const JsonValue level =
        json(config.add_prefix_space ? R"({"type": "ByteLevel", "add_prefix_space": true})"
                                     : R"({"type": "ByteLevel", "add_prefix_space": false})");
    parts.pre_tokenizers = read_pre_tokenizers(Fields(level, where));
    parts.decoders = {byte_level_decoder()};
    if (roberta)
        default_roles(config, {{bos, "<s>"},
                               {eos, "</s>"},
                               {sep, "</s>"},
                               {cls, "<s>"},
                               {unk, "<unk>"},
                               {pad, "<pad>"},
                               {mask, "<mask>"}});
    else
        default_roles(config, {{bos, "<|endoftext|>"}, {eos, "<|endoftext|>"}, {unk, "<|endoftext|>"}});
    finish(parts, {}, config, where);
    if (roberta) {
        set_roberta(parts.post_processor, parts.role_ids[cls], parts.role_ids[sep]);
        parts.post_processor.trim_offsets = true;
        parts.post_processor.add_prefix_space = config.add_prefix_space;
    } else {
        add_bos_eos(parts, config, where);
    }
    parts.truncation.left = config.truncate_left;
    pad_by_config(parts, config);
    return parts;
}

Parts bert_parts(std::string_view vocabulary, Config config, const std::string& where) {
    check(config.tokenizer_class.empty() ||
              is_one_of(config.tokenizer_class,
                        {"BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer"}),
          ErrorKind::value, where, ": vocab.txt of the class ", io::shown(config.tokenizer_class),
          " is not known, only those of BertTokenizer, DistilBertTokenizer, ElectraTokenizer and "
          "MobileBertTokenizer; save the tokenizer as tokenizer.json");
    std::vector<std::string> tokens;
    std::vector<std::int64_t> ids;
    each_line(vocabulary, [&](std::string_view line) {
        check(is_valid_utf8(line), ErrorKind::value, where, ": line ", ids.size() + 1,
              " of vocab.txt is no valid UTF-8");
        ids.push_back(std::int64_t(tokens.size()));
        tokens.emplace_back(line);
    });
    default_roles(config, {{unk, "[UNK]"}, {sep, "[SEP]"}, {pad, "[PAD]"}, {cls, "[CLS]"}, {mask, "[MASK]"}});
    Parts parts;
    parts.model = word_piece(Vocabulary(std::move(tokens), ids, where + ": vocab.txt"),
                             {.unknown = config.role_tokens[unk]}, where);
    const JsonValue normalizer = json(R"({"type": "BertNormalizer"})"),
                    cutter = json(R"({"type": "BertPreTokenizer"})");
    parts.normalizers = read_normalizers(Fields(normalizer, where), config.bert);
    parts.pre_tokenizers = read_pre_tokenizers(Fields(cutter, where));
    parts.decoders = {word_piece_decoder("##", true)};
    finish(parts, {}, config, where);
    set_bert(parts.post_processor, parts.role_ids[cls], parts.role_ids[sep]);
    parts.truncation.left = config.truncate_left;
    pad_by_config(parts, config);
    return parts;
}

}  // namespace mezzo::data::tokenizer
