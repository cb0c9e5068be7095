// Libraries of others that are opened when they are first needed, not linked: programs start without them.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace mezzo {

class SharedLibrary {
public:
    // Opens the first of these files for as long as the process lives. Throws Error(backend): `name` begins it, and after the reasons comes `hint`.
    // `needed` ends the error of a function that the library lacks.
    SharedLibrary(const char* name, const std::vector<std::string>& files, const std::string& hint,
                  const char* needed);
    // Error(backend) where the library has no such function.
    template <class F> void find(const char* symbol, F& function) const {
        function = reinterpret_cast<F>(address_of(symbol));
    }

private:
    void* address_of(const char* symbol) const;
    const char* name_;
    const char* needed_;
    void* handle_ = nullptr;
};

// The one table of its kind, from the first call that makes it without throwing; the calls before throw, each with the reason of its own. Not by
// the constructor of a static variable: a thread that waits for one which throws is never woken under ThreadSanitizer.
template <class Table> const Table& made_once(Table (*make)()) {
    static std::mutex mutex;
    static std::optional<Table> table;
    const std::lock_guard lock(mutex);
    if (!table) table = make();
    return *table;
}

}  // namespace mezzo
