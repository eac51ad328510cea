// gcomm for C++17 and later: header-only ownership and exceptions over gcomm.h, nothing else.
//
//   auto comm = gcomm::Communicator::from_env();
//   comm.all_reduce(gradient.data(), gradient.size(), comm.codec("fp8_e4m3")).wait();
//
// Calls return a Work at once; memory that they name must live until it completes. Failures throw gcomm::Error.
#ifndef GCOMM_GCOMM_HPP
#define GCOMM_GCOMM_HPP

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gcomm/gcomm.h"

namespace gcomm {

class Error : public std::runtime_error {
 public:
  Error(gcomm_result code, const std::string& text, int rank)
      : std::runtime_error(text), code_(code), rank_(rank) {}
  gcomm_result code() const noexcept { return code_; }
  int rank() const noexcept { return rank_; }  // at fault, or -1

 private:
  gcomm_result code_;
  int rank_;
};

inline void check(gcomm_result result) {
  if (result != GCOMM_OK) throw Error(result, gcomm_last_error(), gcomm_last_error_rank());
}

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> : std::integral_constant<gcomm_dtype, GCOMM_F32> {};
template <>
struct DTypeOf<double> : std::integral_constant<gcomm_dtype, GCOMM_F64> {};
template <>
struct DTypeOf<std::int8_t> : std::integral_constant<gcomm_dtype, GCOMM_I8> {};
template <>
struct DTypeOf<std::uint8_t> : std::integral_constant<gcomm_dtype, GCOMM_U8> {};
template <>
struct DTypeOf<std::int16_t> : std::integral_constant<gcomm_dtype, GCOMM_I16> {};
template <>
struct DTypeOf<std::uint16_t> : std::integral_constant<gcomm_dtype, GCOMM_U16> {};
template <>
struct DTypeOf<std::int32_t> : std::integral_constant<gcomm_dtype, GCOMM_I32> {};
template <>
struct DTypeOf<std::uint32_t> : std::integral_constant<gcomm_dtype, GCOMM_U32> {};
template <>
struct DTypeOf<std::int64_t> : std::integral_constant<gcomm_dtype, GCOMM_I64> {};
template <>
struct DTypeOf<std::uint64_t> : std::integral_constant<gcomm_dtype, GCOMM_U64> {};
template <typename T>
inline constexpr gcomm_dtype dtype_of = DTypeOf<T>::value;

// A codec of one's own, with its own state, or (from Communicator::codec) one that lives in a communicator. The
// default is none: elements travel as they are.
class Codec {
 public:
  Codec() = default;
  explicit Codec(const std::string& spec, const char* isa = nullptr) {
    gcomm_codec* made = nullptr;
    check(gcomm_codec_create(spec.c_str(), isa, &made));
    codec_ = std::shared_ptr<gcomm_codec>(made, &gcomm_codec_destroy);
  }
  // Does not own it.
  static Codec borrowed(gcomm_codec* codec) {
    Codec lent;
    lent.codec_ = std::shared_ptr<gcomm_codec>(codec, [](gcomm_codec*) {});
    return lent;
  }

  gcomm_codec* get() const noexcept { return codec_.get(); }
  std::string spec() const { return gcomm_codec_spec(get()); }
  std::string isa() const { return gcomm_codec_isa(get()); }
  std::uint64_t max_encoded_bytes(std::uint64_t count) const {
    std::uint64_t bytes = 0;
    check(gcomm_codec_max_encoded_bytes(get(), count, &bytes));
    return bytes;
  }

  // With a key, the key's counter and residual are used and moved on.
  std::vector<std::uint8_t> encode(const float* values, std::uint64_t count, const char* key = nullptr) const {
    gcomm_encode_options options{};
    options.struct_size = sizeof options;
    options.key = key;
    std::vector<std::uint8_t> out(max_encoded_bytes(count));
    std::uint64_t written = 0;
    check(gcomm_codec_encode(get(), values, GCOMM_F32, count, &options, out.data(), out.size(), &written));
    out.resize(written);
    return out;
  }
  void decode(const std::vector<std::uint8_t>& encoded, float* values, std::uint64_t count) const {
    check(gcomm_codec_decode(get(), encoded.data(), encoded.size(), values, GCOMM_F32, count));
  }

