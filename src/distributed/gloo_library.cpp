#include "distributed/gloo_library.h"

#include <dlfcn.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "mezzo/error.h"
#include "mezzo/version.h"

namespace mezzo::distributed {
namespace {

constexpr const char* file_name = "libmezzo_gloo.so";

// Absolute path of the library or program that holds this code; "" if unknown. In a program dladdr() returns
// argv[0], which is a name relative to the folder of the start, or any text: the kernel's list of mappings is
// right also after chdir().
std::string own_path() {
    const auto own = reinterpret_cast<std::uintptr_t>(&connect_gloo);
    std::ifstream maps("/proc/self/maps");
    const bool listed = bool(maps);
    for (std::string line; std::getline(maps, line);) {  // "begin-end rights offset device inode   path"
        std::uintptr_t begin = 0, end = 0;
        const std::size_t path = line.find('/');
        if (path != line.npos && std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR, &begin, &end) == 2 &&
            begin <= own && own < end)
            return line.substr(path);
    }
    Dl_info self;
    const bool known = !listed && dladdr(reinterpret_cast<const void*>(&connect_gloo), &self) != 0 &&
                       self.dli_fname != nullptr && self.dli_fname[0] == '/';
    return known ? self.dli_fname : "";
}

// Paths to try: the one in MEZZO_GLOO, if set; otherwise the folder of the library or program that holds this
// code, then the system's library path.
std::vector<std::string> candidates() {
    if (const char* const given = std::getenv("MEZZO_GLOO"); given != nullptr && *given != 0) return {given};
    std::vector<std::string> paths;
    const std::string own = own_path();
    if (const std::size_t slash = own.rfind('/'); slash != std::string::npos)
        paths.push_back(own.substr(0, slash + 1) + file_name);
    paths.emplace_back(file_name);
    return paths;
}

void* open_module() {
    std::string reasons;
    for (const std::string& path : candidates()) {
        if (void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) return module;
        const char* const reason = dlerror();
        reasons += std::string(reasons.empty() ? "" : "; ") + (reason != nullptr ? reason : path);
    }
    fail(ErrorKind::backend, "init: several ranks need mezzo's Gloo module: ", reasons,
         "; build mezzo with libgloo-dev installed, or set MEZZO_GLOO to the path of ", file_name);
}

}  // namespace

std::string gloo_absence() {
    try {
        open_module();
        return {};
    } catch (const Error& error) {
        return error.what();
    }
}

std::unique_ptr<Collectives> connect_gloo(KeyValues& store, const GlooOptions& options) {
    void* const module = open_module();
    const auto* const built = static_cast<const char*>(dlsym(module, "mezzo_gloo_version"));
    check(built != nullptr && std::strcmp(built, version()) == 0, ErrorKind::backend,
          "init: the Gloo module is of mezzo ", built != nullptr ? built : "?", ", this is ", version(),
          "; install both from one build");
    auto* const connect = reinterpret_cast<ConnectGloo*>(dlsym(module, "mezzo_gloo_connect"));
    check(connect != nullptr, ErrorKind::backend, "init: the Gloo module lacks a function");
    return std::unique_ptr<Collectives>(connect(store, options));
}

}  // namespace mezzo::distributed
