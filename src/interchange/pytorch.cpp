// Values of PyTorch's files.
#include "mezzo/interchange/pytorch.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "interchange/pytorch_file.h"
#include "io/json.h"
#include "mezzo/error.h"

namespace mezzo::io {

namespace {

// A small file can refer to one value many times: limits of what is made from it.
constexpr int most_levels = 64;
constexpr std::int64_t most_visits = 2000000, most_name_bytes = 64 << 20;
constexpr std::size_t most_lines = 1000, most_names = 20;

const char* name_of(PytorchKind kind) {
    constexpr const char* names[] = {"None",  "a boolean", "an integer", "a real number", "a string",
                                     "bytes", "a tensor",  "a list",     "a dict",        "another value"};
    return names[static_cast<int>(kind)];
}

PytorchKind kind_of(const PickleTree& tree, const PickleNode& node) {
    switch (node.kind) {
        case PickleKind::none:
            return PytorchKind::none;
        case PickleKind::boolean:
            return PytorchKind::boolean;
        case PickleKind::integer:
        case PickleKind::big_integer:
            return PytorchKind::integer;
        case PickleKind::real:
            return PytorchKind::real;
        case PickleKind::string:
            return PytorchKind::string;
        case PickleKind::bytes:
            return PytorchKind::bytes;
        case PickleKind::list:
        case PickleKind::tuple:
        case PickleKind::set:
            return PytorchKind::list;
        case PickleKind::dict:
            return PytorchKind::dict;
        case PickleKind::tensor:
            return PytorchKind::tensor;
        case PickleKind::global: {
            const bool dtype = tree.globals[std::size_t(node.number)].call == TorchCall::dtype;
            return dtype ? PytorchKind::string : PytorchKind::other;
        }
        case PickleKind::storage:
        case PickleKind::other:
            break;
    }
    return PytorchKind::other;
}

double real_of(const PickleTree& tree, const PickleNode& node) {
    if (node.kind == PickleKind::real) return std::bit_cast<double>(node.number);
    if (node.kind == PickleKind::integer) return double(node.number);
    const std::string& bytes = tree.texts[std::size_t(node.number)];
    double value = static_cast<signed char>(bytes.back());
    for (std::size_t i = bytes.size() - 1; i-- > 0;)
        value = value * 256 + static_cast<unsigned char>(bytes[i]);
    return value;
}

std::string dtype_name(const PickleTree& tree, const PickleNode& node) {
    return std::string("torch.") + tree.globals[std::size_t(node.number)].type->name;
}

// A key of a dict as part of a name. Keys other than strings and numbers have the number of their entry.
std::string key_name(const PickleTree& tree, std::uint32_t key, std::size_t entry) {
    const PickleNode& node = tree[key];
    switch (node.kind) {
        case PickleKind::string:
            return tree.text(key);
        case PickleKind::integer:
            return std::to_string(node.number);
        case PickleKind::boolean:
            return node.number != 0 ? "True" : "False";
        case PickleKind::none:
            return "None";
        case PickleKind::real:
        case PickleKind::big_integer:
            return fmt::format("{}", real_of(tree, node));
        default:
            return fmt::format("#{}", entry);
    }
}

// Visits the entries of a dict or the items of a list with their names.
template <class F> void for_entries(const PickleTree& tree, std::uint32_t node, const F& visit) {
    const auto index = std::size_t(tree[node].number);
    if (tree[node].kind == PickleKind::dict) {
        for (std::size_t i = 0; i < tree.dicts[index].size(); ++i)
            visit([&] { return key_name(tree, tree.dicts[index][i].first, i); }, tree.dicts[index][i].second);
    } else {
        for (std::size_t i = 0; i < tree.lists[index].size(); ++i)
            visit([&] { return std::to_string(i); }, tree.lists[index][i]);
    }
}

std::string joined(const std::string& path, const std::string& name) {
    return path.empty() ? name : path + "." + name;
}

bool has_entries(PytorchKind kind) { return kind == PytorchKind::list || kind == PytorchKind::dict; }

// Collects the tensors of a value.
class Collector {
public:
    Collector(const PytorchFile& file, const std::string& path) : file_(file), path_(path) {}

