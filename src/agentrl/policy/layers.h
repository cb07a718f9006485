/* What sampling and training compute of a layer of a plain decoder, for one token or head. REAL is float in use; in
   double (with EXACT) the backward passes are compared with finite differences. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef REAL
#define REAL float
#endif
#define INLINE static inline __attribute__((always_inline))

#ifdef EXACT
INLINE REAL exponential(REAL x) { return exp(x); }
#else
/* e^x to two units in the last place, after Cephes' expf: x = n ln 2 + r, a polynomial for e^r, n into the exponent. Two
   products are fused by name, since ln 2 in two parts would be put together by a compiler that may reorder sums. */
INLINE float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float n = __builtin_rintf(x * 1.44269504088896341f);
    float r = __builtin_fmaf(n, -0.693359375f, x);
    r = __builtin_fmaf(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return p * power;
}
#endif

/* What an RMS norm multiplies x with, beside its weight. */
INLINE REAL inverse_root(const REAL *x, int64_t width, double epsilon) {
    REAL sum = 0;
    for (int64_t d = 0; d < width; d++) sum += x[d] * x[d];
    return 1 / (REAL)sqrt(sum / (REAL)width + (REAL)epsilon);
}

/* A head turned by the cosines and sines of its position; `out` may be x. */
INLINE void turned(int64_t width, const REAL *x, const REAL *cosine, const REAL *sine, REAL *out) {
    const int64_t half = width / 2;
    for (int64_t e = 0; e < half; e++) {
        REAL low = x[e], high = x[e + half];
        out[e] = low * cosine[e] - high * sine[e];
        out[e + half] = high * cosine[e + half] + low * sine[e + half];
    }
}

/* silu(a) b */
INLINE REAL gated(REAL a, REAL b) { return a / (1 + exponential(-a)) * b; }
