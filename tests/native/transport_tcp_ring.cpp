// Rings of shared memory by themselves: bytes that wrap around, rings that are full, ends that wait for one
// another, and positions that cannot be.
#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "transport/tcp/ring.h"

namespace {

using gcomm::tcp::RingControl;
using gcomm::tcp::RingMoved;
using gcomm::tcp::RingPlace;
using gcomm::tcp::RingReader;
using gcomm::tcp::RingWriter;

constexpr std::size_t kCapacity = 4096;

struct Ring {
  RingControl control{};
  // With a rim that nobody may touch.
  std::vector<std::byte> memory = std::vector<std::byte>(kCapacity + 2 * 64, std::byte{0xA5});
  RingPlace place{&control, memory.data() + 64, kCapacity};

  bool rim_is_whole() const {
    const auto whole = [](std::byte b) { return b == std::byte{0xA5}; };
    return std::all_of(memory.begin(), memory.begin() + 64, whole) &&
           std::all_of(memory.end() - 64, memory.end(), whole);
  }
};

std::byte byte_at(std::uint64_t position) { return static_cast<std::byte>(position * 31 + position / 251); }

// Parts of random lengths, some empty, of `bytes` in all.
std::vector<iovec> cut(std::vector<std::byte>& data, std::mt19937& random) {
  std::vector<iovec> parts;
  for (std::size_t at = 0; at < data.size();) {
    const std::size_t bytes = std::min<std::size_t>(data.size() - at, random() % 700);
    parts.push_back({data.data() + at, bytes});
    at += bytes;
  }
  return parts;
}

// Writes and reads of all lengths, whole rings among them, in one thread.
void test_wraps_around() {
  Ring ring;
  RingWriter writer(ring.place);
  RingReader reader(ring.place);
  std::mt19937 random(7);
  std::uint64_t written = 0, read = 0;
  int full = 0, empty = 0, wrong = 0;
  while (written < 400 * kCapacity) {
    std::vector<std::byte> out(random() % (2 * kCapacity) + 1);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = byte_at(written + i);
    const auto out_parts = cut(out, random);
    const RingMoved moved = writer.write(out_parts.data(), out_parts.size());
    CHECK(moved.sane && moved.bytes == std::min(out.size(), kCapacity - (written - read)));
    written += moved.bytes;
    full += written - read == kCapacity;
    CHECK(ring.control.writer_waits == 1 || moved.bytes == out.size());

    std::vector<std::byte> in(random() % (2 * kCapacity) + 1);
    const auto in_parts = cut(in, random);
    const RingMoved taken = reader.read(in_parts.data(), in_parts.size());
    CHECK(taken.sane && taken.bytes == std::min<std::uint64_t>(in.size(), written - read));
    for (std::size_t i = 0; i < taken.bytes; ++i) wrong += in[i] != byte_at(read + i);
    read += taken.bytes;
    empty += written == read;
    CHECK(ring.control.reader_waits == 1 || taken.bytes == in.size());
  }
  CHECK(wrong == 0 && full > 10 && empty > 10, "%d wrong, %d full, %d empty", wrong, full, empty);
  CHECK(writer.used_bytes() == kCapacity && ring.rim_is_whole());
}

// Who waits is called once, and a writer only when it is worth its while.
void test_bells() {
  Ring ring;
  RingWriter writer(ring.place);
  RingReader reader(ring.place);
  std::vector<std::byte> data(kCapacity + 1);
  const auto write = [&](std::size_t bytes) {
    const iovec part{data.data(), bytes};
    return writer.write(&part, 1);
  };
  const auto read = [&](std::size_t bytes) {
    const iovec part{data.data(), bytes};
    return reader.read(&part, 1);
  };
  CHECK(!write(10).bell);       // nobody has looked
  CHECK(read(20).bytes == 10);  // and waits for the rest
  CHECK(write(1).bell && !write(1).bell);
  CHECK(!read(2).bell);  // it got all that it wanted
  CHECK(!write(5).bell);
  CHECK(read(5).bytes == 5);
  CHECK(write(kCapacity + 1).bytes == kCapacity && write(1).bytes == 0);
  CHECK(!read(kCapacity / 2 - 1).bell);
  CHECK(read(1).bell && !read(1).bell);
}

// Neither end sleeps while the other waits for it, however they meet.
void test_two_threads() {
  Ring ring;
  constexpr std::uint64_t kBytes = 20'000'000;
  std::atomic<int> to_reader{0}, to_writer{0};
  const auto sleep = [](std::atomic<int>& bells) {
    bells.wait(0);
    bells.store(0);
  };
  const auto call = [](std::atomic<int>& bells) {
    bells.store(1);
    bells.notify_one();
  };
  std::thread other([&] {
    RingWriter writer(ring.place);
    std::mt19937 random(1);
    for (std::uint64_t written = 0; written < kBytes;) {
      std::vector<std::byte> out(std::min<std::uint64_t>(kBytes - written, random() % 3000 + 1));
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = byte_at(written + i);
      iovec part{out.data(), out.size()};
      while (part.iov_len > 0) {
        const RingMoved moved = writer.write(&part, 1);
        if (moved.bell) call(to_reader);
        part = {static_cast<std::byte*>(part.iov_base) + moved.bytes, part.iov_len - moved.bytes};
        written += moved.bytes;
        if (part.iov_len > 0) sleep(to_writer);
      }
    }
  });
  RingReader reader(ring.place);
  std::mt19937 random(2);
  std::uint64_t read = 0, wrong = 0;
  while (read < kBytes) {
    std::vector<std::byte> in(std::min<std::uint64_t>(kBytes - read, random() % 3000 + 1));
    const iovec part{in.data(), in.size()};
    const RingMoved moved = reader.read(&part, 1);
    if (moved.bell) call(to_writer);
    for (std::size_t i = 0; i < moved.bytes; ++i) wrong += in[i] != byte_at(read + i);
    read += moved.bytes;
    if (moved.bytes < in.size()) sleep(to_reader);
  }
  other.join();
  CHECK(wrong == 0);
}

// Whatever the other end publishes, no byte outside the ring is touched.
void test_impossible_positions() {
  for (const std::uint64_t position :
       {std::uint64_t{kCapacity + 1}, ~std::uint64_t{0}, std::uint64_t{1} << 40}) {
    Ring ring;
    RingReader reader(ring.place);
    std::vector<std::byte> data(3 * kCapacity);
    const iovec part{data.data(), data.size()};
    ring.control.written = position;
    const RingMoved read = reader.read(&part, 1);
    CHECK(!read.sane && read.bytes == 0);
  }
  for (const std::uint64_t position : {std::uint64_t{101}, ~std::uint64_t{0} / 2, std::uint64_t{1} << 40}) {
    Ring ring;
    RingWriter writer(ring.place);
    std::vector<std::byte> data(3 * kCapacity);
    const iovec part{data.data(), 100};
    CHECK(writer.write(&part, 1).bytes == 100);
    ring.control.read = position;  // beyond what was written
    const iovec all{data.data(), data.size()};
    const RingMoved written = writer.write(&all, 1);
    CHECK(!written.sane && written.bytes == 0 && ring.rim_is_whole());
  }
}

}  // namespace

int main() {
  test_wraps_around();
  test_bells();
  test_two_threads();
  test_impossible_positions();
  return check::report("transport_tcp_ring");
}
