// Options of the samples that train with a Trainer.
#pragma once

#include <string>

#include "mezzo/optim.h"
#include "mezzo/train/trainer.h"
#include "program.h"

namespace program {

// The Trainer's precision for --precision.
inline mezzo::training::Precision trainer_precision(const std::string& precision) {
    using mezzo::training::Precision;
    if (precision == "fp16") return Precision::float16;
    if (precision == "fp8") return Precision::fp8;
    return precision == "bf16" ? Precision::bfloat16 : Precision::float32;
}

inline CLI::Option* add_states(CLI::App& app, std::string& states) {
    return app
        .add_option("--states", states,
                    "moments of AdamW: fp32; bf16; 8bit: the first in 8 bits, the second in bf16")
        ->check(CLI::IsMember({"fp32", "bf16", "8bit"}));
}
// AdamWOptions::states for --states.
inline mezzo::optim::StatePrecision state_precision(const std::string& states) {
    using mezzo::optim::StatePrecision;
    if (states == "8bit") return StatePrecision::eight_bit;
    return states == "bf16" ? StatePrecision::bf16 : StatePrecision::fp32;
}

}  // namespace program
