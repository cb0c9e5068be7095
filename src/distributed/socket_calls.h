// System calls for sockets and pipes that child processes do not inherit, that do not block, and that raise
// no SIGPIPE. On Linux and the BSDs one call does all of it; on macOS further calls set the flags.
#pragma once

#include <sys/socket.h>

namespace mezzo::distributed {

// As socket() for TCP, accept() and pipe(): return -1 and set errno if they fail.
int open_stream_socket(int family);
int accept_connection(int listening);
int open_pipe(int (&ends)[2]);

// Flag for send() to such a socket.
#ifdef MSG_NOSIGNAL
inline constexpr int no_signal = MSG_NOSIGNAL;
#else
inline constexpr int no_signal = 0;  // the socket itself has SO_NOSIGPIPE
#endif

}  // namespace mezzo::distributed
