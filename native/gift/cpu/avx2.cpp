// AVX2 and FMA. The matrix is taken in blocks of rows and columns that are copied, as fp32, to a buffer in the
// first-level cache (rows that lie a power of two apart would share a few of its sets) and used for both
// products there. Lanes are columns of G in the left product and columns of V in the right one, so that every
// lane is one chain.
//
// Nothing here may be shared with other files (base/hd.h): functions are local or always inlined, and the
// standard library's templates are not used.
#include <immintrin.h>

#include "gift/cpu/driver.h"
#include "gift/cpu/load_avx2.h"
#include "gift/cpu/update_avx2.h"

namespace gcomm::gift {
namespace {

constexpr std::size_t kBlockRows = 24;
constexpr std::size_t kBlockCols = 192;
constexpr std::size_t kStride = kBlockCols + 16;  // of the buffer; no multiple of a power of two above 64 bytes

// What the loops ask the memory for while they compute: the next block of G, row by row. Without it the
// processor waits for every block: rows of 768 bytes, pages apart, are not what its own prefetching looks for.
struct Ahead {
  const std::uint8_t* at;
  std::size_t row_bytes;
  std::size_t element_bytes;
};

struct Block {
  std::size_t rows;
  std::size_t cols;
  alignas(64) float at[kBlockRows * kStride];  // columns up to the next multiple of 8 are zero
};

template <class Reader>
void fill(Block& block, const MatrixView& g, std::size_t first_row, std::size_t first_col) {
  const std::size_t whole = block.cols / 8 * 8;
  for (std::size_t i = 0; i < block.rows; ++i) {
    const std::size_t from = (first_row + i) * g.cols + first_col;
    float* to = block.at + i * kStride;
    for (std::size_t j = 0; j < whole; j += 8) {
      _mm256_store_ps(to + j, Reader::load(g, from + j));
    }
    if (whole < block.cols) {
      _mm256_store_ps(to + whole, Reader::load_some(g, from + whole, block.cols - whole));
    }
  }
}

// Four rows of the left product, 8 kVecs columns; u and left point to the first of each.
template <int kVecs, bool kMasked>
GCOMM_HD void left_tile(const float* g, std::size_t rows, const float* u, std::size_t padded, float* left,
                        std::size_t cols, __m256i mask, const std::uint8_t* ahead, std::size_t ahead_bytes) {
  __m256 sum[4][kVecs];
  for (int k = 0; k < 4; ++k) {
    for (int v = 0; v < kVecs; ++v) {
      sum[k][v] = load<kMasked>(left + static_cast<std::size_t>(k) * cols + 8 * v, mask);
    }
  }
  for (std::size_t i = 0; i < rows; ++i) {
    __m256 x[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      x[v] = _mm256_load_ps(g + i * kStride + 8 * v);
    }
    prefetch(ahead + i * ahead_bytes);
    for (int k = 0; k < 4; ++k) {
      const __m256 factor = _mm256_broadcast_ss(u + i * padded + k);
      for (int v = 0; v < kVecs; ++v) {
        sum[k][v] = _mm256_fmadd_ps(x[v], factor, sum[k][v]);
      }
    }
  }
  for (int k = 0; k < 4; ++k) {
    for (int v = 0; v < kVecs; ++v) {
      store<kMasked>(left + static_cast<std::size_t>(k) * cols + 8 * v, mask, sum[k][v]);
    }
  }
}

void left_block(const Block& block, const float* u, std::size_t padded, float* left, std::size_t cols,
                const Ahead& next) {
  const __m256i mask = first_lanes(block.cols % 8);
  for (std::size_t k = 0; k < padded; k += 4) {
    float* out = left + k * cols;
    // The first two groups of k ask for the two lines that a tile's columns of a row lie in; the others, for
    // what is in the cache anyway.
    const bool asks = k < 8;
    const std::uint8_t* ahead =
        asks ? next.at + 4 * k * next.element_bytes : reinterpret_cast<const std::uint8_t*>(u);
    const std::size_t ahead_row = asks ? next.row_bytes : 0;
    const std::size_t ahead_col = asks ? next.element_bytes : 0;
    std::size_t j = 0;
    for (; j + 24 <= block.cols; j += 24) {
      left_tile<3, false>(block.at + j, block.rows, u + k, padded, out + j, cols, mask, ahead + j * ahead_col,
                          ahead_row);
    }
    for (; j + 8 <= block.cols; j += 8) {
      left_tile<1, false>(block.at + j, block.rows, u + k, padded, out + j, cols, mask, ahead + j * ahead_col,
                          ahead_row);
    }
    if (j < block.cols) {
      left_tile<1, true>(block.at + j, block.rows, u + k, padded, out + j, cols, mask, ahead + j * ahead_col,
                         ahead_row);
    }
  }
}

// kRows rows of the right product, 8 kVecs of its columns; g and right point to the first row, ahead to it in
// the next block.
template <int kRows, int kVecs>
GCOMM_HD void right_tile(const float* g, std::size_t cols, const float* v, std::size_t padded, float* right,
                         bool first, const std::uint8_t* ahead, const Ahead& next) {
  __m256 sum[kRows][kVecs];
  for (int i = 0; i < kRows; ++i) {
    for (int k = 0; k < kVecs; ++k) {
      const float* so_far = right + static_cast<std::size_t>(i) * padded + 8 * k;
      sum[i][k] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(so_far);
    }
  }
  for (std::size_t from = 0; from < cols; from += 16) {
    for (int i = 0; i < kRows; ++i) {
      prefetch(ahead + static_cast<std::size_t>(i) * next.row_bytes + from * next.element_bytes);
    }
    const std::size_t to = smaller(from + 16, cols);
    for (std::size_t j = from; j < to; ++j) {
      __m256 factor[kVecs];
      for (int k = 0; k < kVecs; ++k) {
        factor[k] = _mm256_loadu_ps(v + j * padded + 8 * k);
      }
      for (int i = 0; i < kRows; ++i) {
        const __m256 x = _mm256_broadcast_ss(g + static_cast<std::size_t>(i) * kStride + j);
        for (int k = 0; k < kVecs; ++k) {
          sum[i][k] = _mm256_fmadd_ps(x, factor[k], sum[i][k]);
        }
      }
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int k = 0; k < kVecs; ++k) {
      _mm256_storeu_ps(right + static_cast<std::size_t>(i) * padded + 8 * k, sum[i][k]);
    }
  }
}

// Rows from `done` on, kRows at a time, the rest in smaller groups.
template <int kRows, int kVecs>
GCOMM_HD void right_rows(const Block& block, std::size_t done, const float* v, std::size_t padded, float* right,
                         bool first, const Ahead& next) {
  for (; done + kRows <= block.rows; done += kRows) {
    right_tile<kRows, kVecs>(block.at + done * kStride, block.cols, v, padded, right + done * padded, first,
                             next.at + done * next.row_bytes, next);
  }
  if constexpr (kRows > 1) {
    right_rows<kRows / 2, kVecs>(block, done, v, padded, right, first, next);
  }
}

void right_block(const Block& block, const float* v, std::size_t padded, float* right, bool first,
                 const Ahead& next) {
  std::size_t k = 0;
  for (; k + 16 <= padded; k += 16) {
    right_rows<6, 2>(block, 0, v + k, padded, right + k, first, next);
  }
  if (k < padded) {
    right_rows<12, 1>(block, 0, v + k, padded, right + k, first, next);
  }
}

using Fill = void (*)(Block& block, const MatrixView& g, std::size_t first_row, std::size_t first_col);

template <DType kType>
Fill fill_for(const MatrixView& g) {
  if (g.addend != nullptr) {
    return g.zero_nonfinite ? fill<Avx2Reader<kType, true, true>> : fill<Avx2Reader<kType, false, true>>;
  }
  return g.zero_nonfinite ? fill<Avx2Reader<kType, true, false>> : fill<Avx2Reader<kType, false, false>>;
}
Fill fill_for(const MatrixView& g) {
  return g.dtype == DType::kF32    ? fill_for<DType::kF32>(g)
         : g.dtype == DType::kBF16 ? fill_for<DType::kBF16>(g)
                                   : fill_for<DType::kF16>(g);
}

void products(const MatrixView& g, std::size_t begin, std::size_t end, std::size_t padded, const float* u,
              float* left, const float* v, float* right) {
  const Fill fill_block = fill_for(g);
  const auto* data = static_cast<const std::uint8_t*>(g.data);
  const std::size_t size = g.dtype == DType::kF32 ? 4 : 2;
  Block block;
  for (std::size_t i = begin; i < end; i += kBlockRows) {
    block.rows = smaller(kBlockRows, end - i);
    for (std::size_t j = 0; j < g.cols; j += kBlockCols) {
      block.cols = smaller(kBlockCols, g.cols - j);
      fill_block(block, g, i, j);
      // To the right, or at the end of these rows the beginning of the next ones.
      const std::size_t ahead = j + kBlockCols < g.cols ? i * g.cols + j + kBlockCols
                                : i + kBlockRows < end  ? (i + kBlockRows) * g.cols
                                                        : i * g.cols + j;
      const Ahead next = {data + ahead * size, g.cols * size, size};
      if (left != nullptr) {
        left_block(block, u + i * padded, padded, left + j, g.cols, next);
      }
      if (right != nullptr) {
        right_block(block, v + j * padded, padded, right + i * padded, j == 0, next);
      }
    }
  }
}

void add_squares(const MatrixView& g, double* lane) {
  static_assert(kBlockCols % kSquareLanes == 0 && kSquareLanes == 16);
  const Fill fill_block = fill_for(g);
  Block block;
  block.rows = 1;
  __m256d sum[4];
  for (int v = 0; v < 4; ++v) {
    sum[v] = _mm256_loadu_pd(lane + 4 * v);
  }
  for (std::size_t i = 0; i < g.rows; ++i) {
    for (std::size_t j = 0; j < g.cols; j += kBlockCols) {
      block.cols = smaller(kBlockCols, g.cols - j);
      fill_block(block, g, i, j);
      for (std::size_t c = (block.cols + 7) / 8 * 8; c < (block.cols + 15) / 16 * 16; c += 8) {
        _mm256_store_ps(block.at + c, _mm256_setzero_ps());
      }
      for (std::size_t c = 0; c < block.cols; c += 16) {
        for (int v = 0; v < 4; ++v) {
          const __m256d x = _mm256_cvtps_pd(_mm_load_ps(block.at + c + 4 * v));
          sum[v] = _mm256_add_pd(sum[v], _mm256_mul_pd(x, x));
        }
      }
    }
  }
  for (int v = 0; v < 4; ++v) {
    _mm256_storeu_pd(lane + 4 * v, sum[v]);
  }
}

void rank_update(float* x, std::uint64_t element, std::size_t count, std::size_t cols, std::size_t terms,
                 const float* l, const float* r) {
  Avx2Update::run(x, element, count, cols, terms, l, r);
}

}  // namespace

const Driver& avx2_driver() {
  static constexpr Driver kDriver = {products, rank_update, add_squares};
  return kDriver;
}

}  // namespace gcomm::gift
