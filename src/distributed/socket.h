// TCP for the store: sockets, and messages of numbers and texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace mezzo::distributed {

// A file descriptor, closed with the object.
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

// Listens at a port, 0 for any, of the address that a host name has here; of all addresses if the name is empty or not this machine's. None
// if the port is in use. Error(backend) for a name that is not known or another failure.
Socket listen_at(const std::string& host, int port);
int port_of(const Socket& socket);
// None if nobody listens there, or none of the name's addresses answers within so many seconds in all. Error(backend) for a name that is
// not known.
Socket connect_to(const std::string& host, int port, double seconds);
bool is_known(const std::string& host);
// As happens at a port where nobody listens, if the kernel gives this end the same port.
bool is_connected_to_itself(const Socket& socket);
Socket accept_from(const Socket& listening);  // none if nobody waits, or has gone again
// The numeric address of this end. "" where it has none.
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
    // The next one. Error(backend) where the message holds no more.
    std::uint64_t number();
    std::string text();
    // With its length in front, as it is sent.
    std::string framed() const;

private:
    explicit Message(std::string bytes) : bytes_(std::move(bytes)) {}
    std::string bytes_;
    std::size_t at_ = 1;
};

// Takes the first whole message out of what was received. None if it is not there yet; Error(backend) for one that is empty or too long.
std::optional<Message> take_message(std::string& received);
inline constexpr std::size_t longest_message = std::size_t{1} << 20;

// Sends what the other side takes, waiting up to so many seconds whenever it takes nothing, and removes that. False if the other side is gone.
bool send_some(const Socket& socket, std::string_view& bytes, double seconds) noexcept;
// Sends all; false if the other side is gone, or takes nothing for 5 s.
bool send_all(const Socket& socket, std::string_view bytes) noexcept;
// Appends what is there, waiting up to so many seconds (negative: for as long as it takes); false if the other side is gone.
bool receive_some(const Socket& socket, std::string& received, double seconds);
// The first message of what was received and what comes within so many seconds. None if it is not whole by then, or the other side is gone.
// Error(backend) as take_message().
std::optional<Message> receive_message(const Socket& socket, std::string& received, double seconds);
// Whether the other side is gone, and all that it has sent has been received.
bool is_ended(const Socket& socket);

}  // namespace mezzo::distributed
