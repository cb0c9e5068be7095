// Guard against modules that contain themselves.
#pragma once

#include "mezzo/module.h"

namespace mezzo::nn {

// Marks a child as being visited by a visitor on this thread. The constructor throws Error(value) if this
// visitor is inside of the same module already, because the recursion would not end. Visitors that are made
// anew for each level pass the address of an object that all levels share.
class [[nodiscard]] Visiting {
public:
    Visiting(const void* visitor, const Module& module);
    ~Visiting() { innermost = outer_; }
    Visiting(const Visiting&) = delete;
    Visiting& operator=(const Visiting&) = delete;

private:
    static thread_local const Visiting* innermost;
    const void* visitor_;
    const Module* module_;
    const Visiting* outer_;
};

}  // namespace mezzo::nn
