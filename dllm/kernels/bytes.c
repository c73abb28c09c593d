/* Passes over rows and weights in few bits, each in one sweep: the torch functions that dllm/kernels/native.py names
   define them, to the last bit. Compiled without contraction, so that a product is rounded before it is added. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define POINT 7

static inline float widened(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float number;
    memcpy(&number, &wide, 4);
    return number;
}

static inline uint16_t narrowed(float number) { /* to nearest, ties to even */
    uint32_t bits;
    memcpy(&bits, &number, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : (uint16_t)rounded;
}

/* Rows bfloat16 [count, width] in steps [count, width] of scale [count]; sums [count]: of their magnitudes. */
void round_rows(const uint16_t *rows, int8_t *steps, float *scale, int32_t *sums, long count, long width, long most,
                float least) {
    for (long at = 0; at < count; at++) {
        const uint16_t *row = rows + at * width;
        int8_t *step = steps + at * width;
        uint16_t peak = 0;
        for (long i = 0; i < width; i++) {
            uint16_t size = row[i] & 0x7fff;
            peak = size > peak ? size : peak;
        }
        float top = widened(peak);
        float unit = (top < least ? least : top) / (float)most;
        int32_t sum = 0;
        for (long i = 0; i < width; i++) {
            int32_t whole = (int32_t)rintf(widened(row[i]) / unit);
            step[i] = (int8_t)whole;
            sum += whole < 0 ? -whole : whole;
        }
        scale[at] = unit, sums[at] = sum;
    }
}

/* What the steps of some rows leave, in finer steps [count, width]. */
void round_rest(const uint16_t *rows, const int8_t *steps, const float *scale, const int64_t *again, int8_t *out,
                float *finer, long count, long width, long most) {
    for (long at = 0; at < count; at++) {
        const uint16_t *row = rows + again[at] * width;
        const int8_t *step = steps + again[at] * width;
        int8_t *left = out + at * width;
        float unit = scale[again[at]], fine = unit / (float)(2 * most), top = (float)most;
        finer[at] = fine;
        for (long i = 0; i < width; i++) {
            float part = (float)step[i] * unit;
            float whole = rintf((widened(row[i]) - part) / fine);
            whole = whole > top ? top : whole < -top ? -top : whole;
            left[i] = (int8_t)(int32_t)whole;
        }
    }
}

/* bfloat16 [count, outputs], rows `stride` apart, of products float32 times a scale of each row. */
void join_rows(const float *product, const float *scale, uint16_t *out, long count, long outputs, long stride) {
    for (long at = 0; at < count; at++) {
        const float *row = product + at * outputs;
        uint16_t *joined = out + at * stride;
        float unit = scale[at];
        for (long i = 0; i < outputs; i++) joined[i] = narrowed(row[i] * unit);
    }
}

/* The same of rows that were rounded twice: row again[at] has `rest[at]` beside it. */
void join_twice(const float *product, const float *scale, const int64_t *again, uint16_t *out, long first, long count,
                long outputs, long stride) {
    for (long at = 0; at < count; at++) {
        long own = again[at];
        const float *row = product + own * outputs, *rest = product + (first + at) * outputs;
        uint16_t *joined = out + own * stride;
        float unit = scale[own], fine = scale[first + at];
        for (long i = 0; i < outputs; i++) {
            float a = row[i] * unit, b = rest[i] * fine;
            joined[i] = narrowed(a + b);
        }
    }
}

/* Whole products int32 [count, outputs] times a scale of each output, in their place as float32. */
void scale_outputs(int32_t *product, const float *scale, long count, long outputs) {
    for (long at = 0; at < count; at++)
        for (long i = 0; i < outputs; i++) {
            float scaled = (float)product[at * outputs + i] * scale[i];
            memcpy(product + at * outputs + i, &scaled, 4);
        }
}

/* Blocks of four bits [blocks, width, half] in eight: int8 [width, blocks * 2 * half], columns `stride` apart. sizes: of
   32 columns of each output a step and a least value in bfloat16, groups `apart` numbers apart. inverse [outputs]: steps
   of eight bits in one, times 2^POINT. */
