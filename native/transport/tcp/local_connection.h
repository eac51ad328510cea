// Connections within a host: how a rank finds out that it shares the host with another one, and passes memory
// to it.
//
// Beside its TCP address a rank listens at an abstract Unix name made of that address. Such names exist within
// one network namespace only, as TCP addresses do: whoever reaches the name is in the namespace where the
// address is, so a link between namespaces is never bypassed.
#pragma once

#include <cstddef>
#include <string>

#include "transport/tcp/socket.h"

namespace gcomm::tcp {

// address: "ip:port". Invalid, with errno set, where it is not possible.
Fd listen_locally(const std::string& address);
Fd connect_locally(const std::string& address);

// The process at the other end is the same user's.
bool is_same_user(const Fd& connection);

// A message of a new connection, with a descriptor. False if it did not go out whole.
bool send_with_fd(const Fd& connection, const void* data, std::size_t bytes, const Fd& passed);

}  // namespace gcomm::tcp
