// The system's calls for sockets and pipes that processes started later do not inherit, that do not block, and that raise no SIGPIPE: where
// the system has it (Linux, the BSDs) in the call that makes them, elsewhere (macOS) right after it.
#pragma once

#include <sys/socket.h>

namespace mezzo::distributed {

// As socket() for TCP, accept() and pipe() they return -1 and set errno where they fail.
int open_stream_socket(int family);
int accept_connection(int listening);
int open_pipe(int (&ends)[2]);

// For send() to a socket of these.
#ifdef MSG_NOSIGNAL
inline constexpr int no_signal = MSG_NOSIGNAL;
#else
inline constexpr int no_signal = 0;  // the socket itself has SO_NOSIGPIPE
#endif

}  // namespace mezzo::distributed
