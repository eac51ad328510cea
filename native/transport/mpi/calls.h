// MPI's functions with errors as exceptions.
#pragma once

#include <cstddef>
#include <string>

#include "base/error.h"
#include "transport/mpi/abi.h"

namespace gcomm::mpi {

template <typename Abi>
class Calls {
 public:
  using Handle = typename Abi::Handle;

  struct Arrived {
    bool complete = false;
    int source = -1;
    std::size_t bytes = 0;
  };

  explicit Calls(const Functions<Abi>& functions) : mpi_(functions) {}

  bool initialized() const { return flag(mpi_.Initialized); }
  bool finalized() const { return flag(mpi_.Finalized); }
  int thread_level() const { return number(mpi_.Query_thread, "MPI_Query_thread"); }

  int rank(Handle comm) const { return number(mpi_.Comm_rank, comm, "MPI_Comm_rank"); }
  int size(Handle comm) const { return number(mpi_.Comm_size, comm, "MPI_Comm_size"); }
  bool is_inter(Handle comm) const { return number(mpi_.Comm_test_inter, comm, "MPI_Comm_test_inter") != 0; }

  // Of the same ranks, with errors that return.
  Handle duplicate(Handle comm) const {
    Handle made{};
    check(mpi_.Comm_dup(comm, &made), "MPI_Comm_dup");
    check(mpi_.Comm_set_errhandler(made, Abi::handle(Abi::kErrorsReturn)), "MPI_Comm_set_errhandler");
    return made;
  }
  void free(Handle comm) const { mpi_.Comm_free(&comm); }

  void all_gather(const void* mine, void* all, int bytes, Handle comm) const {
    check(mpi_.Allgather(mine, bytes, byte(), all, bytes, byte(), comm), "MPI_Allgather");
  }

  Handle send(const void* data, std::size_t bytes, int peer, Handle comm) const {
    Handle request{};
    check(mpi_.Isend(data, static_cast<int>(bytes), byte(), peer, kTag, comm, &request), "MPI_Isend");
    return request;
  }
  Handle receive(void* data, std::size_t bytes, int peer, Handle comm) const {
    Handle request{};
    check(mpi_.Irecv(data, static_cast<int>(bytes), byte(), peer, kTag, comm, &request), "MPI_Irecv");
    return request;
  }
  Arrived test(Handle& request) const {
    typename Abi::Status status{};
    int complete = 0;
    check(mpi_.Test(&request, &complete, &status), "MPI_Test");
    if (complete == 0) return {};
    int bytes = 0;
    check(mpi_.Get_count(&status, byte(), &bytes), "MPI_Get_count");
    return {true, status.source, static_cast<std::size_t>(bytes < 0 ? 0 : bytes)};
  }
  void cancel(Handle& request) const { mpi_.Cancel(&request); }

 private:
  static constexpr int kTag = 0;  // lanes have communicators of their own

  static Handle byte() { return Abi::handle(Abi::kByte); }

  void check(int result, const char* call) const {
    if (result == kSuccess) return;
    char text[kMaxErrorText + 1] = {};
    int length = 0;
    if (mpi_.Error_string(result, text, &length) != kSuccess) length = 0;
    throw Error(Code::kInternal,
                std::string(call) + ": " + std::string(text, static_cast<std::size_t>(length)));
  }
  bool flag(int (*function)(int*)) const {
    int value = 0;
    return function(&value) == kSuccess && value != 0;
  }
  int number(int (*function)(int*), const char* call) const {
    int value = 0;
    check(function(&value), call);
    return value;
  }
  int number(int (*function)(Handle, int*), Handle comm, const char* call) const {
    int value = 0;
    check(function(comm, &value), call);
    return value;
  }

  Functions<Abi> mpi_;
};

}  // namespace gcomm::mpi
