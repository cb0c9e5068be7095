// TCP for the store: sockets, and messages of numbers and texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace mezzo::distributed {

// Owns a file descriptor and closes it.
class Socket {
public:
    Socket() = default;
    explicit Socket(int descriptor) : descriptor_(descriptor) {}
    Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
    Socket& operator=(Socket&& other) noexcept {
        std::swap(descriptor_, other.descriptor_);
        return *this;
    }
    ~Socket();
    int descriptor() const { return descriptor_; }
    explicit operator bool() const { return descriptor_ >= 0; }

private:
    int descriptor_ = -1;
};

// Listens at a port (0: any) of the address that a host name has here; of all addresses if the name is empty
// or not this machine's. Returns an empty socket if the port is in use. Throws Error(backend) for an unknown
// name or another failure.
Socket listen_at(const std::string& host, int port);
int port_of(const Socket& socket);
// Returns an empty socket if nothing listens there, or none of the name's addresses answers within so many
// seconds in all. Throws Error(backend) for an unknown name.
Socket connect_to(const std::string& host, int port, double seconds);
bool is_known(const std::string& host);
// Whether both ends are the same, which happens at a port where nothing listens, if the kernel gives this end
// the same port.
bool is_connected_to_itself(const Socket& socket);
Socket accept_from(const Socket& listening);  // empty if no connection waits
// The numeric address of this end, or "".
std::string local_address(const Socket& socket);
bool is_loopback(const std::string& address);
std::string host_name();

// A message: a kind, then numbers and texts in an order that both sides know.
class Message {
public:
    explicit Message(std::uint8_t kind) : bytes_(1, static_cast<char>(kind)) {}
    static Message received(std::string bytes) { return Message(std::move(bytes)); }

    std::uint8_t kind() const { return static_cast<std::uint8_t>(bytes_[0]); }
    Message& add(std::uint64_t number);
    Message& add(std::string_view text);
    // Both read the next value. Throw Error(backend) if the message has no more.
    std::uint64_t number();
    std::string text();
    // The bytes to send: the message with its length in front.
    std::string framed() const;

private:
    explicit Message(std::string bytes) : bytes_(std::move(bytes)) {}
    std::string bytes_;
    std::size_t at_ = 1;
};

// Removes the first whole message from `received` and returns it, or nothing if it is not complete yet.
// Throws Error(backend) for a message that is empty or too long.
std::optional<Message> take_message(std::string& received);
inline constexpr std::size_t longest_message = std::size_t{1} << 20;

// Sends as much as the other side takes and removes it from `bytes`. Waits up to so many seconds whenever the
// other side takes nothing. Returns false if the other side is gone.
bool send_some(const Socket& socket, std::string_view& bytes, double seconds) noexcept;
// Sends everything. Returns false if the other side is gone or takes nothing for 5 s.
bool send_all(const Socket& socket, std::string_view bytes) noexcept;
// Appends the bytes that arrive, waiting up to so many seconds (negative: forever). Returns false if the
// other side is gone.
bool receive_some(const Socket& socket, std::string& received, double seconds);
// Returns the first message from `received` and from bytes that arrive within so many seconds; nothing if it
// is not complete by then or the other side is gone. Throws Error(backend) as take_message().
std::optional<Message> receive_message(const Socket& socket, std::string& received, double seconds);
// Whether the other side is gone and everything that it sent has been received.
bool is_ended(const Socket& socket);

}  // namespace mezzo::distributed
