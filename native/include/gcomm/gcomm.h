/* gcomm: compressed collectives. The C ABI (C99).
 *
 * Every function that can fail returns a gcomm_result; gcomm_last_error() tells the calling thread in words
 * what went wrong in its last failed call. Handles are opaque and freed by their own destroy function, which
 * takes NULL. Structs that cross the boundary begin with struct_size, set by the caller to sizeof the struct: a
 * newer library reads no further than an older caller wrote. Strings are UTF-8, NUL-terminated.
 */
#ifndef GCOMM_GCOMM_H
#define GCOMM_GCOMM_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define GCOMM_API __declspec(dllexport)
#else
#define GCOMM_API __attribute__((visibility("default")))
#endif

#define GCOMM_VERSION_MAJOR 0
#define GCOMM_VERSION_MINOR 1
#define GCOMM_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/* ---- results ---- */

typedef enum gcomm_result {
  GCOMM_OK = 0,
  GCOMM_ERR_INVALID = 1,     /* an argument is wrong; nothing was sent */
  GCOMM_ERR_MISMATCH = 2,    /* ranks called with different arguments; the communicator goes on */
  GCOMM_ERR_TIMEOUT = 3,     /* a deadline passed; the communicator is closed */
  GCOMM_ERR_PEER_LOST = 4,   /* a peer ended or its connection broke; the communicator is closed */
  GCOMM_ERR_CODEC = 5,       /* bad codec text, or bytes that cannot be decoded */
  GCOMM_ERR_DESYNC = 6,      /* a dictionary stream lost step */
  GCOMM_ERR_ABORTED = 7,     /* the communicator was aborted, here or by a peer */
  GCOMM_ERR_CLOSED = 8,      /* the communicator was closed before the call */
  GCOMM_ERR_UNSUPPORTED = 9, /* valid, but not built or not offered here */
  GCOMM_ERR_NO_MEMORY = 10,
  GCOMM_ERR_INTERNAL = 11,
  GCOMM_ERR_NONFINITE = 12, /* codec option nonfinite=raise, and a rank's input had a NaN or an Inf */
  GCOMM_PENDING = 13        /* not an error: the work has not completed within the wait */
} gcomm_result;

GCOMM_API const char* gcomm_version_string(void);
GCOMM_API uint32_t gcomm_version_number(void); /* major << 16 | minor << 8 | patch */
GCOMM_API const char* gcomm_result_string(gcomm_result result);
/* Text of this thread's last failed call; "" if there was none. Valid until the thread's next failure. */
GCOMM_API const char* gcomm_last_error(void);
/* The rank at fault in this thread's last failed call, or -1. */
GCOMM_API int32_t gcomm_last_error_rank(void);

/* ---- element types, operations ---- */

typedef enum gcomm_dtype {
  GCOMM_F32 = 0,
  GCOMM_BF16 = 1,
  GCOMM_F16 = 2, /* what codecs read and write */
  GCOMM_F64 = 3,
  GCOMM_I8 = 4,
  GCOMM_U8 = 5,
  GCOMM_I16 = 6,
  GCOMM_U16 = 7,
  GCOMM_I32 = 8,
  GCOMM_U32 = 9,
  GCOMM_I64 = 10,
  GCOMM_U64 = 11,
  GCOMM_BOOL = 12,
  GCOMM_F8E4M3 = 13,
  GCOMM_F8E5M2 = 14,
  GCOMM_C64 = 15,
  GCOMM_C128 = 16
} gcomm_dtype;

typedef enum gcomm_op { GCOMM_SUM = 0, GCOMM_AVG = 1 } gcomm_op;

/* ---- what is here ---- */

typedef struct gcomm_registry_row {
  size_t struct_size;
  const char* name;
  int32_t available;
  const char* reason;      /* why not, or a remark; "" if there is nothing to say */
  double bits_per_element; /* codecs only: of a full tile, scales included */
  size_t block;            /* codecs only */
} gcomm_registry_row;

/* index from 0; GCOMM_ERR_INVALID past the end. */
GCOMM_API gcomm_result gcomm_codec_row(size_t index, gcomm_registry_row* row);
GCOMM_API gcomm_result gcomm_transport_row(size_t index, gcomm_registry_row* row);
GCOMM_API gcomm_result gcomm_isa_row(size_t index, gcomm_registry_row* row);

/* ---- codecs ---- */

typedef struct gcomm_codec gcomm_codec;

/* spec: "[transform+]format[:opt=value]...", as in docs/codecs.md. isa: "scalar", "avx2", "avx512", or NULL for
 * the best that this machine has (or GCOMM_ISA). The handle carries its own state: call counters and residuals
 * by key. */
