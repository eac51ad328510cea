#include "collective/call.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "base/hash.h"

namespace gcomm::collective {
namespace {

constexpr std::size_t kListed = 8;        // counts or keys written out; the rest is a fingerprint
constexpr std::size_t kLongestKey = 60;   // bytes of a key in words
constexpr std::size_t kRanksListed = 16;  // ranks named one by one; beyond, those that agree share a line

const char* verb_name(const Call& call) {
  switch (call.verb) {
    case Verb::kAllReduce:
      return "all_reduce";
    case Verb::kReduceScatter:
      return "reduce_scatter";
    case Verb::kAllGather:
      return "all_gather";
    case Verb::kAllToAll:
      return "all_to_all";
    case Verb::kBroadcast:
      return "broadcast";
    case Verb::kPointToPoint:
      return call.sending ? "send" : "recv";
    case Verb::kBarrier:
      return "barrier";
  }
  return "?";
}

bool reduces(Verb verb) { return verb == Verb::kAllReduce || verb == Verb::kReduceScatter; }
bool has_root(Verb verb) { return verb == Verb::kBroadcast || verb == Verb::kPointToPoint; }

const char* op_name(Op op) { return op == Op::kAvg ? "avg" : "sum"; }

std::string hex(std::uint64_t value) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text(16, '0');
  for (int i = 15; i >= 0; --i, value >>= 4) text[static_cast<std::size_t>(i)] = kDigits[value & 15];
  return text;
}

// Keys are the caller's: nothing in them may break a line or look like something else. A long one is cut,
// between characters, and told from others by its fingerprint.
std::string printable(std::string_view key) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::size_t shown = std::min(key.size(), kLongestKey);
  while (shown < key.size() && shown > 0 && (static_cast<unsigned char>(key[shown]) & 0xC0) == 0x80) --shown;
  std::string text = "'";
  for (const char c : key.substr(0, shown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      text += std::string("\\x") + kDigits[byte >> 4] + kDigits[byte & 15];
    } else {
      text += c == '\\' ? "\\\\" : std::string(1, c);
    }
  }
  if (shown == key.size()) return text + "'";
  return text + "...', fingerprint " + hex(Fnv64().text(key).value());
}

// "[a, b, c]", or of a long list the first few, the length and a fingerprint of all of it.
template <typename Item, typename Mix>
std::string list(std::size_t size, Item item, Mix mix) {
  std::string text = "[";
  for (std::size_t i = 0; i < std::min(size, kListed); ++i) {
    text += (i > 0 ? ", " : "") + item(i);
  }
  if (size > kListed) {
    Fnv64 all;
    for (std::size_t i = 0; i < size; ++i) mix(all, i);
    text += ", ... " + std::to_string(size) + " in all, fingerprint " + hex(all.value());
  }
  return text + "]";
}

std::string list(const std::vector<std::uint64_t>& values) {
  return list(
      values.size(), [&](std::size_t i) { return std::to_string(values[i]); },
      [&](Fnv64& all, std::size_t i) { all.number(values[i]); });
}

std::string counts(const Call& call) {
  if (call.verb == Verb::kAllToAll) {
    return "send " + list(call.send_counts) + " recv " + list(call.recv_counts);
  }
  if (call.tensor_count == 1) return "[" + std::to_string(call.tensors[0].count) + "]";
  return list(
      call.tensor_count, [&](std::size_t i) { return std::to_string(call.tensors[i].count); },
      [&](Fnv64& all, std::size_t i) { all.number(call.tensors[i].count); });
}

bool any_key(const Call& call) {
  return std::any_of(call.tensors.begin(),
                     call.tensors.begin() + static_cast<std::ptrdiff_t>(call.tensor_count),
                     [](const TensorArg& tensor) { return !tensor.key.empty(); });
}

std::string keys(const Call& call) {
  if (!any_key(call)) return "none";
  if (call.tensor_count == 1) return printable(call.tensors[0].key);
  return list(
      call.tensor_count, [&](std::size_t i) { return printable(call.tensors[i].key); },
      [&](Fnv64& all, std::size_t i) { all.text(call.tensors[i].key); });
}

bool any_transform(const Call& call) {
  return call.tensor_count > 0 && call.codec != nullptr && call.codec->transforms();
}

// What ranks have learned of each tensor.
std::uint64_t learned(const TensorArg& tensor) {
  return tensor.transform() == nullptr ? 0 : tensor.transform()->digest();
}

std::string bases(const Call& call) {
  return list(
      call.tensor_count, [&](std::size_t i) { return hex(learned(call.tensors[i])); },
      [&](Fnv64& all, std::size_t i) { all.number(learned(call.tensors[i])); });
}

std::string codec_name(const Call& call) { return call.codec == nullptr ? "none" : call.codec->text(); }

std::string with_number(const char* what, std::size_t n) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

std::vector<std::string_view> lines(std::string_view text) {
  std::vector<std::string_view> all;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    all.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return all;
}

std::string rank_list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

// The lowest rank that is not of the majority, or -1 where there is none.
int culprit(const std::map<std::string_view, std::vector<int>>& groups, std::size_t ranks) {
  for (const auto& [text, members] : groups) {
    if (2 * members.size() <= ranks) continue;
    int lowest = -1;
    for (const auto& [other, outsiders] : groups) {
      if (other != text && (lowest < 0 || outsiders.front() < lowest)) lowest = outsiders.front();
    }
    return lowest;
  }
  return -1;
}

