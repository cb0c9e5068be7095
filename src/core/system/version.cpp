#include "mezzo/version.h"

#define MEZZO_TEXT_OF(number) #number
#define MEZZO_TEXT(number) MEZZO_TEXT_OF(number)

namespace mezzo {

const char* version() noexcept {
    return MEZZO_TEXT(MEZZO_VERSION_MAJOR) "." MEZZO_TEXT(MEZZO_VERSION_MINOR) "." MEZZO_TEXT(
        MEZZO_VERSION_PATCH);
}

}  // namespace mezzo
