// Opens CUPTI when a profile with device times first begins, because most programs need none of its
// functions.
#include <cstdlib>
#include <string>
#include <vector>

#include "core/system/shared_library.h"
#include "cuda/runtime/cupti.h"
#include "mezzo/error.h"

namespace mezzo::cuda::cupti {
namespace {

std::vector<std::string> usual_names() { return {"libcupti.so.13", "libcupti.so.12"}; }

// Candidates for a path that names the library, or a folder with the library.
std::vector<std::string> names_in(const std::string& asked_for) {
    std::vector<std::string> names{asked_for};
    for (const std::string& name : usual_names()) names.push_back(asked_for + "/" + name);
    return names;
}

SharedLibrary open_library() {
    const char* const asked_for = std::getenv("MEZZO_CUPTI");
    const bool named = asked_for != nullptr && *asked_for != 0;
    check(!named || std::string(asked_for) != "off", ErrorKind::backend,
          "CUPTI: it is switched off by MEZZO_CUPTI=off");
    return {"CUPTI", named ? names_in(asked_for) : usual_names(),
            "set MEZZO_CUPTI to the path of libcupti.so.13 or libcupti.so.12",
            "mezzo needs that of CUDA 12 or newer"};
}

Functions find_all() {
    const SharedLibrary library = open_library();
    Functions f{};
    library.find("cuptiActivityRegisterCallbacks", f.register_callbacks);
    library.find("cuptiActivityEnable", f.enable);
    library.find("cuptiActivityDisable", f.disable);
    library.find("cuptiActivityFlushAll", f.flush);
    library.find("cuptiActivityGetNextRecord", f.next_record);
    library.find("cuptiActivityGetNumDroppedRecords", f.dropped);
    library.find("cuptiGetTimestamp", f.timestamp);
    library.find("cuptiActivityPushExternalCorrelationId", f.push);
    library.find("cuptiActivityPopExternalCorrelationId", f.pop);
    library.find("cuptiGetResultString", f.result_text);
    return f;
}

}  // namespace

const Functions& functions() { return made_once(find_all); }

}  // namespace mezzo::cuda::cupti
