// Options that the samples with checkpoints and ranks share: device, threads and resumption. `Options` is the
// sample's own struct, with members of these names.
#pragma once

#include <string>

#include <mezzo/mezzo.h>

#include "program.h"

namespace training {

template <class Options> void add_resume(CLI::App& app, Options& o) {
    app.add_flag("--resume", o.resume,
                 "go on from --checkpoint if the file is there; what shapes the training must be as it was");
}
// Throws CLI::ValidationError if --resume is given without --checkpoint.
template <class Options> void check_resume(const Options& o) {
    if (o.resume && o.checkpoint.empty()) throw CLI::ValidationError("--resume", "needs --checkpoint FILE");
}

// Adds --device and --threads and parses the command line. Returns -1 to continue, or the exit code, as
// program::parse(). Without these options the device is the rank's, and `threads` stays as it is.
template <class Options> int parse_with_place(CLI::App& app, int argc, char** argv, Options& o) {
    std::string device;
    int threads = mezzo::num_threads();
    program::add_device(app, device);
    program::add_threads(app, threads);
    if (const int code = program::parse(app, argc, argv); code >= 0) return code;
    if (!device.empty()) o.device = mezzo::parse_device(device.c_str());
    o.device_given = !device.empty();
    if (app.count("--threads") > 0) o.threads = threads;
    return -1;
}

}  // namespace training
