#include "collective/codec_state.h"

#include <atomic>
#include <cstring>

#include "base/crc32c.h"
#include "base/error.h"

namespace gcomm::collective {
namespace {

constexpr std::uint32_t kStateMagic = 0x53434347u;  // "GCCS"
constexpr std::uint32_t kStateVersion = 1;

std::string quoted(std::string_view key) { return "'" + std::string(key) + "'"; }

void make_residual(std::vector<float>& residual, std::size_t count, std::string_view key) {
  if (residual.size() == count) return;
  if (!residual.empty()) {
    throw Error(Code::kInvalid, "key " + quoted(key) + " holds a residual of " +
                                    std::to_string(residual.size()) +
                                    " elements and cannot serve a tensor of " + std::to_string(count) +
                                    ": one key names one tensor");
  }
  residual.assign(count, 0.0f);
}

std::string json_string(std::string_view value) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text = "\"";
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') text += '\\';
    if (byte >= 0x20) {
      text += c;
    } else {
      text += std::string("\\u00") + kHex[byte >> 4] + kHex[byte & 15];
    }
  }
  return text + "\"";
}

class Writer {
 public:
  void number32(std::uint32_t value) { bytes(&value, sizeof value); }
  void number64(std::uint64_t value) { bytes(&value, sizeof value); }
  void text(std::string_view value) {
    number64(value.size());
    bytes(value.data(), value.size());
  }
  void blob(const std::vector<std::uint8_t>& value) {
    number64(value.size());
    bytes(value.data(), value.size());
  }
  void floats(const std::vector<float>& values) {
    number64(values.size());
    bytes(values.data(), values.size() * sizeof(float));
  }
  std::vector<std::uint8_t> finish() {
    number32(crc32c(out_.data(), out_.size()));
    return std::move(out_);
  }

 private:
  void bytes(const void* data, std::size_t n) {
    const auto* p = static_cast<const std::uint8_t*>(data);
    out_.insert(out_.end(), p, p + n);
  }
  std::vector<std::uint8_t> out_;
};

class Reader {
 public:
  Reader(const std::uint8_t* data, std::size_t bytes) : data_(data), left_(bytes) {}
  std::uint32_t number32() { return number<std::uint32_t>(); }
  std::uint64_t number64() { return number<std::uint64_t>(); }
  std::string text() {
    const std::size_t n = length(1);
    std::string value(reinterpret_cast<const char*>(data_), n);
    skip(n);
    return value;
  }
  // A view into the bytes being read.
  codec::Encoded blob() {
    const std::size_t n = length(1);
    const codec::Encoded value{data_, n};
    skip(n);
    return value;
  }
  std::vector<float> floats() {
    const std::size_t n = length(sizeof(float));
    std::vector<float> values(n);
    if (n > 0) std::memcpy(values.data(), data_, n * sizeof(float));
    skip(n * sizeof(float));
    return values;
  }
  bool done() const noexcept { return left_ == 0; }

 private:
  template <typename T>
  T number() {
    if (left_ < sizeof(T)) broken();
    T value;
    std::memcpy(&value, data_, sizeof value);
    skip(sizeof value);
    return value;
  }
  std::size_t length(std::size_t item) {
    const std::uint64_t n = number64();
    if (n > left_ / item) broken();
    return static_cast<std::size_t>(n);
  }
  void skip(std::size_t n) noexcept {
    data_ += n;
    left_ -= n;
  }
  [[noreturn]] static void broken() { throw Error(Code::kCodec, "codec state: the bytes end too early"); }

  const std::uint8_t* data_;
  std::size_t left_;
};

}  // namespace

StatefulCodec::StatefulCodec(std::shared_ptr<const codec::BlockCodec> block, TransformFactory make)
    : block_(std::move(block)), text_(block_->spec().text()), transforms_(make) {}

StatefulCodec::Transform StatefulCodec::make_transform(std::uint64_t rows, std::uint64_t cols,
                                                       const codec::Encoded* saved) const {
  if (transforms_ == nullptr) throw Error(Code::kInternal, "nobody here makes the transforms of " + text_);
  return transforms_(block_->spec(), block_->isa(), rows, cols, saved);
}

std::uint64_t StatefulCodec::next_call_id() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

