// The metadata of a checkpoint: step, metrics, parts, settings and the user's own entries.
#pragma once

#include <string>
#include <vector>

#include "mezzo/train/checkpoint.h"

namespace mezzo::training {

struct CheckpointHeader {
    CheckpointInfo info;
    std::vector<std::string> parts;
    io::Metadata settings;
};

// Returns the metadata. Throws Error(value) for values that Checkpoint::save() refuses.
io::Metadata header_of(const CheckpointInfo& info, const std::vector<std::string>& parts,
                       const io::Metadata& settings);
// Parses the metadata. mezzo's own entries that do not belong to a training are dropped. Throws Error(io) if
// the file was not written by training::Checkpoint.
CheckpointHeader parse_header(const std::string& path, const io::Metadata& metadata);

}  // namespace mezzo::training
