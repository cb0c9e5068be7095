#include "distributed/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>

#include "distributed/socket_calls.h"
#include "mezzo/error.h"

namespace mezzo::distributed {
namespace {

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

// Returns 0 or getaddrinfo()'s error code.
int find_addresses(const std::string& host, int port, int flags, Addresses& all) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags;
    addrinfo* found = nullptr;
    const std::string service = std::to_string(port);
    int code = getaddrinfo(host.empty() ? nullptr : host.c_str(), service.c_str(), &hints, &found);
    // Without /etc/hosts, as in a container made by hand, no resolver knows "localhost".
    if (code != 0 && host == "localhost") code = getaddrinfo("127.0.0.1", service.c_str(), &hints, &found);
    if (code == 0) all.reset(found);
    return code;
}

Addresses addresses_of(const std::string& host, int port, int flags) {
    Addresses all(nullptr, freeaddrinfo);
    const int code = find_addresses(host, port, flags, all);
    check(code == 0, ErrorKind::backend, "init: the host \"", host, "\" is not known: ", gai_strerror(code));
    return all;
}

void set_option(int descriptor, int level, int name, int value) {
    setsockopt(descriptor, level, name, &value, sizeof value);
}

// Turns on keep-alive: a lost machine is noticed after 20 s. The kernel answers for stopped processes, which
// are not lost.
void keep_alive(int descriptor) {
    set_option(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
#ifdef TCP_KEEPIDLE
    set_option(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, 5);
#elif defined(TCP_KEEPALIVE)  // macOS
    set_option(descriptor, IPPROTO_TCP, TCP_KEEPALIVE, 5);
#endif
    set_option(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, 5);
    set_option(descriptor, IPPROTO_TCP, TCP_KEEPCNT, 3);
#ifdef TCP_USER_TIMEOUT  // Linux: limits unacknowledged data, too
    set_option(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, 20000);
#endif
    set_option(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
}

int milliseconds(double seconds) {
    return seconds < 0 ? -1 : static_cast<int>(std::min(std::ceil(seconds * 1e3), 1e9));
}

// Returns true if the descriptor is ready, false after the timeout. Signals do not end the wait.
bool wait_for(int descriptor, short events, double seconds) {
    pollfd entry{descriptor, events, 0};
    int count;
    do {
        count = poll(&entry, 1, milliseconds(seconds));
    } while (count < 0 && errno == EINTR);
    return count > 0;
}

// Returns an empty socket if the port is in use (EADDRINUSE) or the address is not this machine's
// (EADDRNOTAVAIL); errno says which.
Socket listen_on(const addrinfo& address) {
    Socket socket(open_stream_socket(address.ai_family));
    if (!socket) return {};
    set_option(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (address.ai_family == AF_INET6) set_option(socket.descriptor(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (bind(socket.descriptor(), address.ai_addr, address.ai_addrlen) != 0 ||
        listen(socket.descriptor(), 1024) != 0)
        return {};
    return socket;
}

// Listens at the first address that works.
Socket listen_on_any(const std::string& host, int port, int flags, int& reason) {
    const Addresses all = addresses_of(host, port, flags);
    reason = EADDRNOTAVAIL;
    for (const addrinfo* address = all.get(); address != nullptr; address = address->ai_next) {
        if (Socket socket = listen_on(*address)) return socket;
        if (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL) reason = errno;
    }
    return {};
}

// Address of this end, or of the other end with getpeername.
sockaddr_storage name_of(const Socket& socket, decltype(getsockname)* get = getsockname) {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    get(socket.descriptor(), reinterpret_cast<sockaddr*>(&address), &length);
    return address;
}

}  // namespace

Socket::~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
}

Socket listen_at(const std::string& host, int port) {
    int reason = EADDRNOTAVAIL;
    if (!host.empty()) {
        if (Socket socket = listen_on_any(host, port, 0, reason)) return socket;
    }
    if (reason == EADDRNOTAVAIL) {  // no name, or a name of this machine that only others resolve
        for (const char* const any : {"::", "0.0.0.0"})
            if (Socket socket = listen_on_any(any, port, AI_NUMERICHOST, reason)) return socket;
    }
    check(reason == EADDRINUSE || reason == EACCES, ErrorKind::backend, "init: cannot listen at port ", port,
          ": ", std::strerror(reason));
    return {};
}

int port_of(const Socket& socket) {
    const sockaddr_storage address = name_of(socket);
    if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

Socket connect_to(const std::string& host, int port, double seconds) {
    using Clock = std::chrono::steady_clock;
    const Addresses all = addresses_of(host, port, 0);
    const auto begin = Clock::now();
    for (const addrinfo* address = all.get(); address != nullptr; address = address->ai_next) {
        const double left = seconds - std::chrono::duration<double>(Clock::now() - begin).count();
        Socket socket(open_stream_socket(address->ai_family));
        if (!socket) continue;
        if (connect(socket.descriptor(), address->ai_addr, address->ai_addrlen) != 0) {
            if (errno != EINPROGRESS || !wait_for(socket.descriptor(), POLLOUT, std::max(0.0, left)))
                continue;
            int error = 0;
            socklen_t length = sizeof error;
            getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &length);
            if (error != 0) continue;
        }
        if (is_connected_to_itself(socket)) continue;
        keep_alive(socket.descriptor());
        return socket;
    }
    return {};
}

bool is_known(const std::string& host) {
    Addresses all(nullptr, freeaddrinfo);
    return find_addresses(host, 0, 0, all) == 0;
}

bool is_connected_to_itself(const Socket& socket) {
    const sockaddr_storage here = name_of(socket), there = name_of(socket, getpeername);
    return std::memcmp(&here, &there, sizeof here) == 0;
}

Socket accept_from(const Socket& listening) {
    Socket socket(accept_connection(listening.descriptor()));
    if (socket) keep_alive(socket.descriptor());
    return socket;
}

std::string local_address(const Socket& socket) {
    const sockaddr_storage address = name_of(socket);
    char text[INET6_ADDRSTRLEN] = "";
    if (address.ss_family == AF_INET6) {
        const in6_addr& six = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
        if (IN6_IS_ADDR_V4MAPPED(&six))
            inet_ntop(AF_INET, six.s6_addr + 12, text, sizeof text);
        else
            inet_ntop(AF_INET6, &six, text, sizeof text);
    } else if (address.ss_family == AF_INET) {
        inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof text);
    }
    return text;
}

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

std::string host_name() {
    char name[256] = "";
    return gethostname(name, sizeof name - 1) == 0 ? name : "?";
}

Message& Message::add(std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) bytes_ += static_cast<char>(number >> shift & 255);
    return *this;
}

Message& Message::add(std::string_view text) {
    add(text.size());
    bytes_ += text;
    return *this;
}

std::uint64_t Message::number() {
    check(bytes_.size() - at_ >= 8, ErrorKind::backend, "store: a message of ", bytes_.size(),
          " bytes ends too early");
    std::uint64_t number = 0;
    for (int shift = 0; shift < 64; shift += 8)
        number |= std::uint64_t(static_cast<unsigned char>(bytes_[at_++])) << shift;
    return number;
}

std::string Message::text() {
    const std::uint64_t size = number();
    check(size <= bytes_.size() - at_, ErrorKind::backend, "store: a message of ", bytes_.size(),
          " bytes ends too early");
    at_ += size;
    return bytes_.substr(at_ - size, size);
}

std::string Message::framed() const {
    std::string frame;
    for (int shift = 0; shift < 32; shift += 8) frame += static_cast<char>(bytes_.size() >> shift & 255);
    return frame + bytes_;
}

std::optional<Message> take_message(std::string& received) {
    if (received.size() < 4) return {};
    std::size_t size = 0;
    for (int i = 0; i < 4; ++i)
        size |= std::size_t(static_cast<unsigned char>(received[std::size_t(i)])) << 8 * i;
    check(size >= 1 && size <= longest_message, ErrorKind::backend, "store: a message of ", size,
          " bytes; 1 to ", longest_message, " are possible");
    if (received.size() < 4 + size) return {};
    std::string bytes = received.substr(4, size);
    received.erase(0, 4 + size);
    return Message::received(std::move(bytes));
}

bool send_some(const Socket& socket, std::string_view& bytes, double seconds) noexcept {
    while (!bytes.empty()) {
        const ssize_t sent = send(socket.descriptor(), bytes.data(), bytes.size(), no_signal);
        if (sent >= 0)
            bytes.remove_prefix(std::size_t(sent));
        else if (errno == EAGAIN) {
            if (!wait_for(socket.descriptor(), POLLOUT, seconds)) return true;
        } else if (errno != EINTR) {
            return false;
        }
    }
    return true;
}

bool send_all(const Socket& socket, std::string_view bytes) noexcept {
    return send_some(socket, bytes, 5) && bytes.empty();
}

bool receive_some(const Socket& socket, std::string& received, double seconds) {
    if (!wait_for(socket.descriptor(), POLLIN, seconds)) return true;
    char buffer[4096];
    const ssize_t got = recv(socket.descriptor(), buffer, sizeof buffer, 0);
    if (got > 0) received.append(buffer, std::size_t(got));
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

std::optional<Message> receive_message(const Socket& socket, std::string& received, double seconds) {
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    for (;;) {
        if (std::optional<Message> message = take_message(received)) return message;
        const double left = std::chrono::duration<double>(end - Clock::now()).count();
        if (left <= 0 || !receive_some(socket, received, left)) return {};
    }
}

bool is_ended(const Socket& socket) {
    char byte;
    const ssize_t got = recv(socket.descriptor(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

}  // namespace mezzo::distributed
