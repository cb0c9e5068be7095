// Byte-pair encoding: of all neighbouring pairs that can be merged, merges the one whose merge was learnt
// first, and of equal pairs the leftmost. A heap of pairs and a list of symbols make it O(n log n).
#include <algorithm>

#include "text/tokenizer/characters.h"
#include "text/tokenizer/model.h"

namespace mezzo::data::tokenizer {

namespace {

using Symbol = Scratch::Symbol;
using Merge = Scratch::Merge;

constexpr std::int32_t none = -1;

// Order of a heap whose top is the next merge.
bool comes_later(const Merge& a, const Merge& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

std::uint64_t pair_key(std::int32_t first, std::int32_t second) {
    return std::uint64_t(std::uint32_t(first)) << 32 | std::uint32_t(second);
}

struct PairHash {
    std::size_t operator()(std::uint64_t key) const {
        key *= 0x9E3779B97F4A7C15u;  // 2^64 / the golden ratio
        return std::size_t(key ^ key >> 32);
    }
};

class Bpe : public Model {
public:
    Bpe(Vocabulary words, const MergePairs& merges, BpeOptions options, const std::string& where)
        : Model(std::move(words)), options_(std::move(options)) {
        if (!options_.unknown.empty())
            unknown_ = need_token(vocabulary(), options_.unknown, "unk_token", where);
        if (options_.byte_fallback) bytes_ = byte_tokens(vocabulary());
        merges_.reserve(merges.size());
        for (std::size_t rank = 0; rank < merges.size(); ++rank) add_merge(merges[rank], rank, where);
    }
    bool is_bpe() const override { return true; }
    std::int32_t unknown_id() const override { return unknown_; }

private:
    struct Rule {
        std::uint32_t rank;
        std::int32_t id;
    };

    void add_merge(const std::pair<std::string, std::string>& pair, std::size_t rank,
                   const std::string& where);
    void cut(std::string_view piece, Scratch& scratch, std::vector<Token>& out) const override;
    void find_symbols(std::string_view piece, Scratch& scratch) const;
    bool add_unknown(std::string_view character, Symbol symbol, bool in_run,
                     std::vector<Symbol>& symbols) const;
    void merge(Scratch& scratch) const;
    void propose(std::int32_t position, Scratch& scratch) const;
    const Rule* rule(std::int32_t first, std::int32_t second) const {
        const auto found = merges_.find(pair_key(first, second));
        return found == merges_.end() ? nullptr : &found->second;
    }

    BpeOptions options_;
    std::int32_t unknown_ = none;
    std::vector<std::int32_t> bytes_;
    std::unordered_map<std::uint64_t, Rule, PairHash> merges_;
};

void Bpe::add_merge(const std::pair<std::string, std::string>& pair, std::size_t rank,
                    const std::string& where) {
    const auto need = [&](const std::string& token) {
        const std::int32_t id = vocabulary().id(token);
        check(id >= 0, ErrorKind::value, where, ": merge ", rank, " of ", io::shown(pair.first), " and ",
              io::shown(pair.second), " needs the token ", io::shown(token),
              ", which is not in the vocabulary");
        return id;
    };
    const std::int32_t first = need(pair.first), second = need(pair.second);
    check(pair.second.starts_with(options_.continuing_prefix), ErrorKind::value, where, ": merge ", rank,
          ": the token ", io::shown(pair.second), " does not begin with ",
          io::shown(options_.continuing_prefix));
    const std::int32_t joint = need(pair.first + pair.second.substr(options_.continuing_prefix.size()));
    merges_[pair_key(first, second)] = {std::uint32_t(rank), joint};  // of equal pairs the last one counts
}

void Bpe::cut(std::string_view piece, Scratch& scratch, std::vector<Token>& out) const {
    if (options_.ignore_merges) {
        if (const std::int32_t id = vocabulary().id(piece); id >= 0) {
            out.push_back({id, 0, std::uint32_t(piece.size())});
            return;
        }
    }
    find_symbols(piece, scratch);
    merge(scratch);
    for (std::int32_t at = scratch.symbols.empty() ? none : 0; at != none;) {
        const Symbol& symbol = scratch.symbols[std::size_t(at)];
        out.push_back({symbol.id, symbol.begin, symbol.end});
        at = symbol.next;
    }
}

// Makes one symbol per character.
void Bpe::find_symbols(std::string_view piece, Scratch& scratch) const {
    std::vector<Symbol>& symbols = scratch.symbols;
    symbols.clear();
    bool in_run = false;  // of unknown characters
    for (std::size_t at = 0; at < piece.size();) {
        const std::size_t end = at + first_character(piece.substr(at)).bytes;
        std::string_view character = piece.substr(at, end - at);
        const bool continues = at > 0 && !options_.continuing_prefix.empty();
        const bool ends = end == piece.size() && !options_.end_suffix.empty();
        if (continues || ends) {
            scratch.text = continues ? options_.continuing_prefix : std::string();
            scratch.text += character;
            if (ends) scratch.text += options_.end_suffix;
            character = scratch.text;
        }
        const Symbol symbol{vocabulary().id(character), none, none, std::uint32_t(at), std::uint32_t(end)};
        if (symbol.id >= 0) symbols.push_back(symbol);
        in_run = symbol.id < 0 && add_unknown(character, symbol, in_run, symbols);
        at = end;
    }
    for (std::size_t i = 0; i < symbols.size(); ++i) {
        symbols[i].previous = std::int32_t(i) - 1;
        symbols[i].next = i + 1 < symbols.size() ? std::int32_t(i) + 1 : none;
    }
}

// Adds the tokens of a character's bytes if the vocabulary has all of them, otherwise the unknown token.
// Returns whether it was the unknown token.
bool Bpe::add_unknown(std::string_view character, Symbol symbol, bool in_run,
                      std::vector<Symbol>& symbols) const {
    const auto token = [&](char byte) { return bytes_[static_cast<unsigned char>(byte)]; };
    if (!bytes_.empty() &&
        std::all_of(character.begin(), character.end(), [&](char byte) { return token(byte) >= 0; })) {
        const std::uint32_t last = symbol.end - 1;
        for (std::uint32_t i = 0; i < character.size(); ++i) {
            const std::uint32_t at = std::min(symbol.begin + i, last);
            symbols.push_back({token(character[i]), none, none, at, at + 1});
        }
        return false;
    }
    if (unknown_ == none) return false;
    if (in_run && options_.fuse_unknown) {
        symbols.back().end = symbol.end;
    } else {
        symbol.id = unknown_;
        symbols.push_back(symbol);
    }
    return true;
}

// Adds the merge of the symbol at a position and the next one to the heap, if there is one.
void Bpe::propose(std::int32_t position, Scratch& scratch) const {
    const Symbol& symbol = scratch.symbols[std::size_t(position)];
    if (symbol.next == none) return;
    const Rule* const found = rule(symbol.id, scratch.symbols[std::size_t(symbol.next)].id);
    if (!found) return;
    scratch.merges.push_back({found->rank, position, found->id});
    std::push_heap(scratch.merges.begin(), scratch.merges.end(), comes_later);
}

void Bpe::merge(Scratch& scratch) const {
    std::vector<Symbol>& symbols = scratch.symbols;
    std::vector<Merge>& merges = scratch.merges;
    merges.clear();
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) propose(std::int32_t(i), scratch);
    while (!merges.empty()) {
        std::pop_heap(merges.begin(), merges.end(), comes_later);
        const Merge top = merges.back();
        merges.pop_back();
        Symbol& left = symbols[std::size_t(top.position)];
        if (left.id == none || left.next == none) continue;
        Symbol& right = symbols[std::size_t(left.next)];
        // The symbols may have changed since this merge was proposed.
        const Rule* const now = rule(left.id, right.id);
        if (!now || now->id != top.id) continue;
        left.id = top.id;
        left.end = right.end;
        left.next = right.next;
        right.id = none;
        if (left.next != none) symbols[std::size_t(left.next)].previous = top.position;
        if (left.previous != none) propose(left.previous, scratch);
        propose(top.position, scratch);
    }
}

std::pair<std::string, std::string> read_merge(const JsonValue& merge, const std::string& where) {
    if (merge.kind == JsonKind::array) {
        check(merge.items.size() == 2, ErrorKind::value, where, " has ", merge.items.size(),
              " tokens; two are expected");
        return {text_of(merge.items[0], where), text_of(merge.items[1], where)};
    }
    const std::string& text = text_of(merge, where);
    const std::size_t blank = text.find(' ');
    check(blank != std::string::npos && text.find(' ', blank + 1) == std::string::npos, ErrorKind::value,
          where, " is ", io::shown(text), "; two tokens with a blank between them are expected");
    return {text.substr(0, blank), text.substr(blank + 1)};
}

}  // namespace

std::unique_ptr<Model> bpe(Vocabulary vocabulary, const MergePairs& merges, BpeOptions options,
                           const std::string& where) {
    return std::make_unique<Bpe>(std::move(vocabulary), merges, std::move(options), where);
}

std::unique_ptr<Model> read_bpe(Fields& fields) {
    if (const JsonValue* const dropout = fields.find("dropout"); dropout && dropout->number != 0)
        fields.refuse("has dropout, by which the same text gets other ids each time; set it to null");
    BpeOptions options{.unknown = fields.text("unk_token", ""),
                       .continuing_prefix = fields.text("continuing_subword_prefix", ""),
                       .end_suffix = fields.text("end_of_word_suffix", ""),
                       .fuse_unknown = fields.flag("fuse_unk", false),
                       .byte_fallback = fields.flag("byte_fallback", false),
                       .ignore_merges = fields.flag("ignore_merges", false)};
    MergePairs merges;
    for (const JsonValue& merge : fields.items("merges"))
        merges.push_back(
            read_merge(merge, fields.where() + ".merges[" + std::to_string(merges.size()) + "]"));
    return bpe(read_vocabulary(fields.need("vocab"), fields.where() + ".vocab"), merges, std::move(options),
               fields.where());
}

}  // namespace mezzo::data::tokenizer
