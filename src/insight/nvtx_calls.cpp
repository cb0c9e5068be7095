// The only file that includes NVTX. NVTX's header finds the attached tool, if there is one, at its first use.
#include "insight/nvtx_calls.h"

#include "mezzo/insight/nvtx.h"

#ifdef MEZZO_HAVE_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace mezzo::insight {

#ifdef MEZZO_HAVE_NVTX

namespace {

nvtxDomainHandle_t domain() {
    static const nvtxDomainHandle_t own = nvtxDomainCreateA("mezzo");
    return own;
}

}  // namespace

bool nvtx_available() noexcept { return true; }

void nvtx_push(const char* name) noexcept {
    nvtxEventAttributes_t range{};
    range.version = NVTX_VERSION;
    range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    range.messageType = NVTX_MESSAGE_TYPE_ASCII;
    range.message.ascii = name;
    nvtxDomainRangePushEx(domain(), &range);
}
void nvtx_pop() noexcept { nvtxDomainRangePop(domain()); }

#else

bool nvtx_available() noexcept { return false; }
void nvtx_push(const char*) noexcept {}
void nvtx_pop() noexcept {}

#endif

}  // namespace mezzo::insight
