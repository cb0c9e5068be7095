// Two pieces of work that do not depend on each other, on two branches of a captured step's graph.
#pragma once

#include "core/backend.h"

namespace mezzo {

class MemoryHook;

//     Branch side(device, independent);
//     dx = ...;  side.enter();  // on the main branch
//     dw = ...;  side.join();   // on the second one, beside dx; what follows comes after both
// There are two branches only in a step that is captured with CaptureOptions::parallel_branches, and in the
// warm-up run that plans its memory. Anywhere else, inside another Branch, and if not `independent`, the work
// runs in the order in which it is asked for. Neither piece may write what the other one reads or writes.
// Memory that either of them releases is not reused before join(). The destructor joins, too.
class [[nodiscard]] Branch {
public:
    [[nodiscard]] explicit Branch(Device device, bool independent = true);
    ~Branch();
    Branch(const Branch&) = delete;
    Branch& operator=(const Branch&) = delete;
    void enter();
    void join();

private:
    const Device device_;
    MemoryHook* hook_ = nullptr;  // null: no second branch, or joined
    const Backend* backend_ = nullptr;
    bool entered_ = false;
};

}  // namespace mezzo
