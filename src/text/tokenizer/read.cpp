// Reads tokenizer.json into parts.
#include <algorithm>

#include "text/tokenizer/parts.h"

namespace mezzo::data::tokenizer {

namespace {

Truncation read_truncation(Fields fields, const PostProcessor& processor) {
    Truncation result;
    result.max_length = fields.integer("max_length", std::int64_t(1) << 40);
    (void)fields.find("stride");  // of the truncated rest, which is not returned
    const std::string direction = fields.text("direction", "Right");
    const std::string strategy = fields.text("strategy", "LongestFirst");
    if (direction != "Left" && direction != "Right")
        fields.refuse("has the direction " + io::shown(direction) + "; Left and Right are known");
    result.left = direction == "Left";
    using Strategy = Truncation::Strategy;
    if (strategy == "OnlyFirst") {
        result.strategy = Strategy::only_first;
    } else if (strategy == "OnlySecond") {
        result.strategy = Strategy::only_second;
    } else if (strategy != "LongestFirst") {
        fields.refuse("has the strategy " + io::shown(strategy) +
                      "; LongestFirst, OnlyFirst and OnlySecond are known");
    }
    const std::int64_t special = added(processor.single);
    if (result.max_length < std::max<std::int64_t>(special, 1))
        fields.refuse("has the max_length " + std::to_string(result.max_length) +
                      ", but the special tokens alone are " + std::to_string(special));
    fields.done();
    return result;
}

PadOptions read_padding(Fields fields) {
    PadOptions result;
    const JsonValue& strategy = fields.need("strategy");
    if (strategy.kind == JsonKind::object) {
        Fields fixed = fields.fields("strategy");
        result.length = fixed.integer("Fixed", std::int64_t(1) << 40);
        fixed.done();
    } else if (text_of(strategy, fields.where() + ".strategy") != "BatchLongest") {
        fields.refuse("has the strategy " + io::shown(strategy.text) +
                      "; BatchLongest and {\"Fixed\": length} are known");
    }
    const std::string direction = fields.text("direction", "Right");
    if (direction != "Left" && direction != "Right")
        fields.refuse("has the direction " + io::shown(direction) + "; Left and Right are known");
    result.left = direction == "Left";
    result.multiple_of = std::max<std::int64_t>(fields.integer("pad_to_multiple_of", 1 << 30, 1), 1);
    result.pad_id = fields.integer("pad_id", max_id - 1);
    result.pad_type_id = fields.integer("pad_type_id", max_id, 0);
    (void)fields.find("pad_token");  // the text of pad_id
    fields.done();
    return result;
}

// Checks that the ids that the post-processor adds exist.
void check_ids(const Parts& parts, const std::string& where) {
    for (const Template* const sides : {&parts.post_processor.single, &parts.post_processor.pair})
        for (const TemplatePart& part : *sides)
            for (const std::int64_t id : part.ids)
                check(parts.added.token(id) || parts.model->vocabulary().token(id), ErrorKind::value, where,
                      ": post_processor adds the id ", id, ", which no token has");
}

}  // namespace

void finish(Parts& parts, std::vector<AddedToken> tokens, const Config& config, const std::string& where) {
    tokens.insert(tokens.end(), config.tokens.begin(), config.tokens.end());
    parts.added = AddedTokens(std::move(tokens), *parts.model, parts.normalizers, where);
    for (std::size_t role = 0; role < roles; ++role) {
        const std::string& token = config.role_tokens[role];
        parts.role_ids[role] = token.empty() ? -1 : parts.added.id(token);
    }
    if (parts.role_ids[unk] < 0) parts.role_ids[unk] = parts.model->unknown_id();
    parts.model_max_length = config.model_max_length;
    // A BPE model's tokens include the text's own blanks, which must stay.
    parts.clean_up = config.clean_up && !parts.model->is_bpe();
}

Parts read_tokenizer_json(const JsonValue& tokenizer, const Config& config, const std::string& where) {
    Fields fields(tokenizer, where);
    const std::string version = fields.text("version", "1.0");
    if (version != "1.0") fields.refuse("has the version " + io::shown(version) + "; 1.0 is known");
    Parts parts;
    if (fields.find("normalizer"))
        parts.normalizers = read_normalizers(fields.fields("normalizer"), config.bert);
    if (fields.find("pre_tokenizer"))
        parts.pre_tokenizers = read_pre_tokenizers(fields.fields("pre_tokenizer"));
    parts.model = read_model(fields.fields("model"));
    if (fields.find("decoder")) parts.decoders = read_decoders(fields.fields("decoder"));
    std::vector<AddedToken> tokens;
    if (fields.find("added_tokens")) {
        for (const JsonValue& item : fields.items("added_tokens")) {
            Fields token(item, where + ".added_tokens[" + std::to_string(tokens.size()) + "]");
            tokens.push_back(read_added_token(token));
        }
    }
    finish(parts, std::move(tokens), config, where);
    if (fields.find("post_processor")) {
        parts.post_processor = read_post_processor(fields.fields("post_processor"));
        check_ids(parts, where);
    } else {
        add_bos_eos(parts, config, where);
    }
    parts.truncation.left = config.truncate_left;
    if (fields.find("truncation"))
        parts.truncation = read_truncation(fields.fields("truncation"), parts.post_processor);
    if (fields.find("padding")) {
        parts.padding = read_padding(fields.fields("padding"));
        if (parts.role_ids[pad] < 0) parts.role_ids[pad] = parts.padding.pad_id;
    } else {
        pad_by_config(parts, config);
    }
    fields.done();
    return parts;
}

void add_bos_eos(Parts& parts, const Config& config, const std::string& where) {
    if (!config.add_bos && !config.add_eos) return;
    const auto need = [&](Role role) {
        check(parts.role_ids[role] >= 0, ErrorKind::value, where, ": tokenizer_config.json has add_",
              role == bos ? "bos" : "eos", "_token and names no ", role_names[role]);
        return parts.role_ids[role];
    };
    set_bos_eos(parts.post_processor, config.add_bos ? std::optional(need(bos)) : std::nullopt,
                config.add_eos ? std::optional(need(eos)) : std::nullopt);
}

void pad_by_config(Parts& parts, const Config& config) {
    parts.padding.pad_id = std::max<std::int64_t>(parts.role_ids[pad], 0);
    parts.padding.left = config.pad_left;
}

}  // namespace mezzo::data::tokenizer
