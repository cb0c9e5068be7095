// Reads the two forms of torch.save(): an archive with a pickle and a member for each storage, and, before
// PyTorch 1.6, five pickles in a row (magic number, version, system, value, names of storages) and the
// storages.
#include "interchange/pytorch_file.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "core/system/file_kind.h"
#include "core/tensor_impl.h"
#include "io/elements.h"
#include "io/json.h"
#include "mezzo/autograd.h"
#include "mezzo/error.h"
#include "mezzo/ops.h"

namespace mezzo::io {

namespace {

using namespace std::string_view_literals;

// The magic number 0x1950a86a20f9469cfc6c of files without an archive, least significant byte first.
constexpr std::string_view magic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"sv;
constexpr std::size_t piece = 1 << 18;  // stays in the cache until its checksum is computed

void swap_bytes(std::vector<char>& bytes, int size) {
    for (std::size_t i = 0; i + std::size_t(size) <= bytes.size(); i += std::size_t(size))
        std::reverse(bytes.begin() + std::ptrdiff_t(i), bytes.begin() + std::ptrdiff_t(i) + size);
}

const ZipMember* find(const std::vector<ZipMember>& members, std::string_view name) {
    const auto found =
        std::find_if(members.begin(), members.end(), [&](const ZipMember& m) { return m.name == name; });
    return found == members.end() ? nullptr : &*found;
}

}  // namespace

PytorchFile::PytorchFile(const std::string& path)
    : where("load_pytorch: " + path), file("load_pytorch", path) {
    const std::string begin = begin_of(file);
    if (begin.starts_with("PK")) {
        open_archive();
    } else if (begin.size() > 257 + 5 && begin.substr(257, 5) == "ustar") {
        fail(ErrorKind::io, where,
             ": it is a tar archive, as PyTorch 0.1 wrote; in Python read it with torch.load() and write it "
             "again with torch.save()");
    } else {
        refuse_other_kind(where, file, "\x80"sv, ".pt or .pth");
        check(begin.starts_with('\x80'), ErrorKind::io, where, ": torch.save() has not written it");
        open_plain();
    }
    check_keys(where, tree);
}

std::string PytorchFile::read_member(const ZipMember& member) const {
    check_packed_bytes(where + ": " + shown(member.name), member);
    ZipReader reader(where, file, member);
    std::string text(std::size_t(member.size), '\0');
    reader.read(text.data(), text.size());
    reader.finish();
    return text;
}

void PytorchFile::open_archive() {
    archive_ = true;
    std::vector<ZipMember> members = zip_members(where, file);
    const auto pickle = std::find_if(members.begin(), members.end(),
                                     [](const ZipMember& m) { return m.name.ends_with("/data.pkl"); });
    if (pickle == members.end()) {
        const std::string kind = file_kind(begin_of(file));
        const std::string missing = ": this archive has no member data.pkl, ";
        check(!kind.starts_with("a PyTorch file"), ErrorKind::io, where, missing,
              "as one of torch.save() that broke off");
        fail(ErrorKind::io, where, missing, "so torch.save() has not written it; it is ", kind);
    }
    const std::string folder = pickle->name.substr(0, pickle->name.size() - 8);
    check(find(members, folder + "constants.pkl") == nullptr, ErrorKind::io, where,
          ": it is a TorchScript archive of torch.jit.save(), with code; in Python save its weights with "
          "torch.save(torch.jit.load(path).state_dict(), new_path)");
    // torch.serialization.set_crc32_options(False) writes zeros.
    if (pickle->crc == 0)
        for (ZipMember& member : members) member.has_crc = false;
    if (const ZipMember* const order = find(members, folder + "byteorder")) {
        const std::string text = order->size <= 16 ? read_member(*order) : "";
        check(text == "little" || text == "big", ErrorKind::io, where, ": ", shown(order->name),
              " is neither little nor big");
        big_endian_ = text == "big";
    }
    PickleSource source(where + ": " + shown(pickle->name), read_member(*pickle));
    root = Unpickler(tree, source).load();
    find_members(members, folder);
}

void PytorchFile::find_members(const std::vector<ZipMember>& members, const std::string& folder) {
    std::unordered_map<std::string_view, const ZipMember*> by_name;
    for (const ZipMember& member : members)
        check(by_name.emplace(member.name, &member).second, ErrorKind::io, where, ": ", shown(member.name),
              " is there twice");
    std::unordered_map<std::uint32_t, std::uint32_t> by_key;
    for (PickleStorage& storage : tree.storages) {
        const auto [at, is_new] = by_key.try_emplace(storage.key, std::uint32_t(records_.size()));
        storage.record = at->second;
        if (is_new) {
            const std::string name = folder + "data/" + tree.text(storage.key);
            const auto found = by_name.find(name);
            check(found != by_name.end(), ErrorKind::io, where, ": the storage ", shown(name), " is missing");
            check_packed_bytes(where + ": " + shown(name), *found->second);
            records_.push_back({name, *found->second, 0, found->second->size});
        }
        const Record& record = records_[storage.record];
        check(storage.whole == record.bytes, ErrorKind::io, where, ": the storage ", shown(record.name),
              " has ", record.bytes, " bytes, the pickle says ", storage.whole);
    }
}

void PytorchFile::open_plain() {
    PickleSource source(where, file);
    const auto next = [&] { return Unpickler(tree, source).load(); };
    const PickleNode first = tree[next()];
    check(first.kind == PickleKind::big_integer && tree.texts[std::size_t(first.number)] == magic,
          ErrorKind::io, where, ": it is a Python pickle that torch.save() has not written");
    const PickleNode version = tree[next()];
    check(version.kind == PickleKind::integer && version.number == 1001, ErrorKind::io, where,
          ": it has another version of PyTorch's format than 1001");
    (void)next();  // sizes of C's types, of which the format does not depend
    root = next();
    const std::uint32_t keys = next();
    check(tree[keys].kind == PickleKind::list, ErrorKind::io, where, ": the names of storages are no list");
    std::unordered_map<std::uint32_t, const PickleStorage*> by_key;
    for (const PickleStorage& storage : tree.storages) by_key.try_emplace(storage.key, &storage);
    std::unordered_map<std::uint32_t, std::uint32_t> records;
    std::uint64_t at = source.position();
    for (const std::uint32_t key : tree.list(keys)) {
        const auto found = by_key.find(key);
        check(tree[key].kind == PickleKind::string && found != by_key.end(), ErrorKind::io, where,
              ": the list of storages has a name that no tensor has");
        const PickleStorage& storage = *found->second;
        const std::string name = "the storage " + shown(tree.text(key));
        check(file.size() - at >= 8, ErrorKind::io, where, ": the file ends before ", name);
        std::uint64_t elements = 0;
        file.read(at, &elements, 8);
        at += 8;
        check(elements == storage.whole / std::uint64_t(storage.type->bytes), ErrorKind::io, where, ": ",
              name, " at byte ", at, " has ", elements, " elements, the pickle says ",
              storage.whole / std::uint64_t(storage.type->bytes));
        check(storage.whole <= file.size() - at, ErrorKind::io, where, ": ", name, " at byte ", at, " has ",
              storage.whole, " bytes, ", file.size() - at, " are there");
        check(records.emplace(key, std::uint32_t(records_.size())).second, ErrorKind::io, where, ": ", name,
              " is there twice");
        records_.push_back({name, {}, at, storage.whole});
        at += storage.whole;
    }
    for (PickleStorage& storage : tree.storages) {
        const auto found = records.find(storage.key);
        check(found != records.end(), ErrorKind::io, where, ": the storage ", shown(tree.text(storage.key)),
              " is missing");
        storage.record = found->second;
        check(storage.whole == records_[storage.record].bytes, ErrorKind::io, where,
              ": the pickle has two sizes of ", records_[storage.record].name);
    }
}

Shape PytorchFile::shape_of(const PickleTensor& tensor) const {
    Shape shape;
    for (const std::uint32_t size : tree.list(tensor.sizes)) shape.push_back(tree[size].number);
    return shape;
}

void PytorchFile::read_record(const Record& record, void* to) const {
    if (!archive_) return file.read(record.begin, to, std::size_t(record.bytes));
    ZipReader reader(where, file, record.member);
    for (std::uint64_t done = 0; done < record.bytes; done += piece)
        reader.read(static_cast<char*>(to) + done,
                    std::size_t(std::min<std::uint64_t>(piece, record.bytes - done)));
    reader.finish();
}

Tensor PytorchFile::read_storage(const Record& record, const TorchType& type, const std::string& name) const {
    const auto size = std::uint64_t(type.bytes);
    check(record.bytes % size == 0, ErrorKind::io, where, ": ", name, ": ", record.name, " has ",
          record.bytes, " bytes, which are no whole elements of ", type.name);
    const Tensor result = empty({std::int64_t(record.bytes / size)}, {.dtype = *type.read});
    const Elements elements = elements_of(result);
    const bool swapped = big_endian_ && type.bytes > 1;
    if (type.widened == 0 && *type.read != boolean && !swapped) {
        read_record(record, elements.data);
        return result;
    }
    std::vector<char> raw(std::size_t(record.bytes));
    read_record(record, raw.data());
    if (swapped) swap_bytes(raw, type.bytes);
    if (type.widened != 0) {
        widen_integers(where + ": " + name, raw, type.widened == 'i', type.bytes, result);
    } else {
        char* const to = static_cast<char*>(elements.data);
        for (std::size_t i = 0; i < raw.size(); ++i) to[i] = *type.read == boolean ? raw[i] != 0 : raw[i];
    }
    return result;
}

Tensor PytorchFile::tensor(const PickleTensor& tensor, const std::string& name, Storages& storages) const {
    check(*tensor.unreadable == '\0', ErrorKind::dtype, where, ": ", name, " is ", tensor.unreadable,
          ", which mezzo does not have");
    const TorchType& type = *tensor.type;
    check(type.read.has_value(), ErrorKind::dtype, where, ": ", name, " is of dtype ", type.name,
          "; mezzo reads float16, bfloat16, float32, float64, float8, bool and integers");
    const Shape shape = shape_of(tensor);
    const PickleStorage& storage = tree.storages[tensor.storage];
    check(count_elements(shape, 8) >= 0, ErrorKind::shape, where, ": ", name, " has shape ", shape,
          ", of more elements than 64 bits count");
    const NoGrad plain;
    if (shape.numel() == 0) return empty(shape, {.dtype = *type.read});
    check(storage.first % std::uint64_t(type.bytes) == 0, ErrorKind::io, where, ": ", name,
          " begins within an element of its storage");
    Tensor& whole = storages[{storage.record, &type}];
    if (!whole.defined()) whole = read_storage(records_[storage.record], type, name);
    Strides strides = contiguous_strides(shape);
    for (int d = 0; d < shape.size(); ++d)
        if (shape[d] > 1) strides[d] = tree[tree.list(tensor.strides)[std::size_t(d)]].number;
    const std::int64_t offset = std::int64_t(storage.first) / type.bytes + tensor.offset;
    return make_tensor(whole->storage, shape, strides, offset, *type.read);
}

}  // namespace mezzo::io
