// The parts below the pipelines: headers, hashes, words, cuts, plans, codec state.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "base/aligned.h"
#include "base/crc32c.h"
#include "base/hash.h"
#include "collective/cut.h"
#include "collective/header.h"
#include "collective/payload.h"
#include "collective/plan.h"
#include "engine_world.h"

using namespace gcomm;
using namespace gcomm::collective;
using gcomm::test::Bytes;

namespace {

void checksums() {
  CHECK(crc32c("123456789", 9) == 0xE3069283u);  // the polynomial's published check value
  CHECK(crc32c("", 0) == 0);
  std::mt19937 random(1);
  for (std::size_t n = 0; n < 300; ++n) {
    Bytes data(n);
    for (auto& byte : data) byte = static_cast<std::uint8_t>(random());
    const std::size_t half = n / 3;
    CHECK(crc32c(data.data(), n) == crc32c_portable(data.data(), n), "%zu bytes", n);
    CHECK(crc32c(data.data(), n) == crc32c(data.data() + half, n - half, crc32c(data.data(), half)));
  }
  CHECK(fnv1a32("") == 0x811C9DC5u && fnv1a32("foobar") == 0xBF9CF968u);
  CHECK(Fnv64().value() == 0xCBF29CE484222325ull);
  Fnv64 hash;
  for (const char c : std::string("foobar")) hash.byte(static_cast<std::uint8_t>(c));
  CHECK(hash.value() == 0x85944171F73967E8ull);
  CHECK(Fnv64().text("ab").value() == Fnv64().number(2).byte('a').byte('b').value());
}

Header some_header() {
  Header header;
  header.kind = Kind::kData;
  header.flags = kFlagRaw | kFlagNonFinite;
  header.source = 3;
  header.sequence = 0x0102030405060708ull;
  header.payload_bytes = 5;
  header.count = 77;
  header.hash = 0xA1A2A3A4A5A6A7A8ull;
  header.phase = 2;
  header.chunk = 0x010203;
  return header;
}

void headers() {
  Bytes message(kHeaderBytes + 5, 0x5A);
  write_header(some_header(), message.data());
  const Bytes golden = {0x47, 0x43, 0x4D, 0x31, 1,    1,    3,    0,    3,    0,    0, 0, 0, 0,  0,
                        0,    8,    7,    6,    5,    4,    3,    2,    1,    5,    0, 0, 0, 77, 0,
                        0,    0,    0xA8, 0xA7, 0xA6, 0xA5, 0xA4, 0xA3, 0xA2, 0xA1, 3, 2, 1, 2};
  CHECK(std::equal(golden.begin(), golden.end(), message.begin()));
  const Header back = read_header(message.data(), message.size(), 1 << 20, 3);
  CHECK(back.kind == Kind::kData && back.flags == 3 && back.source == 3 &&
        back.sequence == some_header().sequence && back.payload_bytes == 5 && back.count == 77 &&
        back.hash == some_header().hash && back.phase == 2 && back.chunk == 0x010203);
  // Any flipped bit in the header is noticed, and so are a wrong length and a wrong source.
  for (std::size_t bit = 0; bit < 8 * kHeaderBytes; ++bit) {
    Bytes bad = message;
    bad[bit / 8] = static_cast<std::uint8_t>(bad[bit / 8] ^ 1u << bit % 8);
    CHECK_THROWS(read_header(bad.data(), bad.size(), 1 << 20, 3), Code::kPeerLost);
  }
  CHECK_THROWS(read_header(message.data(), message.size() - 1, 1 << 20, 3), Code::kPeerLost);
  CHECK_THROWS(read_header(message.data(), 47, 1 << 20, 3), Code::kPeerLost);
  CHECK_THROWS(read_header(message.data(), message.size(), 1 << 20, 2), Code::kPeerLost);
  Bytes longer = message;
  longer.resize(1000);
  CHECK_THROWS(read_header(longer.data(), longer.size(), 1 << 20, 3), Code::kPeerLost);
  CHECK(read_header(longer.data(), longer.size(), longer.size(), 3).payload_bytes ==
        5);  // a host that knows no lengths
  try {
    read_header(message.data(), message.size(), 1 << 20, 2);
  } catch (const Error& error) {
    CHECK(error.peer() == 2 && std::string(error.what()).find("rank 2") != std::string::npos);
  }
  Header with_crc = some_header();
  with_crc.flags |= kFlagPayloadCrc;
  with_crc.payload_crc = crc32c(message.data() + kHeaderBytes, 5);
  write_header(with_crc, message.data());
  CHECK(read_header(message.data(), message.size(), 1 << 20, 3).has(kFlagPayloadCrc));
  message.back() ^= 1;
  CHECK_THROWS(read_header(message.data(), message.size(), 1 << 20, 3), Code::kCodec);
}

std::shared_ptr<StatefulCodec> stateful(const char* spec) {
  return std::make_shared<StatefulCodec>(codec::BlockCodec::make(codec::parse_spec(spec), codec::Isa::kScalar));
}

Call some_call(std::vector<std::uint64_t> counts, const char* spec = "int8") {
  Call call;
  call.verb = Verb::kAllReduce;
  call.tensor_count = counts.size();
  for (const std::uint64_t count : counts) {
    TensorArg tensor;
    tensor.count = count;
    call.tensors.push_back(tensor);
  }
  call.codec = stateful(spec);
  return call;
}

void words() {
  Call call = some_call({1024});
  CHECK(in_words(call) == "all_reduce(sum, float32[1024], codec int8)", "%s", in_words(call).c_str());
  const std::uint64_t hash = agreement_hash(call);
  // docs/wire-format.md, section 4, by hand.
  CHECK(hash ==
        Fnv64().number(1).number(0).number(0).number(0).number(1).number(1024).text("int8").text("").value());
  std::vector<Call> others(9, call);
  others[0].verb = Verb::kReduceScatter;
  others[1].op = Op::kAvg;
  others[2].dtype = DType::kBF16;
  others[3].tensors[0].count = 1025;
  others[4].codec = stateful("int4");
  others[5].codec = stateful("int8:seed=1");
  others[6].tensors[0].key = "k";
  others[7].tensors.emplace_back();
  others[7].tensor_count = 2;
  others[8].codec = nullptr;
  for (std::size_t i = 0; i < others.size(); ++i) CHECK(agreement_hash(others[i]) != hash, "variant %zu", i);
  others[3].tensors[0].key = "layer\n3";
  const SharedError error = mismatch({{0, describe(call)}, {1, describe(call)}, {2, describe(others[3])}});
  CHECK(
      std::string(error.what()) ==
          "ranks disagree on count, key: rank 0: all_reduce(sum, float32[1024], codec int8); rank 1: "
          "all_reduce(sum, float32[1024], codec int8); rank 2: all_reduce(sum, float32[1025], codec int8, key "
          "'layer\\x0a3')",
      "%s", error.what());
  CHECK(error.code() == Code::kMismatch && error.peer() == 2);
  CHECK(mismatch({{0, describe(call)}, {1, describe(others[2])}}).peer() == -1);
  Call barrier;
  const std::string text = mismatch({{0, describe(call)}, {1, describe(barrier)}}).what();
  CHECK(text == "ranks disagree on verb: rank 0: all_reduce(sum, float32[1024], codec int8); rank 1: barrier()",
        "%s", text.c_str());
  std::vector<std::pair<int, std::string>> crowd;
  for (int r = 0; r < 40; ++r) crowd.emplace_back(r, describe(r == 7 ? others[1] : call));
  const SharedError grouped = mismatch(crowd);
  CHECK(grouped.peer() == 7 &&
            std::string(grouped.what()).find("rank 7: all_reduce(avg") != std::string::npos &&
            std::strlen(grouped.what()) < 500,
        "%s", grouped.what());
  Call many = some_call(std::vector<std::uint64_t>(1000, 5));
  Call other = many;
  other.tensors[999].count = 6;
  CHECK(describe(many) != describe(other) && describe(many).size() < 2000);
}

void cuts() {
  for (const std::uint32_t wanted : {3u, 32u}) {
    for (const std::size_t slot : {kMinSlotBytes, std::size_t{1} << 20, std::size_t{4} << 20}) {
      for (const std::size_t tile :
           {std::size_t{1280}, std::size_t{4160}, std::size_t{16384}, std::size_t{65536}}) {
        for (const std::uint64_t count : {0ull, 1ull, 4095ull, 4096ull, 4097ull, 1000003ull, 123456789ull}) {
          const Cut cut = make_cut(count, tile, {slot, wanted});
          std::uint64_t sum = 0;
          CHECK(cut.chunks >= 1 && cut.step % codec::kTile == 0);
          for (std::uint32_t c = 0; c < cut.chunks; ++c) {
            CHECK(cut.begin(c) == sum);
            sum += cut.size(c);
            const std::uint64_t bytes = (cut.size(c) + codec::kTile - 1) / codec::kTile * tile;
            CHECK(bytes + kHeaderBytes + 64 <= slot, "%llu bytes in a slot of %zu",
                  static_cast<unsigned long long>(bytes), slot);
            CHECK(cut.size(c) > 0 || count == 0);
          }
          CHECK(sum == count);
          const std::uint64_t bytes = (count + codec::kTile - 1) / codec::kTile * tile;
          const std::uint64_t needed = bytes / (slot - 1024) + 1;
          if (tile * 32 <= slot)
            CHECK(cut.chunks <= std::max<std::uint64_t>(wanted, needed + needed / 8 + 1), "%u chunks",
                  cut.chunks);
        }
      }
    }
  }
  // 64 MiB of fp32 over two ranks: enough chunks that filling and draining cost little on a slow wire.
  CHECK(make_cut(std::uint64_t{8} << 20, 4160, {std::size_t{1} << 20, 32}).chunks == 32);
}

std::unique_ptr<Plan> plan_of(Call call, int ranks, Messages messages) {
  std::vector<Item> items;
  make_items(call, ranks, items);
  return make_plan(call, items, 1, ranks, messages);
}

void plans() {
  const std::size_t slot = std::size_t{256} << 10;
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    const int ranks = static_cast<int>(1 + random() % 5);
    std::vector<std::uint64_t> counts;
    for (std::uint64_t n = 1 + random() % 20; n > 0; --n) {
      counts.push_back(random() % 3 == 0   ? random() % 100
                       : random() % 3 == 1 ? random() % 20000
                                           : random() % 3000000);
    }
    const char* const specs[] = {"int8", "int4:min_bytes=0", "fp32", "nvfp4:min_bytes=1000000"};
    const Call call = some_call(counts, specs[random() % 4]);
    const auto plan = plan_of(call, ranks, {slot, 32});
    std::vector<std::uint64_t> raw(counts.size()), direct(counts.size());
    for (const bool is_raw : {true, false}) {
      const Part& part = is_raw ? plan->raw : plan->direct;
      const Coding coding(is_raw ? nullptr : &call.block(), DType::kF32);
      for (std::uint32_t c = 0; c < part.chunks(); ++c) {
        std::size_t bytes = 0;
        CHECK(part.begin(c) < part.end(c));
        for (const Piece* piece = part.begin(c); piece != part.end(c); ++piece) {
          std::uint64_t& done = (is_raw ? raw : direct)[piece->item];
          CHECK(piece->begin == done && piece->begin % codec::kTile == 0 && piece->count > 0);
          done += piece->count;
          bytes += coding.bound(piece->count);
        }
        CHECK(bytes <= part.payload_bytes && bytes + kHeaderBytes <= slot);
      }
    }
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const std::uint64_t length = plan->shard[i];
      CHECK(length % codec::kTile == 0);
      CHECK(length > 0 ? direct[i] == length && raw[i] == 0 : raw[i] == counts[i] && direct[i] == 0);
      CHECK(length == 0 || (length * static_cast<std::uint64_t>(ranks) >= counts[i] &&
                            (length - codec::kTile) * static_cast<std::uint64_t>(ranks) < counts[i]));
      // Whatever it travels with, a tensor is cut in the same shards and takes the same path.
      CHECK(plan_of(some_call({counts[i]}, call.codec->text().c_str()), ranks, {slot, 32})->shard[0] == length);
    }
  }
}