    void collect(std::uint32_t node, const std::string& name, int level) {
        const PickleTree& tree = file_.tree;
        name_bytes_ += std::int64_t(name.size());
        if (level > most_levels) refuse(name, most_levels, " levels");
        if (++visits_ > most_visits) refuse(name, most_visits, " tensors, lists and dicts");
        if (name_bytes_ > most_name_bytes) refuse(name, most_name_bytes, " bytes of names");
        if (tree[node].kind == PickleKind::tensor) {
            const auto& tensor = tree.tensors[std::size_t(tree[node].number)];
            state.emplace_back(name, file_.tensor(tensor, shown(joined(path_, name)), storages_));
            return;
        }
        for_entries(tree, node, [&](const auto& key, std::uint32_t child) {
            const PytorchKind kind = kind_of(tree, tree[child]);
            if (kind == PytorchKind::tensor || has_entries(kind))
                collect(child, joined(name, key()), level + 1);
        });
    }
    StateDict state;

private:
    [[noreturn]] void refuse(const std::string& name, std::int64_t limit, const char* what) const {
        fail(ErrorKind::io, file_.where, ": ", shown(joined(path_, name)), ": a value with more than ", limit,
             what);
    }
    const PytorchFile& file_;
    const std::string& path_;
    PytorchFile::Storages storages_;
    std::int64_t visits_ = 0, name_bytes_ = 0;
};

// Describes values, one a line.
class Table {
public:
    explicit Table(const PytorchFile& file) : file_(file) {}

    void add(std::uint32_t node, const std::string& name, int level) {
        if (lines_++ == most_lines) text += "\n...";
        if (lines_ > most_lines) return;
        if (lines_ > 1) text += '\n';
        text.append(std::size_t(2 * level), ' ');
        if (level > 0) text += readable(name) + ": ";
        describe(node);
        if (!has_entries(kind_of(file_.tree, file_.tree[node]))) return;
        if (level == most_levels) {
            text += ", deeper";
            return;
        }
        for_entries(file_.tree, node, [&](const auto& key, std::uint32_t child) {
            if (lines_ <= most_lines) add(child, key(), level + 1);
        });
    }
    std::string text;

private:
    void describe(std::uint32_t node) {
        const PickleTree& tree = file_.tree;
        const PickleNode& value = tree[node];
        switch (kind_of(tree, value)) {
            case PytorchKind::none:
                text += "None";
                break;
            case PytorchKind::boolean:
                text += value.number != 0 ? "True" : "False";
                break;
            case PytorchKind::integer:
                text += value.kind == PickleKind::integer ? std::to_string(value.number)
                                                          : fmt::format("{}", real_of(tree, value));
                break;
            case PytorchKind::real:
                text += fmt::format("{}", real_of(tree, value));
                break;
            case PytorchKind::string:
                text += value.kind == PickleKind::string ? shown(tree.text(node)) : dtype_name(tree, value);
                break;
            case PytorchKind::bytes:
                text += fmt::format("{} bytes", tree.text(node).size());
                break;
            case PytorchKind::tensor:
                describe(tree.tensors[std::size_t(value.number)]);
                break;
            case PytorchKind::list:
                text += fmt::format("list of {}", tree.list(node).size());
                break;
            case PytorchKind::dict:
                text += fmt::format("dict of {}", tree.dicts[std::size_t(value.number)].size());
                break;
            case PytorchKind::other:
                text += "a value that is not read";
                break;
        }
    }
    void describe(const PickleTensor& tensor) {
        if (*tensor.unreadable != '\0') {
            text += tensor.unreadable;
            return;
        }
        text.append(tensor.type->name).append(" ").append(detail::text_of(file_.shape_of(tensor)));
    }
    const PytorchFile& file_;
    std::size_t lines_ = 0;
};

}  // namespace

// A node with its file and its name.
struct PytorchNode {
    const PytorchFile& file;
    std::uint32_t node;
    const std::string& path;

