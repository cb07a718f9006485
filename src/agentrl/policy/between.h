/* What a step of sampling does between two attentions; E is the width of a head. Products are those of a BLAS that
   torch has in it, whose function is given. */

#include "layers.h"

#ifndef BLOCK
#error "compile with -DBLOCK=(tokens that go all the way before others do, so that what is between stays near)"
#endif

/* x (M, D) += added, where there is some, and its RMS norm. */
void add_norm(int64_t M, int64_t D, float *restrict x, const float *restrict added, const float *restrict weight,
              float epsilon, float *restrict out) {
    for (int64_t m = 0; m < M; m++, x += D, out += D) {
        if (added)
            for (int64_t d = 0; d < D; d++) x[d] += added[m * D + d];
        float scale = inverse_root(x, D, epsilon);
        for (int64_t d = 0; d < D; d++) out[d] = x[d] * scale * weight[d];
    }
}

/* Heads x (M, heads, E): normed where there is a weight, multiplied by `factor`, turned by their positions' cosines and
   sines (E), whose rows are `turns` (M). */
void rotate(int64_t M, int64_t heads, float *restrict x, const float *restrict weight, float epsilon, float factor,
            const int64_t *restrict turns, const float *restrict cosines, const float *restrict sines) {
    for (int64_t m = 0; m < M; m++)
        for (int64_t h = 0; h < heads; h++, x += E) {
            float scale = weight ? factor * inverse_root(x, E, epsilon) : factor;
            for (int64_t e = 0; e < E; e++) x[e] *= weight ? scale * weight[e] : scale;
            turned(E, x, cosines + turns[m] * E, sines + turns[m] * E, x);
        }
}

/* x = silu(x) * y, over n numbers. */
void gate(int64_t n, float *restrict x, const float *restrict y) {
    for (int64_t i = 0; i < n; i++) x[i] = gated(x[i], y[i]);
}

/* sgemm of Fortran's BLAS: column by column, so that a row-major product is asked for the other way round. Its integers
   are of 32 or 64 bits; those given can be read as either. */
typedef void Product(const char *, const char *, const int64_t *, const int64_t *, const int64_t *, const float *,
                     const float *, const int64_t *, const float *, const int64_t *, const float *, float *,
                     const int64_t *);

/* out (M, N) = x (M, K) times the transpose of weight (N, K), and a bias where there is one. */
INLINE void project(Product *product, int64_t M, int64_t N, int64_t K, const float *x, const float *const *weight_bias,
                    float *out) {
    const float one = 1.0f, kept = weight_bias[1] ? 1.0f : 0.0f;
    for (int64_t m = 0; weight_bias[1] && m < M; m++) memcpy(out + m * N, weight_bias[1], N * sizeof(float));
    product("T", "N", &N, &M, &K, &one, weight_bias[0], &K, x, &K, &kept, out, &N);
}

/* Numbers of a token: in the residual stream, of its queries, of its keys, in the gated layer. */
typedef struct {
    int64_t D, Q, K, F;
} Widths;

/* Weights and biases (NULL where there is none) of what is behind an attention. */
typedef struct {
    const float *o[2], *norm, *gate[2], *up[2], *down[2];
    double epsilon;
} Behind;

/* And of what is before one: queries and keys may be normed, queries are multiplied by `factor`. Where `q` is NULL there
   is no further layer, and the norm is the last. */
typedef struct {
    const float *norm, *q[2], *k[2], *v[2], *q_norm, *k_norm;
    double epsilon, q_epsilon, k_epsilon, factor;
} Before;

/* From an attention (M, Q), where there was one, to the queries, keys and values of the next, or to the last norm
   (M, D). `x` (M, D) is the residual stream; `room` has space for BLOCK tokens of D + F + max(D, F)
   numbers. */
void between(const Widths *w, int64_t M, const Behind *behind, const Before *before, Product *product,
             const int64_t *turns, const float *cosines, const float *sines, const float *attended, float *x,
             float *room, float *q, float *k, float *v, float *last) {
    float *normed = room, *gated = room + BLOCK * w->D, *up = gated + BLOCK * w->F;
    for (int64_t begin = 0; begin < M; begin += BLOCK) {
        const int64_t n = M - begin < BLOCK ? M - begin : BLOCK;
        float *here = x + begin * w->D, *out = before->q[0] ? normed : last + begin * w->D;
        const float *added = NULL;
        if (behind) {
            project(product, n, w->D, w->Q, attended + begin * w->Q, behind->o, up);
            add_norm(n, w->D, here, up, behind->norm, (float)behind->epsilon, normed);
            project(product, n, w->F, w->D, normed, behind->gate, gated);
            project(product, n, w->F, w->D, normed, behind->up, up);
            gate(n * w->F, gated, up);
            project(product, n, w->D, w->F, gated, behind->down, up);
            added = up;
        }
        add_norm(n, w->D, here, added, before->norm, (float)before->epsilon, out);
        if (!before->q[0]) continue;
        project(product, n, w->Q, w->D, normed, before->q, q + begin * w->Q);
        project(product, n, w->K, w->D, normed, before->k, k + begin * w->K);
        project(product, n, w->K, w->D, normed, before->v, v + begin * w->K);
        rotate(n, w->Q / E, q + begin * w->Q, before->q_norm, (float)before->q_epsilon, (float)before->factor,
               turns + begin, cosines, sines);
        rotate(n, w->K / E, k + begin * w->K, before->k_norm, (float)before->k_epsilon, 1.0f, turns + begin, cosines,
               sines);
    }
}
