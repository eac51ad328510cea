// What an MPI library looks like to a program that was compiled without its header.
//
// Two binary interfaces cover what there is but Open MPI: that of MPICH 3.1 and everything that keeps to it
// (the MPICH ABI Compatibility Initiative: Intel MPI, MVAPICH, Cray MPICH), and the standard one of MPI 5. The
// values are those of MPICH's mpi.h and of MPI 5.0, chapter 20.
#pragma once

#include <cstdint>

namespace gcomm::mpi {

struct MpichAbi {
  using Handle = int;
  struct Status {
    int count_lo, count_hi_and_cancelled;
    int source, tag, error;
  };
  static constexpr const char* kName = "MPICH's";
  static constexpr const char* kSonames[] = {"libmpi.so.12"};
  static constexpr int kAnySource = -2;
  static constexpr int kThreadLevels[] = {0, 1, 2, 3};
  static Handle handle(std::uintptr_t value) { return static_cast<int>(value); }
  static constexpr std::uintptr_t kCommNull = 0x04000000;
  static constexpr std::uintptr_t kByte = 0x4c00010d;
  static constexpr std::uintptr_t kErrorsReturn = 0x54000001;
  static constexpr std::uintptr_t kRequestNull = 0x2c000000;
};

struct StandardAbi {
  using Handle = void*;
  struct Status {
    int source, tag, error;
    int internal[5];
  };
  static constexpr const char* kName = "the standard";
  static constexpr const char* kSonames[] = {"libmpi_abi.so.1", "libmpi_abi.so.0"};
  static constexpr int kAnySource = -1;
  static constexpr int kThreadLevels[] = {0, 1024, 2048, 4096};
  static Handle handle(std::uintptr_t value) { return reinterpret_cast<void*>(value); }
  static constexpr std::uintptr_t kCommNull = 0x100;
  static constexpr std::uintptr_t kByte = 0x247;
  static constexpr std::uintptr_t kErrorsReturn = 0x143;
  static constexpr std::uintptr_t kRequestNull = 0x180;
};

inline constexpr int kSuccess = 0;
inline constexpr int kMaxErrorText = 512;

// The functions that are used, looked up in a library that the process has loaded.
template <typename Abi>
struct Functions {
  using Handle = typename Abi::Handle;
  using Status = typename Abi::Status;

  int (*Initialized)(int*);
  int (*Finalized)(int*);
  int (*Query_thread)(int*);
  int (*Comm_rank)(Handle, int*);
  int (*Comm_size)(Handle, int*);
  int (*Comm_test_inter)(Handle, int*);
  int (*Comm_dup)(Handle, Handle*);
  int (*Comm_free)(Handle*);
  int (*Comm_set_errhandler)(Handle, Handle);
  int (*Allgather)(const void*, int, Handle, void*, int, Handle, Handle);
  int (*Isend)(const void*, int, Handle, int, int, Handle, Handle*);
  int (*Irecv)(void*, int, Handle, int, int, Handle, Handle*);
  int (*Test)(Handle*, int*, Status*);
  int (*Cancel)(Handle*);
  int (*Get_count)(const Status*, Handle, int*);
  int (*Error_string)(int, char*, int*);

  // visit(name, pointer to the member) for each.
  template <typename Visit>
  void each(Visit visit) {
    visit("MPI_Initialized", &Initialized);
    visit("MPI_Finalized", &Finalized);
    visit("MPI_Query_thread", &Query_thread);
    visit("MPI_Comm_rank", &Comm_rank);
    visit("MPI_Comm_size", &Comm_size);
    visit("MPI_Comm_test_inter", &Comm_test_inter);
    visit("MPI_Comm_dup", &Comm_dup);
    visit("MPI_Comm_free", &Comm_free);
    visit("MPI_Comm_set_errhandler", &Comm_set_errhandler);
    visit("MPI_Allgather", &Allgather);
    visit("MPI_Isend", &Isend);
    visit("MPI_Irecv", &Irecv);
    visit("MPI_Test", &Test);
    visit("MPI_Cancel", &Cancel);
    visit("MPI_Get_count", &Get_count);
    visit("MPI_Error_string", &Error_string);
  }
};

}  // namespace gcomm::mpi
