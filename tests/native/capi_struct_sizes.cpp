// A struct that has grown since a caller was compiled: what only the library knows is 0, and is not written.
#include <cstdint>
#include <cstring>

#include "capi/guard.h"
#include "check.h"

namespace {

struct Grown {
  std::size_t struct_size;
  std::int64_t first;
  std::int64_t added;
};

// As an older header has it, and what lies behind it in the caller's memory.
struct Older {
  std::size_t struct_size;
  std::int64_t first;
  std::int64_t of_the_caller;
};

// As a newer header has it.
struct Newer {
  Grown known;
  std::int64_t unknown;
};

}  // namespace

template <>
constexpr std::size_t gcomm::capi::first_size<Grown>() {
  return offsetof(Grown, added);
}

int main() {
  using gcomm::capi::read_optional;
  using gcomm::capi::read_struct;
  using gcomm::capi::write_struct;
  const Older old{offsetof(Older, of_the_caller), 7, 99};
  Grown seen;
  std::memcpy(&seen, &old, sizeof seen);
  const Grown read = read_struct(seen, "grown");
  CHECK(read.first == 7 && read.added == 0);
  CHECK(read_optional<Grown>(nullptr, "grown").first == 0);
  Grown memory = seen;
  write_struct(&memory, {0, 8, 5}, "grown");
  CHECK(memory.struct_size == old.struct_size && memory.first == 8 && memory.added == 99, "%lld",
        static_cast<long long>(memory.added));
  Newer newer{{sizeof(Newer), 1, 2}, 3};
  const Grown most = read_struct(newer.known, "grown");
  CHECK(most.first == 1 && most.added == 2);
  write_struct(&newer.known, {0, 4, 5}, "grown");
  CHECK(newer.known.first == 4 && newer.known.added == 5 && newer.unknown == 3 &&
        newer.known.struct_size == sizeof(Newer));
  for (const std::size_t bytes : {std::size_t{0}, offsetof(Grown, added) - 1}) {
    try {
      read_struct(Grown{bytes, 1, 1}, "grown");
      CHECK(false, "%zu bytes", bytes);
    } catch (const gcomm::Error& error) {
      CHECK(error.code() == gcomm::Code::kInvalid);
      CHECK(std::strstr(error.what(), "grown.struct_size: ") != nullptr, "%s", error.what());
    }
  }
  return check::report("capi_struct_sizes");
}
