// Codec text: "[transform+]format[:option=value]...".
#include <algorithm>
#include <charconv>
#include <iterator>
#include <string>
#include <system_error>

#include "base/error.h"
#include "codec/block_codec.h"
#include "codec/codec.h"

namespace gcomm::codec {
namespace {

constexpr std::string_view kOptions =
    "size (with hadamard), rounding, scale (mxfp4 and nvfp4), nonfinite, ef, crc, min_bytes, seed, and with "
    "gift: "
    "geometry, mode, rank, refresh, alpha, side, broadcast_basis";

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  throw Error(Code::kCodec, "codec '" + std::string(text) + "': " + why);
}

std::string quoted(std::string_view part) { return std::string("'").append(part).append("'"); }

// Takes what stands before `separator` off the front of rest; all of it where there is none.
std::string_view take_until(std::string_view& rest, char separator) {
  const std::size_t at = rest.find(separator);
  const std::string_view part = rest.substr(0, at);
  rest = at == std::string_view::npos ? std::string_view{} : rest.substr(at + 1);
  return part;
}

int find_format(std::string_view text, std::string_view name) {
  std::string known;
  for (std::size_t i = 0; i < formats().size(); ++i) {
    if (name == formats()[i].name) {
      return static_cast<int>(i);
    }
    known.append(i == 0 ? "" : ", ").append(formats()[i].name);
  }
  refuse(text, "unknown format " + quoted(name) + "; expected one of " + known);
}

template <class Number>
Number number(std::string_view text, std::string_view option, std::string_view value) {
  Number result{};
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
  if (value.empty() || error != std::errc{} || end != value.data() + value.size()) {
    refuse(text, std::string(option) + "=" + std::string(value) + ": expected a whole number from 0");
  }
  return result;
}

bool flag(std::string_view text, std::string_view option, std::string_view value) {
  if (value != "0" && value != "1") {
    refuse(text, std::string(option) + "=" + std::string(value) + ": expected 0 or 1");
  }
  return value == "1";
}

// Index of value among the names.
template <std::size_t n>
int choice(std::string_view text, std::string_view option, std::string_view value,
           const char* const (&names)[n]) {
  std::string known;
  for (std::size_t i = 0; i < n; ++i) {
    if (value == names[i]) {
      return static_cast<int>(i);
    }
    known.append(i == 0 ? "" : i + 1 == n ? " or " : ", ").append(names[i]);
  }
  refuse(text, std::string(option) + "=" + std::string(value) + ": expected " + known);
}

// In the order of the enumerations.
constexpr const char* kRoundings[] = {"nearest", "stochastic"};
constexpr const char* kScaleRules[] = {"absmax", "search"};
constexpr const char* kNonFinite[] = {"propagate", "raise", "zero"};
constexpr const char* kGeometries[] = {"spectral", "factored", "elementwise"};
constexpr const char* kModes[] = {"auto", "scale", "split", "rows"};
constexpr const char* kAlphas[] = {"0.125", "0.25", "0.375", "0.5", "0.625", "0.75", "0.875", "1"};
constexpr const char* kSides[] = {"bf16", "fp16", "fp8_e4m3", "int8", "int6", "int4"};

int whole_number(std::string_view text, std::string_view name, std::string_view value, int least, int most) {
  const int n = number<int>(text, name, value);
  if (n < least || n > most) {
    refuse(text, std::string(name) + "=" + std::string(value) + ": expected " + std::to_string(least) + " to " +
                     std::to_string(most));
  }
  return n;
}

// Whether the option is one of gift's.
bool set_gift_option(std::string_view text, std::string_view name, std::string_view value, GiftSpec& gift) {
  constexpr std::string_view kNames[] = {"geometry", "mode", "rank",           "refresh",
                                         "alpha",    "side", "broadcast_basis"};
  if (std::find(std::begin(kNames), std::end(kNames), name) == std::end(kNames)) {
    return false;
  }
  if (!gift.on) {
    refuse(text, std::string(name) + " belongs to the gift transform");
  }
  if (name == "geometry") {
    gift.geometry = static_cast<GiftSpec::Geometry>(choice(text, name, value, kGeometries));
  } else if (name == "mode") {
    gift.mode = static_cast<GiftSpec::Mode>(choice(text, name, value, kModes));
  } else if (name == "rank") {
    gift.rank = value == "auto" ? 0 : whole_number(text, name, value, 1, 256);
  } else if (name == "refresh") {
    gift.refresh = whole_number(text, name, value, 1, 1 << 30);
  } else if (name == "alpha") {
    gift.alpha_eighths = 1 + choice(text, name, value, kAlphas);
  } else if (name == "side") {
    gift.side = find_format(text, kSides[choice(text, name, value, kSides)]);
  } else {
    gift.broadcast_basis = flag(text, name, value);
  }
  return true;
}

// Of options that say nothing without another one.
void check_gift(std::string_view text, const GiftSpec& gift) {
  const GiftSpec plain;
  const bool spectral = gift.geometry == GiftSpec::Geometry::kSpectral;
  if (!spectral && (gift.mode != plain.mode || gift.rank != plain.rank || gift.side != plain.side ||
                    gift.alpha_eighths != plain.alpha_eighths || gift.broadcast_basis)) {
    refuse(text, "mode, rank, alpha, side and broadcast_basis belong to geometry=spectral");
  }
  if (gift.mode == GiftSpec::Mode::kScale && gift.side != plain.side) {
    refuse(text, "side belongs to mode=split and mode=rows");
  }
  if ((gift.mode == GiftSpec::Mode::kSplit || gift.mode == GiftSpec::Mode::kRows) &&
      gift.alpha_eighths != plain.alpha_eighths) {
    refuse(text, "alpha belongs to mode=scale");
  }
}

std::string gift_text(const GiftSpec& gift) {
  const GiftSpec plain;
  std::string out;
  if (gift.geometry != plain.geometry) {
    out += std::string(":geometry=") + kGeometries[static_cast<int>(gift.geometry)];
  }
  if (gift.mode != plain.mode) {
    out += std::string(":mode=") + kModes[static_cast<int>(gift.mode)];
  }
  if (gift.rank != plain.rank) {
    out += ":rank=" + std::to_string(gift.rank);
  }
  if (gift.refresh != plain.refresh) {
    out += ":refresh=" + std::to_string(gift.refresh);
  }
  if (gift.alpha_eighths != plain.alpha_eighths) {
    out += std::string(":alpha=") + kAlphas[gift.alpha_eighths - 1];
  }
  if (gift.side != plain.side) {
    out += std::string(":side=") + formats()[static_cast<std::size_t>(gift.side)].name;
  }
  if (gift.broadcast_basis) {
    out += ":broadcast_basis=1";
  }
  return out;
}

void set_option(std::string_view text, std::string_view name, std::string_view value, CodecSpec& spec) {
  if (set_gift_option(text, name, value, spec.gift)) {
    return;
  }
  if (name == "size") {
    if (spec.transform != TransformKind::kHadamard) {
      refuse(text, "size belongs to the hadamard transform");
    }
    constexpr const char* kSizes[] = {"64", "128", "256"};
    spec.hadamard_size = 64 << choice(text, name, value, kSizes);
  } else if (name == "rounding") {
    spec.rounding = static_cast<Rounding>(choice(text, name, value, kRoundings));
  } else if (name == "scale") {
    spec.scale = static_cast<ScaleRule>(choice(text, name, value, kScaleRules));
    if (spec.scale == ScaleRule::kSearch && !format_can_search(spec.format)) {
      refuse(text, "scale=search belongs to mxfp4 and nvfp4");
    }
  } else if (name == "nonfinite") {
    spec.nonfinite = static_cast<NonFinite>(choice(text, name, value, kNonFinite));
  } else if (name == "ef") {
    spec.error_feedback = flag(text, name, value);
  } else if (name == "crc") {
    spec.payload_crc = flag(text, name, value);
  } else if (name == "min_bytes") {
    spec.min_bytes = number<std::int64_t>(text, name, value);
    if (spec.min_bytes < 0) {
      refuse(text, "min_bytes=" + std::string(value) + ": expected a whole number from 0");
    }
  } else if (name == "seed") {
    spec.seed = number<std::uint64_t>(text, name, value);
  } else {
    refuse(text, "unknown option " + quoted(name) + "; options are " + std::string(kOptions));
  }
}

}  // namespace

