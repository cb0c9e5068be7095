#include "distributed/gloo_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "mezzo/error.h"
#include "mezzo/version.h"

namespace mezzo::distributed {
namespace {

constexpr const char* file_name = "libmezzo_gloo.so";

// What MEZZO_GLOO names; else beside the library or program that holds this code, and where the system looks for libraries.
std::vector<std::string> candidates() {
    if (const char* const given = std::getenv("MEZZO_GLOO"); given != nullptr && *given != 0) return {given};
    std::vector<std::string> paths;
    Dl_info self;
    if (dladdr(reinterpret_cast<const void*>(&connect_gloo), &self) != 0 && self.dli_fname != nullptr) {
        const std::string own = self.dli_fname;
        if (const std::size_t slash = own.rfind('/'); slash != std::string::npos)
            paths.push_back(own.substr(0, slash + 1) + file_name);
    }
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
