// Command line, files and autocast settings of bert_parity, gpt_parity and resnet_parity:
//
//     parity::Settings s;
//     return parity::run_program("bert_parity", "Writes ...", s, argc, argv,
//                                [&](CLI::App& app) { app.add_option(...); }, [&] { compare(s); });
#pragma once

#include <mezzo/mezzo.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "samples/program.h"

namespace parity {

namespace mz = mezzo;

struct Settings {
    std::string folder, precision = "fp32", device_name = "cpu";
    mz::Device device;
    int threads = mz::num_threads();

    mz::amp::AutocastOptions autocast() const {
        return {.dtype = precision == "bf16" ? mz::bfloat16 : mz::float16,
                .enabled = precision == "bf16" || precision == "fp16"};
    }
    std::string path(const std::string& name) const { return folder + "/" + name; }
};

// Parses the command line, to which add_options(app) adds the program's own options, and calls body().
// Returns the exit code of the program.
template <class AddOptions, class Body> int run_program(const char* name, const char* description,
                                                        Settings& s, int argc, char** argv,
                                                        const AddOptions& add_options, const Body& body) {
    return program::run(name, [&] {
        CLI::App app{description};
        app.option_defaults()->always_capture_default();
        app.add_option("folder", s.folder, "where the files are")->required()->check(CLI::ExistingDirectory);
        add_options(app);
        program::add_threads(app, s.threads);
        if (const int code = program::parse(app, argc, argv); code >= 0) return code;
        program::require_writable("folder", s.folder);
        s.device = mz::parse_device(s.device_name.c_str());
        mz::set_num_threads(s.threads);
        body();
        return 0;
    });
}

inline void write_text(const std::string& path, const std::string& text) {
    std::ofstream file(path);
    file << text;
    file.close();
    if (!file) throw std::runtime_error("cannot write " + path);
}

// Loads the folder's weights into the module and returns its batches. The first run in a folder makes both:
// it adds noise to biases and norms, whose neutral values would hide mistakes in their use, and calls
// make_batches().
template <class MakeBatches>
mz::StateDict weights_and_batches(const Settings& s, mz::nn::Module& net, const MakeBatches& make_batches) {
    const std::string weights = s.path("weights.safetensors"), batches = s.path("batches.safetensors");
    if (!std::filesystem::exists(batches)) {
        const mz::NoGrad no_grad;
        for (const mz::Tensor& p : net.parameters())
            if (p.dim() == 1) p.add_(mz::randn(p.shape()), 0.05);
        mz::io::save_safetensors(weights, net.state_dict());
        mz::io::save_safetensors(batches, make_batches());
    }
    mz::io::load_weights(net, mz::io::load_state_dict_file(weights), {.strict = true});
    return mz::io::load_state_dict_file(batches);
}

// Returns a tensor of batches.safetensors.
inline const mz::Tensor& entry(const mz::StateDict& batches, const std::string& wanted) {
    for (const auto& [name, value] : batches)
        if (name == wanted) return value;
    throw std::runtime_error("batches.safetensors has no " + wanted);
}

}  // namespace parity
