// What the metadata of a checkpoint say: step, metrics, parts, settings and the user's own entries.
#pragma once

#include <string>
#include <vector>

#include "mezzo/checkpoint.h"

namespace mezzo::training {

struct CheckpointHeader {
    CheckpointInfo info;
    std::vector<std::string> parts;
    io::Metadata settings;
};

// Throws Error(value) for what Checkpoint::save() refuses.
io::Metadata header_of(const CheckpointInfo& info, const std::vector<std::string>& parts,
                       const io::Metadata& settings);
// Entries of mezzo's own that are not those of a training are left out. Throws Error(io) where no training::Checkpoint
// has written them.
CheckpointHeader parse_header(const std::string& path, const io::Metadata& metadata);

}  // namespace mezzo::training