    const PickleTree& tree() const { return file.tree; }
    const PickleNode& value() const { return file.tree[node]; }
    PytorchKind kind() const { return kind_of(tree(), value()); }
    std::string where() const { return path.empty() ? file.where : file.where + ": " + shown(path); }
    void require(bool good, const char* wanted) const {
        check(good, ErrorKind::value, where(), ": it is ", name_of(kind()), ", not ", wanted);
    }
    const std::vector<std::pair<std::uint32_t, std::uint32_t>>& entries() const {
        return tree().dicts[std::size_t(value().number)];
    }
    // The value under a name of names(), or null.
    const std::uint32_t* find(std::string_view name) const {
        const std::uint32_t* other = nullptr;  // a string is preferred
        for (std::size_t i = 0; i < entries().size(); ++i) {
            const auto& [key, entry] = entries()[i];
            const bool is_string = tree()[key].kind == PickleKind::string;
            if (is_string ? tree().text(key) != name : key_name(tree(), key, i) != name) continue;
            if (is_string) return &entry;
            other = &entry;
        }
        return other;
    }
};

PytorchValue::PytorchValue(const mezzo::detail::SharedHandle<PytorchFile>& file, std::uint32_t node,
                           std::string path)
    : file_(file), node_(node), path_(std::move(path)) {}
PytorchValue::PytorchValue(const PytorchValue& other) = default;
PytorchValue& PytorchValue::operator=(const PytorchValue& other) & = default;
PytorchValue::~PytorchValue() = default;

PytorchNode PytorchValue::node() const { return {*file_.operator->(), node_, path_}; }

PytorchKind PytorchValue::kind() const { return node().kind(); }

std::int64_t PytorchValue::size() const {
    const PytorchNode self = node();
    self.require(has_entries(self.kind()), "a list or dict");
    if (self.kind() == PytorchKind::dict) return std::int64_t(self.entries().size());
    return std::int64_t(self.tree().list(node_).size());
}

std::vector<std::string> PytorchValue::names() const {
    const PytorchNode self = node();
    self.require(self.kind() == PytorchKind::dict, "a dict");
    std::vector<std::string> result;
    for_entries(self.tree(), node_, [&](const auto& key, std::uint32_t) { result.push_back(key()); });
    return result;
}

bool PytorchValue::contains(std::string_view name) const {
    const PytorchNode self = node();
    self.require(self.kind() == PytorchKind::dict, "a dict");
    return self.find(name) != nullptr;
}

PytorchValue PytorchValue::operator[](std::string_view name) const {
    const PytorchNode self = node();
    self.require(self.kind() == PytorchKind::dict, "a dict");
    if (const std::uint32_t* const found = self.find(name))
        return {file_, *found, joined(path_, std::string(name))};
    std::string list;
    std::size_t i = 0;
    for_entries(self.tree(), node_, [&](const auto& key, std::uint32_t) {
        if (i < most_names) list += (i == 0 ? "" : ", ") + shown(key());
        if (i++ == most_names) list += ", ...";
    });
    fail(ErrorKind::value, self.where(), ": no entry ", shown(name), "; it has ",
         list.empty() ? "none" : list);
}

PytorchValue PytorchValue::operator[](std::int64_t index) const {
    const PytorchNode self = node();
    self.require(has_entries(self.kind()), "a list or dict");
    if (self.kind() == PytorchKind::list) {
        const std::vector<std::uint32_t>& items = self.tree().list(node_);
        const std::int64_t position = index < 0 ? index + std::int64_t(items.size()) : index;
        check(position >= 0 && position < std::int64_t(items.size()), ErrorKind::value, self.where(),
              ": no item ", index, " in a list of ", items.size());
        return {file_, items[std::size_t(position)], joined(path_, std::to_string(position))};
    }
    for (const auto& [key, entry] : self.entries())
        if (self.tree()[key].kind == PickleKind::integer && self.tree()[key].number == index)
            return {file_, entry, joined(path_, std::to_string(index))};
    fail(ErrorKind::value, self.where(), ": no entry with the integer key ", index, " in a dict of ", size());
}

bool PytorchValue::flag() const {
    const PytorchNode self = node();
    self.require(self.kind() == PytorchKind::boolean, "a boolean");
    return self.value().number != 0;
}

std::int64_t PytorchValue::integer() const {
    const PytorchNode self = node();
    self.require(self.kind() == PytorchKind::integer, "an integer");
    check(self.value().kind == PickleKind::integer, ErrorKind::value, self.where(),
          ": the integer does not fit 64 bits; number() rounds it");
    return self.value().number;
}

double PytorchValue::number() const {
    const PytorchNode self = node();
    self.require(self.kind() == PytorchKind::integer || self.kind() == PytorchKind::real, "a number");
    return real_of(self.tree(), self.value());
}

std::string PytorchValue::text() const {
    const PytorchNode self = node();
    self.require(self.kind() == PytorchKind::string || self.kind() == PytorchKind::bytes,
                 "a string or bytes");
    return self.value().kind == PickleKind::global ? dtype_name(self.tree(), self.value())
                                                   : self.tree().text(node_);
}

Tensor PytorchValue::tensor() const {
    const PytorchNode self = node();
    self.require(self.kind() == PytorchKind::tensor, "a tensor");
    PytorchFile::Storages storages;
    const std::string name = path_.empty() ? "the tensor" : shown(path_);
    return self.file.tensor(self.tree().tensors[std::size_t(self.value().number)], name, storages);
}

StateDict PytorchValue::state_dict() const {
    const PytorchNode self = node();
    self.require(has_entries(self.kind()), "a list or dict");
    Collector collector(self.file, path_);
    collector.collect(node_, "", 0);
    return std::move(collector.state);
}

std::string PytorchValue::to_string() const {
    Table table(node().file);
    table.add(node_, "", 0);
    return std::move(table.text);
}

PytorchValue load_pytorch(const std::string& path) {
    const mezzo::detail::SharedHandle<PytorchFile> file(new PytorchFile(path));
    return {file, file->root, ""};
}

}  // namespace mezzo::io
