// The update of a range of elements by a product of skinny factors.
#pragma once

#include "gift/cpu/load_avx2.h"

namespace gcomm::gift {

struct Avx2Update {
  // A rectangle of x: row i, column j is at[(i * cols) + j], with l from its first row and r from its first
  // column.
  struct Rectangle {
    float* at;
    std::size_t rows;
    std::size_t width;
    const float* l;
    const float* r;
  };

  static constexpr std::size_t kPanelCols = 48;    // of r, copied to the first-level cache for many rows
  static constexpr std::size_t kPanelTerms = 64;   // at a time; x waits in registers or memory in between
  static constexpr std::size_t kPanelRows = 32;    // rows that use a copied panel before the next one
  static constexpr std::size_t kFewRows = 8;       // below this a panel is not worth copying
  static constexpr std::size_t kStreamCols = 512;  // of few rows, kept in the cache while r streams past
  static constexpr std::size_t kStreamTerms = 8;

  template <int kRows, int kVecs, bool kMasked>
  static GCOMM_HD void update_tile(float* x, std::size_t cols, std::size_t terms, const float* l,
                                   std::size_t l_stride, const float* r, std::size_t r_stride,
                                   std::size_t ahead, __m256i mask) {
    __m256 sum[kRows][kVecs];
    for (int i = 0; i < kRows; ++i) {
      prefetch(x + static_cast<std::size_t>(i) * cols + ahead);
      prefetch(x + static_cast<std::size_t>(i) * cols + ahead + (8 * kVecs - 1));
      for (int v = 0; v < kVecs; ++v) {
        sum[i][v] = load<kMasked>(x + static_cast<std::size_t>(i) * cols + 8 * v, mask);
      }
    }
    for (std::size_t k = 0; k < terms; ++k) {
      __m256 factor[kVecs];
      for (int v = 0; v < kVecs; ++v) {
        factor[v] = load<kMasked>(r + k * r_stride + 8 * v, mask);
      }
      for (int i = 0; i < kRows; ++i) {
        const __m256 y = _mm256_broadcast_ss(l + static_cast<std::size_t>(i) * l_stride + k);
        for (int v = 0; v < kVecs; ++v) {
          sum[i][v] = _mm256_fmadd_ps(y, factor[v], sum[i][v]);
        }
      }
    }
    for (int i = 0; i < kRows; ++i) {
      for (int v = 0; v < kVecs; ++v) {
        store<kMasked>(x + static_cast<std::size_t>(i) * cols + 8 * v, mask, sum[i][v]);
      }
    }
  }

  template <int kRows>
  static GCOMM_HD void update_strip(float* x, std::size_t cols, std::size_t width, std::size_t terms,
                                    const float* l, std::size_t l_stride, const float* r, std::size_t r_stride,
                                    std::size_t ahead) {
    std::size_t j = 0;
    for (; j + 24 <= width; j += 24) {
      update_tile<kRows, 3, false>(x + j, cols, terms, l, l_stride, r + j, r_stride, ahead, __m256i{});
    }
    for (; j + 8 <= width; j += 8) {
      update_tile<kRows, 1, false>(x + j, cols, terms, l, l_stride, r + j, r_stride, ahead, __m256i{});
    }
    if (j < width) {
      update_tile<kRows, 1, true>(x + j, cols, terms, l, l_stride, r + j, r_stride, ahead,
                                  first_lanes(width - j));
    }
  }

  // `terms` of all l_stride terms, for a rectangle.
  static GCOMM_HD void update_rows(const Rectangle& part, std::size_t cols, std::size_t terms,
                                   std::size_t l_stride, const float* r, std::size_t r_stride,
                                   std::size_t ahead) {
    std::size_t i = 0;
    for (; i + 4 <= part.rows; i += 4) {
      update_strip<4>(part.at + i * cols, cols, part.width, terms, part.l + i * l_stride, l_stride, r, r_stride,
                      ahead);
    }
    for (; i < part.rows; ++i) {
      update_strip<1>(part.at + i * cols, cols, part.width, terms, part.l + i * l_stride, l_stride, r, r_stride,
                      ahead);
    }
  }

  static GCOMM_HD void update_few(const Rectangle& all, std::size_t cols, std::size_t terms) {
    for (std::size_t j = 0; j < all.width; j += kStreamCols) {
      for (std::size_t k = 0; k < terms; k += kStreamTerms) {
        const Rectangle part = {all.at + j, all.rows, smaller(kStreamCols, all.width - j), all.l + k, nullptr};
        update_rows(part, cols, smaller(kStreamTerms, terms - k), terms, all.r + k * cols + j, cols, 0);
      }
    }
  }

  // A row of a panel; the same row of the next one is asked for.
  static GCOMM_HD void copy_row(float* to, const float* from, std::size_t width, std::size_t ahead) {
    for (std::size_t j = 0; j < width; j += 8) {
      if (j + 8 <= width) {
        _mm256_store_ps(to + j, _mm256_loadu_ps(from + j));
      } else {
        std::memcpy(to + j, from + j, 4 * (width - j));
      }
      if (j % 16 == 0) {
        prefetch(from + j + ahead);
      }
    }
  }

  static GCOMM_HD void update_many(const Rectangle& all, std::size_t cols, std::size_t terms) {
    alignas(64) float panel[kPanelTerms * kPanelCols];
    for (std::size_t i = 0; i < all.rows; i += kPanelRows) {
      for (std::size_t j = 0; j < all.width; j += kPanelCols) {
        const std::size_t width = smaller(kPanelCols, all.width - j);
        const std::size_t ahead = j + kPanelCols < all.width ? kPanelCols : 0;
        for (std::size_t k = 0; k < terms; k += kPanelTerms) {
          const std::size_t deep = smaller(kPanelTerms, terms - k);
          for (std::size_t t = 0; t < deep; ++t) {
            copy_row(panel + t * kPanelCols, all.r + (k + t) * cols + j, width, ahead);
          }
          const Rectangle part = {all.at + i * cols + j, smaller(kPanelRows, all.rows - i), width,
                                  all.l + i * terms + k, nullptr};
          update_rows(part, cols, deep, terms, panel, kPanelCols, ahead);
        }
      }
    }
  }

  // The range begins in column `start` of its first row and ends before column `stop` of its last one, so there
  // are up to three zones of columns in which the same rows take part.
  static GCOMM_HD void run(float* x, std::uint64_t element, std::size_t count, std::size_t cols,
                           std::size_t terms, const float* l, const float* r) {
    const std::size_t first = element / cols;
    const std::size_t start = element % cols;
    const std::size_t last = (element + count - 1) / cols;
    const std::size_t stop = (element + count - 1) % cols + 1;
    const std::size_t cuts[4] = {0, smaller(start, stop), start < stop ? stop : start, cols};
    for (int zone = 0; zone < 3; ++zone) {
      const std::size_t from = cuts[zone];
      const std::size_t width = cuts[zone + 1] - from;
      const std::size_t top = first + (from < start ? 1 : 0);
      const std::size_t bottom = last + (cuts[zone + 1] <= stop ? 1 : 0);
      if (width == 0 || top >= bottom) {
        continue;
      }
      const Rectangle part = {x + ((top - first) * cols + from - start), bottom - top, width, l + top * terms,
                              r + from};
      if (part.rows < kFewRows) {
        update_few(part, cols, terms);
      } else {
        update_many(part, cols, terms);
      }
    }
  }
};

}  // namespace gcomm::gift
