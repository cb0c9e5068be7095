// WordPiece: converts words to ids by greedy longest match, as in BERT, and ids back to text.
#include <algorithm>
#include <array>
#include <limits>

#include "cpu/parallel.h"
#include "io/whole_file.h"
#include "mezzo/error.h"
#include "mezzo/text/tokenizer.h"
#include "text/trie.h"
#include "text/truncation.h"
#include "text/words.h"

namespace mezzo::data {

namespace {

// A special token: its id (-1: not in the vocabulary) and its text.
struct SpecialToken {
    std::int64_t id;
    std::string text;
};

struct State : mezzo::detail::SharedObject {
    enum Role { unk, sep, pad, cls, mask, roles };

    State(std::vector<std::string> vocabulary, const WordPieceOptions& options, const std::string& origin);
    bool is_special(std::int64_t id) const {
        return std::any_of(special.begin(), special.end(), [&](const SpecialToken& s) { return s.id == id; });
    }

    WordRules rules;
    std::vector<std::string> tokens;
    Trie trie;
    Trie::Node continuation;  // node of "##"; none if no token starts with it
    std::array<SpecialToken, roles> special;
    std::string special_starts;  // the first bytes of the special tokens
};

std::vector<std::string> checked(std::vector<std::string> tokens, const WordPieceOptions& options,
                                 const std::string& origin) {
    check(options.max_chars_per_word >= 1, ErrorKind::value, "WordPiece: max_chars_per_word is ",
          options.max_chars_per_word, "; it must be positive");
    check(!tokens.empty(), ErrorKind::value, "WordPiece: ", origin, " has no token");
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        check(is_valid_utf8(tokens[i]), ErrorKind::value, "WordPiece: token ", i, " of ", origin,
              " is no valid UTF-8");
        bytes += tokens[i].size();
    }
    check(bytes < std::size_t(1) << 30 && tokens.size() < std::size_t(1) << 30, ErrorKind::value,
          "WordPiece: ", origin, " has ", tokens.size(), " tokens of ", bytes,
          " bytes together; less than 2^30 are supported");
    return tokens;
}

State::State(std::vector<std::string> vocabulary, const WordPieceOptions& options, const std::string& origin)
    : rules(options), tokens(checked(std::move(vocabulary), options, origin)), trie(tokens) {
    continuation = trie.find("##");
    special = {SpecialToken{0, options.unk_token}, SpecialToken{0, options.sep_token},
               SpecialToken{0, options.pad_token}, SpecialToken{0, options.cls_token},
               SpecialToken{0, options.mask_token}};
    constexpr const char* names[roles] = {"unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};
    for (std::size_t role = 0; role < roles; ++role) {
        SpecialToken& token = special[role];
        const Trie::Node node = token.text.empty() ? Trie::none : trie.find(token.text);
        token.id = node == Trie::none ? -1 : trie.value(node);
        check(token.id >= 0 || role == mask, ErrorKind::value, "WordPiece: ", origin, " has no token \"",
              token.text, "\"; set ", names[role], " to the one it uses instead");
        if (token.id >= 0 && special_starts.find(token.text[0]) == std::string::npos)
            special_starts += token.text[0];
    }
}

constexpr std::size_t no_limit = std::numeric_limits<std::size_t>::max();

const State& state_of(const mezzo::detail::SharedHandle<mezzo::detail::SharedObject>& handle) {
    return static_cast<const State&>(*handle.operator->());
}

// Makes encodings of texts. Reuses its buffers.
class Encoder {
public:
    explicit Encoder(const State& state) : state_(state), unicode_(state.rules) {}

    Encoding encode(std::string_view text, const EncodeOptions& options);
    Encoding encode_pair(std::string_view first, std::string_view second, const EncodeOptions& options);

private:
    // Appends ids and offsets of a text until `out` has `limit` of them.
    void append(std::string_view text, std::size_t limit, Encoding& out);
    void append_word(const Word& word, Encoding& out) const;
    bool match(const Word& word, Encoding& out) const;
    void add_special(State::Role role, Encoding& out) const { add(state_.special[role].id, {}, out); }
    static void add(std::int64_t id, Span offset, Encoding& out) {
        out.ids.push_back(id);
        out.offsets.push_back(offset);
    }
    const SpecialToken* special_at(std::string_view text) const;
    std::size_t find_special(std::string_view text, std::size_t from) const;

    const State& state_;
    UnicodeWords unicode_;
};

// Returns how many tokens of the texts fit next to `special` special tokens. Throws Error(value) if even
// those do not fit.
std::size_t room(const EncodeOptions& options, int special) {
    check(options.max_length >= 0, ErrorKind::value, "encode: max_length is ", options.max_length,
          "; 0 stands for no limit");
    if (options.max_length == 0) return no_limit;
    if (!options.add_special_tokens) special = 0;
    check(options.max_length >= special, ErrorKind::value, "encode: max_length is ", options.max_length,
          ", but the special tokens alone are ", special);
    return std::size_t(options.max_length - special);
}

void keep(Encoding& encoding, std::size_t count) {
    if (encoding.ids.size() <= count) return;
    encoding.ids.resize(count);
    encoding.offsets.resize(count);
}

Encoding Encoder::encode(std::string_view text, const EncodeOptions& options) {
    const std::size_t limit = room(options, 2);
    const std::size_t guess = std::min(limit, text.size() / 4 + 2) + 2;  // English has 4 to 5 bytes per token
    Encoding result;
    result.ids.reserve(guess);
    result.offsets.reserve(guess);
    if (options.add_special_tokens) add_special(State::cls, result);
    const std::size_t before = result.ids.size();
    append(text, limit == no_limit ? no_limit : before + limit, result);
    if (options.add_special_tokens) add_special(State::sep, result);
    result.token_type_ids.assign(result.ids.size(), 0);
    return result;
}

Encoding Encoder::encode_pair(std::string_view first, std::string_view second, const EncodeOptions& options) {
    const std::size_t limit = room(options, 3);
    Encoding a, b, result;
    append(first, no_limit, a);
    append(second, no_limit, b);
    const auto [kept_a, kept_b] = longest_first(a.ids.size(), b.ids.size(), limit);
    keep(a, kept_a);
    keep(b, kept_b);
    const auto join = [&](const Encoding& part, std::int64_t type) {
        result.ids.insert(result.ids.end(), part.ids.begin(), part.ids.end());
        result.offsets.insert(result.offsets.end(), part.offsets.begin(), part.offsets.end());
        if (options.add_special_tokens) add_special(State::sep, result);
        result.token_type_ids.resize(result.ids.size(), type);
    };
    if (options.add_special_tokens) add_special(State::cls, result);
    join(a, 0);
    join(b, 1);
    return result;
}

void Encoder::append(std::string_view text, std::size_t limit, Encoding& out) {
    std::size_t at = 0;
    while (at < text.size() && out.ids.size() < limit) {
        const std::size_t next = find_special(text, at);
        for_each_word(state_.rules, text, at, next, unicode_, [&](const Word& word) {
            append_word(word, out);
            return out.ids.size() < limit;
        });
        at = next;
        if (at == text.size()) break;
        const SpecialToken& token = *special_at(text.substr(at));
        at += token.text.size();
        add(token.id, {std::int64_t(next), std::int64_t(at)}, out);
    }
    keep(out, limit);
}

// Returns the longest special token that the text starts with, or null.
const SpecialToken* Encoder::special_at(std::string_view text) const {
    const SpecialToken* best = nullptr;
    for (const SpecialToken& token : state_.special)
        if (token.id >= 0 && text.starts_with(token.text) && (!best || token.text.size() > best->text.size()))
            best = &token;
    return best;
}

std::size_t Encoder::find_special(std::string_view text, std::size_t from) const {
    const std::string& starts = state_.special_starts;
    for (;; ++from) {
        // Searching for one byte, usually '[', is many times faster than searching for one of several.
        from = starts.size() == 1 ? text.find(starts[0], from) : text.find_first_of(starts, from);
        if (from == std::string_view::npos) return text.size();
        if (special_at(text.substr(from))) return from;
    }
}

void Encoder::append_word(const Word& word, Encoding& out) const {
    const std::size_t before = out.ids.size();
    if (word.characters <= state_.rules.max_characters && match(word, out)) return;
    keep(out, before);
    add(state_.special[State::unk].id, {word.begin, word.end}, out);
}

// Splits the word into tokens, from the left the longest that fits; returns false if none fits.
bool Encoder::match(const Word& word, Encoding& out) const {
    const std::size_t size = word.bytes.size();
    Trie::Node start = Trie::root;
    for (std::size_t begin = 0; begin < size;) {
        Trie::Node node = start;
        std::int32_t best = Trie::none;
        std::size_t end = begin;
        for (std::size_t i = begin; i < size; ++i) {
            node = state_.trie.step(node, word.map[static_cast<unsigned char>(word.bytes[i])]);
            if (node == Trie::none) break;
            if (const std::int32_t value = state_.trie.value(node); value != Trie::none) {
                best = value;
                end = i + 1;
            }
        }
        if (best == Trie::none) return false;
        add(best, word.source(begin, end), out);
        begin = end;
        start = state_.continuation;
        if (start == Trie::none && begin < size) return false;
    }
    return true;
}

}  // namespace

WordPiece::WordPiece(const std::string& vocab_path, const WordPieceOptions& options)
    : WordPiece(new State(io::file_lines("WordPiece", vocab_path), options, vocab_path)) {}
WordPiece WordPiece::from_vocabulary(std::vector<std::string> tokens, const WordPieceOptions& options) {
    return WordPiece(new State(std::move(tokens), options, "the vocabulary"));
}

Encoding WordPiece::encode(std::string_view text, const EncodeOptions& options) const {
    return Encoder(state_of(state_)).encode(text, options);
}

Encoding WordPiece::encode_pair(std::string_view first, std::string_view second,
                                const EncodeOptions& options) const {
    return Encoder(state_of(state_)).encode_pair(first, second, options);
}

std::vector<Encoding> WordPiece::encode_batch(const std::vector<std::string>& texts,
                                              const EncodeOptions& options) const {
    room(options, 2);  // throws before any thread starts
    std::vector<Encoding> result(texts.size());
    cpu::parallel_for(std::int64_t(texts.size()), 16, [&](std::int64_t begin, std::int64_t end) {
        Encoder encoder(state_of(state_));
        for (std::size_t i = std::size_t(begin); i < std::size_t(end); ++i)
            result[i] = encoder.encode(texts[i], options);
    });
    return result;
}

std::string WordPiece::decode(std::span<const std::int64_t> ids, bool skip_special) const {
    std::string text;
    bool first = true;
    for (const std::int64_t id : ids) {
        const std::string& piece = token(id);
        if (skip_special && state_of(state_).is_special(id)) continue;
        if (!first && piece.starts_with("##")) {
            text.append(piece, 2);
        } else {
            if (!first) text += ' ';
            text += piece;
        }
        first = false;
    }
    return text;
}

std::int64_t WordPiece::id(std::string_view token) const {
    const Trie::Node node = state_of(state_).trie.find(token);
    return node == Trie::none ? -1 : state_of(state_).trie.value(node);
}

const std::string& WordPiece::token(std::int64_t id) const {
    check(id >= 0 && id < size(), ErrorKind::value, "WordPiece: no token has id ", id,
          ", the vocabulary has ", size());
    return state_of(state_).tokens[std::size_t(id)];
}

std::int64_t WordPiece::size() const { return std::int64_t(state_of(state_).tokens.size()); }
std::int64_t WordPiece::unk_id() const { return state_of(state_).special[State::unk].id; }
std::int64_t WordPiece::sep_id() const { return state_of(state_).special[State::sep].id; }
std::int64_t WordPiece::pad_id() const { return state_of(state_).special[State::pad].id; }
std::int64_t WordPiece::cls_id() const { return state_of(state_).special[State::cls].id; }
std::int64_t WordPiece::mask_id() const { return state_of(state_).special[State::mask].id; }

}  // namespace mezzo::data
