/* gcomm.h in C99, strictly: every function is there, and a small program works. */
#include <gcomm/gcomm.h>

#include <stdio.h>
#include <string.h>

typedef void (*function)(void);

/* One entry a function; the test of exported symbols checks that none is forgotten in the library. */
static const function all[] = {
    (function)gcomm_version_string, (function)gcomm_version_number, (function)gcomm_result_string,
    (function)gcomm_last_error, (function)gcomm_last_error_rank, (function)gcomm_codec_row,
    (function)gcomm_transport_row, (function)gcomm_isa_row, (function)gcomm_codec_create,
    (function)gcomm_codec_destroy, (function)gcomm_codec_spec, (function)gcomm_codec_isa,
    (function)gcomm_codec_max_encoded_bytes, (function)gcomm_codec_encode, (function)gcomm_codec_decode,
    (function)gcomm_codec_decode_accumulate, (function)gcomm_codec_state_save, (function)gcomm_codec_state_load,
    (function)gcomm_comm_create_local, (function)gcomm_tcp_listener_create, (function)gcomm_tcp_listener_address,
    (function)gcomm_tcp_listener_destroy, (function)gcomm_tcp_token, (function)gcomm_comm_create_tcp,
    (function)gcomm_comm_create_env, (function)gcomm_comm_create_callbacks, (function)gcomm_comm_rank,
    (function)gcomm_comm_size, (function)gcomm_comm_transport, (function)gcomm_comm_medium,
    (function)gcomm_comm_slot_bytes,
    (function)gcomm_comm_timeout, (function)gcomm_comm_close, (function)gcomm_comm_abort,
    (function)gcomm_comm_destroy, (function)gcomm_comm_get_stats, (function)gcomm_comm_codec,
    (function)gcomm_work_wait, (function)gcomm_work_is_completed, (function)gcomm_work_get_stats,
    (function)gcomm_work_get_tensor_stats,
    (function)gcomm_work_on_complete, (function)gcomm_work_destroy, (function)gcomm_all_reduce,
    (function)gcomm_reduce_scatter, (function)gcomm_all_gather, (function)gcomm_all_to_all,
    (function)gcomm_broadcast, (function)gcomm_send, (function)gcomm_recv,
    (function)gcomm_barrier, (function)gcomm_link_probe};

int main(void) {
  gcomm_comm* comm = NULL;
  gcomm_work* work = NULL;
  gcomm_codec* codec = NULL;
  gcomm_work_stats stats;
  float data[3] = {1.0f, 2.0f, 3.0f};
  size_t i;
  for (i = 0; i < sizeof all / sizeof all[0]; ++i) {
    if (all[i] == NULL) return 1;
  }
  if (gcomm_comm_create_local(1, NULL, &comm) != GCOMM_OK) return 2;
  if (gcomm_comm_codec(comm, "int8", &codec) != GCOMM_OK) return 3;
  if (gcomm_broadcast(comm, data, 3, GCOMM_F32, 0, codec, NULL, NULL, &work) != GCOMM_OK) return 4;
  if (gcomm_work_wait(work, 10.0) != GCOMM_OK || data[2] != 3.0f) return 5;
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  if (gcomm_work_get_stats(work, &stats) != GCOMM_OK || stats.raw_path == 0) return 6;
  gcomm_work_destroy(work);
  gcomm_comm_destroy(comm);
  puts("capi_c99: ok");
  return 0;
}
