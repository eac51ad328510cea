#include <cstring>

#include "capi/guard.h"
#include "capi/handles.h"
#include "collective/payload.h"
#include "comm/arguments.h"
#include "comm/communicator.h"
#include "comm/env.h"

using gcomm::Code;
using gcomm::DType;
using gcomm::Error;
using gcomm::capi::guard;
using gcomm::capi::required;
using gcomm::capi::required_memory;
using gcomm::collective::KeyState;
using gcomm::collective::StatefulCodec;

namespace {

DType codable(gcomm_dtype dtype) {
  const auto type = static_cast<DType>(dtype);
  const gcomm::DTypeInfo& info = gcomm::dtype_info(type);
  if (!info.codable) {
    throw Error(Code::kInvalid, std::string("dtype: ") + info.name +
                                    " cannot be encoded or decoded; codecs take float32, bfloat16 and float16");
  }
  return type;
}

// A key's state for the time of one encode().
class HeldState {
 public:
  HeldState(StatefulCodec& codec, const char* key, uint64_t count) : codec_(codec) {
    if (key == nullptr || !codec.keeps_state()) return;
    state_ =
        codec.acquire(key, StatefulCodec::kCollectives, this, StatefulCodec::next_call_id(), count, 1, count);
  }
  ~HeldState() {
    if (state_ != nullptr) codec_.release(state_, used);
  }
  HeldState(const HeldState&) = delete;
  HeldState& operator=(const HeldState&) = delete;

  KeyState* get() const noexcept { return state_; }
  bool used = false;

 private:
  StatefulCodec& codec_;
  KeyState* state_ = nullptr;
};

uint64_t encode(StatefulCodec& codec, gcomm::codec::EncodeJob job, const gcomm_encode_options& options) {
  if (codec.transforms()) {
    throw Error(Code::kUnsupported,
                "codec " + codec.text() +
                    " encodes inside all_reduce only, in coordinates learned there; take the "
                    "format without gift to encode by hand");
  }
  const gcomm::codec::BlockCodec& block = codec.block();
  if (block.spec().nonfinite == gcomm::codec::NonFinite::kRaise &&
      gcomm::collective::has_nonfinite(job.src, job.dtype, job.count)) {
    throw Error(Code::kNonFinite, "nonfinite=raise: src holds a NaN or an Inf");
  }
  if (options.explicit_position != 0) {
    if (options.element % gcomm::codec::kTile != 0) {
      throw Error(Code::kInvalid, "options.element: " + std::to_string(options.element) +
                                      " is not a multiple of " + std::to_string(gcomm::codec::kTile));
    }
    const char* key = options.key == nullptr ? "" : options.key;
    job.position = {options.element, options.call, gcomm::codec::stream_id(key, options.source)};
    return block.encode(job).bytes;
  }
  HeldState held(codec, options.key, job.count);
  KeyState* state = held.get();
  job.position = {0, state == nullptr ? 0 : state->calls,
                  gcomm::codec::stream_id(options.key == nullptr ? "" : options.key, gcomm::codec::kSumSource)};
  if (state != nullptr && codec.error_feedback()) job.residual = state->residual.data();
  const uint64_t bytes = block.encode(job).bytes;
  if (state != nullptr) ++state->calls;
  held.used = true;
  return bytes;
}

}  // namespace