  std::vector<std::uint8_t> state() const {
    std::uint64_t bytes = 0;
    check(gcomm_codec_state_save(get(), nullptr, 0, &bytes));
    std::vector<std::uint8_t> out(bytes);
    check(gcomm_codec_state_save(get(), out.data(), out.size(), &bytes));
    return out;
  }
  void load_state(const std::vector<std::uint8_t>& state) const {
    check(gcomm_codec_state_load(get(), state.data(), state.size()));
  }

 private:
  std::shared_ptr<gcomm_codec> codec_;
};

// A call under way. Letting go of it does not stop the call.
class Work {
 public:
  explicit Work(gcomm_work* work) : work_(work) {}
  Work(Work&& other) noexcept : work_(std::exchange(other.work_, nullptr)) {}
  Work& operator=(Work&& other) noexcept {
    std::swap(work_, other.work_);
    return *this;
  }
  ~Work() { gcomm_work_destroy(work_); }

  // Until it completes; throws what it failed with.
  void wait() const { check(gcomm_work_wait(work_, -1)); }
  // False if it has not completed within so many seconds.
  bool wait_for(double seconds) const {
    const gcomm_result result = gcomm_work_wait(work_, seconds);
    if (result == GCOMM_PENDING) return false;
    check(result);
    return true;
  }
  bool completed() const { return gcomm_work_is_completed(work_) != 0; }
  gcomm_work_stats stats() const {
    gcomm_work_stats stats{};
    stats.struct_size = sizeof stats;
    check(gcomm_work_get_stats(work_, &stats));
    return stats;
  }
  gcomm_work* get() const noexcept { return work_; }

 private:
  gcomm_work* work_;
};

struct Config {
  double timeout_s = 0;          // 0: GCOMM_TIMEOUT, or 300
  std::uint64_t slot_bytes = 0;  // 0: GCOMM_SLOT_BYTES, or the transport's default

  gcomm_comm_config c() const { return {sizeof(gcomm_comm_config), timeout_s, slot_bytes}; }
};

class Communicator {
 public:
  // Takes the handle over.
  explicit Communicator(gcomm_comm* comm) : comm_(comm) {}

  static Communicator from_env(const Config& config = {}) {
    const gcomm_comm_config c = config.c();
    gcomm_comm* comm = nullptr;
    check(gcomm_comm_create_env(&c, &comm));
    return Communicator(comm);
  }
  // comm: an MPI_Comm. MPI must have been initialised with MPI_THREAD_MULTIPLE.
  template <typename MpiComm>
  static Communicator from_mpi(const MpiComm& mpi_comm, const Config& config = {}) {
    const gcomm_comm_config c = config.c();
    gcomm_comm* comm = nullptr;
    check(gcomm_comm_create_mpi(&mpi_comm, sizeof mpi_comm, &c, &comm));
    return Communicator(comm);
  }
  static std::vector<Communicator> local(int n, const Config& config = {}) {
    const gcomm_comm_config c = config.c();
    std::vector<gcomm_comm*> made(n > 0 ? static_cast<std::size_t>(n) : 0);
    check(gcomm_comm_create_local(n, &c, made.data()));
    std::vector<Communicator> all;
    for (gcomm_comm* comm : made) all.emplace_back(comm);
    return all;
  }

  int rank() const { return gcomm_comm_rank(get()); }
  int size() const { return gcomm_comm_size(get()); }
  std::string transport() const { return gcomm_comm_transport(get()); }
  // The codec of this text that lives in the communicator.
  Codec codec(const std::string& spec) const {
    gcomm_codec* found = nullptr;
    check(gcomm_comm_codec(get(), spec.c_str(), &found));
    return Codec::borrowed(found);
  }

