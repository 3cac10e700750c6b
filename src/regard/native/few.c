/* What one new token asks of the weights and of the past, for a CPU that waits for memory.
 *
 *     map       y[b, n] = scale[n] * (w[n, :] . x[b, :]) + bias[n]      w in fp32, bf16 or int8; x and y in fp32
 *     attend    softmax(q K' * scale + table) V                         over the slots that the table allows, and no others
 *
 * A row of weights is read from memory once, for all who ask. Sums are always made in the same order: what is answered
 * to one does not depend on who asks beside it, to the last bit.
 * Vectors are the compiler's own (gcc, clang); where AVX-512 is there, three steps that compilers miss are spelt out.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define LANES 16
#define INLINE static inline __attribute__((always_inline))
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4)));

/* ---------------------------------------------------------------- from memory to sixteen floats, and back to one */

INLINE lanes of_f32(const float *p) { return *(const lanes *)p; }

INLINE lanes of_bf16(const uint16_t *p) /* a bf16 is the upper half of a float */
{
#ifdef __AVX512F__
    return (lanes)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
#else
    uint32_t bits[LANES];
    lanes v;
    for (int i = 0; i < LANES; i++) bits[i] = (uint32_t)p[i] << 16;
    memcpy(&v, bits, sizeof v);
    return v;
#endif
}

INLINE lanes of_int8(const int8_t *p)
{
#ifdef __AVX512F__
    return (lanes)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#else
    lanes v;
    for (int i = 0; i < LANES; i++) v[i] = (float)p[i];
    return v;
#endif
}

INLINE float sum(lanes v)
{
#ifdef __AVX512F__
    return _mm512_reduce_add_ps((__m512)v);
#else
    float a[LANES];
    memcpy(a, &v, sizeof a);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) a[i] += a[i + half];
    return a[0];
#endif
}

INLINE float one_f32(float w) { return w; }
INLINE float one_int8(int8_t w) { return (float)w; }
INLINE float one_bf16(uint16_t w)
{
    uint32_t bits = (uint32_t)w << 16;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* ---------------------------------------------------------------- maps: a row of weights, and who asks it */

/* One row is read from end to end, as memory likes it; eight sums at once, as the adder likes it. */
#define SUMS 8
#define MAP(KIND, TYPE)                                                                                               \
    INLINE float dot_##KIND(const TYPE *w, const float *x, long K)                                                    \
    {                                                                                                                 \
        lanes acc[SUMS] = {{0}};                                                                                      \
        float rest = 0;                                                                                               \
        long k = 0;                                                                                                   \
        for (; k + SUMS * LANES <= K; k += SUMS * LANES)                                                              \
            _Pragma("GCC unroll 8") for (int i = 0; i < SUMS; i++)                                                    \
                acc[i] += of_##KIND(w + k + i * LANES) * of_f32(x + k + i * LANES);                                   \
        for (; k + LANES <= K; k += LANES) acc[0] += of_##KIND(w + k) * of_f32(x + k);                                \
        for (; k < K; k++) rest += one_##KIND(w[k]) * x[k];                                                           \
        for (int i = 1; i < SUMS; i++) acc[0] += acc[i];                                                              \
        return sum(acc[0]) + rest;                                                                                    \
    }                                                                                                                 \
    void map_##KIND(const TYPE *w, const float *scale, const float *bias, const float *x, float *y, const long *sizes, \
                    int threads)                                                                                      \
    {                                                                                                                 \
        const long B = sizes[0], N = sizes[1], K = sizes[2];                                                          \
        _Pragma("omp parallel for num_threads(threads) schedule(static)")                                             \
        for (long n = 0; n < N; n++)                                                                                  \
            for (long b = 0; b < B; b++)                                                                              \
                y[b * N + n] = dot_##KIND(w + n * K, x + b * K, K) * (scale ? scale[n] : 1) + (bias ? bias[n] : 0);   \
    }

MAP(f32, float)
MAP(bf16, uint16_t)
MAP(int8, int8_t)

/* ---------------------------------------------------------------- attend: one query, the slots it may look at */

/* q (B, H, Q, d), k (B, G, K, d), v (B, G, K, e) -> out (B, H, Q, e). A slot is looked at where `allowed` (bytes) is
 * not 0, or where `added` (floats) is not minus infinity; either may be missing, and `steps` are how far apart their
 * rows are for b, h and q. `room` holds K floats for each of the B * H * Q questions. */
void attend(const float *q, const float *k, const float *v, const uint8_t *allowed, const float *added,
            const long *steps, float *room, float *out, const long *sizes, float scale, int threads)
{
    const long B = sizes[0], H = sizes[1], Q = sizes[2], G = sizes[3], K = sizes[4], d = sizes[5], e = sizes[6];
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long ask = 0; ask < B * H * Q; ask++) {
        const long b = ask / (H * Q), h = ask / Q % H, shift = b * steps[0] + h * steps[1] + ask % Q * steps[2];
        const float *keys = k + (b * G + h / (H / G)) * K * d, *values = v + (b * G + h / (H / G)) * K * e;
        float *s = room + ask * K, *y = out + ask * e, most = -INFINITY, total = 0;
        for (long j = 0; j < K; j++) {
            const float more = added ? added[shift + j] : 0;
            const int seen = allowed ? allowed[shift + j] : more > -INFINITY;
            s[j] = seen ? dot_f32(keys + j * d, q + ask * d, d) * scale + more : -INFINITY;
            most = s[j] > most ? s[j] : most;
        }
        memset(y, 0, e * sizeof *y);
        if (most == -INFINITY) continue; /* who may look at nobody gets zeros */
        for (long j = 0; j < K; j++) {
            if (s[j] == -INFINITY) continue;
            const float part = expf(s[j] - most), *value = values + j * e;
            total += part;
            for (long i = 0; i < e; i++) y[i] += part * value[i];
        }
        for (long i = 0; i < e; i++) y[i] /= total;
    }
}
