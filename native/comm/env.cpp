#include "comm/env.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "collective/cut.h"
#include "transport/transport.h"

namespace gcomm::comm {
namespace {

constexpr double kDefaultTimeout = 300;
// Of one slot for each peer, where slots are at most a MiB; where longer messages pay, more.
constexpr std::size_t kSlotBudget = std::size_t{3} << 20;

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

template <typename Number>
Number parse(const char* name, const std::string& text, const char* expected) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) {
    throw Error(Code::kInvalid, std::string(name) + ": '" + text + "' is not " + expected);
  }
  return value;
}

int required_number(const char* name, int least, int most) {
  const std::optional<std::string> text = variable(name);
  if (!text) throw Error(Code::kInvalid, std::string(name) + ": not set");
  const int value = parse<int>(name, *text, "a whole number");
  if (value < least || value > most) {
    throw Error(Code::kInvalid, std::string(name) + ": " + *text + " is not between " + std::to_string(least) +
                                    " and " + std::to_string(most));
  }
  return value;
}

}  // namespace

codec::Isa default_isa() {
  const std::optional<std::string> name = variable("GCOMM_ISA");
  if (!name) return codec::best_isa();
  codec::Isa isa;
  try {
    isa = codec::parse_isa(*name);
  } catch (const Error& error) {
    throw Error(error.code(), std::string("GCOMM_ISA: ") + error.what());
  }
  if (!codec::isa_available(isa)) {
    throw Error(Code::kUnsupported, "GCOMM_ISA: " + *name + " is not available on this machine");
  }
  return isa;
}

std::size_t check_slot_bytes(std::size_t bytes, const std::string& what) {
  if (bytes < collective::kMinSlotBytes || bytes > collective::kMaxSlotBytes) {
    throw Error(Code::kInvalid, what + ": " + std::to_string(bytes) + " bytes are not between " +
                                    std::to_string(collective::kMinSlotBytes) + " and " +
                                    std::to_string(collective::kMaxSlotBytes));
  }
  return bytes;
}

std::size_t default_slot_bytes(int ranks, std::size_t most) {
  if (const std::optional<std::string> text = variable("GCOMM_SLOT_BYTES")) {
    return check_slot_bytes(parse<std::size_t>("GCOMM_SLOT_BYTES", *text, "a number of bytes"),
                            "GCOMM_SLOT_BYTES");
  }
  std::size_t slot = most;
  const std::size_t peers = ranks > 1 ? static_cast<std::size_t>(ranks - 1) : 1;
  while (slot > collective::kMinSlotBytes && slot * peers > kSlotBudget * (most >> 20)) slot /= 2;
  return slot;
}

double check_timeout_s(double seconds, const std::string& what) {
  if (!(seconds > 0)) {
    throw Error(Code::kInvalid, what + ": " + std::to_string(seconds) + " s is not a positive time");
  }
  return seconds;
}

double default_timeout_s() {
  const std::optional<std::string> text = variable("GCOMM_TIMEOUT");
  if (!text) return kDefaultTimeout;
  return check_timeout_s(parse<double>("GCOMM_TIMEOUT", *text, "a number of seconds"), "GCOMM_TIMEOUT");
}

std::string socket_interface() {
  for (const char* name : {"GCOMM_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}) {
    if (const std::optional<std::string> value = variable(name)) return *value;
  }
  return {};
}

bool tcp_shares_memory() {
  const std::optional<std::string> text = variable("GCOMM_TCP_SHM");
  if (!text || *text == "1") return true;
  if (*text == "0") return false;
  throw Error(Code::kInvalid, "GCOMM_TCP_SHM: '" + *text + "' is neither 0 nor 1");
}

Launch launch() {
  Launch launch;
  launch.size = required_number("WORLD_SIZE", 1, kMostRanks);
  launch.rank = required_number("RANK", 0, launch.size - 1);
  const std::optional<std::string> host = variable("MASTER_ADDR");
  if (!host) throw Error(Code::kInvalid, "MASTER_ADDR: not set");
  launch.master_addr = *host;
  launch.master_port = required_number("MASTER_PORT", 1, 65535);
  return launch;
}

}  // namespace gcomm::comm
