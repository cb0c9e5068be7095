// Shared libraries that are opened at first use, not linked, so that programs start without them.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace mezzo {

class SharedLibrary {
public:
    // Opens the first of these files that can be opened, until the process ends. Otherwise throws
    // Error(backend), with `name`, the reasons and `hint`. `needed` ends the error message of a missing
    // function.
    SharedLibrary(const char* name, const std::vector<std::string>& files, const std::string& hint,
                  const char* needed);
    // Throws Error(backend) if the library has no such function.
    template <class F> void find(const char* symbol, F& function) const {
        function = reinterpret_cast<F>(address_of(symbol));
    }

private:
    void* address_of(const char* symbol) const;
    const char* name_;
    const char* needed_;
    void* handle_ = nullptr;
};

// Returns the only table of its type, made by the first call that does not throw; each call before throws its
// own reason. It is no static variable with a constructor: under ThreadSanitizer, a thread that waits for a
// constructor which throws is never woken.
template <class Table> const Table& made_once(Table (*make)()) {
    static std::mutex mutex;
    static std::optional<Table> table;
    const std::lock_guard lock(mutex);
    if (!table) table = make();
    return *table;
}

}  // namespace mezzo