GCOMM_API gcomm_result gcomm_codec_create(const char* spec, const char* isa, gcomm_codec** codec);
GCOMM_API void gcomm_codec_destroy(gcomm_codec* codec);
/* Canonical text and ISA name; valid as long as the codec. */
GCOMM_API const char* gcomm_codec_spec(const gcomm_codec* codec);
GCOMM_API const char* gcomm_codec_isa(const gcomm_codec* codec);
/* Exact for a fixed-length format, else a bound. */
GCOMM_API gcomm_result gcomm_codec_max_encoded_bytes(const gcomm_codec* codec, uint64_t count, uint64_t* bytes);

typedef struct gcomm_encode_options {
  size_t struct_size;
  const char* key;           /* NULL: no state is read or kept (call counter 0, no residual) */
  int32_t explicit_position; /* nonzero: take call, element and source from here and keep no state */
  uint32_t call;
  uint64_t element; /* a multiple of 4096 */
  int64_t source;   /* a rank, or -1 for an owner's sum */
} gcomm_encode_options;

/* Encodes count elements (F32, BF16 or F16). written gets the encoded length. options may be NULL. */
GCOMM_API gcomm_result gcomm_codec_encode(gcomm_codec* codec, const void* src, gcomm_dtype dtype,
                                          uint64_t count, const gcomm_encode_options* options, void* dst,
                                          uint64_t capacity, uint64_t* written);
GCOMM_API gcomm_result gcomm_codec_decode(const gcomm_codec* codec, const void* src, uint64_t bytes, void* dst,
                                          gcomm_dtype dtype, uint64_t count);
GCOMM_API gcomm_result gcomm_codec_decode_accumulate(const gcomm_codec* codec, const void* src, uint64_t bytes,
                                                     float* acc, uint64_t count);
/* What each key's transform chose and why, a JSON array (docs/gift.md); empty for codecs without gift. Call
 * with dst NULL for the size, which counts the final NUL. */
GCOMM_API gcomm_result gcomm_codec_report(const gcomm_codec* codec, char* dst, uint64_t capacity,
                                          uint64_t* bytes);
/* State as bytes (docs/wire-format.md, section 5). Call with dst NULL for the size. */
GCOMM_API gcomm_result gcomm_codec_state_save(const gcomm_codec* codec, void* dst, uint64_t capacity,
                                              uint64_t* bytes);
GCOMM_API gcomm_result gcomm_codec_state_load(gcomm_codec* codec, const void* src, uint64_t bytes);

/* ---- communicators ---- */

typedef struct gcomm_comm gcomm_comm;

typedef struct gcomm_comm_config {
  size_t struct_size;
  double timeout_s;    /* default deadline of a call; 0: 300 s */
  uint64_t slot_bytes; /* longest message; 0: the transport's default; equal on all ranks */
} gcomm_comm_config;

/* n ranks (at most GCOMM_LOCAL_MOST_RANKS) as threads of this process; comms gets n handles. config may be NULL
 * everywhere. */
#define GCOMM_LOCAL_MOST_RANKS 1024
GCOMM_API gcomm_result gcomm_comm_create_local(int32_t n, const gcomm_comm_config* config, gcomm_comm** comms);

/* TCP by hand: every rank makes a listener, the addresses and one random token travel by whatever the host has,
 * and every rank creates its communicator from them. */
typedef struct gcomm_tcp_listener gcomm_tcp_listener;
/* master_host: a host whose route picks the interface when neither GCOMM_SOCKET_IFNAME nor GLOO_SOCKET_IFNAME
 * is set; NULL: loopback. */
GCOMM_API gcomm_result gcomm_tcp_listener_create(const char* master_host, gcomm_tcp_listener** listener);
GCOMM_API const char* gcomm_tcp_listener_address(const gcomm_tcp_listener* listener); /* "ip:port" */
GCOMM_API void gcomm_tcp_listener_destroy(gcomm_tcp_listener* listener);
/* Fills 16 bytes from the system's random source. */
GCOMM_API gcomm_result gcomm_tcp_token(uint8_t token[16]);
GCOMM_API gcomm_result gcomm_comm_create_tcp(gcomm_tcp_listener* listener, int32_t rank, int32_t size,
                                             const char* const* addresses, const uint8_t token[16],
                                             const gcomm_comm_config* config, gcomm_comm** comm);

/* From RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Rank 0 serves the rendezvous at the first free port of
 * MASTER_PORT .. MASTER_PORT + 15 (a launcher's own store may hold the first). */
