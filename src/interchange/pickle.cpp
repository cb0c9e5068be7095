// The opcodes of pickles, protocols 2 to 5. Names as in Python's pickletools.
#include "interchange/pickle.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "io/json.h"
#include "mezzo/error.h"

namespace mezzo::io {

namespace {

// A node takes up to 100 bytes with what it refers to, and a byte of a pickle makes at most one.
constexpr std::size_t most_nodes = 20000000;
constexpr std::size_t window = 1 << 16, longest_line = 1 << 12;

std::uint64_t little_endian(std::string_view bytes) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i)
        value |= std::uint64_t(static_cast<unsigned char>(bytes[i])) << 8 * i;
    return value;
}

}  // namespace

void PickleSource::need(std::uint64_t bytes) {
    if (buffer_.size() - at_ >= bytes) return;
    check(bytes <= end_ - position(), ErrorKind::io, where_, ": the pickle is cut off: at byte ", position(),
          " it needs ", bytes, " more bytes, ", end_ - position(), " are there");
    buffer_.erase(0, at_);
    begin_ += at_;
    at_ = 0;
    const std::size_t have = buffer_.size();
    const auto wanted = std::size_t(std::min(std::max<std::uint64_t>(bytes, window), end_ - begin_));
    buffer_.resize(wanted);
    file_->read(begin_ + have, buffer_.data() + have, wanted - have);
}

std::string_view PickleSource::take(std::uint64_t bytes) {
    need(bytes);
    const std::string_view result = std::string_view(buffer_).substr(at_, std::size_t(bytes));
    at_ += std::size_t(bytes);
    return result;
}

std::string_view PickleSource::line() {
    need(std::min<std::uint64_t>(longest_line, end_ - position()));
    const std::string_view ahead = std::string_view(buffer_).substr(at_, longest_line);
    const std::size_t length = ahead.find('\n');
    check(length != ahead.npos, ErrorKind::io, where_, ": the line at byte ", position(),
          " has no end, or is longer than ", longest_line, " bytes");
    at_ += length + 1;
    return ahead.substr(0, length);
}

PickleTree::PickleTree() { nodes = {{}, {PickleKind::boolean, 0}, {PickleKind::boolean, 1}}; }

void Unpickler::refuse(const std::string& what) const {
    fail(ErrorKind::io, source_.where(), ": byte ", op_at_, ": ", what);
}

std::uint64_t Unpickler::number(int bytes) { return little_endian(source_.take(std::uint64_t(bytes))); }

Unpickler::Node Unpickler::add(PickleKind kind, std::int64_t value) {
    require(tree_.nodes.size() < most_nodes, "the pickle has more than 20 million values");
    tree_.nodes.push_back({kind, value});
    return Node(tree_.nodes.size() - 1);
}

Unpickler::Node Unpickler::add_text(PickleKind kind, std::string_view text) {
    tree_.texts.emplace_back(text);
    return add(kind, std::int64_t(tree_.texts.size() - 1));
}

Unpickler::Node Unpickler::add_string(std::string_view text) {
    if (const auto found = tree_.strings.find(text); found != tree_.strings.end()) return found->second;
    require(first_invalid_utf8(text) == text.size(), "a string is no valid UTF-8");
    const Node node = add_text(PickleKind::string, text);
    tree_.strings.emplace(tree_.text(node), node);
    return node;
}

Unpickler::Node Unpickler::add_list(PickleKind kind, std::vector<Node> items) {
    tree_.lists.push_back(std::move(items));
    return add(kind, std::int64_t(tree_.lists.size() - 1));
}

Unpickler::Node Unpickler::add_dict() {
    tree_.dicts.emplace_back();
    return add(PickleKind::dict, std::int64_t(tree_.dicts.size() - 1));
}

Unpickler::Node& Unpickler::top() {
    require(stack_.size() > (marks_.empty() ? 0 : marks_.back()), "the stack is empty");
    return stack_.back();
}

Unpickler::Node Unpickler::pop() {
    const Node node = top();
    stack_.pop_back();
    return node;
}

std::vector<Unpickler::Node> Unpickler::pop_marked() {
    require(!marks_.empty(), "no mark is on the stack");
    const auto first = stack_.begin() + marks_.back();
    std::vector<Node> items(first, stack_.end());
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return items;
}

std::uint32_t Unpickler::load() {
    while (true) {
        require(stack_.size() + marks_.size() + memo_.size() < most_nodes,
                "the stack and the memo of the pickle have more than 20 million values");
        op_at_ = source_.position();
        const auto op = static_cast<unsigned char>(source_.take(1)[0]);
        if (op == '.') break;  // STOP
        if (op == 0x80) {      // PROTO
            const std::uint64_t protocol = number(1);
            if (protocol > 5) refuse(fmt::format("protocol {}; up to 5 are read", protocol));
        } else if (op == 0x95) {  // FRAME
            (void)number(8);
        } else if (!run_number(op) && !run_text(op) && !run_container(op) && !run_items(op) &&
                   !run_stack(op) && !run_object(op)) {
            refuse(fmt::format("opcode {:#04x} is not one of PyTorch's pickles", op));
        }
    }
    require(stack_.size() == 1 && marks_.empty(), "the pickle ends with more or less than one value");
    check_tensors();
    return stack_.back();
}

