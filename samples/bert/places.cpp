#include "bert/places.h"

#include <filesystem>

#include "bert/setup.h"
#include "program.h"
#include "training/places.h"

namespace fs = std::filesystem;

namespace bert {

using training::check_replaceable, training::refuse, training::try_partial;

namespace {

void check_save(const std::string& folder) {
    std::error_code error;
    if (fs::exists(folder, error) && !fs::is_directory(folder, error))
        refuse("--save", folder, "is no folder; model.safetensors and other files are to go into one");
    fs::create_directories(folder, error);
    if (error) refuse("--save", folder, "cannot be made: " + error.message());
    for (const char* const name : model_files) check_replaceable("--save", fs::path(folder) / name);
    try_partial("--save", fs::path(folder) / model_files[0]);
}

}  // namespace

void check_places(const Options& options) {
    if (!options.save.empty()) check_save(options.save);
    if (!options.checkpoint.empty()) training::check_file("--checkpoint", options.checkpoint);
    if (options.resume && fs::exists(options.checkpoint)) mezzo::io::SafeTensors header(options.checkpoint);
    if (!options.model_config.empty()) static_cast<void>(mezzo::io::load_bert_config(options.model_config));
    if (!options.profile.empty()) training::check_file("--profile", options.profile);
    if (!options.trace.empty()) program::require_writable("--trace", options.trace);
}

}  // namespace bert