void plan_cache() {
  PlanCache cache(3);
  std::vector<Call> calls;
  for (std::uint64_t i = 0; i < 5; ++i) calls.push_back(some_call({100000 + i}));
  const auto get = [&](std::size_t i, std::uint64_t hash) {
    std::vector<Item> items;
    make_items(calls[i], 2, items);
    return &cache.get(calls[i], items, hash, 2, {std::size_t{1} << 20, 32});
  };
  const Plan* first = get(0, 10);
  const Plan* second = get(1, 11);
  get(2, 12);
  CHECK(get(0, 10) == first && cache.size() == 3);
  get(3, 13);  // 1 goes, it is the least recent
  CHECK(cache.size() == 3 && get(0, 10) == first);
  (void)second;
  CHECK(get(1, 11)->counts[0] == 100001 && cache.size() == 3);
  // Two calls of one hash are two plans.
  const Plan* a = get(3, 99);
  const Plan* b = get(4, 99);
  CHECK(a != b && a->counts[0] == 100003 && b->counts[0] == 100004 && get(3, 99) == a);
}

void codec_states() {
  const auto codec = stateful("int4:rounding=stochastic:ef=1");
  const int user = 0, other = 0;
  KeyState* a = codec->acquire("a", -1, &user, 1, 10, 1, 10);
  CHECK(a->residual == std::vector<float>(10, 0.0f) && a->calls == 0);
  CHECK_THROWS(codec->acquire("a", -1, &other, 2, 10, 1, 10), Code::kInvalid);  // held by another's call
  CHECK_THROWS(codec->acquire("a", -1, &user, 1, 10, 1, 10), Code::kInvalid);   // twice in one call
  CHECK_THROWS(codec->acquire("a", -1, &user, 3, 11, 1, 11), Code::kInvalid);   // another size
  CHECK(codec->acquire("a", -1, &user, 4, 10, 1, 10) == a);
  CHECK_THROWS(codec->save(), Code::kInvalid);
  codec->release(a, true);
  codec->release(a, true);
  a->calls = 7;
  a->residual[3] = -2.5f;
  KeyState* sent = codec->acquire("a", 2, &other, 5, 4, 1, 4);
  sent->calls = 1;
  codec->release(sent, true);
  const Bytes saved = codec->save();
  const auto loaded = stateful("int4:ef=1:rounding=stochastic");
  loaded->load(saved.data(), saved.size());
  CHECK(loaded->save() == saved);
  KeyState* again = loaded->acquire("a", -1, &user, 6, 10, 1, 10);
  CHECK(again->calls == 7 && again->residual == a->residual);
  CHECK_THROWS(loaded->load(saved.data(), saved.size()), Code::kInvalid);  // in use
  loaded->release(again, true);
  const auto wrong = stateful("int8:ef=1");
  CHECK_THROWS(wrong->load(saved.data(), saved.size()), Code::kCodec);
  for (std::size_t cut = 0; cut < saved.size(); ++cut)
    CHECK_THROWS(loaded->load(saved.data(), cut), Code::kCodec);
  for (std::size_t bit = 0; bit < 8 * saved.size(); ++bit) {
    Bytes bad = saved;
    bad[bit / 8] = static_cast<std::uint8_t>(bad[bit / 8] ^ 1u << bit % 8);
    CHECK_THROWS(loaded->load(bad.data(), bad.size()), Code::kCodec);
  }
  CHECK(loaded->save() == saved);
}

void nonfinite_scan() {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const std::size_t n : {1u, 31u, 1024u, 5000u}) {
      for (const float bad : {NAN, INFINITY, -INFINITY}) {
        std::vector<float> values(n, dtype == DType::kF16 ? 65504.0f : 3e38f);
        const Bytes fine = test::from_floats(values, dtype);
        CHECK(!has_nonfinite(fine.data(), dtype, n));
        values.assign(n, -1.0f);
        values[n - 1] = bad;
        const Bytes tensor = test::from_floats(values, dtype);
        CHECK(has_nonfinite(tensor.data(), dtype, n) && !has_nonfinite(tensor.data(), dtype, n - 1));
      }
    }
  }
}

}  // namespace

int main() {
  checksums();
  headers();
  words();
  cuts();
  plans();
  plan_cache();
  codec_states();
  nonfinite_scan();
  return check::report("engine_messages");
}
