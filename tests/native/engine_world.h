// All ranks of a communicator in one process, driven from one thread: calls are queued on every rank, then
// awaited.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "comm/communicator.h"

namespace gcomm::test {

using Bytes = std::vector<std::uint8_t>;
using comm::Communicator;
using comm::TensorView;
using comm::WorkRef;

struct WorldOptions {
  int size = 2;
  std::string transport = "local";  // or "tcp", over loopback
  double timeout_s = 60;
  std::size_t slot_bytes = std::size_t{1} << 20;
  codec::Isa isa = codec::Isa::kScalar;
};

class World {
 public:
  explicit World(const WorldOptions& options);

  int size() const { return static_cast<int>(ranks_.size()); }
  Communicator& operator[](int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }

  // Queues start(rank) on every rank, waits for all, and checks that every one came to `expected`.
  std::vector<WorkRef> all(const std::function<WorkRef(int)>& start, Code expected = Code::kOk);
  // The codec of this text that lives in a rank's communicator; null for "".
  comm::Codec codec(int rank, const std::string& spec);

 private:
  std::vector<std::unique_ptr<Communicator>> ranks_;
};

// ThreadSanitizer slows the engine some twenty times and looks for races, which hardly depend on the values: of
// a long list of cases it gets every eleventh. (No list has a multiple of eleven as its period.)
inline bool left_out() {
#ifdef __SANITIZE_THREAD__
  static int n = 0;
  return n++ % 11 != 0;
#else
  return false;
#endif
}

// Every rank's transport, connected.
std::vector<std::unique_ptr<Transport>> make_transports(const WorldOptions& options);

// ---- data ----

enum class Fill { kNormal, kWithNonFinite, kHuge };
Bytes random_tensor(DType dtype, std::uint64_t count, std::uint64_t seed, Fill fill = Fill::kNormal);
// Of random bytes: for dtypes that are only moved.
Bytes random_bytes(std::size_t n, std::uint64_t seed);

std::vector<float> to_floats(const Bytes& tensor, DType dtype);
Bytes from_floats(const std::vector<float>& values,
                  DType dtype);  // nearest even, Inf beyond the dtype, canonical NaN

}  // namespace gcomm::test
