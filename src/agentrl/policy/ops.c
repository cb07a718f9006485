/* What a layer of a plain decoder does in training besides matrix products and attention, forwards and backwards; the
   formulas stand in ops.py. Each function goes once through M tokens; strides are those of a token, in numbers. */

#include "layers.h"

/* Gradient of one RMS norm; what it adds to that of the weight is added there. */
INLINE void norm_back(int64_t D, const REAL *restrict grad, const REAL *restrict x, const REAL *restrict weight,
                      REAL inverse, REAL *restrict grad_weight, REAL *restrict out) {
    REAL sum = 0;
    for (int64_t d = 0; d < D; d++) {
        REAL product = grad[d] * x[d];
        grad_weight[d] += inverse * product;
        sum += weight[d] * product;
    }
    REAL pull = inverse * inverse * sum / (REAL)D;
    for (int64_t d = 0; d < D; d++) out[d] = inverse * (weight[d] * grad[d] - x[d] * pull);
}

/* RMS norm: out, and the inverse root mean square of each token. */
void norm(int64_t M, int64_t D, double epsilon, const REAL *restrict weight, const REAL *restrict x,
          REAL *restrict inverse, REAL *restrict out) {
    for (int64_t m = 0; m < M; m++, x += D, out += D) {
        REAL scale = inverse[m] = inverse_root(x, D, epsilon);
        for (int64_t d = 0; d < D; d++) out[d] = x[d] * scale * weight[d];
    }
}

/* The gradient of its input, with `added` where that is given, and once more what the norm gave. */
void norm_backward(int64_t M, int64_t D, const REAL *restrict weight, const REAL *restrict grad,
                   const REAL *restrict x, const REAL *restrict inverse, const REAL *restrict added,
                   REAL *restrict grad_weight, REAL *restrict normed, REAL *restrict out) {
    for (int64_t m = 0; m < M; m++, grad += D, x += D, normed += D, out += D) {
        norm_back(D, grad, x, weight, inverse[m], grad_weight, out);
        for (int64_t d = 0; d < D; d++) normed[d] = x[d] * inverse[m] * weight[d];
        if (added)
            for (int64_t d = 0; d < D; d++) out[d] += added[m * D + d];
    }
}

/* Heads x (M, heads, E), normed where there is a weight (E), turned by cosines and sines (M, E). */
void turn(int64_t M, int64_t heads, int64_t E, double epsilon, const REAL *restrict weight, const REAL *restrict cosine,
          const REAL *restrict sine, const REAL *restrict x, int64_t x_stride, REAL *restrict inverse,
          REAL *restrict out) {
    REAL y[E];
    for (int64_t m = 0; m < M; m++, cosine += E, sine += E, x += x_stride)
        for (int64_t h = 0; h < heads; h++, out += E) {
            memcpy(y, x + h * E, E * sizeof(REAL));
            if (weight) {
                REAL scale = inverse[m * heads + h] = inverse_root(y, E, epsilon);
                for (int64_t e = 0; e < E; e++) y[e] *= scale * weight[e];
            }
            turned(E, y, cosine, sine, out);
        }
}

/* The gradient of heads before they were normed and turned. */
void turn_backward(int64_t M, int64_t heads, int64_t E, const REAL *restrict weight, const REAL *restrict cosine,
                   const REAL *restrict sine, const REAL *restrict grad, const REAL *restrict x, int64_t x_stride,
                   const REAL *restrict inverse, REAL *restrict grad_weight, REAL *restrict out, int64_t out_stride) {
    const int64_t half = E / 2;
    REAL y[E];
    for (int64_t m = 0; m < M; m++, cosine += E, sine += E, x += x_stride, out += out_stride)
        for (int64_t h = 0; h < heads; h++, grad += E) {
            for (int64_t e = 0; e < half; e++) {
                y[e] = grad[e] * cosine[e] + grad[e + half] * sine[e + half];
                y[e + half] = grad[e + half] * cosine[e + half] - grad[e] * sine[e];
            }
            if (weight)
                norm_back(E, y, x + h * E, weight, inverse[m * heads + h], grad_weight, out + h * E);
            else
                memcpy(out + h * E, y, E * sizeof(REAL));
        }
}

/* out (M, F) = a sigmoid(a) b, of a and b side by side (M, 2 F). */
void gate(int64_t M, int64_t F, const REAL *restrict both, REAL *restrict out) {
    for (int64_t m = 0; m < M; m++, both += 2 * F, out += F) {
        const REAL *a = both, *b = both + F;
        for (int64_t f = 0; f < F; f++) out[f] = gated(a[f], b[f]);
    }
}

/* The gradients of a and b side by side, and in place of the gradient once more what was gated. */
void gate_backward(int64_t M, int64_t F, const REAL *restrict both, REAL *restrict grad, REAL *restrict out) {
    for (int64_t m = 0; m < M; m++, both += 2 * F, out += 2 * F, grad += F) {
        const REAL *a = both, *b = both + F;
        for (int64_t f = 0; f < F; f++) {
            REAL share = 1 / (1 + exponential(-a[f])), kept = a[f] * share, g = grad[f];
            out[f] = g * b[f] * (share + kept - kept * share);
            out[F + f] = g * kept;
            grad[f] = kept * b[f];
        }
    }
}
