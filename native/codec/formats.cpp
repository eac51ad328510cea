#include "codec/block_codec.h"
#include "codec/codec.h"
#include "codec/formats/list.h"

namespace gcomm::codec {
namespace {

template <class T>
FormatLayout layout_of() {
  FormatLayout layout;
  layout.block = T::kBlock;
  layout.code_bytes = T::kCodeBytes;
  layout.scale_bytes = T::Scale::kBytes;
  if constexpr (T::Scale::kBytes > 0) {
    layout.tile_header = T::Scale::kTileScale ? 4 : 0;
  }
  return layout;
}

template <class... T>
std::vector<FormatLayout> all_layouts(FormatList<T...>) {
  return {layout_of<T>()...};
}

template <class T>
FormatInfo info_of() {
  const double tile_bits = 8.0 * static_cast<double>(layout_of<T>().tile_bytes(kTile));
  return {T::kName, T::kBlock, tile_bits / static_cast<double>(kTile), T::kHasNaN, true};
}

template <class... T>
std::vector<FormatInfo> all_infos(FormatList<T...>) {
  return {info_of<T>()...};
}

template <class... T>
bool searchable(int format, FormatList<T...>) {
  static constexpr bool kSearchable[] = {T::kSearchable...};
  return kSearchable[format];
}

}  // namespace

const std::vector<FormatInfo>& formats() {
  static const std::vector<FormatInfo> kInfos = all_infos(AllFormats{});
  return kInfos;
}

const FormatLayout& format_layout(int format) {
  static const std::vector<FormatLayout> kLayouts = all_layouts(AllFormats{});
  return kLayouts[static_cast<std::size_t>(format)];
}

bool format_can_search(int format) { return searchable(format, AllFormats{}); }

}  // namespace gcomm::codec