extern "C" {

gcomm_result gcomm_codec_create(const char* spec, const char* isa, gcomm_codec** codec) {
  return guard([&] {
    required(codec, "codec") = nullptr;
    const char* text = &required(spec, "spec");
    const gcomm::codec::Isa chosen = isa == nullptr ? gcomm::comm::default_isa() : gcomm::codec::parse_isa(isa);
    *codec = new gcomm_codec{gcomm::comm::make_codec(text, chosen)};
  });
}

void gcomm_codec_destroy(gcomm_codec* codec) {
  if (codec != nullptr && !codec->borrowed) delete codec;
}

const char* gcomm_codec_spec(const gcomm_codec* codec) {
  return codec == nullptr ? "" : codec->codec->text().c_str();
}

const char* gcomm_codec_isa(const gcomm_codec* codec) {
  return codec == nullptr ? "" : gcomm::codec::isa_name(codec->codec->block().isa());
}

gcomm_result gcomm_codec_max_encoded_bytes(const gcomm_codec* codec, uint64_t count, uint64_t* bytes) {
  return guard([&] {
    static const double anywhere = 0;  // only the count is in question
    gcomm::comm::check_memory(&anywhere, count, 1, DType::kF32, {"count"});
    required(bytes, "bytes") = required(codec, "codec").codec->block().max_encoded_bytes(count);
  });
}

gcomm_result gcomm_codec_encode(gcomm_codec* codec, const void* src, gcomm_dtype dtype, uint64_t count,
                                const gcomm_encode_options* options, void* dst, uint64_t capacity,
                                uint64_t* written) {
  return guard([&] {
    StatefulCodec& target = *required(codec, "codec").codec;
    required(written, "written") = 0;
    gcomm::codec::EncodeJob job;
    job.dtype = codable(dtype);
    gcomm::comm::check_memory(src, count, 1, job.dtype, {"src"});
    const uint64_t needed = target.block().max_encoded_bytes(count);
    if (capacity < needed) {
      throw Error(Code::kInvalid, "capacity: " + std::to_string(capacity) + " bytes, but codec " +
                                      target.text() + " may need " + std::to_string(needed));
    }
    if (needed > 0) required_memory(dst, "dst");
    job.src = src;
    job.count = count;
    job.dst = static_cast<uint8_t*>(dst);
    job.capacity = capacity;
    *written = encode(target, job, gcomm::capi::read_optional(options, "gcomm_encode_options"));
  });
}

gcomm_result gcomm_codec_decode(const gcomm_codec* codec, const void* src, uint64_t bytes, void* dst,
                                gcomm_dtype dtype, uint64_t count) {
  return guard([&] {
    const StatefulCodec& target = *required(codec, "codec").codec;
    const DType type = codable(dtype);
    gcomm::comm::check_memory(dst, count, 1, type, {"dst"});
    if (bytes > 0) required_memory(src, "src");
    target.block().decode({static_cast<const uint8_t*>(src), bytes}, dst, type, count);
  });
}

gcomm_result gcomm_codec_decode_accumulate(const gcomm_codec* codec, const void* src, uint64_t bytes,
                                           float* acc, uint64_t count) {
  return guard([&] {
    const StatefulCodec& target = *required(codec, "codec").codec;
    gcomm::comm::check_memory(acc, count, 1, DType::kF32, {"acc"});
    if (bytes > 0) required_memory(src, "src");
    target.block().decode_accumulate({static_cast<const uint8_t*>(src), bytes}, acc, count);
  });
}

gcomm_result gcomm_codec_report(const gcomm_codec* codec, char* dst, uint64_t capacity, uint64_t* bytes) {
  return guard([&] {
    const std::string text = required(codec, "codec").codec->report();
    required(bytes, "bytes") = text.size() + 1;
    if (dst == nullptr) return;
    if (capacity <= text.size()) {
      throw Error(Code::kInvalid, "capacity: " + std::to_string(capacity) + " bytes, but the report has " +
                                      std::to_string(text.size() + 1));
    }
    std::memcpy(dst, text.c_str(), text.size() + 1);
  });
}

gcomm_result gcomm_codec_state_save(const gcomm_codec* codec, void* dst, uint64_t capacity, uint64_t* bytes) {
  return guard([&] {
    const std::vector<uint8_t> state = required(codec, "codec").codec->save();
    required(bytes, "bytes") = state.size();
    if (dst == nullptr) return;
    if (capacity < state.size()) {
      throw Error(Code::kInvalid, "capacity: " + std::to_string(capacity) + " bytes, but the state has " +
                                      std::to_string(state.size()));
    }
    std::memcpy(dst, state.data(), state.size());
  });
}

gcomm_result gcomm_codec_state_load(gcomm_codec* codec, const void* src, uint64_t bytes) {
  return guard([&] {
    StatefulCodec& target = *required(codec, "codec").codec;
    if (bytes > 0) required_memory(src, "src");
    target.load(static_cast<const uint8_t*>(src), bytes);
  });
}

}  // extern "C"
