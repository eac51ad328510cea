#include "transport/mpi/library.h"

#include <dlfcn.h>

#include <string>

#include "base/error.h"

namespace gcomm::mpi {
namespace {

// Open MPI's handles are pointers, too, to objects of other names.
bool open_mpi_is_loaded() {
  return ::dlsym(RTLD_DEFAULT, "ompi_mpi_comm_world") != nullptr ||
         ::dlopen("libmpi.so.40", RTLD_LAZY | RTLD_NOLOAD) != nullptr;
}

// By its name, as it may be hidden from the rest of the process (a Python module's); else, where it is linked
// into the program, among all symbols.
template <typename Abi>
void* loaded_library() {
  for (const char* soname : Abi::kSonames) {
    if (void* library = ::dlopen(soname, RTLD_LAZY | RTLD_NOLOAD)) return library;
  }
  return ::dlsym(RTLD_DEFAULT, "MPI_Isend") != nullptr ? RTLD_DEFAULT : nullptr;
}

}  // namespace

template <typename Abi>
Functions<Abi> find_library() {
  void* library = loaded_library<Abi>();
  if (library == nullptr || (library == RTLD_DEFAULT && open_mpi_is_loaded())) {
    throw Error(
        Code::kUnsupported,
        std::string("comm: this process has loaded no MPI library with ") + Abi::kName + " binary interface" +
            (open_mpi_is_loaded() ? ", but Open MPI, which the native transport does not speak to" : ""));
  }
  Functions<Abi> functions{};
  functions.each([&]<typename Function>(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(::dlsym(library, name));
    if (*function == nullptr) {
      throw Error(Code::kUnsupported, std::string("comm: the MPI library has no ") + name);
    }
  });
  return functions;
}

template Functions<MpichAbi> find_library<MpichAbi>();
template Functions<StandardAbi> find_library<StandardAbi>();

}  // namespace gcomm::mpi
