// Pickles of torch.save(), read into a tree of plain values. Calls no function of Python's: the reader
// understands the few that find_torch_name() lists, and refuses all others.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "interchange/torch_names.h"
#include "io/file.h"

namespace mezzo::io {

enum class PickleKind : std::uint8_t {
    none,
    boolean,      // number
    integer,      // number
    big_integer,  // texts[number], two's complement, least significant byte first
    real,         // bits of a double in number
    string,       // texts[number]; equal strings are one node
    bytes,        // texts[number]
    list,         // lists[number]
    tuple,        // lists[number]
    set,          // lists[number]
    dict,         // dicts[number]
    global,       // globals[number]
    storage,      // storages[number]
    tensor,       // tensors[number]
    other,        // a value that mezzo cannot hold, globals[number] says which
};

struct PickleNode {
    PickleKind kind = PickleKind::none;
    std::int64_t number = 0;
};

// A reference to a storage, or to a part of one.
struct PickleStorage {
    std::uint32_t key = 0;               // the node of its name
    const TorchType* type = nullptr;     // of its elements
    std::uint64_t whole = 0;             // bytes of the storage
    std::uint64_t first = 0, bytes = 0;  // the part
    std::uint32_t record = 0;            // set by the reader of the file
};

struct PickleTensor {
    std::uint32_t storage = 0;  // of PickleTree::storages
    const TorchType* type = nullptr;
    std::int64_t offset = 0;               // in elements
    std::uint32_t sizes = 0, strides = 0;  // nodes: lists or tuples of as many integers, checked
    const char* unreadable = "";           // a reason; then only `what` it is
};

struct PickleTree {
    std::vector<PickleNode> nodes;  // none, false and true come first
    std::deque<std::string> texts;
    std::unordered_map<std::string_view, std::uint32_t> strings;  // nodes
    std::vector<std::vector<std::uint32_t>> lists;
    std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> dicts;
    std::vector<TorchName> globals;
    std::vector<PickleStorage> storages;
    std::vector<PickleTensor> tensors;

    PickleTree();
    const PickleNode& operator[](std::uint32_t node) const { return nodes[node]; }
    bool is_sequence(std::uint32_t node) const {
        return nodes[node].kind == PickleKind::list || nodes[node].kind == PickleKind::tuple;
    }
    const std::vector<std::uint32_t>& list(std::uint32_t node) const {
        return lists[std::size_t(nodes[node].number)];
    }
    const std::string& text(std::uint32_t node) const { return texts[std::size_t(nodes[node].number)]; }
};

// The bytes of pickles: in memory, or in a file at a position.
class PickleSource {
public:
    PickleSource(const std::string& where, std::string text)
        : where_(where), buffer_(std::move(text)), end_(buffer_.size()) {}
    PickleSource(const std::string& where, const InputFile& file)
        : where_(where), file_(&file), end_(file.size()) {}

    // The next bytes; valid until the next call. Throws Error(io) if there are fewer.
    std::string_view take(std::uint64_t bytes);
    // The next bytes up to a line feed, which is skipped.
    std::string_view line();
    std::uint64_t position() const { return begin_ + at_; }
    const std::string& where() const { return where_; }

private:
    void need(std::uint64_t bytes);
    std::string where_;
    const InputFile* file_ = nullptr;
    std::string buffer_;
    std::uint64_t begin_ = 0, end_;  // position of the buffer, and of the end of the source
    std::size_t at_ = 0;             // in the buffer
};

// Reads one pickle.
class Unpickler {
public:
    Unpickler(PickleTree& tree, PickleSource& source) : tree_(tree), source_(source) {}
    // Returns the node of the value.
    std::uint32_t load();

private:
    using Node = std::uint32_t;
    [[noreturn]] void refuse(const std::string& what) const;
    void require(bool condition, const char* what) const {
        if (!condition) refuse(what);
    }
    std::uint64_t number(int bytes);
    Node add(PickleKind kind, std::int64_t value);
    Node add_text(PickleKind kind, std::string_view text);
    Node add_string(std::string_view text);
    Node add_list(PickleKind kind, std::vector<Node> items);
    Node add_dict();
    // Returns true, as the functions below do for an opcode that they have run.
    bool push(Node node) {
        stack_.push_back(node);
        return true;
    }
    Node pop();
    Node& top();
    std::vector<Node> pop_marked();

    bool run_number(unsigned char op);
    bool run_text(unsigned char op);
    bool run_container(unsigned char op);
    bool run_items(unsigned char op);
    bool run_stack(unsigned char op);
    bool run_object(unsigned char op);
    bool push_integer(std::string_view bytes);
    bool push_decimal(std::string_view digits);
    void insert(Node dict, const std::vector<Node>& items);
    void push_global(std::string_view module, std::string_view name);
    void build();

    // Calls, in pickle_calls.cpp.
    Node call(Node function, Node arguments);
    Node call_dict(const std::vector<Node>& arguments);
    Node call_bytes(const std::vector<Node>& arguments);
    Node call_device(const std::vector<Node>& arguments);
    Node call_set(const std::vector<Node>& arguments);
    Node rebuild_tensor(const std::vector<Node>& arguments, bool own_dtype);
    Node refer_to_storage(Node id);
    std::int64_t natural(Node node, const char* what) const;
    std::string latin1(std::string_view text) const;
    bool has_extent(const PickleTensor& tensor) const;
    void check_tensors();

    PickleTree& tree_;
    PickleSource& source_;
    std::uint64_t op_at_ = 0;
    std::vector<Node> stack_;
    std::vector<std::uint32_t> marks_;
    std::unordered_map<std::uint32_t, Node> memo_;
    // Results of calls by their argument: a file must not get a copy of a long argument for each short call.
    std::unordered_map<Node, Node> made_;
};

// Throws Error(io) for a dict with equal keys.
void check_keys(const std::string& where, const PickleTree& tree);

}  // namespace mezzo::io
