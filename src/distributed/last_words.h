// What a rank says where its process ends and no destructor of its group runs.
#pragma once

namespace mezzo::distributed {

class Control;

// From now on std::exit() tells the others that this rank has left, and std::terminate() what it died of.
void speak_for(Control& control);
void speak_no_more_for(Control& control) noexcept;

}  // namespace mezzo::distributed
