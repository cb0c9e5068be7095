// Memory of other libraries as a storage.
#pragma once

#include "core/storage.h"

namespace mezzo {

// A storage on memory that somebody else owns. give_back(lender) is called once, when the last reference is gone.
Ref<Storage> borrowed_storage(void* data, std::size_t bytes, Device device, void (*give_back)(void*),
                              void* lender);

}  // namespace mezzo
