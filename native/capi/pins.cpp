// The numbers and layouts that C callers and the core must see alike.
#include <cstddef>

#include "base/dtype.h"
#include "base/error.h"
#include "collective/call.h"
#include "comm/communicator.h"
#include "gcomm/gcomm.h"
#include "gnmr/controller.h"
#include "transport/callback/callbacks.h"
#include "transport/transport.h"

namespace gcomm {
namespace {

constexpr bool same(Code code, gcomm_result result) {
  return static_cast<int>(code) == static_cast<int>(result);
}
static_assert(same(Code::kOk, GCOMM_OK) && same(Code::kInvalid, GCOMM_ERR_INVALID) &&
              same(Code::kMismatch, GCOMM_ERR_MISMATCH) && same(Code::kTimeout, GCOMM_ERR_TIMEOUT) &&
              same(Code::kPeerLost, GCOMM_ERR_PEER_LOST) && same(Code::kCodec, GCOMM_ERR_CODEC) &&
              same(Code::kDesync, GCOMM_ERR_DESYNC) && same(Code::kAborted, GCOMM_ERR_ABORTED) &&
              same(Code::kClosed, GCOMM_ERR_CLOSED) && same(Code::kUnsupported, GCOMM_ERR_UNSUPPORTED) &&
              same(Code::kNoMemory, GCOMM_ERR_NO_MEMORY) && same(Code::kInternal, GCOMM_ERR_INTERNAL) &&
              same(Code::kNonFinite, GCOMM_ERR_NONFINITE) && same(Code::kPending, GCOMM_PENDING));
static_assert(GCOMM_OK == 0 && GCOMM_ERR_INVALID == 1 && GCOMM_PENDING == 13);

constexpr bool same(DType dtype, gcomm_dtype pinned) {
  return static_cast<int>(dtype) == static_cast<int>(pinned);
}
static_assert(same(DType::kF32, GCOMM_F32) && same(DType::kBF16, GCOMM_BF16) && same(DType::kF16, GCOMM_F16) &&
              same(DType::kF64, GCOMM_F64) && same(DType::kI8, GCOMM_I8) && same(DType::kU8, GCOMM_U8) &&
              same(DType::kI16, GCOMM_I16) && same(DType::kU16, GCOMM_U16) && same(DType::kI32, GCOMM_I32) &&
              same(DType::kU32, GCOMM_U32) && same(DType::kI64, GCOMM_I64) && same(DType::kU64, GCOMM_U64) &&
              same(DType::kBool, GCOMM_BOOL) && same(DType::kF8E4M3, GCOMM_F8E4M3) &&
              same(DType::kF8E5M2, GCOMM_F8E5M2) && same(DType::kC64, GCOMM_C64) &&
              same(DType::kC128, GCOMM_C128));
static_assert(kDTypeCount == GCOMM_C128 + 1);

static_assert(static_cast<int>(collective::Op::kSum) == GCOMM_SUM &&
              static_cast<int>(collective::Op::kAvg) == GCOMM_AVG);
static_assert(static_cast<int>(comm::LinkPattern::kPingPong) == GCOMM_LINK_PING_PONG &&
              static_cast<int>(comm::LinkPattern::kOneWay) == GCOMM_LINK_ONE_WAY &&
              static_cast<int>(comm::LinkPattern::kBidirectional) == GCOMM_LINK_BIDIRECTIONAL);
static_assert(kLaneCount == 3);

static_assert(sizeof(void*) == 8, "offsets below are those of a 64-bit machine");
static_assert(offsetof(gcomm_registry_row, name) == 8 && offsetof(gcomm_registry_row, available) == 16 &&
              offsetof(gcomm_registry_row, reason) == 24 &&
              offsetof(gcomm_registry_row, bits_per_element) == 32 &&
              offsetof(gcomm_registry_row, block) == 40 && sizeof(gcomm_registry_row) == 48);
static_assert(offsetof(gcomm_encode_options, key) == 8 &&
              offsetof(gcomm_encode_options, explicit_position) == 16 &&
              offsetof(gcomm_encode_options, call) == 20 && offsetof(gcomm_encode_options, element) == 24 &&
              offsetof(gcomm_encode_options, source) == 32 && sizeof(gcomm_encode_options) == 40);
static_assert(offsetof(gcomm_comm_config, timeout_s) == 8 && offsetof(gcomm_comm_config, slot_bytes) == 16 &&
              sizeof(gcomm_comm_config) == 24);
static_assert(offsetof(gcomm_comm_stats, calls) == 8 && offsetof(gcomm_comm_stats, raw_bytes) == 16 &&
              offsetof(gcomm_comm_stats, wire_bytes) == 24 && offsetof(gcomm_comm_stats, encode_s) == 32 &&
              offsetof(gcomm_comm_stats, comm_s) == 40 && offsetof(gcomm_comm_stats, decode_s) == 48 &&
              offsetof(gcomm_comm_stats, plans) == 56 && offsetof(gcomm_comm_stats, workspace_bytes) == 64 &&
              offsetof(gcomm_comm_stats, raw_path_calls) == 72 && sizeof(gcomm_comm_stats) == 80);
static_assert(offsetof(gcomm_tensor_stats, raw_bytes) == 8 && offsetof(gcomm_tensor_stats, wire_bytes) == 16 &&
              offsetof(gcomm_tensor_stats, raw_path) == 24 && offsetof(gcomm_tensor_stats, reserved) == 28 &&
              sizeof(gcomm_tensor_stats) == 32);
static_assert(offsetof(gcomm_work_stats, raw_bytes) == 8 && offsetof(gcomm_work_stats, wire_bytes) == 16 &&
              offsetof(gcomm_work_stats, encode_s) == 24 && offsetof(gcomm_work_stats, comm_s) == 32 &&
              offsetof(gcomm_work_stats, decode_s) == 40 && offsetof(gcomm_work_stats, total_s) == 48 &&
              offsetof(gcomm_work_stats, raw_path) == 56 && offsetof(gcomm_work_stats, nonfinite) == 60 &&
              sizeof(gcomm_work_stats) == 64);
static_assert(offsetof(gcomm_call_options, timeout_s) == 8 && offsetof(gcomm_call_options, rows) == 16 &&
              offsetof(gcomm_call_options, cols) == 24 && sizeof(gcomm_call_options) == 32);
static_assert(offsetof(gcomm_tensor, input) == 8 && offsetof(gcomm_tensor, output) == 16 &&
              offsetof(gcomm_tensor, count) == 24 && offsetof(gcomm_tensor, key) == 32 &&
              offsetof(gcomm_tensor, rows) == 40 && offsetof(gcomm_tensor, cols) == 48 &&
              sizeof(gcomm_tensor) == 56);

static_assert(offsetof(gcomm_gnmr_config, tau) == 8 && offsetof(gcomm_gnmr_config, tau_delta) == 16 &&
              offsetof(gcomm_gnmr_config, window) == 24 && offsetof(gcomm_gnmr_config, warmup) == 28 &&
              offsetof(gcomm_gnmr_config, max_ops) == 32 && offsetof(gcomm_gnmr_config, lock) == 36 &&
              offsetof(gcomm_gnmr_config, levels) == 40 && sizeof(gcomm_gnmr_config) == 48);
static_assert(offsetof(gcomm_gnmr_action, unit) == 8 && offsetof(gcomm_gnmr_action, kind) == 12 &&
              offsetof(gcomm_gnmr_action, level) == 16 && offsetof(gcomm_gnmr_action, reason) == 20 &&
              offsetof(gcomm_gnmr_action, scale) == 24 && offsetof(gcomm_gnmr_action, until) == 32 &&
              offsetof(gcomm_gnmr_action, rho) == 40 && offsetof(gcomm_gnmr_action, delta) == 48 &&
              sizeof(gcomm_gnmr_action) == 56);
static_assert(offsetof(gcomm_gnmr_unit, name) == 8 && offsetof(gcomm_gnmr_unit, mean) == 16 &&
              offsetof(gcomm_gnmr_unit, rho) == 24 && offsetof(gcomm_gnmr_unit, delta) == 32 &&
              offsetof(gcomm_gnmr_unit, count) == 40 && offsetof(gcomm_gnmr_unit, until) == 48 &&
              offsetof(gcomm_gnmr_unit, seen) == 56 && offsetof(gcomm_gnmr_unit, level) == 64 &&
              offsetof(gcomm_gnmr_unit, reason) == 68 && offsetof(gcomm_gnmr_unit, filled) == 72 &&
              offsetof(gcomm_gnmr_unit, next) == 76 && offsetof(gcomm_gnmr_unit, recent) == 80 &&
              sizeof(gcomm_gnmr_unit) == 88);

constexpr bool same(gnmr::Kind kind, gcomm_gnmr_kind pinned) {
  return static_cast<int>(kind) == static_cast<int>(pinned);
}
constexpr bool same(gnmr::Reason reason, gcomm_gnmr_reason pinned) {
  return static_cast<int>(reason) == static_cast<int>(pinned);
}
static_assert(same(gnmr::Kind::kNone, GCOMM_GNMR_NONE) && same(gnmr::Kind::kClip, GCOMM_GNMR_CLIP) &&
              same(gnmr::Kind::kSkip, GCOMM_GNMR_SKIP) && same(gnmr::Kind::kRecover, GCOMM_GNMR_RECOVER) &&
              same(gnmr::Reason::kNone, GCOMM_GNMR_REASON_NONE) &&
              same(gnmr::Reason::kRho, GCOMM_GNMR_REASON_RHO) &&
              same(gnmr::Reason::kDelta, GCOMM_GNMR_REASON_DELTA) &&
              same(gnmr::Reason::kNonFinite, GCOMM_GNMR_REASON_NONFINITE));

static_assert(sizeof(HostOp) == sizeof(gcomm_p2p_op) && sizeof(gcomm_p2p_op) == 32 &&
              offsetof(HostOp, is_recv) == offsetof(gcomm_p2p_op, is_recv) &&
              offsetof(HostOp, lane) == offsetof(gcomm_p2p_op, lane) &&
              offsetof(HostOp, peer) == offsetof(gcomm_p2p_op, peer) &&
              offsetof(HostOp, data) == offsetof(gcomm_p2p_op, data) &&
              offsetof(HostOp, bytes) == offsetof(gcomm_p2p_op, bytes));
static_assert(sizeof(HostCallbacks) == sizeof(gcomm_transport_callbacks) && sizeof(HostCallbacks) == 96 &&
              offsetof(HostCallbacks, context) == offsetof(gcomm_transport_callbacks, context) &&
              offsetof(HostCallbacks, name) == offsetof(gcomm_transport_callbacks, name) &&
              offsetof(HostCallbacks, rank) == offsetof(gcomm_transport_callbacks, rank) &&
              offsetof(HostCallbacks, size) == offsetof(gcomm_transport_callbacks, size) &&
              offsetof(HostCallbacks, slot_bytes) == offsetof(gcomm_transport_callbacks, slot_bytes) &&
              offsetof(HostCallbacks, overhead_bytes) == offsetof(gcomm_transport_callbacks, overhead_bytes) &&
              offsetof(HostCallbacks, post) == offsetof(gcomm_transport_callbacks, post) &&
              offsetof(HostCallbacks, wait_all) == offsetof(gcomm_transport_callbacks, wait_all) &&
              offsetof(HostCallbacks, error_text) == offsetof(gcomm_transport_callbacks, error_text) &&
              offsetof(HostCallbacks, abort) == offsetof(gcomm_transport_callbacks, abort) &&
              offsetof(HostCallbacks, close) == offsetof(gcomm_transport_callbacks, close) &&
              offsetof(HostCallbacks, failed_rank) == offsetof(gcomm_transport_callbacks, failed_rank));

}  // namespace
}  // namespace gcomm
