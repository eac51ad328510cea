/* GNMR, the stability controller (docs/gnmr.md): norms in, bounded actions out. gcomm.h includes this file. A
 * handle is not locked: one thread at a time. */
#ifndef GCOMM_GNMR_H
#define GCOMM_GNMR_H

#ifndef GCOMM_GCOMM_H
#error "include gcomm/gcomm.h"
#endif

typedef struct gcomm_gnmr gcomm_gnmr;

typedef struct gcomm_gnmr_config {
  size_t struct_size;
  double tau;       /* at risk above this multiple of the unit's mean; at least 1 */
  double tau_delta; /* and where rho rises by more than this; at least 1 */
  uint32_t window;  /* observations that the mean, and rho's, go back; at least 1 */
  uint32_t warmup;  /* finite observations before a unit can be at risk */
  uint32_t max_ops; /* units clipped or under recovery at once; at least 1 */
  uint32_t lock;    /* steps that a recovery lasts; at least 1 */
  uint32_t levels;  /* wire formats in a unit's list; at least 1 */
  uint32_t reserved;
} gcomm_gnmr_config;

typedef enum gcomm_gnmr_kind {
  GCOMM_GNMR_NONE = 0,
  GCOMM_GNMR_CLIP = 1,   /* scale the unit's values of this step; a recovery begins */
  GCOMM_GNMR_SKIP = 2,   /* leave the unit out of this step */
  GCOMM_GNMR_RECOVER = 3 /* the unit is under recovery, or one begins with nothing to clip */
} gcomm_gnmr_kind;

typedef enum gcomm_gnmr_reason {
  GCOMM_GNMR_REASON_NONE = 0,
  GCOMM_GNMR_REASON_RHO = 1,
  GCOMM_GNMR_REASON_DELTA = 2,
  GCOMM_GNMR_REASON_NONFINITE = 3
} gcomm_gnmr_reason;

typedef struct gcomm_gnmr_action {
  size_t struct_size;
  uint32_t unit;
  uint32_t kind;
  uint32_t level;
  uint32_t reason;
  double scale;  /* of the unit's values of this step */
  int64_t until; /* the last step under recovery */
  double rho;
  double delta;
} gcomm_gnmr_action;

/* What is remembered of a unit. */
typedef struct gcomm_gnmr_unit {
  size_t struct_size;
  const char* name; /* read only; valid until the next call with this handle */
  double mean;
  double rho; /* of the last observation */
  double delta;
  uint64_t count;  /* observations in the mean */
  int64_t until;   /* the last step of the last recovery, -1: none */
  int64_t seen;    /* the step of the last observation, -1: none */
  uint32_t level;  /* of the last recovery */
  uint32_t reason; /* for it */
  uint32_t filled; /* of recent */
  uint32_t next;   /* where the next one goes */
  double* recent;  /* room for window values of rho; the first `filled` count */
} gcomm_gnmr_unit;

GCOMM_API gcomm_result gcomm_gnmr_create(const gcomm_gnmr_config* config, gcomm_gnmr** gnmr);
GCOMM_API void gcomm_gnmr_destroy(gcomm_gnmr* gnmr);
/* The step of the last observation, -1 before the first; to be set before units are, when state is loaded. */
GCOMM_API gcomm_result gcomm_gnmr_get_step(const gcomm_gnmr* gnmr, int64_t* step);
GCOMM_API gcomm_result gcomm_gnmr_set_step(gcomm_gnmr* gnmr, int64_t step);

/* unit gets the number by which the unit is known until it is removed. */
GCOMM_API gcomm_result gcomm_gnmr_add_unit(gcomm_gnmr* gnmr, const char* name, uint32_t* unit);
GCOMM_API gcomm_result gcomm_gnmr_remove_unit(gcomm_gnmr* gnmr, uint32_t unit);
GCOMM_API gcomm_result gcomm_gnmr_find_unit(const gcomm_gnmr* gnmr, const char* name, uint32_t* unit);
GCOMM_API gcomm_result gcomm_gnmr_get_unit(const gcomm_gnmr* gnmr, uint32_t unit, gcomm_gnmr_unit* values);
GCOMM_API gcomm_result gcomm_gnmr_set_unit(gcomm_gnmr* gnmr, uint32_t unit, const gcomm_gnmr_unit* values);
/* The level, 0 to levels - 1, at which the unit's values of the next step travel. */
GCOMM_API gcomm_result gcomm_gnmr_level(const gcomm_gnmr* gnmr, uint32_t unit, uint32_t* level);

/* Norms of n different units after a reduction. step: -1 for the one after the last, else not below the last;
 * at the same step again, units not yet seen at it. An error changes nothing. n_actions and n_refused get what
 * there is to read until the next call; either may be NULL. */
GCOMM_API gcomm_result gcomm_gnmr_observe(gcomm_gnmr* gnmr, const uint32_t* units, const double* norms,
                                          uint64_t n, int64_t step, uint64_t* n_actions, uint64_t* n_refused);
/* Units acted on and all under recovery, in the order of their numbers. */
GCOMM_API gcomm_result gcomm_gnmr_get_action(const gcomm_gnmr* gnmr, uint64_t index, gcomm_gnmr_action* action);
/* Units at risk beyond the budget, the largest rho first: with what would have been done. */
GCOMM_API gcomm_result gcomm_gnmr_get_refused(const gcomm_gnmr* gnmr, uint64_t index,
                                              gcomm_gnmr_action* action);

/* The norm of count elements (F32, BF16, F16), the same bits on every machine; and what clip and skip do to
 * them: every element times scale, all zero for a scale of 0. */
GCOMM_API gcomm_result gcomm_gnmr_norm(const void* data, gcomm_dtype dtype, uint64_t count, double* norm);
GCOMM_API gcomm_result gcomm_gnmr_scale(void* data, gcomm_dtype dtype, uint64_t count, double scale);

#endif
