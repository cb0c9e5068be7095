// Cells as a file gives them, and the kind of column that they are.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "mezzo/table.h"

namespace mezzo::data {

struct Cells {
    std::string name;
    std::vector<std::string_view> values = {};  // empty: nothing was given
    bool text = false;                          // whatever they look like
};

// Integer if every cell is one; real if every cell is a number or empty, and one is not; else text.
Column infer_column(Cells cells);

}  // namespace mezzo::data