// The names of the lines that are not the same everywhere. Where the verb differs the rest says nothing more.
std::string differences(const std::vector<std::pair<int, std::string>>& described) {
  struct Seen {
    std::string_view name, line;
    std::size_t same;
  };
  std::vector<Seen> seen;
  for (const auto& [rank, text] : described) {
    const std::vector<std::string_view> rows = lines(text);
    for (std::size_t i = 1; i < rows.size(); ++i) {
      const std::string_view name = rows[i].substr(0, rows[i].find(": "));
      const auto at = std::find_if(seen.begin(), seen.end(), [&](const Seen& s) { return s.name == name; });
      if (at == seen.end()) {
        seen.push_back({name, rows[i], 1});
      } else if (at->line == rows[i]) {
        ++at->same;
      }
    }
  }
  std::string text;
  for (const Seen& s : seen) {
    if (s.same == described.size()) continue;
    text += (text.empty() ? "" : ", ") + std::string(s.name);
    if (s.name == "verb") break;
  }
  return text;
}

// What must agree: all lines but the first.
std::string_view agreed(std::string_view described) {
  return described.substr(std::min(described.find('\n'), described.size()));
}

}  // namespace

std::uint64_t agreement_hash(const Call& call) {
  Fnv64 hash;
  hash.number(static_cast<std::uint64_t>(call.verb));
  hash.number(reduces(call.verb) ? static_cast<std::uint64_t>(call.op) : 0);
  hash.number(has_root(call.verb) ? static_cast<std::uint64_t>(call.root) : 0);
  hash.number(static_cast<std::uint64_t>(call.dtype));
  hash.number(call.tensor_count);
  for (std::size_t i = 0; i < call.tensor_count; ++i) hash.number(call.tensors[i].count);
  hash.text(call.codec == nullptr ? std::string_view() : std::string_view(call.codec->text()));
  for (std::size_t i = 0; i < call.tensor_count; ++i) hash.text(call.tensors[i].key);
  if (any_transform(call)) {
    for (std::size_t i = 0; i < call.tensor_count; ++i) {
      hash.number(call.tensors[i].rows).number(learned(call.tensors[i]));
    }
  }
  return hash.value();
}

std::string in_words(const Call& call) {
  std::string text = verb_name(call);
  if (call.verb == Verb::kBarrier) return text + "()";
  text += "(";
  if (reduces(call.verb)) text += std::string(op_name(call.op)) + ", ";
  if (call.verb == Verb::kPointToPoint) {
    text += (call.sending ? "to " : "from ") + std::to_string(call.peer) + ", ";
  }
  const std::string dtype = dtype_info(call.dtype).name;
  if (call.verb == Verb::kAllToAll) {
    text += dtype + ", " + counts(call);
  } else if (call.tensor_count == 1) {
    text += dtype + counts(call);
  } else {
    text += with_number("tensor", call.tensor_count) + " of " + dtype + counts(call);
  }
  if (call.verb == Verb::kBroadcast) text += ", root " + std::to_string(call.root);
  text += ", codec " + codec_name(call);
  if (any_key(call)) text += std::string(call.tensor_count == 1 ? ", key " : ", keys ") + keys(call);
  return text + ")";
}

std::string describe(const Call& call) {
  std::string text = in_words(call);
  text += std::string("\nverb: ") + (call.verb == Verb::kPointToPoint ? "send and recv" : verb_name(call));
  if (call.verb == Verb::kBarrier) return text;
  if (reduces(call.verb)) text += std::string("\nop: ") + op_name(call.op);
  if (call.verb == Verb::kBroadcast) text += "\nroot: " + std::to_string(call.root);
  text += std::string("\ndtype: ") + dtype_info(call.dtype).name;
  if (call.verb != Verb::kAllToAll) {
    text += "\nnumber of tensors: " + std::to_string(call.tensor_count);
    text += "\ncount: " + counts(call);
  }
  text += "\ncodec: " + codec_name(call);
  text += "\nkey: " + keys(call);
  if (any_transform(call)) {
    text +=
        "\nrows: " + list(
                         call.tensor_count, [&](std::size_t i) { return std::to_string(call.tensors[i].rows); },
                         [&](Fnv64& all, std::size_t i) { all.number(call.tensors[i].rows); });
    text += "\nbasis: " + bases(call);
  }
  return text;
}

SharedError mismatch(const std::vector<std::pair<int, std::string>>& described) {
  std::map<std::string_view, std::vector<int>> groups;   // ranks that want the same
  std::map<std::string_view, std::vector<int>> callers;  // ranks that say the same
  for (const auto& [rank, text] : described) {
    groups[agreed(text)].push_back(rank);
    callers[lines(text).front()].push_back(rank);
  }
  std::string differ = differences(described);
  if (differ.empty()) differ = "how much one sends and the other receives";  // all_to_all agrees pair by pair
  std::string text = "ranks disagree on " + differ + ": ";
  auto add = [&, first = true](const std::vector<int>& ranks, std::string_view words) mutable {
    text += (first ? "" : "; ") + rank_list(ranks) + ": " + std::string(words);
    first = false;
  };
  if (described.size() <= kRanksListed) {
    for (const auto& [rank, all] : described) add(std::vector<int>{rank}, lines(all).front());
  } else {
    for (const auto& [words, ranks] : callers) add(ranks, words);
  }
  return SharedError(Code::kMismatch, text, culprit(groups, described.size()));
}

}  // namespace gcomm::collective