GCOMM_API gcomm_result gcomm_comm_create_env(const gcomm_comm_config* config, gcomm_comm** comm);

/* Over MPI, on duplicates of the communicator that lies at `comm`; comm_bytes is sizeof(MPI_Comm). gcomm needs
 * no MPI when it is built: it finds the library that the process has loaded, MPICH (and what keeps to its
 * binary interface) or one with that of MPI 5; for others there are callbacks. Collective over the
 * communicator, which must not be an intercommunicator. MPI must have been initialised with
 * MPI_THREAD_MULTIPLE, and must not end before the gcomm_comm was closed. */
GCOMM_API gcomm_result gcomm_comm_create_mpi(const void* comm, size_t comm_bytes,
                                             const gcomm_comm_config* config, gcomm_comm** out);

/* A host's own send and receive. Called from gcomm's threads, several at once. */
typedef struct gcomm_p2p_op {
  int32_t is_recv;
  int32_t lane; /* 0..2; messages of different lanes must not wait for one another (use it as the tag) */
  int32_t peer;
  int32_t reserved;
  void* data;
  uint64_t bytes; /* a receive's capacity; the message may be shorter */
} gcomm_p2p_op;

typedef struct gcomm_transport_callbacks {
  size_t struct_size;
  void* context;
  const char* name;
  int32_t rank;
  int32_t size;
  uint64_t slot_bytes;     /* 0: 4 MiB, less for many ranks */
  uint64_t overhead_bytes; /* what the host adds to each message, for statistics */
  /* Start n operations, write n tickets, never wait for a peer. 0, or a gcomm_result. */
  int32_t (*post)(void* context, const gcomm_p2p_op* ops, uint64_t n, uint64_t* tickets);
  /* Wait for n tickets, at most timeout_s. 0; GCOMM_ERR_TIMEOUT; GCOMM_ERR_PEER_LOST; another gcomm_result.
   * failed gets the position of the ticket that failed, or -1. */
  int32_t (*wait_all)(void* context, const uint64_t* tickets, uint64_t n, double timeout_s, int64_t* failed);
  /* May be NULL. Text of the last failure in this thread. */
  const char* (*error_text)(void* context);
  /* May be NULL. Fail everything that is pending. */
  void (*abort)(void* context);
  /* May be NULL. No call comes after it. */
  void (*close)(void* context);
  /* May be NULL. The rank at fault in the last failure in this thread, or -1: also where no ticket failed. */
  int32_t (*failed_rank)(void* context);
} gcomm_transport_callbacks;

GCOMM_API gcomm_result gcomm_comm_create_callbacks(const gcomm_transport_callbacks* callbacks,
                                                   const gcomm_comm_config* config, gcomm_comm** comm);

GCOMM_API int32_t gcomm_comm_rank(const gcomm_comm* comm);
GCOMM_API int32_t gcomm_comm_size(const gcomm_comm* comm);
GCOMM_API const char* gcomm_comm_transport(const gcomm_comm* comm);
/* What carries the bytes to and from a peer: "shm" where tcp ranks share memory (same host and network
 * namespace, GCOMM_TCP_SHM not 0), else the transport's name; "" if peer is not another rank. */
GCOMM_API const char* gcomm_comm_medium(const gcomm_comm* comm, int32_t peer);
GCOMM_API uint64_t gcomm_comm_slot_bytes(const gcomm_comm* comm);
GCOMM_API double gcomm_comm_timeout(const gcomm_comm* comm);

/* Waits for work already queued (at most the default deadline), says goodbye, ends the threads. Idempotent. */
GCOMM_API gcomm_result gcomm_comm_close(gcomm_comm* comm);
/* Fails everything pending here and on every peer, at once. */
GCOMM_API gcomm_result gcomm_comm_abort(gcomm_comm* comm, const char* why);
/* Closes if needed, and frees. Works that are still held stay valid. */
GCOMM_API void gcomm_comm_destroy(gcomm_comm* comm);

typedef struct gcomm_comm_stats {
  size_t struct_size;
  uint64_t calls;
  uint64_t raw_bytes;  /* what the same calls would have sent uncompressed, by the same algorithm */
  uint64_t wire_bytes; /* sent by this rank, headers and framing included */
  double encode_s;
  double comm_s;   /* waiting for the transport */
  double decode_s; /* reduction included */
  uint64_t plans;  /* in the cache now */
  uint64_t workspace_bytes;
  uint64_t raw_path_calls;
} gcomm_comm_stats;
GCOMM_API gcomm_result gcomm_comm_get_stats(const gcomm_comm* comm, gcomm_comm_stats* stats);

