// What a collective must compute, said with BlockCodec alone: whole shards, no chunks, no messages, no threads.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "engine_world.h"

namespace gcomm::test {

// One rank's memory of a key, as docs/wire-format.md tells it.
struct ReplayState {
  std::uint32_t calls = 0;
  std::vector<float> residual;
};

class Replay {
 public:
  // The same spec on every rank. key "" keeps no state.
  Replay(const std::string& spec, int ranks, std::string key = "");

  // Whether a tensor goes raw: docs/engine.md.
  bool raw_all_reduce(DType dtype, std::uint64_t count) const;
  bool raw_reduce_scatter(DType dtype, std::uint64_t count) const;
  bool raw_movement(DType dtype, std::uint64_t count, int receivers) const;

  // The result, one for all ranks.
  Bytes all_reduce(const std::vector<Bytes>& inputs, DType dtype, bool average);
  // By rank.
  std::vector<Bytes> reduce_scatter(const std::vector<Bytes>& inputs, DType dtype, bool average);
  // What everybody gets of one rank's input that is moved.
  Bytes moved(const Bytes& input, DType dtype, int source, int receivers);
  Bytes sum(const std::vector<Bytes>& inputs, DType dtype, bool average) const;

 private:
  struct Range {
    std::uint64_t begin, count;
  };
  Bytes encode(int rank, const Bytes& input, DType dtype, Range range, std::uint64_t position,
               std::uint32_t call);
  std::vector<float> decode(const Bytes& encoded, std::uint64_t count) const;
  std::vector<float> sum_of(const std::vector<std::vector<float>>& parts, bool average) const;
  bool goes_raw(std::uint64_t tensor_bytes, std::uint64_t sent_raw, bool pays) const;
  std::vector<float> values(const Bytes& input, DType dtype) const;  // nonfinite=zero done
  std::uint32_t next_call(int rank);

  const int ranks_;
  const std::string key_;
  std::shared_ptr<const codec::BlockCodec> input_codec_;
  std::shared_ptr<const codec::BlockCodec> sum_codec_;  // sums know no nonfinite=zero
  std::vector<ReplayState> states_;                     // by rank
};

}  // namespace gcomm::test
