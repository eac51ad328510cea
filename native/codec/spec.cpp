// Codec text: "[transform+]format[:option=value]...".
#include <charconv>
#include <string>
#include <system_error>

#include "base/error.h"
#include "codec/block_codec.h"
#include "codec/codec.h"

namespace gcomm::codec {
namespace {

constexpr std::string_view kOptions =
    "size (with hadamard), rounding, scale (mxfp4 and nvfp4), nonfinite, ef, crc, min_bytes, seed";

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

void set_option(std::string_view text, std::string_view name, std::string_view value, CodecSpec& spec) {
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
  if (head.find('+') != std::string_view::npos) {
    const std::string_view transform = take_until(head, '+');
    if (transform != "hadamard") {
      refuse(text, "unknown transform " + quoted(transform) + "; expected hadamard");
    }
    spec.transform = TransformKind::kHadamard;
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
  return spec;
}

std::string CodecSpec::text() const {
  std::string out;
  if (transform == TransformKind::kHadamard) {
    out += "hadamard+";
  }
  out += formats()[static_cast<std::size_t>(format)].name;
  if (transform == TransformKind::kHadamard && hadamard_size != 64) {
    out += ":size=" + std::to_string(hadamard_size);
  }
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
