// Defines both names of each call: programs are built with 64-bit offsets, the standard library is not.
#undef _FILE_OFFSET_BITS
#include <dirent.h>
#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstddef>

namespace {

long fail_at = 0, calls = 0;
int fail_code = 0;
bool fail_all = false, counting = false;

bool chosen() {
    if (!counting) return false;
    ++calls;
    return fail_at > 0 && (fail_all ? calls >= fail_at : calls == fail_at);
}

// Whether this call must fail; then sets errno.
bool fails() {
    if (!chosen() || fail_code == 0) return false;
    errno = fail_code;
    return true;
}

template <class F> F* real(F*, const char* name) { return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name)); }

}  // namespace

extern "C" {

void mezzo_test_fail(long n, int code, bool all) {
    fail_at = n;
    fail_code = code;
    fail_all = all;
    calls = 0;
    counting = n > 0;
}
long mezzo_test_calls() { return calls; }

#define MEZZO_OPEN(name, parameters, arguments)                               \
    int name(parameters const char* path, int flags, ...) {                   \
        va_list rest;                                                         \
        va_start(rest, flags);                                                \
        const auto mode = va_arg(rest, mode_t);                               \
        va_end(rest);                                                         \
        return fails() ? -1 : real(name, #name)(arguments path, flags, mode); \
    }
#define MEZZO_FOLDER_PARAMETER int folder,
#define MEZZO_FOLDER folder,
#define MEZZO_NONE
MEZZO_OPEN(open, MEZZO_NONE, MEZZO_NONE)
MEZZO_OPEN(open64, MEZZO_NONE, MEZZO_NONE)
MEZZO_OPEN(openat, MEZZO_FOLDER_PARAMETER, MEZZO_FOLDER)
MEZZO_OPEN(openat64, MEZZO_FOLDER_PARAMETER, MEZZO_FOLDER)
#undef MEZZO_OPEN

#define MEZZO_FAILING(Result, name, parameters, arguments, failed) \
    Result name parameters { return fails() ? failed : real(name, #name) arguments; }
MEZZO_FAILING(int, fsync, (int file), (file), -1)
MEZZO_FAILING(int, rename, (const char* from, const char* to) noexcept, (from, to), -1)
MEZZO_FAILING(int, ftruncate, (int file, off_t size) noexcept, (file, size), -1)
MEZZO_FAILING(int, ftruncate64, (int file, off64_t size) noexcept, (file, size), -1)
MEZZO_FAILING(int, flock, (int file, int what) noexcept, (file, what), -1)
MEZZO_FAILING(int, fchmod, (int file, mode_t mode) noexcept, (file, mode), -1)
MEZZO_FAILING(int, fstat, (int file, struct stat* to) noexcept, (file, to), -1)
MEZZO_FAILING(int, fstat64, (int file, struct stat64* to) noexcept, (file, to), -1)
MEZZO_FAILING(int, stat, (const char* path, struct stat* to) noexcept, (path, to), -1)
MEZZO_FAILING(int, stat64, (const char* path, struct stat64* to) noexcept, (path, to), -1)
MEZZO_FAILING(int, lstat, (const char* path, struct stat* to) noexcept, (path, to), -1)
MEZZO_FAILING(int, lstat64, (const char* path, struct stat64* to) noexcept, (path, to), -1)
MEZZO_FAILING(int, unlink, (const char* path) noexcept, (path), -1)
MEZZO_FAILING(int, unlinkat, (int folder, const char* path, int flags) noexcept, (folder, path, flags), -1)
MEZZO_FAILING(int, remove, (const char* path) noexcept, (path), -1)
MEZZO_FAILING(int, mkdir, (const char* path, mode_t mode) noexcept, (path, mode), -1)
MEZZO_FAILING(DIR*, opendir, (const char* path), (path), nullptr)
MEZZO_FAILING(DIR*, fdopendir, (int file), (file), nullptr)
MEZZO_FAILING(dirent*, readdir, (DIR * folder), (folder), nullptr)
#undef MEZZO_FAILING

#define MEZZO_TRANSFER(name, Data, parameters, rest)                              \
    ssize_t name(int file, Data data, std::size_t bytes parameters) {             \
        const bool now = chosen();                                                \
        if (now && fail_code != 0) {                                              \
            errno = fail_code;                                                    \
            return -1;                                                            \
        }                                                                         \
        return real(name, #name)(file, data, now ? (bytes + 1) / 2 : bytes rest); \
    }
#define MEZZO_AT , off_t at
#define MEZZO_THERE , at
MEZZO_TRANSFER(write, const void*, MEZZO_NONE, MEZZO_NONE)
MEZZO_TRANSFER(pwrite, const void*, MEZZO_AT, MEZZO_THERE)
MEZZO_TRANSFER(pread, void*, MEZZO_AT, MEZZO_THERE)
MEZZO_TRANSFER(pwrite64, const void*, MEZZO_AT, MEZZO_THERE)
MEZZO_TRANSFER(pread64, void*, MEZZO_AT, MEZZO_THERE)
#undef MEZZO_TRANSFER
}