bool Unpickler::push_integer(std::string_view bytes) {
    const bool negative = !bytes.empty() && (bytes.back() & 0x80) != 0;
    const char sign = negative ? '\xff' : '\0';
    while (bytes.size() > 8 && bytes.back() == sign && ((bytes[bytes.size() - 2] ^ sign) & 0x80) == 0)
        bytes.remove_suffix(1);
    if (bytes.size() > 8) return push(add_text(PickleKind::big_integer, bytes));
    std::uint64_t value = little_endian(bytes);
    if (negative && bytes.size() < 8) value |= ~std::uint64_t(0) << 8 * bytes.size();
    return push(add(PickleKind::integer, std::int64_t(value)));
}

bool Unpickler::push_decimal(std::string_view digits) {
    if (digits.ends_with('L')) digits.remove_suffix(1);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    require(error == std::errc() && end == digits.data() + digits.size(), "no integer of 64 bits");
    return push(add(PickleKind::integer, value));
}

bool Unpickler::run_number(unsigned char op) {
    switch (op) {
        case 'N':  // NONE
            return push(0);
        case 0x89:  // NEWFALSE
        case 0x88:  // NEWTRUE
            return push(op == 0x88 ? 2 : 1);
        case 'K':  // BININT1
            return push(add(PickleKind::integer, std::int64_t(number(1))));
        case 'M':  // BININT2
            return push(add(PickleKind::integer, std::int64_t(number(2))));
        case 'J':  // BININT
            return push(add(PickleKind::integer, std::int32_t(number(4))));
        case 0x8a:  // LONG1
            return push_integer(source_.take(number(1)));
        case 0x8b:  // LONG4
            return push_integer(source_.take(number(4)));
        case 'I': {  // INT, in which protocols 0 and 1 write booleans, too
            const std::string_view digits = source_.line();
            if (digits == "00" || digits == "01") return push(digits == "01" ? 2 : 1);
            return push_decimal(digits);
        }
        case 'L':  // LONG
            return push_decimal(source_.line());
        case 'G': {  // BINFLOAT, most significant byte first
            std::string bytes(source_.take(8));
            std::reverse(bytes.begin(), bytes.end());
            return push(add(PickleKind::real, std::int64_t(little_endian(bytes))));
        }
        default:
            return false;
    }
}

bool Unpickler::run_text(unsigned char op) {
    switch (op) {
        case 'U':   // SHORT_BINSTRING, the strings of Python 2
        case 0x8c:  // SHORT_BINUNICODE
            return push(add_string(source_.take(number(1))));
        case 'T':  // BINSTRING
        case 'X':  // BINUNICODE
            return push(add_string(source_.take(number(4))));
        case 0x8d:  // BINUNICODE8
            return push(add_string(source_.take(number(8))));
        case 'C':  // SHORT_BINBYTES
            return push(add_text(PickleKind::bytes, source_.take(number(1))));
        case 'B':  // BINBYTES
            return push(add_text(PickleKind::bytes, source_.take(number(4))));
        case 0x8e:  // BINBYTES8
        case 0x96:  // BYTEARRAY8
            return push(add_text(PickleKind::bytes, source_.take(number(8))));
        default:
            return false;
    }
}

bool Unpickler::run_container(unsigned char op) {
    switch (op) {
        case ']':  // EMPTY_LIST
            return push(add_list(PickleKind::list, {}));
        case 'l':  // LIST
            return push(add_list(PickleKind::list, pop_marked()));
        case ')':  // EMPTY_TUPLE
            return push(add_list(PickleKind::tuple, {}));
        case 't':  // TUPLE
            return push(add_list(PickleKind::tuple, pop_marked()));
        case 0x85:    // TUPLE1
        case 0x86:    // TUPLE2
        case 0x87: {  // TUPLE3
            std::vector<Node> items(std::size_t(op) - 0x84);
            for (auto item = items.rbegin(); item != items.rend(); ++item) *item = pop();
            return push(add_list(PickleKind::tuple, std::move(items)));
        }
        case 0x8f:  // EMPTY_SET
            return push(add_list(PickleKind::set, {}));
        case 0x91:  // FROZENSET
            return push(add_list(PickleKind::set, pop_marked()));
        case '}':  // EMPTY_DICT
            return push(add_dict());
        case 'd': {  // DICT
            const std::vector<Node> items = pop_marked();
            push(add_dict());
            insert(top(), items);
            return true;
        }
        default:
            return false;
    }
}

