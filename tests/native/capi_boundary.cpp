// What a C caller can do wrong: nulls, sizes, numbers out of range. Always a code and a text, never a crash.
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "gcomm/gcomm.h"

namespace {

// A value that no enumerator has, as a C caller may pass it.
template <typename Enum>
Enum number(int value) {
  return static_cast<Enum>(value);
}

bool failed(gcomm_result result, gcomm_result expected, const char* text) {
  const std::string last = gcomm_last_error();
  if (result == expected && last.find(text) != std::string::npos) return true;
  std::printf("got %d (%s), expected %d with '%s'\n", result, last.c_str(), expected, text);
  return false;
}

void names() {
  CHECK(std::string(gcomm_version_string()) == "0.1.0" && gcomm_version_number() == (0 << 16 | 1 << 8 | 0));
  for (int code = 0; code <= 13; ++code) {
    const std::string text = gcomm_result_string(number<gcomm_result>(code));
    CHECK(!text.empty() && text != "unknown result", "%d", code);
  }
  CHECK(std::string(gcomm_result_string(number<gcomm_result>(15))) == "unknown result");
  std::thread([] { CHECK(std::string(gcomm_last_error()).empty() && gcomm_last_error_rank() == -1); }).join();
}

template <typename Row>
std::vector<std::string> rows(Row row_function) {
  std::vector<std::string> names;
  for (std::size_t i = 0;; ++i) {
    gcomm_registry_row row{};
    row.struct_size = sizeof row;
    const gcomm_result result = row_function(i, &row);
    if (result != GCOMM_OK) {
      CHECK(failed(result, GCOMM_ERR_INVALID, "index"));
      break;
    }
    CHECK(row.struct_size == sizeof row && row.name != nullptr && row.reason != nullptr);
    CHECK(row.available != 0 || *row.reason != '\0', "%s is absent without a reason", row.name);
    names.emplace_back(row.name);
  }
  gcomm_registry_row small{};
  small.struct_size = sizeof small - 1;
  CHECK(failed(row_function(0, &small), GCOMM_ERR_INVALID, "gcomm_registry_row.struct_size"));
  CHECK(failed(row_function(0, nullptr), GCOMM_ERR_INVALID, "gcomm_registry_row: NULL"));
  // A caller that knows a longer struct is served as far as this library knows it.
  struct {
    gcomm_registry_row row;
    char more[32];
  } longer;
  std::memset(&longer, 0x5A, sizeof longer);
  longer.row.struct_size = sizeof longer;
  CHECK(row_function(0, &longer.row) == GCOMM_OK && longer.row.struct_size == sizeof longer &&
        longer.more[0] == 0x5A);
  return names;
}

void registries() {
  const std::vector<std::string> codecs = rows(gcomm_codec_row);
  CHECK(codecs.size() == 13 && codecs[0] == "fp32");
  CHECK(rows(gcomm_isa_row)[0] == "scalar");
  const std::vector<std::string> transports = rows(gcomm_transport_row);
  CHECK(transports.size() >= 3 && transports[0] == "local");
  for (const std::string& name : codecs) {
    gcomm_codec* codec = nullptr;
    CHECK(gcomm_codec_create(name.c_str(), "scalar", &codec) == GCOMM_OK && gcomm_codec_spec(codec) == name);
    gcomm_codec_destroy(codec);
  }
}

void codecs() {
  gcomm_codec* codec = nullptr;
  CHECK(failed(gcomm_codec_create("int9", nullptr, &codec), GCOMM_ERR_CODEC, "int9") && codec == nullptr);
  CHECK(failed(gcomm_codec_create(nullptr, nullptr, &codec), GCOMM_ERR_INVALID, "spec: NULL"));
  CHECK(failed(gcomm_codec_create("int8", nullptr, nullptr), GCOMM_ERR_INVALID, "codec: NULL"));
  CHECK(failed(gcomm_codec_create("int8", "mmx", &codec), GCOMM_ERR_INVALID, "mmx"));
  CHECK(setenv("GCOMM_ISA", "mmx", 1) == 0);
  CHECK(failed(gcomm_codec_create("int8", nullptr, &codec), GCOMM_ERR_INVALID, "GCOMM_ISA"));
  CHECK(setenv("GCOMM_ISA", "scalar", 1) == 0);
  CHECK(gcomm_codec_create("int8", nullptr, &codec) == GCOMM_OK &&
        std::string(gcomm_codec_isa(codec)) == "scalar");
  CHECK(unsetenv("GCOMM_ISA") == 0);

  std::vector<float> values(1000, 0.25f), back(1000);
  std::uint64_t bytes = 0, written = 1;
  CHECK(gcomm_codec_max_encoded_bytes(codec, 1000, &bytes) == GCOMM_OK && bytes == 8 * 2 + 8 * 128);
  CHECK(failed(gcomm_codec_max_encoded_bytes(nullptr, 1000, &bytes), GCOMM_ERR_INVALID, "codec: NULL"));
  CHECK(failed(gcomm_codec_max_encoded_bytes(codec, ~std::uint64_t{0}, &bytes), GCOMM_ERR_INVALID, "count"));
  CHECK(gcomm_codec_max_encoded_bytes(codec, 1000, &bytes) == GCOMM_OK);
  std::vector<std::uint8_t> encoded(bytes);
  const auto encode = [&](const void* src, gcomm_dtype dtype, std::uint64_t count,
                          const gcomm_encode_options* options, std::uint64_t capacity) {
    return gcomm_codec_encode(codec, src, dtype, count, options, encoded.data(), capacity, &written);
  };
  CHECK(encode(values.data(), GCOMM_F32, 1000, nullptr, bytes) == GCOMM_OK && written == bytes);
  CHECK(failed(encode(values.data(), GCOMM_F32, 1000, nullptr, bytes - 1), GCOMM_ERR_INVALID, "capacity"));
  CHECK(failed(encode(values.data(), GCOMM_F64, 10, nullptr, bytes), GCOMM_ERR_INVALID, "float64"));
  CHECK(failed(encode(values.data(), number<gcomm_dtype>(20), 10, nullptr, bytes), GCOMM_ERR_INVALID, "20"));
  CHECK(failed(encode(nullptr, GCOMM_F32, 10, nullptr, bytes), GCOMM_ERR_INVALID, "src: NULL"));
  CHECK(failed(gcomm_codec_encode(codec, values.data(), GCOMM_F32, 10, nullptr, nullptr, bytes, &written),
               GCOMM_ERR_INVALID, "dst: NULL"));
  gcomm_encode_options options{};
  CHECK(failed(encode(values.data(), GCOMM_F32, 10, &options, bytes), GCOMM_ERR_INVALID,
               "gcomm_encode_options.struct_size: 0"));
  options.struct_size = sizeof options;
  options.explicit_position = 1;
  options.element = 100;
  CHECK(failed(encode(values.data(), GCOMM_F32, 10, &options, bytes), GCOMM_ERR_INVALID, "multiple of 4096"));
  CHECK(encode(nullptr, GCOMM_F32, 0, nullptr, 0) == GCOMM_OK && written == 0);
  CHECK(gcomm_codec_decode(codec, encoded.data(), bytes, back.data(), GCOMM_F32, 1000) == GCOMM_OK &&
        std::fabs(back[7] - 0.25f) < 0.01f);
  CHECK(failed(gcomm_codec_decode(codec, encoded.data(), bytes - 1, back.data(), GCOMM_F32, 1000),
               GCOMM_ERR_CODEC, ""));
  CHECK(failed(gcomm_codec_decode(codec, nullptr, bytes, back.data(), GCOMM_F32, 1000), GCOMM_ERR_INVALID,
               "src: NULL"));
  CHECK(failed(gcomm_codec_decode(codec, encoded.data(), bytes, nullptr, GCOMM_F32, 1000), GCOMM_ERR_INVALID,
               "dst: NULL"));
  std::vector<float> sum = back;
  CHECK(gcomm_codec_decode_accumulate(codec, encoded.data(), bytes, sum.data(), 1000) == GCOMM_OK &&
        sum[9] == 2 * back[9]);
  gcomm_codec_destroy(codec);
  gcomm_codec_destroy(nullptr);
  CHECK(*gcomm_codec_spec(nullptr) == '\0');
}

// A key's counter and residual: kept by the codec, saved, loaded, and the same as an explicit position.
void codec_state() {
  gcomm_codec *one = nullptr, *two = nullptr;
  CHECK(gcomm_codec_create("int4:rounding=stochastic:ef=1", nullptr, &one) == GCOMM_OK);
  CHECK(gcomm_codec_create("int4:ef=1:rounding=stochastic", nullptr, &two) == GCOMM_OK);
  std::vector<float> values(5000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 37) - 11.3f;
  const auto encode = [&](gcomm_codec* codec, gcomm_encode_options options) {
    std::uint64_t bytes = 0;
    CHECK(gcomm_codec_max_encoded_bytes(codec, values.size(), &bytes) == GCOMM_OK);
    std::vector<std::uint8_t> out(bytes);
    options.struct_size = sizeof options;
    CHECK(gcomm_codec_encode(codec, values.data(), GCOMM_F32, values.size(), &options, out.data(), bytes,
                             &bytes) == GCOMM_OK,
          "%s", gcomm_last_error());
    return out;
  };
  gcomm_encode_options key{}, position{};
  key.key = "k";
  position.key = "k";
  position.explicit_position = 1;
  position.source = -1;
  const auto first = encode(one, key);
  CHECK(first == encode(two, position) && first == encode(two, position));
  std::uint64_t size = 0;
  CHECK(gcomm_codec_state_save(one, nullptr, 0, &size) == GCOMM_OK && size > 4 * values.size());
  std::vector<std::uint8_t> state(size);
  CHECK(failed(gcomm_codec_state_save(one, state.data(), size - 1, &size), GCOMM_ERR_INVALID, "capacity"));
  CHECK(gcomm_codec_state_save(one, state.data(), size, &size) == GCOMM_OK);
  CHECK(failed(gcomm_codec_state_load(two, state.data(), size - 1), GCOMM_ERR_CODEC, "codec state"));
  CHECK(failed(gcomm_codec_state_load(two, nullptr, size), GCOMM_ERR_INVALID, "src: NULL"));
  CHECK(gcomm_codec_state_load(two, state.data(), size) == GCOMM_OK);
  const auto second = encode(one, key);
  CHECK(second != first && second == encode(two, key));
  gcomm_encode_options none{};
  CHECK(encode(one, none) == encode(one, none));
  values[3] = NAN;
  gcomm_codec* strict = nullptr;
  CHECK(gcomm_codec_create("int8:nonfinite=raise", nullptr, &strict) == GCOMM_OK);
  std::vector<std::uint8_t> room(10000);
  CHECK(failed(
      gcomm_codec_encode(strict, values.data(), GCOMM_F32, 5000, nullptr, room.data(), room.size(), &size),
      GCOMM_ERR_NONFINITE, "nonfinite=raise"));
  gcomm_codec_destroy(strict);
  gcomm_codec_destroy(one);
  gcomm_codec_destroy(two);
}

void communicators() {
  gcomm_comm* comms[2] = {};
  CHECK(failed(gcomm_comm_create_local(0, nullptr, comms), GCOMM_ERR_INVALID, "n: 0"));
  CHECK(failed(gcomm_comm_create_local(GCOMM_LOCAL_MOST_RANKS + 1, nullptr, comms), GCOMM_ERR_INVALID,
               "n: 1025 ranks cannot form a communicator, expected 1 to 1024"));
  CHECK(failed(gcomm_comm_create_local(2, nullptr, nullptr), GCOMM_ERR_INVALID, "comms: NULL"));
  gcomm_comm_config config{};
  CHECK(failed(gcomm_comm_create_local(2, &config, comms), GCOMM_ERR_INVALID,
               "gcomm_comm_config.struct_size: 0"));
  config.struct_size = sizeof config;
  config.timeout_s = -1;
  CHECK(failed(gcomm_comm_create_local(2, &config, comms), GCOMM_ERR_INVALID, "config.timeout_s"));
  config.timeout_s = 12;
  config.slot_bytes = 1000;
  CHECK(failed(gcomm_comm_create_local(2, &config, comms), GCOMM_ERR_INVALID, "config.slot_bytes: 1000"));
  config.slot_bytes = 1 << 18;
  for (const char* variable : {"GCOMM_TIMEOUT", "GCOMM_SLOT_BYTES"}) {
    CHECK(setenv(variable, "soon", 1) == 0);
    CHECK(failed(gcomm_comm_create_local(2, nullptr, comms), GCOMM_ERR_INVALID, variable));
    CHECK(setenv(variable, "262144", 1) == 0);
  }
  CHECK(gcomm_comm_create_local(2, nullptr, comms) == GCOMM_OK);
  CHECK(gcomm_comm_timeout(comms[0]) == 262144 && gcomm_comm_slot_bytes(comms[0]) == 262144);
  for (gcomm_comm* comm : comms) gcomm_comm_destroy(comm);
  CHECK(unsetenv("GCOMM_TIMEOUT") == 0 && unsetenv("GCOMM_SLOT_BYTES") == 0);
  CHECK(gcomm_comm_create_local(2, &config, comms) == GCOMM_OK);
  CHECK(gcomm_comm_timeout(comms[1]) == 12 && gcomm_comm_slot_bytes(comms[1]) == 1 << 18 &&
        gcomm_comm_rank(comms[1]) == 1 && gcomm_comm_size(comms[1]) == 2 &&
        std::string(gcomm_comm_transport(comms[1])) == "local");

  float data[10] = {};
  gcomm_work* work = nullptr;
  gcomm_tensor tensors[2] = {};
  const auto reduce = [&](std::uint64_t n, int op = GCOMM_SUM, gcomm_comm* comm = nullptr,
                          const gcomm_call_options* options = nullptr) {
    return gcomm_all_reduce(comm, tensors, n, GCOMM_F32, number<gcomm_op>(op), nullptr, options, &work);
  };
  CHECK(failed(reduce(1), GCOMM_ERR_INVALID, "comm: NULL") && work == nullptr);
  CHECK(failed(reduce(1, GCOMM_SUM, comms[0]), GCOMM_ERR_INVALID, "gcomm_tensor.struct_size: 0"));
  for (gcomm_tensor& tensor : tensors) tensor = {sizeof tensor, data, data, 5, nullptr, 0, 0};
  tensors[1].struct_size += 8;
  CHECK(failed(reduce(2, GCOMM_SUM, comms[0]), GCOMM_ERR_INVALID, "tensors[1].struct_size"));
#if !defined(__SANITIZE_ADDRESS__)  // whose enum check would stop here
  CHECK(failed(reduce(1, 7, comms[0]), GCOMM_ERR_INVALID, "op: 7"));
#endif
  gcomm_call_options options{};
  CHECK(failed(reduce(1, GCOMM_SUM, comms[0], &options), GCOMM_ERR_INVALID, "gcomm_call_options.struct_size"));
  CHECK(failed(gcomm_all_reduce(comms[0], nullptr, 1, GCOMM_F32, GCOMM_SUM, nullptr, nullptr, &work),
               GCOMM_ERR_INVALID, "tensors: NULL"));
  CHECK(failed(gcomm_all_reduce(comms[0], tensors, 1, GCOMM_F32, GCOMM_SUM, nullptr, nullptr, nullptr),
               GCOMM_ERR_INVALID, "work: NULL"));
  const std::uint64_t counts[2] = {1, 1};
  CHECK(failed(
      gcomm_all_to_all(comms[0], data, nullptr, data, counts, GCOMM_F32, nullptr, nullptr, nullptr, &work),
      GCOMM_ERR_INVALID, "send_counts: NULL"));
  CHECK(failed(gcomm_link_probe(comms[0], 1, 1, number<gcomm_link_pattern>(3), 1, 1, nullptr),
               GCOMM_ERR_INVALID, "pattern: 3"));
  CHECK(failed(gcomm_work_wait(nullptr, 0), GCOMM_ERR_INVALID, "work: NULL"));
  CHECK(gcomm_work_is_completed(nullptr) == 0);

  gcomm_codec* codec = nullptr;
  CHECK(failed(gcomm_comm_codec(comms[0], "what", &codec), GCOMM_ERR_CODEC, "what"));
  CHECK(gcomm_comm_codec(comms[0], "int8:scale=absmax", &codec) == GCOMM_OK ||
        gcomm_comm_codec(comms[0], "int8", &codec) == GCOMM_OK);
  gcomm_codec* again = nullptr;
  CHECK(gcomm_comm_codec(comms[0], "int8:min_bytes=-1", &again) != GCOMM_OK || again == codec);
  CHECK(gcomm_comm_codec(comms[0], "int8", &again) == GCOMM_OK && again == codec);
  gcomm_codec_destroy(codec);  // belongs to the communicator: no effect
  CHECK(std::string(gcomm_codec_spec(codec)) == "int8");

  // A work that nobody answers is pending; then abort, and everything says so.
  struct Note {
    int calls = 0;
    gcomm_result result = GCOMM_OK;
  } note;
  CHECK(gcomm_barrier(comms[0], nullptr, &work) == GCOMM_OK);
  CHECK(gcomm_work_wait(work, 0.01) == GCOMM_PENDING && gcomm_work_is_completed(work) == 0);
  gcomm_work_stats work_stats{};
  work_stats.struct_size = sizeof work_stats;
  CHECK(gcomm_work_get_stats(work, &work_stats) == GCOMM_PENDING);
  gcomm_tensor_stats tensor_stats{};
  tensor_stats.struct_size = sizeof tensor_stats;
  CHECK(gcomm_work_get_tensor_stats(work, 0, &tensor_stats) == GCOMM_PENDING);
  CHECK(failed(gcomm_work_wait(work, NAN), GCOMM_ERR_INVALID, "timeout_s"));
  const auto completed = [](void* context, gcomm_result result) {
    auto& seen = *static_cast<Note*>(context);
    ++seen.calls;
    seen.result = result;
  };
  CHECK(failed(gcomm_work_on_complete(work, nullptr, nullptr), GCOMM_ERR_INVALID, "fn: NULL"));
  CHECK(gcomm_work_on_complete(work, completed, &note) == GCOMM_OK && note.calls == 0);
  CHECK(gcomm_comm_abort(comms[1], nullptr) == GCOMM_OK);
  CHECK(failed(gcomm_work_wait(work, -1), GCOMM_ERR_ABORTED, "rank 1 aborted") && gcomm_last_error_rank() == 1);
  CHECK(gcomm_work_get_stats(work, &work_stats) == GCOMM_OK);
  CHECK(failed(gcomm_work_get_tensor_stats(work, 0, &tensor_stats), GCOMM_ERR_INVALID, "all_reduce"));
  gcomm_work* other = nullptr;
  CHECK(failed(gcomm_barrier(comms[0], nullptr, &other), GCOMM_ERR_CLOSED, "rank 1 aborted") &&
        other == nullptr);
  gcomm_comm_stats stats{};
  CHECK(failed(gcomm_comm_get_stats(comms[0], &stats), GCOMM_ERR_INVALID, "gcomm_comm_stats.struct_size"));
  stats.struct_size = sizeof stats;
  CHECK(gcomm_comm_get_stats(comms[0], &stats) == GCOMM_OK && stats.calls == 1);
  CHECK(gcomm_comm_close(comms[0]) == GCOMM_OK && gcomm_comm_close(comms[0]) == GCOMM_OK);
  CHECK(note.calls == 1 && note.result == GCOMM_ERR_ABORTED);
  for (gcomm_comm* comm : comms) gcomm_comm_destroy(comm);
  CHECK(failed(gcomm_work_wait(work, 0), GCOMM_ERR_ABORTED, "rank 1"));  // works outlive their communicators
  gcomm_work_destroy(work);
  gcomm_work_destroy(nullptr);
  gcomm_comm_destroy(nullptr);
  CHECK(failed(gcomm_comm_close(nullptr), GCOMM_ERR_INVALID, "comm: NULL") && gcomm_comm_rank(nullptr) == -1);
}

void environment() {
  gcomm_comm* comm = nullptr;
  const auto refused = [&](const char* name, const char* value, const char* text) {
    if (value == nullptr) {
      CHECK(unsetenv(name) == 0);
    } else {
      CHECK(setenv(name, value, 1) == 0);
    }
    CHECK(failed(gcomm_comm_create_env(nullptr, &comm), GCOMM_ERR_INVALID, text) && comm == nullptr);
  };
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) CHECK(unsetenv(name) == 0);
  refused("WORLD_SIZE", nullptr, "WORLD_SIZE: not set");
  refused("WORLD_SIZE", "two", "WORLD_SIZE: 'two'");
  refused("WORLD_SIZE", "0", "WORLD_SIZE: 0");
  refused("WORLD_SIZE", "2", "RANK: not set");
  refused("RANK", "2", "RANK: 2");
  refused("RANK", "1", "MASTER_ADDR: not set");
  refused("MASTER_ADDR", "127.0.0.1", "MASTER_PORT: not set");
  refused("MASTER_PORT", "70000", "MASTER_PORT: 70000");
  CHECK(failed(gcomm_comm_create_env(nullptr, nullptr), GCOMM_ERR_INVALID, "comm: NULL"));
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) CHECK(unsetenv(name) == 0);
}

