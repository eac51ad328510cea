// What of a call's tensors travels: of most the elements themselves, of a tensor under a learned transform its
// mapped elements, and before them its sides.
#pragma once

#include <cstdint>
#include <vector>

#include "collective/payload.h"

namespace gcomm::collective {

struct Item {
  enum class Role : std::uint8_t {
    kPlain,
    kMapped,  // through the map and back, wherever a piece is
    kSide,    // complete before the rest of its tensor is put together
    kRest,    // of a tensor with sides: mapped back when they are there, the own shard too
    kWhole,   // decoded, and mapped back when all of it is there
  };

  TensorArg* tensor = nullptr;
  Role role = Role::kPlain;
  Coding coding;
  std::uint64_t count = 0;
  const void* input = nullptr;
  const std::uint8_t* wire = nullptr;  // of a side: encoded already
  void* output = nullptr;
  bool never_raw = false;     // what is encoded is not what a small tensor would send
  bool opens_tensor = false;  // the transform is to read the input first
  bool last_side = false;

  KeyTransform* transform() const noexcept { return tensor->transform(); }
  const codec::TileMap* map() const noexcept {
    return role == Role::kPlain || role == Role::kSide ? nullptr : &tensor->transform()->map();
  }
  // What everybody will decode is written where it was summed.
  bool written_by_owner() const noexcept { return role < Role::kRest; }
};

// In the order in which they travel.
void make_items(Call& call, int ranks, std::vector<Item>& items);

}  // namespace gcomm::collective
