/* Products of a CPU's own: what one new token asks of the weights and of the past, and what a whole prompt asks.
 *
 *     map       y[m, n] = scale[n] * (w[n, :] . x[m, :]) + bias[n]      w in fp32, bf16 or int8; x and y in fp32
 *     attend    softmax(q K' * scale + table) V                         over the slots that the table allows alone
 *     weigh     log of the sum of e^x                                   row by row, and the largest of a row
 *
 * Weights lie in panels: P of their rows side by side, (N/P, K, P), and in bf16 two numbers of a row together,
 * (N/P, K/2, P, 2). A panel is read from end to end, as memory likes it, for six rows of x at a time, as registers like
 * it. An answer is the sum over k in its order: what one row gets does not depend on the rows beside it, to the
 * last bit. Only where so many ask that the adder is waited for, and not memory, x is rounded to bf16 if w is (or is
 * bytes) and the processor multiplies bf16: that is twice as fast.
 * Vectors are the compiler's own (gcc, clang); where AVX-512 is there, what compilers miss is spelt out.
 */
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#if defined __AVX512F__ || defined __AVX2__
#include <immintrin.h>
#endif

#ifdef __AVX512F__
#define LANES 16 /* of a vector */
#define VECTORS 4 /* of a panel: with six rows 24 sums, and there are 32 registers */
#else
#define LANES 8
#define VECTORS 2 /* 12 sums, and 16 registers */
#endif
#define PANEL (LANES * VECTORS)
#define ROWS 6 /* rows of x at a time */
#define PIECE 256 /* of a long row, where the largest numbers are looked for */
#define INLINE static inline __attribute__((always_inline))
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint32_t bits __attribute__((vector_size(4 * LANES), aligned(4)));
typedef lanes tile[ROWS][VECTORS];

/* ---------------------------------------------------------------- a vector from memory, and back to one number */

INLINE lanes of_f32(const float *p) { return *(const lanes *)p; }

INLINE lanes of_int8(const int8_t *p)
{
#if defined __AVX512F__
    return (lanes)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#elif defined __AVX2__
    return (lanes)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#else
    lanes v;
    for (int i = 0; i < LANES; i++) v[i] = (float)p[i];
    return v;
#endif
}

/* Pairs of bf16: a bf16 is the upper half of a float, and the first of a pair is the lower half of its bits. */
INLINE lanes firsts(const uint16_t *p) { return (lanes)(*(const bits *)p << 16); }
INLINE lanes seconds(const uint16_t *p) { return (lanes)(*(const bits *)p & 0xffff0000u); }