KeyState* StatefulCodec::acquire(std::string_view key, int peer, const void* user, std::uint64_t call_id,
                                 std::size_t count, std::uint64_t rows, std::uint64_t cols) {
  const std::lock_guard lock(mutex_);
  const auto found = states_.find(IdView{key, peer});
  std::unique_ptr<KeyState> made;
  if (found == states_.end()) made = std::make_unique<KeyState>();
  KeyState* state = made != nullptr ? made.get() : found->second.get();
  if (state->pending > 0 && state->user != user) {
    throw Error(Code::kInvalid, "key " + quoted(key) + " of codec " + text_ +
                                    " is held by a call that has not completed, and whose turn before this one"
                                    " nothing decides (another communicator's, or one outside of collectives)");
  }
  if ((error_feedback() || transforms()) && state->last_call == call_id) {
    throw Error(Code::kInvalid, "key " + quoted(key) + " names two tensors of one call");
  }
  if (error_feedback()) make_residual(state->residual, count, key);
  if (transforms()) {
    if (state->transform == nullptr) state->transform = make_transform(rows, cols, nullptr);
    const auto shape = [](std::uint64_t r, std::uint64_t c) {
      return std::to_string(r) + " x " + std::to_string(c);
    };
    if (const KeyTransform& known = *state->transform; known.rows() != rows || known.cols() != cols) {
      throw Error(Code::kInvalid, "key " + quoted(key) + " stands for a matrix of " +
                                      shape(known.rows(), known.cols()) + " and cannot serve one of " +
                                      shape(rows, cols) + ": one key names one tensor");
    }
  }
  if (made != nullptr) states_.emplace(Id{std::string(key), peer}, std::move(made));
  state->last_call = call_id;
  state->user = user;
  ++state->pending;
  return state;
}

void StatefulCodec::release(KeyState* state, bool used) noexcept {
  const std::lock_guard lock(mutex_);
  state->kept = state->kept || used;
  if (--state->pending > 0 || state->kept) return;
  std::erase_if(states_, [&](const auto& entry) { return entry.second.get() == state; });
}

void StatefulCodec::require_idle() const {
  for (const auto& [id, state] : states_) {
    if (state->pending > 0) {
      throw Error(Code::kInvalid, "codec state: a call with key " + quoted(id.key) + " has not completed");
    }
  }
}

std::vector<std::uint8_t> StatefulCodec::save() const {
  const std::lock_guard lock(mutex_);
  require_idle();
  Writer out;
  out.number32(kStateMagic);
  out.number32(kStateVersion);
  out.text(text_);
  out.number64(states_.size());
  for (const auto& [id, state] : states_) {
    out.text(id.key);
    out.number32(static_cast<std::uint32_t>(id.peer));
    out.number32(state->calls);
    out.floats(state->residual);
    if (!transforms()) continue;
    out.number64(state->transform->rows());
    out.number64(state->transform->cols());
    std::vector<std::uint8_t> learned;
    state->transform->save(learned);
    out.blob(learned);
  }
  return out.finish();
}

std::string StatefulCodec::report() const {
  const std::lock_guard lock(mutex_);
  require_idle();
  std::string text = "[";
  for (const auto& [id, state] : states_) {
    if (state->transform == nullptr) continue;
    if (text.size() > 1) text += ",";
    text += "{\"key\":" + json_string(id.key) + "," + state->transform->report().substr(1);
  }
  return text + "]";
}

void StatefulCodec::load(const std::uint8_t* data, std::size_t bytes) {
  std::uint32_t crc = 0;
  if (bytes < sizeof crc) throw Error(Code::kCodec, "codec state: the bytes end too early");
  const std::size_t body = bytes - sizeof crc;
  std::memcpy(&crc, data + body, sizeof crc);
  if (crc != crc32c(data, body)) throw Error(Code::kCodec, "codec state: the bytes fail their CRC");
  Reader in(data, body);
  if (in.number32() != kStateMagic) throw Error(Code::kCodec, "codec state: these bytes are something else");
  if (const std::uint32_t version = in.number32(); version != kStateVersion) {
    throw Error(Code::kCodec, "codec state: version " + std::to_string(version) + " is not known here");
  }
  if (const std::string text = in.text(); text != text_) {
    throw Error(Code::kCodec, "codec state: it was saved by codec " + text + ", not by " + text_);
  }
  States states;
  for (std::uint64_t n = in.number64(); n > 0; --n) {
    std::string key = in.text();
    const auto peer = static_cast<int>(in.number32());
    auto state = std::make_unique<KeyState>();
    state->kept = true;
    state->calls = in.number32();
    state->residual = in.floats();
    if (transforms()) {
      const std::uint64_t rows = in.number64();
      const std::uint64_t cols = in.number64();
      const codec::Encoded learned = in.blob();
      state->transform = make_transform(rows, cols, &learned);
    }
    states.emplace(Id{std::move(key), peer}, std::move(state));
  }
  if (!in.done()) throw Error(Code::kCodec, "codec state: there are bytes left over");
  const std::lock_guard lock(mutex_);
  require_idle();
  states_.swap(states);
}

}  // namespace gcomm::collective
