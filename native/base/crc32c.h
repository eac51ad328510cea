// CRC-32C (Castagnoli, reflected), as in headers and, on request, over payloads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gcomm {

// Of the bytes before, continued: crc32c(b, nb, crc32c(a, na)) is that of a and b in one.
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t crc = 0) noexcept;

// Without the processor's instruction, for machines that lack it and for the test that compares both.
std::uint32_t crc32c_portable(const void* data, std::size_t bytes, std::uint32_t crc = 0) noexcept;

}  // namespace gcomm