INLINE uint16_t to_bf16(float v) /* the nearest, halves to even; what is not a number stays so */
{
    uint32_t b;
    memcpy(&b, &v, 4);
    return v != v ? 0x7fc0 : (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
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

INLINE float power(float x) /* e^x for x <= 0: 2^n e^r with n whole and |r| <= ln 2 / 2, e^r by its series */
{
    const float low = x < -87 ? -87 : x, n = (low * 1.44269504f + 12582912) - 12582912;
    const float r = (low - n * 0.693145752f) - n * 1.42860677e-6f;
    const float end = 1 / 24.f + r * (1 / 120.f + r * (1 / 720.f + r * (1 / 5040.f)));
    const float y = 1 + r * (1 + r * (1 / 2.f + r * (1 / 6.f + r * end)));
    const uint32_t b = (uint32_t)((int32_t)n + 127) << 23;
    float two;
    memcpy(&two, &b, 4);
    return x < -87 ? 0 : y * two;
}

/* ---------------------------------------------------------------- a panel, and M rows of x: acc += w x */

#define EACH(i) _Pragma("GCC unroll 4") for (int i = 0; i < VECTORS; i++)
#define EVERY(m) _Pragma("GCC unroll 6") for (int m = 0; m < M; m++)

#define ASK(KIND, TYPE)                                                                                               \
    INLINE void ask_##KIND(const TYPE *w, const float *x, long K, const int M, tile acc)                              \
    {                                                                                                                 \
        for (long k = 0; k < K; k++, w += PANEL) {                                                                    \
            lanes v[VECTORS];                                                                                         \
            EACH(i) v[i] = of_##KIND(w + i * LANES);                                                                  \
            EVERY(m) EACH(i) acc[m][i] += v[i] * x[m * K + k];                                                        \
        }                                                                                                             \
    }
ASK(f32, float)
ASK(int8, int8_t)

INLINE void ask_bf16(const uint16_t *w, const float *x, long K, const int M, tile acc)
{
    for (long k = 0; k < K; k += 2, w += 2 * PANEL)
        EACH(i)
        {
            const lanes first = firsts(w + 2 * LANES * i), second = seconds(w + 2 * LANES * i);
            EVERY(m) acc[m][i] += first * x[m * K + k];
            EVERY(m) acc[m][i] += second * x[m * K + k + 1];
        }
}

/* Many rows of x: a panel is made ready for all of them on a desk, and x with it, in what the processor multiplies
 * fastest. That is bf16 in pairs, where it has such products (bytes are exact in it), and else fp32. */
#ifdef __AVX512BF16__
typedef uint16_t many;

INLINE void ask_many(const many *w, const many *x, long K, const int M, tile acc)
{
    for (long k = 0; k < K; k += 2, w += 2 * PANEL) {
        __m512bh v[VECTORS];
        EACH(i) v[i] = (__m512bh)_mm512_loadu_si512(w + 2 * LANES * i);
        EVERY(m)
        {
            int two;
            memcpy(&two, x + m * K + k, sizeof two);
            EACH(i) acc[m][i] = (lanes)_mm512_dpbf16_ps((__m512)acc[m][i], v[i], (__m512bh)_mm512_set1_epi32(two));
        }
    }
}

static const many *ready(const float *x, many *room, long count) /* by all threads together */
{
#pragma omp for schedule(static)
    for (long i = 0; i < count; i++) room[i] = to_bf16(x[i]);
    return room;
}

INLINE const many *ready_bf16(const uint16_t *w, many *desk, long K) { return (void)desk, (void)K, w; }

#define READY(KIND, TYPE)                                                                                             \
    static const many *ready_##KIND(const TYPE *w, many *desk, long K)                                                \
    {                                                                                                                 \
        for (long k = 0; k < K; k += 2, w += 2 * PANEL)                                                               \
            for (long i = 0; i < PANEL; i++) {                                                                        \
                const uint32_t two = to_bf16((float)w[i]) | (uint32_t)to_bf16((float)w[i + PANEL]) << 16;             \
                memcpy(desk + k * PANEL + 2 * i, &two, sizeof two);                                                   \
            }                                                                                                         \
        return desk;                                                                                                  \
    }
READY(f32, float)
READY(int8, int8_t)
#else
typedef float many;
#define ask_many ask_f32

INLINE const many *ready(const float *x, many *room, long count) { return (void)room, (void)count, x; }
INLINE const many *ready_f32(const float *w, many *desk, long K) { return (void)desk, (void)K, w; }

static const many *ready_bf16(const uint16_t *w, many *desk, long K)
{
    for (long k = 0; k < K; k += 2)
        EACH(i)
        {
            *(lanes *)(desk + k * PANEL + i * LANES) = firsts(w + k * PANEL + 2 * i * LANES);
            *(lanes *)(desk + (k + 1) * PANEL + i * LANES) = seconds(w + k * PANEL + 2 * i * LANES);
        }
    return desk;
}

static const many *ready_int8(const int8_t *w, many *desk, long K)
{
    for (long i = 0; i < K * PANEL; i += LANES) *(lanes *)(desk + i) = of_int8(w + i);
    return desk;
}
#endif

/* ---------------------------------------------------------------- the answers: tile by tile, panel by panel */

/* How many ask is known to the compiler in each case, so that it keeps their sums in registers. */
#define ANSWER(KIND, TYPE, ASKED)                                                                                     \
    static void answer_##KIND(const TYPE *w, const ASKED *x, const float *scale, const float *bias, float *y, int M,  \
                              long n, long N, long K)                                                                 \
    {                                                                                                                 \
        const long width = N - n < PANEL ? N - n : PANEL;                                                             \
        tile acc = {{{0}}};                                                                                           \
        switch (M) {                                                                                                  \
        case 1: ask_##KIND(w, x, K, 1, acc); break;                                                                   \
        case 2: ask_##KIND(w, x, K, 2, acc); break;                                                                   \
        case 3: ask_##KIND(w, x, K, 3, acc); break;                                                                   \
        case 4: ask_##KIND(w, x, K, 4, acc); break;                                                                   \
        case 5: ask_##KIND(w, x, K, 5, acc); break;                                                                   \
        default: ask_##KIND(w, x, K, 6, acc);                                                                         \
        }                                                                                                             \
        for (int m = 0; m < M; m++)                                                                                   \
            for (long i = 0; i < width; i++)                                                                          \
                y[m * N + n + i] = ((float *)acc[m])[i] * (scale ? scale[n + i] : 1) + (bias ? bias[n + i] : 0);      \
    }
ANSWER(f32, float, float)
ANSWER(bf16, uint16_t, float)
ANSWER(int8, int8_t, float)
ANSWER(many, many, many)

#define ALL_ROWS(KIND, W, X)                                                                                          \
    for (long m = 0; m < M; m += ROWS)                                                                                \
        answer_##KIND(W, (X) + m * K, scale, bias, y + m * N, M - m < ROWS ? (int)(M - m) : ROWS, p * PANEL, N, K)

/* Where many ask there is `room`, for x and, for each thread, a panel. */
#define MAP(KIND, TYPE)                                                                                               \
    void map_##KIND(const TYPE *w, const float *scale, const float *bias, const float *x, float *y, many *room,       \
                    const long *sizes, int threads)                                                                   \
    {                                                                                                                 \
        const long M = sizes[0], N = sizes[1], K = sizes[2], panels = (N + PANEL - 1) / PANEL;                        \
        _Pragma("omp parallel num_threads(threads)")                                                                  \
        {                                                                                                             \
            const many *asked = room ? ready(x, room, M * K) : NULL;                                                  \
            _Pragma("omp for schedule(static)") for (long p = 0; p < panels; p++)                                     \
            {                                                                                                         \
                const TYPE *panel = w + p * PANEL * K;                                                                \
                if (asked) {                                                                                          \
                    const many *made = ready_##KIND(panel, room + (M + omp_get_thread_num() * PANEL) * K, K);         \
                    ALL_ROWS(many, made, asked);                                                                      \
                } else {                                                                                              \
                    ALL_ROWS(KIND, panel, x);                                                                         \
                }                                                                                                     \
            }                                                                                                         \
        }                                                                                                             \
    }
