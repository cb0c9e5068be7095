#include "autograd/attributes.h"

#include <cstring>

namespace mezzo {

void Attributes::set(const AttributesRef& from) {
    clear();
    const std::size_t size = from.type->size;
    std::byte* const outside = size > room ? new std::byte[size] : nullptr;
    std::byte* const to = outside != nullptr ? outside : inside_;
    try {
        if (from.type->copy != nullptr)
            from.type->copy(to, from.value);
        else if (size > 0)
            std::memcpy(to, from.value, size);
    } catch (...) {
        delete[] outside;
        throw;
    }
    if (outside != nullptr) outside_ = outside;
    type_ = from.type;
}

void Attributes::clear() noexcept {
    std::byte* const stored = type_->size <= room ? inside_ : outside_;
    if (type_->destroy != nullptr) type_->destroy(stored);
    if (type_->size > room) delete[] outside_;
    type_ = &attributes_type<NoAttributes>;
}

}  // namespace mezzo
