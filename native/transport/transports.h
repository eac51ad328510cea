// The one list of transports: what this build has, and why not.
#pragma once

#include <span>

namespace gcomm {

struct TransportRow {
  const char* name;
  bool available;
  const char* reason;  // why not, or a remark; "" if there is nothing to say
};

std::span<const TransportRow> transports() noexcept;

}  // namespace gcomm
