#include "distributed/socket_calls.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace mezzo::distributed {

#ifdef SOCK_CLOEXEC
int open_stream_socket(int family) { return socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

int accept_connection(int listening) {
    return accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

int open_pipe(int (&ends)[2]) { return pipe2(ends, O_CLOEXEC | O_NONBLOCK); }
#else
namespace {

bool prepare(int descriptor) {
    const int flags = fcntl(descriptor, F_GETFL);
    return flags >= 0 && fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) == 0 &&
           fcntl(descriptor, F_SETFD, FD_CLOEXEC) == 0;
}

// Returns the same socket, or closes it and returns -1.
int prepared_socket(int descriptor) {
    if (descriptor < 0) return descriptor;
    if (!prepare(descriptor)) {
        const int reason = errno;
        close(descriptor);
        errno = reason;
        return -1;
    }
#ifdef SO_NOSIGPIPE
    const int on = 1;
    setsockopt(descriptor, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
    return descriptor;
}

}  // namespace

int open_stream_socket(int family) { return prepared_socket(socket(family, SOCK_STREAM, 0)); }

int accept_connection(int listening) { return prepared_socket(accept(listening, nullptr, nullptr)); }

int open_pipe(int (&ends)[2]) {
    if (pipe(ends) != 0) return -1;
    if (prepare(ends[0]) && prepare(ends[1])) return 0;
    const int reason = errno;
    for (const int end : ends) close(end);
    errno = reason;
    return -1;
}
#endif

}  // namespace mezzo::distributed
