// Reports this rank's exit reason to the store from terminate() and exit() handlers, if no destructor of its
// group runs.
#pragma once

namespace mezzo::distributed {

class Control;

// Registers the rank's connection: from now on std::exit() reports that this rank has left, and
// std::terminate() reports its exception.
void speak_for(Control& control);
void speak_no_more_for(Control& control) noexcept;

}  // namespace mezzo::distributed
