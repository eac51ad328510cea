// A RowCodec over a basis that the test knows, for the tests of mode=rows.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "codec/codec.h"
#include "gift/row_codec.h"
#include "gift_checks.h"

namespace gift_test {

using gcomm::codec::BlockCodec;
using gcomm::codec::CodecSpec;
using gcomm::codec::Encoded;
using gcomm::codec::EncodeJob;
using gcomm::codec::EncodeResult;
using gcomm::codec::Isa;
using gcomm::codec::ReduceJob;
using Bytes = std::vector<std::uint8_t>;

inline std::shared_ptr<const BlockCodec> plain(CodecSpec spec, Isa isa) {
  spec.gift = {};
  spec.error_feedback = false;
  return BlockCodec::make(spec, isa);
}

// Directions and their sizes as a spectrum that falls by a quarter each has them, of a matrix with 100 rows.
struct RowBasis {
  std::size_t cols;
  std::size_t rank;
  std::vector<float> v;
  std::vector<double> values;

  RowBasis(std::size_t n, std::size_t r, double largest = 50.0)
      : cols(n), rank(r), v(n * padded_rank(r), 0.0f) {
    const std::vector<double> q = orthonormal(n, r, 77);
    for (std::size_t j = 0; j < n; ++j) {
      for (std::size_t k = 0; k < r; ++k) v[j * padded_rank(r) + k] = static_cast<float>(q[j * r + k]);
    }
    for (std::size_t k = 0; k < r; ++k) values.push_back(largest * std::pow(0.75, static_cast<double>(k)));
  }
  std::unique_ptr<RowCodec> codec(const std::string& text, Isa isa = Isa::kScalar, double floor = 0) const {
    const CodecSpec spec = gcomm::codec::parse_spec(text);
    auto made = std::make_unique<RowCodec>(spec, isa, plain(spec, isa), cols, rank);
    made->set_basis(v.data(), values, floor, 100);
    return made;
  }
  // Rows with those coordinates and normal noise of size 1.
  std::vector<float> matrix(std::size_t rows, std::uint64_t seed) const {
    std::vector<float> x = normals(rows * cols, seed, 1.0f);
    const std::vector<float> s = normals(rows * rank, seed + 1, 1.0f);
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < cols; ++j) {
        double sum = static_cast<double>(x[i * cols + j]);
        for (std::size_t k = 0; k < rank; ++k) {
          sum += static_cast<double>(s[i * rank + k]) * values[k] / 10 *
                 static_cast<double>(v[j * padded_rank(rank) + k]);
        }
        x[i * cols + j] = static_cast<float>(sum);
      }
    }
    return x;
  }
};

struct Encoding {
  Bytes wire;
  EncodeResult result;
};

inline Encoding encode(const BlockCodec& codec, const std::vector<float>& x, float* residual = nullptr,
                       std::uint64_t element = 0) {
  // One byte off any alignment, and a margin behind.
  const std::size_t bytes = codec.max_encoded_bytes(x.size());
  Bytes memory(bytes + 65, 0xA5);
  EncodeJob job;
  job.src = x.data();
  job.count = x.size();
  job.residual = residual;
  job.position = {element, 3, 99};
  job.dst = memory.data() + 1;
  job.capacity = bytes;
  Encoding out;
  out.result = codec.encode(job);
  CHECK(out.result.bytes == bytes);
  for (std::size_t i = bytes + 1; i < memory.size(); ++i) CHECK(memory[i] == 0xA5, "written past the end");
  out.wire.assign(memory.begin() + 1, memory.begin() + 1 + static_cast<std::ptrdiff_t>(bytes));
  return out;
}

inline std::vector<float> decode(const BlockCodec& codec, const Bytes& wire, std::size_t count) {
  std::vector<float> memory(count + 32, 77.0f);
  codec.decode({wire.data(), wire.size()}, memory.data() + 16, DType::kF32, count);
  for (std::size_t i = 0; i < 16; ++i) CHECK(memory[i] == 77.0f && memory[count + 16 + i] == 77.0f);
  return {memory.begin() + 16, memory.begin() + 16 + static_cast<std::ptrdiff_t>(count)};
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace gift_test