/* The codec of this text that lives in the communicator (its state is the communicator's); borrowed. */
GCOMM_API gcomm_result gcomm_comm_codec(gcomm_comm* comm, const char* spec, gcomm_codec** codec);

/* ---- gift ---- */

/* The basis that a gift codec keeps for each key, by hand (docs/gift.md). One thread at a time. */
typedef struct gcomm_gift_basis gcomm_gift_basis;
typedef struct gcomm_gift_basis_info {
  size_t struct_size;
  uint64_t rows;
  uint64_t cols;
  uint64_t max_rank;
  uint64_t rank;       /* directions found; 0 before the first update */
  double squared_norm; /* of the last reference */
  uint64_t digest;
} gcomm_gift_basis_info;
/* rank: 1 to min(rows, cols) - 1. isa as for gcomm_codec_create. */
GCOMM_API gcomm_result gcomm_gift_basis_create(uint64_t rows, uint64_t cols, uint64_t rank, const char* isa,
                                               gcomm_gift_basis** basis);
GCOMM_API void gcomm_gift_basis_destroy(gcomm_gift_basis* basis);
/* reference: rows x cols of F32, BF16 or F16, row-major. GCOMM_ERR_NONFINITE, and nothing changes, for a NaN,
 * an Inf or nothing but zeros. */
GCOMM_API gcomm_result gcomm_gift_basis_update(gcomm_gift_basis* basis, const void* reference,
                                               gcomm_dtype dtype, int32_t rounds);
/* T and its inverse, in place on rows x cols floats. */
GCOMM_API gcomm_result gcomm_gift_basis_apply(gcomm_gift_basis* basis, float* matrix);
GCOMM_API gcomm_result gcomm_gift_basis_inverse(gcomm_gift_basis* basis, float* matrix);
GCOMM_API gcomm_result gcomm_gift_basis_get(const gcomm_gift_basis* basis, gcomm_gift_basis_info* info);
/* Any of them may be NULL: rank values; rows x rank; cols x rank. */
GCOMM_API gcomm_result gcomm_gift_basis_read(const gcomm_gift_basis* basis, double* singular_values, float* u,
                                             float* v);

/* ---- stability control ---- */

#include "gcomm/gnmr.h"

/* ---- compressed activations ---- */

#include "gcomm/mapl.h"

/* ---- work ---- */

typedef struct gcomm_work gcomm_work;

typedef struct gcomm_work_stats {
  size_t struct_size;
  uint64_t raw_bytes;
  uint64_t wire_bytes;
  double encode_s;
  double comm_s;
  double decode_s;
  double total_s;    /* from the call to completion */
  int32_t raw_path;  /* nonzero: sent unencoded */
  int32_t nonfinite; /* nonzero: some rank's input held a NaN or an Inf */
} gcomm_work_stats;

/* Waits at most timeout_s (negative: until the call's own deadline). GCOMM_PENDING if it is not complete by
 * then, else the call's result (and its text for gcomm_last_error). */
GCOMM_API gcomm_result gcomm_work_wait(gcomm_work* work, double timeout_s);
GCOMM_API int32_t gcomm_work_is_completed(const gcomm_work* work);
GCOMM_API gcomm_result gcomm_work_get_stats(const gcomm_work* work, gcomm_work_stats* stats);

typedef struct gcomm_tensor_stats {
  size_t struct_size;
  uint64_t raw_bytes;  /* what the same messages would have carried of it uncompressed */
  uint64_t wire_bytes; /* sent of it by this rank, headers apart */
  int32_t raw_path;    /* nonzero: sent unencoded */
  int32_t reserved;
} gcomm_tensor_stats;

/* Of the tensor at position `index` of an all_reduce that has completed. GCOMM_PENDING before;
 * GCOMM_ERR_INVALID for another verb, or beyond its tensors. */
GCOMM_API gcomm_result gcomm_work_get_tensor_stats(const gcomm_work* work, uint64_t index,
                                                   gcomm_tensor_stats* stats);
/* Calls fn(context, result) once when the work completes, from gcomm's thread, or at once if it already has. fn
 * must not block. */
GCOMM_API gcomm_result gcomm_work_on_complete(gcomm_work* work, void (*fn)(void* context, gcomm_result result),
                                              void* context);
/* Drops the handle; the operation goes on, and its buffers must stay alive until it completes. */
GCOMM_API void gcomm_work_destroy(gcomm_work* work);

/* ---- collectives ---- */

