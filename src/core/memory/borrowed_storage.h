// Storages on memory that another library owns.
#pragma once

#include "core/internal.h"
#include "core/memory/storage.h"

namespace mezzo {

// Makes a storage on memory of another owner. give_back(lender) is called once, after the last reference to
// the storage is dropped.
MEZZO_INTERNAL Ref<Storage> borrowed_storage(void* data, std::size_t bytes, Device device,
                                             void (*give_back)(void*), void* lender);

}  // namespace mezzo
