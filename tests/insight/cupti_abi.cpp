// Checks at compile time that the records of cuda/runtime/cupti.h begin as those of CUPTI's own header, which
// comes with the toolkit. Never run.
#include <cupti.h>

#include <type_traits>

#include "cuda/runtime/cupti.h"

namespace own = mezzo::cuda::cupti;

#define SAME_PLACE(Own, own_field, Theirs, their_field)                            \
    static_assert(offsetof(own::Own, own_field) == offsetof(Theirs, their_field)); \
    static_assert(sizeof(own::Own::own_field) == sizeof(Theirs::their_field))

#define SAME_KERNEL(Theirs)                                 \
    SAME_PLACE(Kernel, kind, Theirs, kind);                 \
    SAME_PLACE(Kernel, start, Theirs, start);               \
    SAME_PLACE(Kernel, end, Theirs, end);                   \
    SAME_PLACE(Kernel, device, Theirs, deviceId);           \
    SAME_PLACE(Kernel, stream, Theirs, streamId);           \
    SAME_PLACE(Kernel, correlation, Theirs, correlationId); \
    SAME_PLACE(Kernel, name, Theirs, name)
#define SAME_COPY(Own, Theirs)                 \
    SAME_PLACE(Own, kind, Theirs, kind);       \
    SAME_PLACE(Own, bytes, Theirs, bytes);     \
    SAME_PLACE(Own, start, Theirs, start);     \
    SAME_PLACE(Own, end, Theirs, end);         \
    SAME_PLACE(Own, device, Theirs, deviceId); \
    SAME_PLACE(Own, stream, Theirs, streamId); \
    SAME_PLACE(Own, correlation, Theirs, correlationId)

SAME_KERNEL(CUpti_ActivityKernel4);
SAME_KERNEL(CUpti_ActivityKernel9);
SAME_COPY(Memcpy, CUpti_ActivityMemcpy);
SAME_COPY(Memcpy, CUpti_ActivityMemcpy5);
SAME_PLACE(Memcpy, copy_kind, CUpti_ActivityMemcpy5, copyKind);
SAME_COPY(Memset, CUpti_ActivityMemset);
SAME_COPY(Memset, CUpti_ActivityMemset4);
SAME_PLACE(ExternalCorrelation, kind, CUpti_ActivityExternalCorrelation, kind);
SAME_PLACE(ExternalCorrelation, external_kind, CUpti_ActivityExternalCorrelation, externalKind);
SAME_PLACE(ExternalCorrelation, external_id, CUpti_ActivityExternalCorrelation, externalId);
SAME_PLACE(ExternalCorrelation, correlation, CUpti_ActivityExternalCorrelation, correlationId);

static_assert(own::success == int(CUPTI_SUCCESS));
static_assert(own::kind_memcpy == int(CUPTI_ACTIVITY_KIND_MEMCPY));
static_assert(own::kind_memset == int(CUPTI_ACTIVITY_KIND_MEMSET));
static_assert(own::kind_kernel == int(CUPTI_ACTIVITY_KIND_KERNEL));
static_assert(own::kind_driver == int(CUPTI_ACTIVITY_KIND_DRIVER));
static_assert(own::kind_runtime == int(CUPTI_ACTIVITY_KIND_RUNTIME));
static_assert(own::kind_concurrent_kernel == int(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
static_assert(own::kind_external_correlation == int(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION));
static_assert(own::external_custom0 == int(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0));
static_assert(own::copy_to_device == int(CUPTI_ACTIVITY_MEMCPY_KIND_HTOD));
static_assert(own::copy_to_host == int(CUPTI_ACTIVITY_MEMCPY_KIND_DTOH));
static_assert(own::flush_forced == int(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED));

// Checks that a function of the library can be called as the table declares it: enumerations are passed as
// int, contexts as void*.
template <class T> struct AsPassed { using Type = T; };
template <class T>
requires std::is_enum_v<T>
struct AsPassed<T> {
    using Type = int;
    static_assert(sizeof(T) == sizeof(int));
};
template <> struct AsPassed<CUcontext> { using Type = void*; };
template <> struct AsPassed<CUpti_Activity**> { using Type = own::Activity**; };
template <> struct AsPassed<CUpti_BuffersCallbackRequestFunc> { using Type = own::GiveBuffer; };
template <> struct AsPassed<CUpti_BuffersCallbackCompleteFunc> { using Type = own::TakeBuffer; };
template <class R, class... P> auto passed(R (*)(P...)) ->
    typename AsPassed<R>::Type (*)(typename AsPassed<P>::Type...);

#define SAME_CALL(field, function) \
    static_assert(std::is_same_v<decltype(own::Functions::field), decltype(passed(&function))>)
SAME_CALL(register_callbacks, cuptiActivityRegisterCallbacks);
SAME_CALL(enable, cuptiActivityEnable);
SAME_CALL(disable, cuptiActivityDisable);
SAME_CALL(flush, cuptiActivityFlushAll);
SAME_CALL(next_record, cuptiActivityGetNextRecord);
SAME_CALL(dropped, cuptiActivityGetNumDroppedRecords);
SAME_CALL(timestamp, cuptiGetTimestamp);
SAME_CALL(push, cuptiActivityPushExternalCorrelationId);
SAME_CALL(pop, cuptiActivityPopExternalCorrelationId);
SAME_CALL(result_text, cuptiGetResultString);
static_assert(std::is_same_v<decltype(passed(CUpti_BuffersCallbackRequestFunc())), own::GiveBuffer>);
static_assert(std::is_same_v<decltype(passed(CUpti_BuffersCallbackCompleteFunc())), own::TakeBuffer>);
