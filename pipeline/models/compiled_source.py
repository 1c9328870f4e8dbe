"""The C++ text that `pipeline.models.compiled` builds; GCC's vector extensions, no header of torch."""

SOURCE = r"""
// y = ReLU(max pool 2x2(convolution 5x5(x, w) + b)), stride 1, no padding, forward and backward.
// Images x, results y and their gradients dx, dy lie as [image][row][column][channel]. One thread.
//
// Every number is summed in the same order, by fused multiply-adds, whatever LANES is: the bits are the same.
#include <algorithm>
#include <cstdint>
#include <cstring>

#if !defined(__AVX2__) || !defined(__FMA__)
#error only for x86-64 processors with AVX2 and FMA
#endif
#ifndef LANES
#ifdef __AVX512F__
#define LANES 16
#else
#define LANES 8
#endif
#endif

// What fits into the vector registers, 32 of 16 lanes or 16 of 8 lanes.
#if LANES == 16
constexpr int COLUMNS = 14;     // of the convolution, computed together in two rows; even
constexpr int KERNEL_PART = 5;  // vectors of each of the kernel's rows, whose gradient is summed together
#else
constexpr int COLUMNS = 6;
constexpr int KERNEL_PART = 2;
#endif
constexpr int KERNEL = 5;
constexpr int OFF = 4;  // in `chosen`, where others have 0 to 3

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef float Unaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Integers __attribute__((vector_size(4 * LANES)));
typedef uint8_t Bytes __attribute__((vector_size(LANES)));

#define INLINE static inline __attribute__((always_inline))
// Loops over an array of vectors: only with constant indices can the array be in registers.
#define UNROLL _Pragma("GCC unroll 64")

INLINE Vector load(const float* from) { return *(const Unaligned*)from; }
INLINE void store(float* to, Vector vector) { *(Unaligned*)to = vector; }

// Sizes of a call. A pooled value takes 2 x 2 values of the convolution; an odd row or column is left out.
struct Sizes {
  int64_t height, width, outputs;
  int64_t pooled_rows() const { return (height - KERNEL + 1) / 2; }
  int64_t pooled_columns() const { return (width - KERNEL + 1) / 2; }
  int64_t pooled() const { return pooled_rows() * pooled_columns(); }
};

// -- forward ----------------------------------------------------------------------------------------------

// Two rows of `columns` values of the convolution for LANES channels, pooled and cut off at 0 in registers.
// x: their first pixel; w: [KERNEL * KERNEL * inputs][LANES]; filled: channels to store, the rest pads
template <int inputs, int columns>
static __attribute__((noinline)) void tile(const float* x, int64_t row, const float* w, Vector bias, float* y,
                                           uint8_t* chosen, int64_t outputs, int64_t filled) {
  Vector sums[2][columns];
  UNROLL for (int r = 0; r < 2; r++)
    UNROLL for (int c = 0; c < columns; c++) sums[r][c] = bias;
  for (int k = 0; k < KERNEL; k++, x += row)
    for (int j = 0; j < KERNEL * inputs; j++, w += LANES) {
      Vector weight = load(w);
      UNROLL for (int r = 0; r < 2; r++)
        UNROLL for (int c = 0; c < columns; c++) sums[r][c] += weight * x[r * row + c * inputs + j];
    }
  UNROLL for (int c = 0; c < columns / 2; c++) {
    Vector best = sums[0][2 * c];
    Vector zero = {};
    Integers at = {};
    UNROLL for (int s = 1; s < 4; s++) {
      Vector other = sums[s / 2][2 * c + s % 2];
      Integers more = (other > best) | (other != other);  // torch's rule: the first largest, or the last NaN
      best = more ? other : best;
      at = more ? (Integers{} + s) : at;
    }
    Integers off = best <= zero;  // false for NaN, which torch's ReLU lets through
    best = off ? zero : best;
    at = off ? (Integers{} + OFF) : at;
    Bytes bytes = __builtin_convertvector(at, Bytes);
    if (filled == LANES) {
      store(y + c * outputs, best);
      memcpy(chosen + c * outputs, &bytes, LANES);
    } else {
      memcpy(y + c * outputs, &best, filled * sizeof(float));
      memcpy(chosen + c * outputs, &bytes, filled);
    }
  }
}

// The widest tile of at most `columns` that `left` columns have room for.
template <int inputs, int columns>
static void widest_tile(int64_t left, const float* x, int64_t row, const float* w, Vector bias, float* y,
                        uint8_t* chosen, int64_t outputs, int64_t filled) {
  if constexpr (columns >= 2) {
    if (left >= columns) return tile<inputs, columns>(x, row, w, bias, y, chosen, outputs, filled);
    return widest_tile<inputs, columns - 2>(left, x, row, w, bias, y, chosen, outputs, filled);
  }
}

template <int inputs>
static void forward(const float* x, const float* w, const float* b, float* y, uint8_t* chosen, int64_t images,
                    Sizes sizes) {
  int64_t row = sizes.width * inputs;
  for (int64_t i = 0; i < images; i++)
    for (int64_t c = 0; c < sizes.outputs; c += LANES) {
      int64_t filled = std::min<int64_t>(LANES, sizes.outputs - c);
      const float* weights = w + c * KERNEL * KERNEL * inputs;
      for (int64_t p = 0; p < sizes.pooled_rows(); p++)
        for (int64_t q = 0; q < sizes.pooled_columns(); q += COLUMNS / 2) {
          const float* from = x + (i * sizes.height + 2 * p) * row + 2 * q * inputs;
          int64_t to = (i * sizes.pooled() + p * sizes.pooled_columns() + q) * sizes.outputs + c;
          int64_t left = 2 * (sizes.pooled_columns() - q);
          widest_tile<inputs, COLUMNS>(left, from, row, weights, load(b + c), y + to, chosen + to,
                                       sizes.outputs, filled);
        }
    }
}

// -- backward ---------------------------------------------------------------------------------------------
// Of every four gradients of the convolution's output, the pooling lets one through, and none where ReLU is
// off. These are listed for each channel, and only they are multiplied: the others are zeros.

// Vectors of a row of the kernel; what is behind its KERNEL * inputs numbers pads.
template <int inputs>
constexpr int VECTORS = (KERNEL * inputs + LANES - 1) / LANES;

// Gradients of one channel that are let through, in the order of their places.
struct List {
  const int32_t* at;  // where in x the kernel begins
  const float* values;
  int64_t count;
};

// Lists of all channels: that of channel c begins at at[c * images * pooled] and values[c * images * pooled];
// first[i * outputs + c] of its entries precede image i.
static void list_gradients(const float* __restrict__ dy, const uint8_t* __restrict__ chosen, int64_t images,
                           int64_t inputs, Sizes sizes, int32_t* __restrict__ at, float* __restrict__ values,
                           int32_t* __restrict__ first) {
  const int64_t room = images * sizes.pooled();
  const int64_t row = sizes.width * inputs;
  const int64_t offsets[] = {0, inputs, row, row + inputs, 0};
  memset(first, 0, sizes.outputs * sizeof(int32_t));
  for (int64_t i = 0; i < images; i++) {
    int32_t* __restrict__ next = first + (i + 1) * sizes.outputs;
    memcpy(next, next - sizes.outputs, sizes.outputs * sizeof(int32_t));
    for (int64_t p = 0; p < sizes.pooled_rows(); p++)
      for (int64_t q = 0; q < sizes.pooled_columns(); q++, dy += sizes.outputs, chosen += sizes.outputs) {
        int64_t corner = (i * sizes.height + 2 * p) * row + 2 * q * inputs;
        for (int64_t c = 0; c < sizes.outputs; c++) {
          // No branch, which would be mispredicted: the next entry overwrites one that is not let through.
          int64_t entry = c * room + next[c];
          at[entry] = corner + offsets[chosen[c]];
          values[entry] = dy[c];
          next[c] += chosen[c] != OFF;
        }
      }
  }
}

// dw[k][v] += sum over a channel's list of value * x[at + ...], for all rows k of the kernel and `vectors`
// vectors v of each: these sums are in registers during the walk.
template <int inputs, int vectors>
static void add_weight_gradient(const float* x, int64_t row, List list, float* dw) {
  Vector sums[KERNEL][vectors];
  UNROLL for (int k = 0; k < KERNEL; k++)
    UNROLL for (int v = 0; v < vectors; v++) sums[k][v] = Vector{};
  for (int64_t e = 0; e < list.count; e++) {
    const float* from = x + list.at[e];
    Vector value = Vector{} + list.values[e];
    UNROLL for (int k = 0; k < KERNEL; k++)
      UNROLL for (int v = 0; v < vectors; v++) sums[k][v] += value * load(from + k * row + v * LANES);
  }
  UNROLL for (int k = 0; k < KERNEL; k++)
    UNROLL for (int v = 0; v < vectors; v++) {
      float* to = dw + (k * VECTORS<inputs> + v) * LANES;
      store(to, load(to) + sums[k][v]);
    }
}

template <int inputs>
static void weight_gradient(const float* x, int64_t row, List list, float* dw) {
  constexpr int vectors = std::min(VECTORS<inputs>, KERNEL_PART);
  constexpr int rest = VECTORS<inputs> % vectors;
  constexpr int last = VECTORS<inputs> - rest;
  for (int v = 0; v < last; v += vectors)
    add_weight_gradient<inputs, vectors>(x + v * LANES, row, list, dw + v * LANES);
  if constexpr (rest > 0) add_weight_gradient<inputs, rest>(x + last * LANES, row, list, dw + last * LANES);
}

// dx[at + ...] += value * w for a channel's list, one row of the kernel after the other.
template <int inputs>
static void image_gradient(float* dx, int64_t row, List list, const float* w) {
  constexpr int vectors = VECTORS<inputs>;
  constexpr int filled = KERNEL * inputs - (vectors - 1) * LANES;  // lanes of the last vector
  Vector kept;
  UNROLL for (int lane = 0; lane < LANES; lane++) kept[lane] = lane < filled;
  for (int k = 0; k < KERNEL; k++, dx += row, w += vectors * LANES) {
    Vector weights[vectors];
    UNROLL for (int v = 0; v < vectors; v++) weights[v] = load(w + v * LANES);
    for (int64_t e = 0; e < list.count; e++) {
      float* to = dx + list.at[e];
      Vector value = Vector{} + list.values[e];
      // Behind the row are other pixels: not even a NaN or an infinity may reach them.
      Vector last = filled == LANES ? value : (kept != Vector{} ? value : Vector{});
      UNROLL for (int v = 0; v < vectors; v++) {
        float* part = to + v * LANES;
        store(part, load(part) + (v < vectors - 1 ? value : last) * weights[v]);
      }
    }
  }
}

// Room for what is listed of `images` images at once.
struct Room {
  int64_t images;
  int32_t* at;
  float* values;
  int32_t* first;
};

template <int inputs>
static void backward(const float* x, const float* w, const float* dy, const uint8_t* chosen, float* dx,
                     float* dw, double* db, int64_t images, Sizes sizes, Room room) {
  const int64_t row = sizes.width * inputs;
  const int64_t kernel = KERNEL * VECTORS<inputs> * LANES;  // numbers of a channel of w and dw
  for (int64_t i = 0; i < images; i += room.images) {
    const int64_t now = std::min(room.images, images - i);
    const int64_t before = i * sizes.pooled() * sizes.outputs;
    const int64_t pixel = i * sizes.height * row;
    list_gradients(dy + before, chosen + before, now, inputs, sizes, room.at, room.values, room.first);
    for (int64_t c = 0; c < sizes.outputs; c++) {
      const int64_t begin = c * now * sizes.pooled();
      const List list{room.at + begin, room.values + begin, room.first[now * sizes.outputs + c]};
      float sum = 0;
      for (int64_t e = 0; e < list.count; e++) sum += list.values[e];
      db[c] += sum;
      weight_gradient<inputs>(x + pixel, row, list, dw + c * kernel);
    }
    if (!dx) continue;
    for (int64_t one = 0; one < now; one++)  // image by image, so that its gradient stays in the cache
      for (int64_t c = 0; c < sizes.outputs; c++) {
        const int32_t* first = room.first + one * sizes.outputs + c;
        const int64_t begin = c * now * sizes.pooled() + first[0];
        const List list{room.at + begin, room.values + begin, first[sizes.outputs] - first[0]};
        image_gradient<inputs>(dx + pixel, row, list, w + c * kernel);
      }
  }
}

// -- what Python calls ------------------------------------------------------------------------------------
// EACH_INPUTS(X) is X(1) X(3) ..., a kernel for each number of input channels that compiled.py lists.

extern "C" {

int64_t lanes() { return LANES; }

// w: [outputs / LANES, rounded up][KERNEL * KERNEL * inputs][LANES]; b: as many outputs; zeros pad both
void conv_relu_pool_forward(const float* x, const float* w, const float* b, float* y, uint8_t* chosen,
                            int64_t images, int64_t inputs, int64_t height, int64_t width, int64_t outputs) {
  const Sizes sizes{height, width, outputs};
#define CASE(N) \
  case N: return forward<N>(x, w, b, y, chosen, images, sizes);
  switch (inputs) { EACH_INPUTS(CASE) }
#undef CASE
}

// w, dw: [outputs][KERNEL][KERNEL * inputs, rounded up to LANES], w padded by zeros
// x, dx: with room for LANES more numbers, of which none is used; dx may be null
// dx, dw, db: zeros, to which is added
// at, values: room for outputs * at_once * pooled numbers; first: for (at_once + 1) * outputs
void conv_relu_pool_backward(const float* x, const float* w, const float* dy, const uint8_t* chosen,
                             float* dx, float* dw, double* db, int32_t* at, float* values, int32_t* first,
                             int64_t images, int64_t at_once, int64_t inputs, int64_t height, int64_t width,
                             int64_t outputs) {
  const Sizes sizes{height, width, outputs};
  const Room room{at_once, at, values, first};
#define CASE(N) \
  case N: return backward<N>(x, w, dy, chosen, dx, dw, db, images, sizes, room);
  switch (inputs) { EACH_INPUTS(CASE) }
#undef CASE
}

}
"""
