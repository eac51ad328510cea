#include "transport/tcp/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "transport/fork.h"

namespace gcomm::tcp {
namespace {

constexpr std::size_t kPage = 4096;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
// A ring holds two messages, so that one is read while the next is written; measured, what is longer than a MiB
// leaves the caches. With many ranks on a host they are shorter: a rank's rings on one lane are this much in
// all.
constexpr std::size_t kMostRing = std::size_t{1} << 20;
constexpr std::size_t kLeastRing = std::size_t{64} << 10;
constexpr std::size_t kAllRings = std::size_t{8} << 20;

std::size_t ring_bytes(std::size_t slot, int size) {
  const std::size_t share = std::bit_floor(kAllRings / static_cast<std::size_t>(std::max(size - 1, 1)));
  return std::max(std::min({std::bit_ceil(2 * slot), share, kMostRing}), kLeastRing);
}

// Pages are given when they are first touched: lanes without traffic take none.
std::size_t total_bytes(std::size_t ring) { return kPage + 2 * kLaneCount * ring; }  // a page for the controls

static_assert(2 * kLaneCount * sizeof(RingControl) <= kPage);

}  // namespace

SharedMemory SharedMemory::make(std::size_t slot, int size) {
  const std::size_t ring = ring_bytes(slot, size);
  Fd fd = Fd::memory("gcomm");
  if (!fd.valid() || ::ftruncate(fd.get(), static_cast<off_t>(total_bytes(ring))) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return {};
  }
  return map(std::move(fd), ring);
}

SharedMemory SharedMemory::take(Fd memory, std::size_t slot, int size) {
  const std::size_t ring = ring_bytes(slot, size);
  struct stat status;
  if (!memory.valid() || ::fstat(memory.get(), &status) != 0 ||
      status.st_size != static_cast<off_t>(total_bytes(ring))) {
    return {};
  }
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return {};
  return map(std::move(memory), ring);
}

SharedMemory SharedMemory::map(Fd fd, std::size_t ring) {
  const std::size_t bytes = total_bytes(ring);
  void* start = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (start == MAP_FAILED) return {};
  ::madvise(start, bytes, MADV_DONTFORK);
  SharedMemory memory;
  memory.fd_ = std::move(fd);
  memory.start_ = static_cast<std::byte*>(start);
  memory.ring_ = ring;
  memory.generation_ = fork_generation();
  return memory;
}

RingPlace SharedMemory::ring(Lane lane, RingEnd writer) const noexcept {
  const std::size_t index = 2 * static_cast<std::size_t>(lane) + static_cast<std::size_t>(writer);
  return {reinterpret_cast<RingControl*>(start_) + index, start_ + kPage + index * ring_, ring_};
}

void SharedMemory::unmap() noexcept {
  if (start_ != nullptr && generation_ == fork_generation()) ::munmap(start_, total_bytes(ring_));
  start_ = nullptr;
}

void SharedMemory::swap(SharedMemory& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(start_, other.start_);
  std::swap(ring_, other.ring_);
  std::swap(generation_, other.generation_);
}

}  // namespace gcomm::tcp