CodecSpec parse_spec(std::string_view text) {
  CodecSpec spec;
  std::string_view rest = text;
  std::string_view head = take_until(rest, ':');
  const bool has_options = head.size() < text.size();
  while (head.find('+') != std::string_view::npos) {
    const std::string_view transform = take_until(head, '+');
    if (transform == "gift" && !spec.gift.on && spec.transform == TransformKind::kIdentity) {
      spec.gift.on = true;
    } else if (transform == "hadamard" && spec.transform == TransformKind::kIdentity) {
      spec.transform = TransformKind::kHadamard;
    } else if (transform == "gift" || transform == "hadamard") {
      refuse(text, "transforms are hadamard, gift, or gift+hadamard, in this order");
    } else {
      refuse(text, "unknown transform " + quoted(transform) + "; expected hadamard or gift");
    }
  }
  spec.format = find_format(text, head);
  std::string seen = ":";  // ":name:name:"
  while (has_options) {
    const bool last = rest.find(':') == std::string_view::npos;
    std::string_view value = take_until(rest, ':');
    const bool has_value = value.find('=') != std::string_view::npos;
    const std::string_view name = take_until(value, '=');
    if (name.empty() || !has_value) {
      refuse(text, "expected option=value, not " + quoted(name) + "; options are " + std::string(kOptions));
    }
    if (seen.find(std::string(":").append(name).append(":")) != std::string::npos) {
      refuse(text, "option " + quoted(name) + " is given twice");
    }
    seen.append(name).append(":");
    set_option(text, name, value, spec);
    if (last) {
      break;
    }
  }
  check_gift(text, spec.gift);
  return spec;
}

