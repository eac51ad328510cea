// A codec and what it remembers between calls: for each key a call counter (stochastic rounding), a residual
// (error feedback) and a transform (GIFT). State is made when a call is queued, by the caller's thread; from
// then until the call ends it belongs to the lane that runs the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "codec/codec.h"
#include "collective/key_transform.h"

namespace gcomm::collective {

struct KeyState {
  std::uint32_t calls = 0;      // made with this key so far
  std::vector<float> residual;  // one a tensor element: of this rank's input, in its own shard of the sum
  std::unique_ptr<KeyTransform> transform;  // null where the codec has none

  // Guarded by the codec's mutex.
  const void* user = nullptr;   // the lane whose calls hold this state
  int pending = 0;              // calls that hold it
  std::uint64_t last_call = 0;  // the last that asked for it
  bool kept = false;            // some call has used it, or it was loaded
};

class StatefulCodec {
 public:
  // make: what makes the transforms of a codec that has them.
  explicit StatefulCodec(std::shared_ptr<const codec::BlockCodec> block, TransformFactory make = nullptr);

  const codec::BlockCodec& block() const noexcept { return *block_; }
  const std::string& text() const noexcept { return text_; }  // canonical
  bool stochastic() const noexcept { return block_->spec().rounding == codec::Rounding::kStochastic; }
  bool error_feedback() const noexcept { return block_->spec().error_feedback; }
  bool transforms() const noexcept { return block_->spec().gift.on; }
  bool keeps_state() const noexcept { return stochastic() || error_feedback() || transforms(); }
  // Numbers for acquire().
  static std::uint64_t next_call_id() noexcept;

  // What a key's state is for: collectives and encode() by hand share one, each peer that is sent to has its
  // own.
  static constexpr int kCollectives = -1;

  // The state of a key for a call of `user` that is about to be queued; call_id tells it from other calls. With
  // error feedback, a residual of `count` elements is made on first use, all zero; so is the transform of a
  // rows x cols matrix. Throws kInvalid: the key has another size or shape or serves another tensor of this
  // call, or calls of another user hold it. Hand back with release(). used: the call took place. A state that
  // no call has used is forgotten: a call that was refused, here or by all ranks, leaves nothing that a later
  // one could be at odds with.
  KeyState* acquire(std::string_view key, int peer, const void* user, std::uint64_t call_id, std::size_t count,
                    std::uint64_t rows, std::uint64_t cols);
  void release(KeyState* state, bool used) noexcept;

  // docs/wire-format.md, section 5. Both throw kInvalid while calls hold a state; load() replaces everything,
  // and throws kCodec, changing nothing, for bytes that are not this codec's state.
  std::vector<std::uint8_t> save() const;
  void load(const std::uint8_t* data, std::size_t bytes);
  // A JSON array: what each key's transform chose and why. Throws kInvalid while calls hold a state.
  std::string report() const;

 private:
  struct Id {
    std::string key;
    int peer;
  };
  struct IdView {
    std::string_view key;
    int peer;
  };
  struct Less {
    using is_transparent = void;
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const noexcept {
      const int order = std::string_view(a.key).compare(std::string_view(b.key));
      return order != 0 ? order < 0 : a.peer < b.peer;
    }
  };
  using Transform = std::unique_ptr<KeyTransform>;
  using States = std::map<Id, std::unique_ptr<KeyState>, Less>;

  void require_idle() const;
  Transform make_transform(std::uint64_t rows, std::uint64_t cols, const codec::Encoded* saved) const;

  const std::shared_ptr<const codec::BlockCodec> block_;
  const std::string text_;
  const TransformFactory transforms_;
  mutable std::mutex mutex_;
  States states_;
};

}  // namespace gcomm::collective
