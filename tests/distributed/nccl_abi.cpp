// Compares mezzo's declarations (cuda/nccl/nccl.h) with NCCL's header at compile time, if that header is
// installed.
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "cuda/nccl/nccl.h"

namespace {

using namespace mezzo::cuda::nccl;

enum class Passed { pointer, structure, number };
template <class T> constexpr Passed passed_as = std::is_pointer_v<T> ? Passed::pointer
                                                : std::is_class_v<T> ? Passed::structure
                                                                     : Passed::number;

// Whether two types are passed to functions alike.
template <class A, class B> constexpr bool alike = sizeof(A) == sizeof(B) && passed_as<A> == passed_as<B>;

template <class Ours, class Theirs> struct Same;
template <class R, class... P, class S, class... Q> struct Same<R (*)(P...), S (*)(Q...)> {
    static constexpr bool parameters() {
        if constexpr (sizeof...(P) == sizeof...(Q))
            return (alike<P, Q> && ...);
        else
            return false;
    }
    static constexpr bool value = alike<R, S> && parameters();
};

#define SAME(member, function) \
    static_assert(Same<decltype(Functions::member), decltype(&function)>::value, #function)
SAME(get_version, ncclGetVersion);
SAME(get_unique_id, ncclGetUniqueId);
SAME(init_rank, ncclCommInitRankConfig);
SAME(finalize, ncclCommFinalize);
SAME(destroy, ncclCommDestroy);
SAME(abort, ncclCommAbort);
SAME(async_error, ncclCommGetAsyncError);
SAME(error_string, ncclGetErrorString);
SAME(last_error, ncclGetLastError);
SAME(all_reduce, ncclAllReduce);
SAME(all_gather, ncclAllGather);
SAME(broadcast, ncclBroadcast);
SAME(send, ncclSend);
SAME(receive, ncclRecv);
SAME(group_start, ncclGroupStart);
SAME(group_end, ncclGroupEnd);

static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId));
static_assert(offsetof(Config, size) == offsetof(ncclConfig_t, size));
static_assert(offsetof(Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(Config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(sizeof(Config) <= sizeof(ncclConfig_t));
static_assert(oldest_version == NCCL_VERSION(2, 14, 0) && oldest_version <= NCCL_VERSION_CODE);

static_assert(int(success) == int(ncclSuccess) && int(invalid_usage) == int(ncclInvalidUsage) &&
              int(in_progress) == int(ncclInProgress));
static_assert(int(type_uint8) == int(ncclUint8) && int(type_int64) == int(ncclInt64) &&
              int(type_float32) == int(ncclFloat32) && int(type_float64) == int(ncclFloat64));
static_assert(int(reduce_sum) == int(ncclSum) && int(reduce_max) == int(ncclMax) &&
              int(reduce_min) == int(ncclMin) && int(reduce_average) == int(ncclAvg));

constexpr ncclConfig_t config_of_the_header = NCCL_CONFIG_INITIALIZER;
static_assert(config_of_the_header.magic == Config().magic);

}  // namespace
