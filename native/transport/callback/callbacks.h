// A host's own send and receive, as the callback transport takes them. Layout and meaning are those of
// gcomm_p2p_op and gcomm_transport_callbacks in gcomm.h (pinned by static_assert in capi/).
#pragma once

#include <cstddef>
#include <cstdint>

namespace gcomm {

struct HostOp {
  std::int32_t is_recv;
  std::int32_t lane;
  std::int32_t peer;
  std::int32_t reserved;
  void* data;
  std::uint64_t bytes;
};

struct HostCallbacks {
  std::size_t struct_size;
  void* context;
  const char* name;
  std::int32_t rank;
  std::int32_t size;
  std::uint64_t slot_bytes;
  std::uint64_t overhead_bytes;
  std::int32_t (*post)(void* context, const HostOp* ops, std::uint64_t n, std::uint64_t* tickets);
  std::int32_t (*wait_all)(void* context, const std::uint64_t* tickets, std::uint64_t n, double timeout_s,
                           std::int64_t* failed);
  const char* (*error_text)(void* context);
  void (*abort)(void* context);
  void (*close)(void* context);
  std::int32_t (*failed_rank)(void* context);
};

}  // namespace gcomm