  // In place.
  template <typename T>
  Work all_reduce(T* data, std::uint64_t count, const Codec& codec = {}, gcomm_op op = GCOMM_SUM,
                  const char* key = nullptr) const {
    return all_reduce(static_cast<const T*>(data), data, count, codec, op, key);
  }
  template <typename T>
  Work all_reduce(const T* input, T* output, std::uint64_t count, const Codec& codec = {},
                  gcomm_op op = GCOMM_SUM, const char* key = nullptr) const {
    const gcomm_tensor tensor{sizeof(gcomm_tensor), input, output, count, key, 0, 0};
    return all_reduce(&tensor, 1, dtype_of<T>, codec, op);
  }
  // For dtypes that C++ has no name for, and for many tensors at once.
  Work all_reduce(const gcomm_tensor* tensors, std::uint64_t n, gcomm_dtype dtype, const Codec& codec = {},
                  gcomm_op op = GCOMM_SUM) const {
    return start([&](gcomm_work** work) {
      return gcomm_all_reduce(get(), tensors, n, dtype, op, codec.get(), nullptr, work);
    });
  }
  // input: size() * count elements.
  template <typename T>
  Work reduce_scatter(const T* input, T* output, std::uint64_t count, const Codec& codec = {},
                      gcomm_op op = GCOMM_SUM, const char* key = nullptr) const {
    return start([&](gcomm_work** work) {
      return gcomm_reduce_scatter(get(), input, output, count, dtype_of<T>, op, codec.get(), key, nullptr,
                                  work);
    });
  }
  // output: size() * count elements.
  template <typename T>
  Work all_gather(const T* input, T* output, std::uint64_t count, const Codec& codec = {},
                  const char* key = nullptr) const {
    return start([&](gcomm_work** work) {
      return gcomm_all_gather(get(), input, output, count, dtype_of<T>, codec.get(), key, nullptr, work);
    });
  }
  // Counts: size() elements each.
  template <typename T>
  Work all_to_all(const T* input, const std::vector<std::uint64_t>& send_counts, T* output,
                  const std::vector<std::uint64_t>& recv_counts, const Codec& codec = {},
                  const char* key = nullptr) const {
    const auto ranks = static_cast<std::size_t>(size());
    if (send_counts.size() != ranks || recv_counts.size() != ranks) {
      throw Error(GCOMM_ERR_INVALID, "all_to_all: one count for each rank, please", -1);
    }
    return start([&](gcomm_work** work) {
      return gcomm_all_to_all(get(), input, send_counts.data(), output, recv_counts.data(), dtype_of<T>,
                              codec.get(), key, nullptr, work);
    });
  }
  template <typename T>
  Work broadcast(T* data, std::uint64_t count, int root, const Codec& codec = {},
                 const char* key = nullptr) const {
    return start([&](gcomm_work** work) {
      return gcomm_broadcast(get(), data, count, dtype_of<T>, root, codec.get(), key, nullptr, work);
    });
  }
  template <typename T>
  Work send(const T* data, std::uint64_t count, int peer, const Codec& codec = {},
            const char* key = nullptr) const {
    return start([&](gcomm_work** work) {
      return gcomm_send(get(), data, count, dtype_of<T>, peer, codec.get(), key, nullptr, work);
    });
  }
  template <typename T>
  Work recv(T* data, std::uint64_t count, int peer, const Codec& codec = {}, const char* key = nullptr) const {
    return start([&](gcomm_work** work) {
      return gcomm_recv(get(), data, count, dtype_of<T>, peer, codec.get(), key, nullptr, work);
    });
  }
  Work barrier() const {
    return start([&](gcomm_work** work) { return gcomm_barrier(get(), nullptr, work); });
  }

  gcomm_comm_stats stats() const {
    gcomm_comm_stats stats{};
    stats.struct_size = sizeof stats;
    check(gcomm_comm_get_stats(get(), &stats));
    return stats;
  }
  void close() const { check(gcomm_comm_close(get())); }
  void abort(const std::string& why) const { check(gcomm_comm_abort(get(), why.c_str())); }
  gcomm_comm* get() const noexcept { return comm_.get(); }

 private:
  template <typename Call>
  static Work start(Call&& call) {
    gcomm_work* work = nullptr;
    check(call(&work));
    return Work(work);
  }

  struct Destroy {
    void operator()(gcomm_comm* comm) const noexcept { gcomm_comm_destroy(comm); }
  };
  std::unique_ptr<gcomm_comm, Destroy> comm_;
};

}  // namespace gcomm

#endif
