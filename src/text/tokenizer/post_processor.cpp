#include "text/tokenizer/post_processor.h"

namespace mezzo::data::tokenizer {

namespace {

using Source = TemplatePart::Source;

TemplatePart special(std::int64_t id, std::int64_t type_id = 0) { return {Source::special, type_id, {id}}; }
TemplatePart first() { return {Source::first, 0, {}}; }
TemplatePart second(std::int64_t type_id) { return {Source::second, type_id, {}}; }

// Reads a field such as ["[SEP]", 102].
std::int64_t read_token_pair(Fields& fields, const char* key) {
    const std::vector<JsonValue>& pair = fields.items(key);
    if (pair.size() != 2) fields.refuse(std::string("has a field ") + key + " that is no token and its id");
    (void)text_of(pair[0], fields.where() + "." + key);
    return integer_of(pair[1], fields.where() + "." + key, max_id - 1);
}

std::vector<std::int64_t> special_ids(Fields& fields, const std::string& name) {
    Fields tokens = fields.fields("special_tokens");
    if (!tokens.find(name.c_str()))
        fields.refuse("uses the special token " + io::shown(name) + ", which its special_tokens lack");
    Fields token = tokens.fields(name.c_str());
    std::vector<std::int64_t> ids;
    for (const JsonValue& id : token.items("ids"))
        ids.push_back(integer_of(id, token.where() + ".ids", max_id - 1));
    return ids;
}

TemplatePart read_part(Fields& fields, Fields part, bool is_pair) {
    TemplatePart result;
    const bool is_sequence = part.find("Sequence") != nullptr;
    Fields inner = part.fields(is_sequence ? "Sequence" : "SpecialToken");
    const std::string& id = inner.text("id");
    result.type_id = inner.integer("type_id", max_id, 0);
    if (!is_sequence) {
        result.source = Source::special;
        result.ids = special_ids(fields, id);
    } else if (id == "B" && is_pair) {
        result.source = Source::second;
    } else if (id != "A") {
        inner.refuse("names the sequence " + io::shown(id) + "; A is known, and B in a pair");
    }
    inner.done();
    part.done();
    return result;
}

Template read_template(Fields& fields, const char* key) {
    Template result;
    int firsts = 0, seconds = 0;
    const bool is_pair = std::string_view(key) == "pair";
    for (const JsonValue& part : fields.items(key)) {
        const std::string where = fields.where() + "." + key + "[" + std::to_string(result.size()) + "]";
        result.push_back(read_part(fields, Fields(part, where), is_pair));
        firsts += result.back().source == Source::first;
        seconds += result.back().source == Source::second;
    }
    if (firsts != 1 || seconds != int(is_pair))
        fields.refuse(std::string("has a template ") + key + " with " + std::to_string(firsts) +
                      " times the first text and " + std::to_string(seconds) + " times the second");
    return result;
}

void read_one(Fields& fields, PostProcessor& processor) {
    const std::string type = fields.text("type");
    if (type == "TemplateProcessing") {
        processor.single = read_template(fields, "single");
        processor.pair = read_template(fields, "pair");
        (void)fields.find("special_tokens");  // tokens that the templates do not use
    } else if (type == "BertProcessing") {
        set_bert(processor, read_token_pair(fields, "cls"), read_token_pair(fields, "sep"));
    } else if (type == "RobertaProcessing") {
        set_roberta(processor, read_token_pair(fields, "cls"), read_token_pair(fields, "sep"));
        processor.trim_offsets = fields.flag("trim_offsets", true);
        processor.add_prefix_space = fields.flag("add_prefix_space", true);
    } else if (type == "ByteLevel") {
        (void)fields.flag("use_regex", true);  // only used by pre-tokenizers
        processor.trim_offsets = fields.flag("trim_offsets", true);
        processor.add_prefix_space = fields.flag("add_prefix_space", true);
    } else {
        fields.refuse("is of the type " + io::shown(type) +
                      "; known are BertProcessing, ByteLevel, RobertaProcessing, Sequence and "
                      "TemplateProcessing");
    }
}

}  // namespace

std::int64_t added(const Template& parts) {
    std::int64_t count = 0;
    for (const TemplatePart& part : parts) count += std::int64_t(part.ids.size());
    return count;
}

PostProcessor read_post_processor(const Fields& component) {
    PostProcessor processor;
    int templates = 0;
    each_component(component, "processors", [&](Fields& fields) {
        templates += fields.text("type") != "ByteLevel";
        if (templates > 1) fields.refuse("is a second processor that adds special tokens; one is supported");
        read_one(fields, processor);
    });
    return processor;
}

void set_bert(PostProcessor& processor, std::int64_t cls, std::int64_t sep) {
    processor.single = {special(cls), first(), special(sep)};
    processor.pair = {special(cls), first(), special(sep), second(1), special(sep, 1)};
}

void set_roberta(PostProcessor& processor, std::int64_t cls, std::int64_t sep) {
    processor.single = {special(cls), first(), special(sep)};
    processor.pair = {special(cls), first(), special(sep), special(sep), second(0), special(sep)};
}

void set_bos_eos(PostProcessor& processor, std::optional<std::int64_t> bos, std::optional<std::int64_t> eos) {
    processor.single.clear();
    if (bos) processor.single.push_back(special(*bos));
    processor.single.push_back(first());
    if (eos) processor.single.push_back(special(*eos));
    processor.pair = processor.single;
    if (bos) processor.pair.push_back(special(*bos, 1));
    processor.pair.push_back(second(1));
    if (eos) processor.pair.push_back(special(*eos, 1));
}

}  // namespace mezzo::data::tokenizer
