// .npz: a zip archive of .npy files.
#include <unordered_set>

#include "io/elements.h"
#include "io/json.h"
#include "io/npy.h"
#include "io/zip.h"
#include "mezzo/error.h"
#include "mezzo/numpy.h"

namespace mezzo::io {

StateDict load_npz(const std::string& path) {
    const InputFile file("load_npz", path);
    const std::string where = "load_npz: " + path;
    StateDict result;
    std::unordered_set<std::string> names;
    for (const ZipMember& member : zip_members(where, file)) {
        std::string name = member.name;
        check(name.ends_with(".npy"), ErrorKind::io, where, ": ", shown(name), " is no .npy file");
        name.resize(name.size() - 4);
        check(names.insert(name).second, ErrorKind::io, where, ": ", shown(name), " is there twice");
        ZipReader reader(where, file, member);
        const std::string own = where + ": " + shown(member.name);
        const NpySource next = [&](void* to, std::size_t bytes) { reader.read(to, bytes); };
        const NpyHeader header = read_npy_header(own, next);
        // Before memory is taken: a small file must not claim a large one.
        check(member.size >= header.data_begin && member.size - header.data_begin == header.data_bytes,
              ErrorKind::io, own, ": the header promises ", header.data_bytes,
              " bytes of elements, the archive ", member.size - std::min(member.size, header.data_begin));
        // Deflate packs to a thousandth at best.
        check(member.method == 8 ? member.size / 1100 <= member.packed : member.size == member.packed,
              ErrorKind::io, own, ": ", member.packed, " packed bytes cannot hold ", member.size);
        Tensor tensor = read_npy_elements(own, header, next);
        reader.finish();
        result.emplace_back(std::move(name), std::move(tensor));
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