typedef struct gcomm_call_options {
  size_t struct_size;
  double timeout_s; /* 0: the communicator's default */
  /* reduce_scatter: rows * cols == size * count, the shape of input for codecs that look at it; both 0: no
   * matrix */
  uint64_t rows;
  uint64_t cols;
} gcomm_call_options;

typedef struct gcomm_tensor {
  size_t struct_size;
  const void* input; /* count elements */
  void* output;      /* may equal input, may not overlap it otherwise */
  uint64_t count;
  const char* key; /* may be NULL */
  uint64_t rows;   /* rows * cols == count; both 0: no matrix. For codecs that look at the shape (gift) */
  uint64_t cols;
} gcomm_tensor;

/* All of them queue the operation, check arguments first, and return a work to wait for. Memory named by
 * pointers must live until it completes; structs and strings may go at once. codec NULL: elements as they are,
 * exact (all dtypes where nothing is summed; F32, BF16, F16 where something is). options may be NULL. */

/* Sum or average of n tensors of one dtype over all ranks, the same bits on all of them. */
GCOMM_API gcomm_result gcomm_all_reduce(gcomm_comm* comm, const gcomm_tensor* tensors, uint64_t n,
                                        gcomm_dtype dtype, gcomm_op op, gcomm_codec* codec,
                                        const gcomm_call_options* options, gcomm_work** work);
/* input: size * count elements; output: count elements, the caller's shard. */
GCOMM_API gcomm_result gcomm_reduce_scatter(gcomm_comm* comm, const void* input, void* output, uint64_t count,
                                            gcomm_dtype dtype, gcomm_op op, gcomm_codec* codec, const char* key,
                                            const gcomm_call_options* options, gcomm_work** work);
/* input: count elements; output: size * count elements. Every rank, the owner too, gets what was decoded. */
GCOMM_API gcomm_result gcomm_all_gather(gcomm_comm* comm, const void* input, void* output, uint64_t count,
                                        gcomm_dtype dtype, gcomm_codec* codec, const char* key,
                                        const gcomm_call_options* options, gcomm_work** work);
/* send_counts and recv_counts: size entries each, elements. A rank's own part is copied as it is. */
GCOMM_API gcomm_result gcomm_all_to_all(gcomm_comm* comm, const void* input, const uint64_t* send_counts,
                                        void* output, const uint64_t* recv_counts, gcomm_dtype dtype,
                                        gcomm_codec* codec, const char* key, const gcomm_call_options* options,
                                        gcomm_work** work);
/* In place. With a codec the root's own values become the decoded ones too; where nothing is encoded (codec
 * NULL, or the raw path without nonfinite=zero), the root's memory is only read. */
GCOMM_API gcomm_result gcomm_broadcast(gcomm_comm* comm, void* data, uint64_t count, gcomm_dtype dtype,
                                       int32_t root, gcomm_codec* codec, const char* key,
                                       const gcomm_call_options* options, gcomm_work** work);
/* Point to point has its own order for each peer and direction; a send completes when the peer has received it.
 */
GCOMM_API gcomm_result gcomm_send(gcomm_comm* comm, const void* data, uint64_t count, gcomm_dtype dtype,
                                  int32_t peer, gcomm_codec* codec, const char* key,
                                  const gcomm_call_options* options, gcomm_work** work);
GCOMM_API gcomm_result gcomm_recv(gcomm_comm* comm, void* data, uint64_t count, gcomm_dtype dtype, int32_t peer,
                                  gcomm_codec* codec, const char* key, const gcomm_call_options* options,
                                  gcomm_work** work);
GCOMM_API gcomm_result gcomm_barrier(gcomm_comm* comm, const gcomm_call_options* options, gcomm_work** work);

/* ---- measuring ---- */

/* Times `iterations` exchanges of one message of `bytes` (at most slot_bytes a message, more are cut) with peer
 * over the bare transport, no codec, no header. The initiator gets seconds[i] of each round trip (one_way: of
 * pushing the bytes and receiving a one-byte answer); the other side calls with the same arguments and
 * initiator 0. Both block. */
typedef enum gcomm_link_pattern {
  GCOMM_LINK_PING_PONG = 0,    /* bytes there, the same bytes back */
  GCOMM_LINK_ONE_WAY = 1,      /* bytes there, one byte back */
  GCOMM_LINK_BIDIRECTIONAL = 2 /* bytes both ways at once */
} gcomm_link_pattern;
GCOMM_API gcomm_result gcomm_link_probe(gcomm_comm* comm, int32_t peer, int32_t initiator,
                                        gcomm_link_pattern pattern, uint64_t bytes, uint32_t iterations,
                                        double* seconds);

#ifdef __cplusplus
}
#endif

#endif