MAP(f32, float)
MAP(bf16, uint16_t)
MAP(int8, int8_t)

/* Memory that was never written to, in pages of 2 MB where the system has them: the processor finds its way
 * quicker through half a gigabyte. */
void in_large_pages(char *start, long size)
{
#if defined __linux__ && defined MADV_HUGEPAGE
    const uintptr_t page = 2 << 20, from = ((uintptr_t)start + page - 1) / page * page;
    const uintptr_t to = ((uintptr_t)start + (uintptr_t)size) / page * page;
    if (to > from) madvise((void *)from, to - from, MADV_HUGEPAGE); /* advice: it may be turned down */
#endif
}

int side(void) { return PANEL; } /* how many rows lie side by side */

int halves(void) /* whether many rows are multiplied in bf16 */
{
#ifdef __AVX512BF16__
    return 1;
#else
    return 0;
#endif
}

/* ---------------------------------------------------------------- attend: one query, the slots it may look at */

INLINE float dot(const float *w, const float *x, long K)
{
    lanes acc[VECTORS] = {{0}};
    float rest = 0;
    long k = 0;
    for (; k + PANEL <= K; k += PANEL) EACH(i) acc[i] += of_f32(w + k + i * LANES) * of_f32(x + k + i * LANES);
    for (; k + LANES <= K; k += LANES) acc[0] += of_f32(w + k) * of_f32(x + k);
    for (; k < K; k++) rest += w[k] * x[k];
    for (int i = 1; i < VECTORS; i++) acc[0] += acc[i];
    return sum(acc[0]) + rest;
}

INLINE float most_of(const float *x, long count)
{
    float high[LANES], most = -INFINITY;
    for (int j = 0; j < LANES; j++) high[j] = -INFINITY;
    long i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; j++) high[j] = x[i + j] > high[j] ? x[i + j] : high[j];
    for (; i < count; i++) most = x[i] > most ? x[i] : most;
    for (int j = 0; j < LANES; j++) most = high[j] > most ? high[j] : most;
    return most;
}

/* The sum of e^(x - most); where `y` is not missing, each of them. */
INLINE float powers(const float *x, float most, float *y, long count)
{
    lanes all = {0};
    for (long i = 0; i < count; i += LANES) {
        const int width = count - i < LANES ? (int)(count - i) : LANES;
        float part[LANES] = {0};
        if (width == LANES)
            for (int j = 0; j < LANES; j++) part[j] = power(x[i + j] - most);
        else
            for (int j = 0; j < width; j++) part[j] = power(x[i + j] - most);
        if (y) memcpy(y + i, part, width * sizeof *y);
        all += of_f32(part);
    }
    return sum(all);
}

/* q (B, H, Q, d), k (B / W, G, K, d), v (B / W, G, K, e) -> out (B, H, Q, e): W rows of q, one after the other, look at
 * one of k and v. A slot is looked at where `allowed` (bytes) is
 * not 0, or where `added` (floats) is not minus infinity; either may be missing. `steps` are how far apart things lie:
 * rows of the table for b, h and q, then keys for b, g and slot, then values. `room` holds K floats for each of the
 * B * H * Q questions. */
