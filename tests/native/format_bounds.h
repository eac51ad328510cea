// How far one quantisation to nearest moves an element, at most: the bounds that docs/codecs.md states.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

namespace format_bounds {

// The bound for element x in a block with largest magnitude `block`, in a tile with largest magnitude `tile`.
struct Row {
  const char* name;
  std::size_t block;
  std::function<double(double x, double block, double tile)> bound;
};

inline double bf16_scale(double largest, double q_max) {
  return std::max(largest / q_max * (1 + 0x1p-7), 0x1p-126);
}
inline double mx_scale(double largest, double q_max) { return std::max(largest / q_max * 2, 0x1p-126); }

inline const Row kRows[] = {
    {"fp32", 1, [](double, double, double) { return 0.0; }},
    {"bf16", 1, [](double x, double, double) { return std::max(x * 0x1p-8, 0x1p-134); }},
    {"fp16", 1, [](double x, double, double) { return std::max({x * 0x1p-11, 0x1p-25, x - 65504}); }},
    {"fp8_e4m3", 128,
     [](double x, double b, double) { return std::max(x * 0x1p-4, bf16_scale(b, 448) * 0x1p-10); }},
    {"fp8_e5m2", 128,
     [](double x, double b, double) { return std::max(x * 0x1p-3, bf16_scale(b, 57344) * 0x1p-17); }},
    {"int8", 128, [](double, double b, double) { return bf16_scale(b, 127) / 2; }},
    {"int6", 64, [](double, double b, double) { return bf16_scale(b, 31) / 2; }},
    {"int4", 64, [](double, double b, double) { return bf16_scale(b, 7) / 2; }},
    {"int3", 32, [](double, double b, double) { return bf16_scale(b, 3) / 2; }},
    {"int2", 32, [](double, double b, double) { return b == 0 ? 0.0 : bf16_scale(b, 3); }},
    {"mxfp8", 32, [](double x, double b, double) { return std::max(x * 0x1p-4, mx_scale(b, 448) * 0x1p-10); }},
    {"mxfp4", 32, [](double x, double b, double) { return std::max(x / 3, mx_scale(b, 6) / 4); }},
    {"nvfp4", 16,
     [](double x, double b, double t) {
       const double tile_step = std::max(t / 2688, 0x1p-126) * 0x1p-10;  // half of the smallest scale
       const double vanishing =
           std::min(x, 6 * 0x1p-126 * (1 + 0x1p-4));  // a block whose scale would be a denormal
       return std::max({x / 3, b / 6 * (1 + 0x1p-4) / 4, vanishing}) + 6 * tile_step;
     }},
};

inline const Row& row(const std::string& name) {
  return *std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) { return name == r.name; });
}

}  // namespace format_bounds
