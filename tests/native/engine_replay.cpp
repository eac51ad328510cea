#include "engine_replay.h"

#include <algorithm>
#include <cmath>

#include "base/float.h"

namespace gcomm::test {
namespace {

std::uint64_t tiles(std::uint64_t count) { return (count + 4095) / 4096 * 4096; }

Bytes slice(const Bytes& tensor, DType dtype, std::uint64_t begin, std::uint64_t count) {
  const std::size_t item = dtype_size(dtype);
  return {tensor.begin() + static_cast<std::ptrdiff_t>(begin * item),
          tensor.begin() + static_cast<std::ptrdiff_t>((begin + count) * item)};
}

// A sum that is beyond the tensor's dtype is Inf before it is encoded.
float overflowed(float value, DType dtype) {
  if (dtype == DType::kF32 || !std::isfinite(value)) return value;
  const float rounded =
      dtype == DType::kBF16 ? bf16_to_float(float_to_bf16(value)) : f16_to_float(float_to_f16(value));
  return std::isinf(rounded) ? rounded : value;
}

// Decoding into a narrower dtype saturates finite values.
Bytes saturated(const std::vector<float>& values, DType dtype) {
  std::vector<float> limited = values;
  const float most = dtype == DType::kBF16 ? 0x1.FEp127f : dtype == DType::kF16 ? 65504.0f : 0x1.FFFFFEp127f;
  for (float& value : limited) {
    if (std::isfinite(value)) value = std::clamp(value, -most, most);
  }
  return from_floats(limited, dtype);
}

}  // namespace

Replay::Replay(const std::string& spec, int ranks, std::string key)
    : ranks_(ranks), key_(std::move(key)), states_(static_cast<std::size_t>(ranks)) {
  codec::CodecSpec parsed = codec::parse_spec(spec);
  input_codec_ = codec::BlockCodec::make(parsed, codec::Isa::kScalar);
  if (parsed.nonfinite == codec::NonFinite::kZero) parsed.nonfinite = codec::NonFinite::kPropagate;
  sum_codec_ = codec::BlockCodec::make(parsed, codec::Isa::kScalar);
}

bool Replay::goes_raw(std::uint64_t tensor_bytes, std::uint64_t sent_raw, bool pays) const {
  const std::int64_t min_bytes = input_codec_->spec().min_bytes;
  if (min_bytes == 0) return false;
  if (ranks_ == 1 || !pays) return true;
  return min_bytes > 0 ? tensor_bytes < static_cast<std::uint64_t>(min_bytes) : sent_raw <= 32768;
}

bool Replay::raw_all_reduce(DType dtype, std::uint64_t count) const {
  const auto n = static_cast<std::uint64_t>(ranks_);
  const std::uint64_t length = tiles((count + n - 1) / n);
  std::uint64_t encoded = 0;
  for (std::uint64_t begin = 0; begin < count; begin += length) {
    encoded += input_codec_->max_encoded_bytes(std::min(length, count - begin));
  }
  const std::uint64_t bytes = count * dtype_size(dtype);
  return goes_raw(bytes, bytes * (n - 1), 2 * encoded <= n * bytes);
}

bool Replay::raw_reduce_scatter(DType dtype, std::uint64_t count) const {
  const auto n = static_cast<std::uint64_t>(ranks_);
  const std::uint64_t bytes = count * dtype_size(dtype);
  return goes_raw(n * bytes, (n - 1) * bytes, input_codec_->max_encoded_bytes(count) < bytes);
}

bool Replay::raw_movement(DType dtype, std::uint64_t count, int receivers) const {
  const std::uint64_t bytes = count * dtype_size(dtype);
  return goes_raw(bytes, bytes * static_cast<std::uint64_t>(receivers),
                  input_codec_->max_encoded_bytes(count) < bytes);
}

std::vector<float> Replay::values(const Bytes& input, DType dtype) const {
  std::vector<float> all = to_floats(input, dtype);
  if (input_codec_->spec().nonfinite == codec::NonFinite::kZero) {
    for (float& value : all) value = std::isfinite(value) ? value : 0.0f;
  }
  return all;
}

std::uint32_t Replay::next_call(int rank) {
  return key_.empty() ? 0 : states_[static_cast<std::size_t>(rank)].calls++;
}

// `call` was taken with next_call(). The residual's range begins at position.
Bytes Replay::encode(int rank, const Bytes& input, DType dtype, Range range, std::uint64_t position,
                     std::uint32_t call) {
  const Bytes part = slice(input, dtype, range.begin, range.count);
  Bytes out(input_codec_->max_encoded_bytes(range.count));
  codec::EncodeJob job;
  job.src = part.data();
  job.dtype = dtype;
  job.count = range.count;
  if (input_codec_->spec().error_feedback) {
    std::vector<float>& residual = states_[static_cast<std::size_t>(rank)].residual;
    if (residual.size() < position + range.count) residual.resize(position + range.count);
    job.residual = residual.data() + position;
  }
  job.position = {position, call, codec::stream_id(key_, rank)};
  job.dst = out.data();
  job.capacity = out.size();
  out.resize(input_codec_->encode(job).bytes);
  return out;
}

std::vector<float> Replay::decode(const Bytes& encoded, std::uint64_t count) const {
  std::vector<float> out(count);
  input_codec_->decode({encoded.data(), encoded.size()}, out.data(), DType::kF32, count);
  return out;
}

std::vector<float> Replay::sum_of(const std::vector<std::vector<float>>& parts, bool average) const {
  std::vector<float> sum = parts[0];
  for (std::size_t p = 1; p < parts.size(); ++p) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += parts[p][i];
  }
  if (average) {
    for (float& value : sum) value /= static_cast<float>(ranks_);
  }
  return sum;
}

