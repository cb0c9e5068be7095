// Makes the system's headers look like those of a Unix that is not Linux: names that POSIX does not have are
// hidden, and a source that uses such a name does not compile. portable_sources_test.py includes it in front
// of every source that uses the system.
#pragma once

// Hides enumerators and macros, so that #ifdef does not see them.
#define SOCK_CLOEXEC hidden_SOCK_CLOEXEC
#define SOCK_NONBLOCK hidden_SOCK_NONBLOCK
#define MSG_NOSIGNAL hidden_MSG_NOSIGNAL
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#undef SOCK_CLOEXEC
#undef SOCK_NONBLOCK
#undef MSG_NOSIGNAL
#undef TCP_USER_TIMEOUT
#undef TCP_KEEPIDLE
#undef MADV_HUGEPAGE
#undef MAP_POPULATE
#undef MAP_HUGETLB
#define TCP_KEEPALIVE 4  // macOS' name for TCP_KEEPIDLE

// These headers declare the names that are forbidden from here on.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>  // waits by syscall()

#pragma GCC poison accept4 pipe2 gettid sched_getaffinity sched_setaffinity cpu_set_t syscall memfd_create
#pragma GCC poison fallocate posix_fallocate posix_fadvise sync_file_range renameat2 copy_file_range mremap
#pragma GCC poison dlmopen dladdr1 dlinfo dl_iterate_phdr secure_getenv program_invocation_name
#pragma GCC poison pthread_setaffinity_np pthread_getaffinity_np pthread_setname_np pthread_getname_np
#undef O_TMPFILE
#undef O_PATH
#undef POLLRDHUP
#pragma GCC poison ppoll dup3 execvpe strchrnul mempcpy
