#include "capi/guard.h"

#include <exception>
#include <new>
#include <string_view>

namespace gcomm::capi {
namespace {

struct LastError {
  std::string text;
  int rank = -1;
};

LastError& last_error() {
  thread_local LastError error;
  return error;
}

}  // namespace

gcomm_result set_last_error(Code code, std::string_view text, int rank) noexcept {
  try {
    last_error().text.assign(text);
  } catch (...) {
    last_error().text.clear();
  }
  last_error().rank = rank;
  return static_cast<gcomm_result>(code);
}

gcomm_result set_last_error_from_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return set_last_error(error.code(), error.what(), error.peer());
  } catch (const std::bad_alloc&) {
    return set_last_error(Code::kNoMemory, "out of memory", -1);
  } catch (const std::exception& error) {
    return set_last_error(Code::kInternal, error.what(), -1);
  } catch (...) {
    return set_last_error(Code::kInternal, "an exception of an unknown kind", -1);
  }
}

}  // namespace gcomm::capi

extern "C" {

const char* gcomm_last_error(void) { return gcomm::capi::last_error().text.c_str(); }

int32_t gcomm_last_error_rank(void) { return gcomm::capi::last_error().rank; }

}  // extern "C"