void attend(const float *q, const float *k, const float *v, const uint8_t *allowed, const float *added,
            const long *steps, float *room, float *out, const long *sizes, float scale, int threads)
{
    const long B = sizes[0], H = sizes[1], Q = sizes[2], G = sizes[3], K = sizes[4], d = sizes[5], e = sizes[6];
    const long W = sizes[7];
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long ask = 0; ask < B * H * Q; ask++) {
        const long b = ask / (H * Q), h = ask / Q % H, shift = b * steps[0] + h * steps[1] + ask % Q * steps[2];
        const float *keys = k + b / W * steps[3] + h / (H / G) * steps[4];
        const float *values = v + b / W * steps[6] + h / (H / G) * steps[7];
        float *s = room + ask * K, *y = out + ask * e;
        for (long j = 0; j < K; j++) {
            const float more = added ? added[shift + j] : 0;
            const int seen = allowed ? allowed[shift + j] : more > -INFINITY;
            s[j] = seen ? dot(keys + j * steps[5], q + ask * d, d) * scale + more : -INFINITY;
        }
        const float most = most_of(s, K);
        memset(y, 0, e * sizeof *y);
        if (most == -INFINITY) continue; /* a query without keys gets zeros */
        const float total = powers(s, most, s, K);
        long i = 0;
        for (; i + PANEL <= e; i += PANEL) {
            lanes acc[VECTORS] = {{0}};
            for (long j = 0; j < K; j++)
                if (s[j] != 0) EACH(n) acc[n] += of_f32(values + j * steps[8] + i + n * LANES) * s[j];
            EACH(n) *(lanes *)(y + i + n * LANES) = acc[n] / total;
        }
        for (long j = 0; j < K && i < e; j++)
            if (s[j] != 0)
                for (long n = i; n < e; n++) y[n] += s[j] * values[j * steps[8] + n] / total;
    }
}

/* ---------------------------------------------------------------- a search: what beams weigh, and take over */

/* out[r] = log of the sum of e^x[r, c] over c */
void weigh(const float *x, float *out, const long *sizes, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long r = 0; r < sizes[0]; r++) {
        const float *row = x + r * sizes[1], most = most_of(row, sizes[1]);
        out[r] = isfinite(most) ? most + logf(powers(row, most, NULL, sizes[1])) : most;
    }
}

/* The `count` largest numbers of each row of x (R, V), the largest first, and their places; of equals the first. A piece
 * of a row that does not reach as high as the last of them is passed over. */
void ranked(const float *x, float *best, long *places, const long *sizes, int threads)
{
    const long R = sizes[0], V = sizes[1], count = sizes[2];
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long r = 0; r < R; r++) {
        const float *row = x + r * V;
        float *top = best + r * count;
        long *at = places + r * count, have = 0;
        for (long from = 0, to; from < V; from = to) {
            to = from + PIECE < V ? from + PIECE : V;
            if (have == count && !(most_of(row + from, to - from) > top[count - 1])) continue;
            for (long i = from; i < to; i++) {
                if (have == count && !(row[i] > top[count - 1])) continue;
                long n = have < count ? have++ : count - 1;
                for (; n && row[i] > top[n - 1]; n--) top[n] = top[n - 1], at[n] = at[n - 1];
                top[n] = row[i], at[n] = i;
            }
        }
    }
}

/* In a table (B, H, S, d), slots from `from` to `to` of row b become those of rows[b], of which the first alike[b] are
 * so already. `room` holds B * (to - from) * d floats for each thread. */
void take_over(float *table, const long *rows, const long *alike, float *room, const long *sizes, int threads)
{
    const long B = sizes[0], H = sizes[1], S = sizes[2], d = sizes[3], from = sizes[4], size = (sizes[5] - from) * d;
    const long row = H * S * d;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long h = 0; h < H; h++) {
        float *desk = room + omp_get_thread_num() * B * size, *part = table + (h * S + from) * d;
        for (long b = 0, i; b < B; b++)
            if (rows[b] != b && (i = alike[b] * d) < size)
                memcpy(desk + b * size + i, part + rows[b] * row + i, (size - i) * sizeof *desk);
        for (long b = 0, i; b < B; b++)
            if (rows[b] != b && (i = alike[b] * d) < size)
                memcpy(part + b * row + i, desk + b * size + i, (size - i) * sizeof *desk);
    }
}
