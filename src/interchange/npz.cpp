// Reads and writes .npz files: zip archives of .npy files.
#include <algorithm>
#include <unordered_set>

#include "core/system/file_kind.h"
#include "interchange/npy.h"
#include "interchange/zip.h"
#include "io/elements.h"
#include "io/json.h"
#include "mezzo/error.h"
#include "mezzo/interchange/numpy.h"

namespace mezzo::io {

struct NpzFile::Impl {
    explicit Impl(const char* op, const std::string& path)
        : where(std::string(op) + ": " + path), file(op, path) {
        refuse_other_kind(where, file, "PK", ".npz");
        std::unordered_set<std::string_view> names;
        members = zip_members(where, file);
        for (const ZipMember& member : members) {
            check(!member.name.ends_with("/data.pkl"), ErrorKind::io, where, ": this is no .npz file: it is ",
                  file_kind("PK\3\4/data.pkl"));
            check(names.insert(member.name).second, ErrorKind::io, where, ": ", shown(member.name),
                  " is there twice");
        }
    }
    const ZipMember* find(std::string_view name) const {
        const std::string full = std::string(name) + ".npy";
        const auto found =
            std::find_if(members.begin(), members.end(), [&](const ZipMember& m) { return m.name == full; });
        return found == members.end() ? nullptr : &*found;
    }
    Tensor read(const ZipMember& member) const;

    std::string where;  // "load_npz: PATH"
    InputFile file;
    std::vector<ZipMember> members;
};

Tensor NpzFile::Impl::read(const ZipMember& member) const {
    ZipReader reader(where, file, member);
    const std::string own = where + ": " + shown(member.name);
    const NpySource next = [&](void* to, std::size_t bytes) { reader.read(to, bytes); };
    const NpyHeader header = read_npy_header(own, next);
    // Checked before memory is allocated: a small file must not claim a large one.
    check(member.size >= header.data_begin && member.size - header.data_begin == header.data_bytes,
          ErrorKind::io, own, ": the header promises ", header.data_bytes, " bytes of elements, the archive ",
          member.size - std::min(member.size, header.data_begin));
    check_packed_bytes(own, member);
    Tensor tensor = read_npy_elements(own, header, next);
    reader.finish();
    return tensor;
}

NpzFile::NpzFile(const std::string& path) : impl_(new Impl("NpzFile", path)) {}
NpzFile::~NpzFile() { delete impl_; }

std::vector<std::string> NpzFile::names() const {
    std::vector<std::string> result;
    for (const ZipMember& member : impl_->members)
        if (member.name.ends_with(".npy")) result.push_back(member.name.substr(0, member.name.size() - 4));
    return result;
}

bool NpzFile::contains(std::string_view name) const { return impl_->find(name) != nullptr; }

Tensor NpzFile::tensor(std::string_view name) const {
    const ZipMember* const member = impl_->find(name);
    if (member == nullptr)
        fail(ErrorKind::value, impl_->where, ": no array ", shown(name), " among ", names().size());
    return impl_->read(*member);
}

StateDict load_npz(const std::string& path) {
    const NpzFile::Impl archive("load_npz", path);
    StateDict result;
    for (const ZipMember& member : archive.members) {
        check(member.name.ends_with(".npy"), ErrorKind::io, archive.where, ": ", shown(member.name),
              " is no .npy file; NpzFile reads the other members");
        result.emplace_back(member.name.substr(0, member.name.size() - 4), archive.read(member));
    }
    return result;
}

void save_npz(const std::string& path, const StateDict& tensors, const NpzOptions& options) {
    std::unordered_set<std::string_view> names;
    for (const auto& [name, tensor] : tensors) {
        check(!name.empty() && name.size() < 60000 && first_invalid_utf8(name) == name.size() &&
                  names.insert(name).second,
              ErrorKind::value, "save_npz: the name ", shown(name),
              " is empty, too long, there twice or not valid UTF-8");
        check(tensor.defined(), ErrorKind::value, "save_npz: ", shown(name), " is undefined");
    }
    ZipWriter archive("save_npz", path, options.compressed);
    for (const auto& [name, tensor] : tensors) {
        const Tensor own = npy_tensor("save_npz", tensor);
        const Elements elements = elements_of(own);
        const std::string header = npy_header(own);
        archive.begin(name + ".npy");
        archive.write(header.data(), header.size());
        archive.write(elements.data, elements.bytes);
        archive.end();
    }
    archive.commit();
}

}  // namespace mezzo::io
