#include "collective/items.h"

#include <utility>

#include "collective/plan.h"

namespace gcomm::collective {
namespace {

using Path = KeyTransform::Path;
using Role = Item::Role;

Role role_of(Path path) {
  switch (path) {
    case Path::kDirect:
    case Path::kCoded:
      return Role::kPlain;
    case Path::kMapped:
      return Role::kMapped;
    case Path::kSplit:
      return Role::kRest;
    case Path::kWhole:
      return Role::kWhole;
  }
  return Role::kPlain;
}

}  // namespace

void make_items(Call& call, int ranks, std::vector<Item>& items) {
  items.clear();
  for (std::size_t i = 0; i < call.tensor_count; ++i) {
    TensorArg& tensor = call.tensors[i];
    Item rest;
    rest.tensor = &tensor;
    rest.coding = Coding(&call.block(), call.dtype);
    rest.count = tensor.count;
    rest.input = tensor.input;
    rest.output = tensor.output;
    const KeyTransform* transform = tensor.transform();
    // Without a transform the plan decides, once.
    if (transform != nullptr && !tensor_goes_raw(call, tensor.count, ranks)) {
      rest.role = role_of(transform->path());
      rest.never_raw = transform->path() != Path::kDirect;
      if (transform->path() == Path::kCoded) rest.coding = Coding(&transform->block(), call.dtype);
    }
    rest.opens_tensor = rest.role != Role::kPlain;
    if (rest.role == Role::kRest) {
      for (std::size_t k = 0; k < transform->sides(); ++k) {
        const KeyTransform::Side side = transform->side(k);
        Item item;
        item.tensor = &tensor;
        item.role = Role::kSide;
        item.never_raw = true;
        item.coding = Coding(side.block, DType::kF32);
        item.count = side.count;
        item.input = side.input;
        item.wire = side.wire;
        item.output = side.output;
        item.opens_tensor = std::exchange(rest.opens_tensor, false);
        item.last_side = k + 1 == transform->sides();
        items.push_back(item);
      }
    }
    items.push_back(rest);
  }
}

}  // namespace gcomm::collective