void Unpickler::insert(Node dict, const std::vector<Node>& items) {
    require(tree_[dict].kind == PickleKind::dict, "entries for a value that is no dict");
    require(items.size() % 2 == 0, "a key without a value");
    auto& entries = tree_.dicts[std::size_t(tree_[dict].number)];
    for (std::size_t i = 0; i < items.size(); i += 2) entries.emplace_back(items[i], items[i + 1]);
}

bool Unpickler::run_items(unsigned char op) {
    switch (op) {
        case 'a':     // APPEND
        case 'e':     // APPENDS
        case 0x90: {  // ADDITEMS, of a set
            const std::vector<Node> items = op == 'a' ? std::vector<Node>{pop()} : pop_marked();
            const PickleNode list = tree_[top()];
            require(list.kind == (op == 0x90 ? PickleKind::set : PickleKind::list),
                    "items for a value that is no list or set");
            auto& all = tree_.lists[std::size_t(list.number)];
            all.insert(all.end(), items.begin(), items.end());
            return true;
        }
        case 's': {  // SETITEM
            const Node value = pop(), key = pop();
            insert(top(), {key, value});
            return true;
        }
        case 'u': {  // SETITEMS
            const std::vector<Node> items = pop_marked();
            insert(top(), items);
            return true;
        }
        default:
            return false;
    }
}

bool Unpickler::run_stack(unsigned char op) {
    switch (op) {
        case '(':  // MARK
            marks_.push_back(std::uint32_t(stack_.size()));
            return true;
        case '0':  // POP
            (void)pop();
            return true;
        case '1':  // POP_MARK
            (void)pop_marked();
            return true;
        case '2':  // DUP
            return push(top());
        case 'q':  // BINPUT
            memo_[std::uint32_t(number(1))] = top();
            return true;
        case 'r':  // LONG_BINPUT
            memo_[std::uint32_t(number(4))] = top();
            return true;
        case 0x94:  // MEMOIZE
            memo_.emplace(std::uint32_t(memo_.size()), top());
            return true;
        case 'h':    // BINGET
        case 'j': {  // LONG_BINGET
            const auto found = memo_.find(std::uint32_t(number(op == 'h' ? 1 : 4)));
            require(found != memo_.end(), "the memo has no value of this number");
            return push(found->second);
        }
        default:
            return false;
    }
}

bool Unpickler::run_object(unsigned char op) {
    switch (op) {
        case 'c': {  // GLOBAL
            const std::string module(source_.line());
            push_global(module, source_.line());
            return true;
        }
        case 0x93: {  // STACK_GLOBAL
            const Node name = pop(), module = pop();
            require(tree_[name].kind == PickleKind::string && tree_[module].kind == PickleKind::string,
                    "the name of a class or function is no string");
            push_global(tree_.text(module), tree_.text(name));
            return true;
        }
        case 'R':     // REDUCE
        case 0x81: {  // NEWOBJ
            const Node arguments = pop(), function = pop();
            return push(call(function, arguments));
        }
        case 'Q':  // BINPERSID
            return push(refer_to_storage(pop()));
        case 'b':  // BUILD
            build();
            return true;
        default:
            return false;
    }
}

void Unpickler::push_global(std::string_view module, std::string_view name) {
    if (module == "__builtin__") module = "builtins";  // Python 2
    const std::string full = std::string(module) + "." + std::string(name);
    const TorchName known = find_torch_name(full);
    if (known.name.empty())
        refuse("the file refers to " + shown(full) +
               ", which is not read: as with torch.load(weights_only=True) files may hold tensors, dicts, "
               "lists, "
               "numbers and strings, and nothing in them is executed; save the state_dict() alone");
    tree_.globals.push_back(known);
    tree_.globals.back().name = {};
    push(add(PickleKind::global, std::int64_t(tree_.globals.size() - 1)));
}

// Attributes, such as `_metadata` of a state_dict(), are dropped.
void Unpickler::build() {
    (void)pop();
    const PickleKind kind = tree_[top()].kind;
    require(kind == PickleKind::dict || kind == PickleKind::tensor,
            "attributes for a value that is neither a dict nor a tensor");
}

void check_keys(const std::string& where, const PickleTree& tree) {
    for (const auto& entries : tree.dicts) {
        std::vector<std::pair<PickleKind, std::int64_t>> keys;
        for (const auto& [key, value] : entries)
            if (const PickleNode& node = tree[key]; node.kind <= PickleKind::string)
                keys.emplace_back(node.kind, node.number);
        std::sort(keys.begin(), keys.end());
        const auto twice = std::adjacent_find(keys.begin(), keys.end());
        if (twice == keys.end()) continue;
        const std::string key = twice->first == PickleKind::string
                                    ? shown(tree.texts[std::size_t(twice->second)])
                                    : std::to_string(twice->second);
        fail(ErrorKind::io, where, ": a dict has the key ", key, " twice");
    }
}

}  // namespace mezzo::io