static inline __attribute__((always_inline)) void bytes_of_block(
    const uint8_t *restrict narrow, const uint32_t *restrict sizes, const float *restrict inverse, int8_t *restrict out,
    long width, const long half, long apart, long stride) {
    int16_t step[64], least[64];
    for (long group = 0; group < width / 32; group++, sizes += apart) {
        for (long i = 0; i < 2 * half; i++) {
            float a = rintf(widened(sizes[i] & 0xffff) * inverse[i]);
            float b = rintf(widened(sizes[i] >> 16) * inverse[i]) - 8 * a + (1 << (POINT - 1));
            step[i] = (int16_t)(int32_t)a, least[i] = (int16_t)(int32_t)b;
        }
        for (long column = 0; column < 32; column++, narrow += half, out += stride)
            for (long i = 0; i < half; i++) {
                int16_t low = (int16_t)((narrow[i] & 15) * step[i] + least[i]);
                int16_t high = (int16_t)((narrow[i] >> 4) * step[half + i] + least[half + i]);
                out[i] = (int8_t)(low >> POINT), out[half + i] = (int8_t)(high >> POINT);
            }
    }
}

void widen_bytes(const uint8_t *narrow, const uint32_t *sizes, const float *inverse, int8_t *out, long blocks, long width,
                 long half, long apart, long stride) {
    for (long block = 0; block < blocks; block++, narrow += width * half) {
        if (half == 32) bytes_of_block(narrow, sizes, inverse, out, width, 32, apart, stride);
        else bytes_of_block(narrow, sizes, inverse, out, width, 16, apart, stride);
        sizes += 2 * half, inverse += 2 * half, out += 2 * half;
    }
}

#if defined(__AMX_INT8__) && defined(__linux__)
#include <immintrin.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Whether this process may use the matrix unit's tiles: 1 or 0. */
long has_tiles(void) { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

/* 64 outputs in eight bits as the unit reads them: [width / 4][64][4]. */
static void quads_of_block(const uint8_t *restrict narrow, const uint32_t *restrict sizes,
                           const float *restrict inverse, int8_t *restrict out, long width, long apart) {
    for (long group = 0; group < width / 32; group++, sizes += apart, narrow += 32 * 32, out += 32 * 64) {
        int8_t lines[32 * 64];
        bytes_of_block(narrow, sizes, inverse, lines, 32, 32, apart, 64);
        for (long quad = 0; quad < 8; quad++) {
            const int8_t *restrict from = lines + quad * 4 * 64;
            int8_t *restrict to = out + quad * 4 * 64;
            for (long i = 0; i < 64; i++) {
                to[4 * i] = from[i], to[4 * i + 1] = from[64 + i];
                to[4 * i + 2] = from[128 + i], to[4 * i + 3] = from[192 + i];
            }
        }
    }
}

/* Steps int8 [count, width], count a multiple of 16, times blocks of 64 outputs in four bits: float32 [count, stride],
   times a scale of each output. oneDNN takes for granted that its configuration of the tiles stays, so it is put back.
   Returns 0 where memory is missing. */
long multiply_tiles(const int8_t *steps, const uint8_t *narrow, const uint32_t *sizes, const float *inverse,
                    const float *scale, float *out, long count, long width, long blocks, long apart, long stride) {
    unsigned char before[64] = {0}, own[64] = {0};
    int32_t *sums = malloc(4 * 16 * 64);
    int8_t *wide = aligned_alloc(64, width * 64);
    if (!sums || !wide) return free(sums), free(wide), 0;
    own[0] = 1;
    for (int tile = 0; tile < 8; tile++) own[16 + 2 * tile] = 64, own[48 + tile] = 16;
    _tile_storeconfig(before);
    _tile_loadconfig(own);
    for (long block = 0; block < blocks; block++, narrow += width * 32) {
        quads_of_block(narrow, sizes + block * 64, inverse + block * 64, wide, width, apart);
        for (long row = 0; row < count; row += 16) {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (long column = 0; column < width; column += 64) {
                const int8_t *right = wide + column * 64;
                _tile_loadd(4, steps + row * width + column, width);
                _tile_loadd(5, right, 256);
                _tile_dpbssd(0, 4, 5);
                _tile_loadd(6, right + 64, 256);
                _tile_dpbssd(1, 4, 6);
                _tile_loadd(5, right + 128, 256);
                _tile_dpbssd(2, 4, 5);
                _tile_loadd(6, right + 192, 256);
                _tile_dpbssd(3, 4, 6);
            }
            _tile_stored(0, sums, 256);
            _tile_stored(1, sums + 16, 256);
            _tile_stored(2, sums + 32, 256);
            _tile_stored(3, sums + 48, 256);
            for (long at = 0; at < 16; at++)
                for (long i = 0; i < 64; i++)
                    out[(row + at) * stride + block * 64 + i] = (float)sums[at * 64 + i] * scale[block * 64 + i];
        }
    }
    _tile_loadconfig(before);
    free(sums), free(wide);
    return 1;
}
#else
long has_tiles(void) { return 0; }
#endif
