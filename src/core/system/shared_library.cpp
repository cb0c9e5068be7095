#include "core/system/shared_library.h"

#include <dlfcn.h>

#include "mezzo/error.h"

namespace mezzo {

namespace {

std::string reason_of_failure() {
    const char* const text = dlerror();
    return text != nullptr ? text : "no reason given";
}

}  // namespace

SharedLibrary::SharedLibrary(const char* name, const std::vector<std::string>& files, const std::string& hint,
                             const char* needed)
    : name_(name), needed_(needed) {
    std::string reasons;
    for (const std::string& file : files) {
        handle_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (handle_ != nullptr) return;
        reasons += (reasons.empty() ? "" : "; ") + reason_of_failure();
    }
    fail(ErrorKind::backend, name, " cannot be opened: ", reasons, "; ", hint);
}

void* SharedLibrary::address_of(const char* symbol) const {
    void* const address = dlsym(handle_, symbol);
    check(address != nullptr, ErrorKind::backend, name_, ": the library found has no ", symbol, "; ",
          needed_);
    return address;
}

}  // namespace mezzo