std::string CodecSpec::text() const {
  std::string out;
  if (gift.on) {
    out += "gift+";
  }
  if (transform == TransformKind::kHadamard) {
    out += "hadamard+";
  }
  out += formats()[static_cast<std::size_t>(format)].name;
  if (transform == TransformKind::kHadamard && hadamard_size != 64) {
    out += ":size=" + std::to_string(hadamard_size);
  }
  out += gift_text(gift);
  if (rounding != Rounding::kNearest) {
    out += std::string(":rounding=") + kRoundings[static_cast<int>(rounding)];
  }
  if (scale != ScaleRule::kAbsMax) {
    out += std::string(":scale=") + kScaleRules[static_cast<int>(scale)];
  }
  if (nonfinite != NonFinite::kPropagate) {
    out += std::string(":nonfinite=") + kNonFinite[static_cast<int>(nonfinite)];
  }
  if (error_feedback) {
    out += ":ef=1";
  }
  if (payload_crc) {
    out += ":crc=1";
  }
  if (min_bytes >= 0) {
    out += ":min_bytes=" + std::to_string(min_bytes);
  }
  if (seed != 0) {
    out += ":seed=" + std::to_string(seed);
  }
  return out;
}

std::uint32_t stream_id(std::string_view key, std::int64_t source) {
  std::uint32_t hash = 0x811C9DC5u;
  for (const char c : key) {
    hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x01000193u;
  }
  return hash + 0x9E3779B9u * static_cast<std::uint32_t>(source + 1);
}

}  // namespace gcomm::codec