// The whole way to a TCP communicator, by hand.
void tcp_by_hand() {
  constexpr std::int32_t kRanks = 3;
  gcomm_tcp_listener* listeners[kRanks] = {};
  const char* addresses[kRanks] = {};
  std::uint8_t token[16];
  CHECK(gcomm_tcp_token(token) == GCOMM_OK &&
        failed(gcomm_tcp_token(nullptr), GCOMM_ERR_INVALID, "token: NULL"));
  for (int r = 0; r < kRanks; ++r) {
    CHECK(gcomm_tcp_listener_create(nullptr, &listeners[r]) == GCOMM_OK, "%s", gcomm_last_error());
    addresses[r] = gcomm_tcp_listener_address(listeners[r]);
  }
  gcomm_comm* comms[kRanks] = {};
  CHECK(failed(gcomm_comm_create_tcp(listeners[0], 0, kRanks, nullptr, token, nullptr, &comms[0]),
               GCOMM_ERR_INVALID, "addresses: NULL"));
  CHECK(failed(gcomm_comm_create_tcp(nullptr, 0, kRanks, addresses, token, nullptr, &comms[0]),
               GCOMM_ERR_INVALID, "listener: NULL"));
  gcomm_result results[kRanks];
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      results[r] = gcomm_comm_create_tcp(listeners[r], r, kRanks, addresses, token, nullptr, &comms[r]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::vector<float>> data(kRanks, std::vector<float>(100000, 1.0f));
  gcomm_work* works[kRanks];
  for (int r = 0; r < kRanks; ++r) {
    CHECK(results[r] == GCOMM_OK);
    gcomm_tcp_listener_destroy(listeners[r]);
    const gcomm_tensor tensor{sizeof tensor,
                              data[static_cast<std::size_t>(r)].data(),
                              data[static_cast<std::size_t>(r)].data(),
                              100000,
                              nullptr,
                              0,
                              0};
    gcomm_codec* codec = nullptr;
    CHECK(gcomm_comm_codec(comms[r], "int8", &codec) == GCOMM_OK);
    CHECK(gcomm_all_reduce(comms[r], &tensor, 1, GCOMM_F32, GCOMM_SUM, codec, nullptr, &works[r]) == GCOMM_OK);
  }
  for (int r = 0; r < kRanks; ++r) {
    CHECK(gcomm_work_wait(works[r], -1) == GCOMM_OK, "%s", gcomm_last_error());
    gcomm_work_destroy(works[r]);
    CHECK(std::string(gcomm_comm_transport(comms[r])) == "tcp" &&
          std::fabs(data[static_cast<std::size_t>(r)][99999] - 3.0f) < 0.03f);
  }
  threads.clear();
  for (gcomm_comm* comm : comms) threads.emplace_back([comm] { gcomm_comm_destroy(comm); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main() {
  names();
  registries();
  codecs();
  codec_state();
  communicators();
  environment();
  tcp_by_hand();
  return check::report("capi_boundary");
}