Bytes Replay::sum(const std::vector<Bytes>& inputs, DType dtype, bool average) const {
  std::vector<std::vector<float>> parts;
  for (const Bytes& input : inputs) parts.push_back(values(input, dtype));
  return from_floats(sum_of(parts, average), dtype);
}

Bytes Replay::all_reduce(const std::vector<Bytes>& inputs, DType dtype, bool average) {
  const std::uint64_t count = inputs[0].size() / dtype_size(dtype);
  if (raw_all_reduce(dtype, count)) return sum(inputs, dtype, average);
  std::vector<std::uint32_t> calls;
  for (int r = 0; r < ranks_; ++r) calls.push_back(next_call(r));
  const auto n = static_cast<std::uint64_t>(ranks_);
  const std::uint64_t length = tiles((count + n - 1) / n);
  Bytes result;
  for (int owner = 0; owner < ranks_; ++owner) {
    const std::uint64_t begin = std::min(length * static_cast<std::uint64_t>(owner), count);
    const std::uint64_t size = std::min(length, count - begin);
    std::vector<std::vector<float>> parts;
    for (int r = 0; r < ranks_; ++r) {
      const Bytes& input = inputs[static_cast<std::size_t>(r)];
      if (r == owner) {
        parts.push_back(values(slice(input, dtype, begin, size), dtype));
      } else {
        parts.push_back(
            decode(encode(r, input, dtype, {begin, size}, begin, calls[static_cast<std::size_t>(r)]), size));
      }
    }
    std::vector<float> total = sum_of(parts, average);
    for (float& value : total) value = overflowed(value, dtype);
    ReplayState& state = states_[static_cast<std::size_t>(owner)];
    if (input_codec_->spec().error_feedback)
      state.residual.resize(std::max<std::size_t>(state.residual.size(), count));
    Bytes encoded(sum_codec_->max_encoded_bytes(size));
    codec::EncodeJob job;
    job.src = total.data();
    job.dtype = DType::kF32;
    job.count = size;
    if (input_codec_->spec().error_feedback) job.residual = state.residual.data() + begin;
    job.position = {begin, calls[static_cast<std::size_t>(owner)], codec::stream_id(key_, codec::kSumSource)};
    job.dst = encoded.data();
    job.capacity = encoded.size();
    encoded.resize(sum_codec_->encode(job).bytes);
    const Bytes part = saturated(decode(encoded, size), dtype);
    result.insert(result.end(), part.begin(), part.end());
  }
  return result;
}

std::vector<Bytes> Replay::reduce_scatter(const std::vector<Bytes>& inputs, DType dtype, bool average) {
  const std::uint64_t count = inputs[0].size() / dtype_size(dtype) / static_cast<std::uint64_t>(ranks_);
  const bool raw = raw_reduce_scatter(dtype, count);
  std::vector<std::uint32_t> calls;
  for (int r = 0; r < ranks_; ++r) calls.push_back(raw ? 0 : next_call(r));
  std::vector<Bytes> results;
  for (int owner = 0; owner < ranks_; ++owner) {
    const std::uint64_t begin = count * static_cast<std::uint64_t>(owner);
    const std::uint64_t position = tiles(count) * static_cast<std::uint64_t>(owner);
    std::vector<std::vector<float>> parts;
    for (int r = 0; r < ranks_; ++r) {
      const Bytes& input = inputs[static_cast<std::size_t>(r)];
      if (r == owner || raw) {
        parts.push_back(values(slice(input, dtype, begin, count), dtype));
      } else {
        parts.push_back(decode(
            encode(r, input, dtype, {begin, count}, position, calls[static_cast<std::size_t>(r)]), count));
      }
    }
    results.push_back(from_floats(sum_of(parts, average), dtype));
  }
  return results;
}

Bytes Replay::moved(const Bytes& input, DType dtype, int source, int receivers) {
  const std::uint64_t count = input.size() / dtype_size(dtype);
  if (raw_movement(dtype, count, receivers)) return input;
  return saturated(decode(encode(source, input, dtype, {0, count}, 0, next_call(source)), count), dtype);
}

}  // namespace gcomm::test
