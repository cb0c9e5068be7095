// A file of torch.save(): its pickle as a tree, and its storages.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "interchange/pickle.h"
#include "interchange/zip.h"
#include "io/file.h"
#include "mezzo/shared.h"
#include "mezzo/tensor.h"

namespace mezzo::io {

struct PytorchFile : mezzo::detail::SharedObject {
    explicit PytorchFile(const std::string& path);

    // Whole storages as 1-dim tensors, by record and dtype.
    using Storages = std::map<std::pair<std::uint32_t, const TorchType*>, Tensor>;
    // Reads a tensor: a view of its storage, which `storages` has or gets. Error messages contain `name`.
    Tensor tensor(const PickleTensor& tensor, const std::string& name, Storages& storages) const;
    Shape shape_of(const PickleTensor& tensor) const;

    std::string where;  // "load_pytorch: PATH"
    InputFile file;
    PickleTree tree;
    std::uint32_t root = 0;

private:
    // The bytes of a storage: a member of an archive, or a part of the file.
    struct Record {
        std::string name;
        ZipMember member;
        std::uint64_t begin = 0, bytes = 0;
    };
    void open_archive();
    void open_plain();
    void find_members(const std::vector<ZipMember>& members, const std::string& folder);
    std::string read_member(const ZipMember& member) const;
    void read_record(const Record& record, void* to) const;
    Tensor read_storage(const Record& record, const TorchType& type, const std::string& name) const;

    bool archive_ = false, big_endian_ = false;
    std::vector<Record> records_;
};

}  // namespace mezzo::io
