/* One sampled token a row, as agentrl/engine/draw.py tells: a row of logits is read once for its largest, once for the
   weights and their sums by parts, and the part that was hit once more. */

#include "layers.h"

#define PART 64

/* The sum of some weights, in double. */
INLINE double sum_of(const float *x, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i];
    return sum;
}

/* Logits x (B, V), overwritten with their weights; `sums` has room for the sums of a row's parts. What is further than 87
   below the largest logit, and what is hidden, is not drawn. */
void draw(int64_t B, int64_t V, float *restrict x, const double *restrict uniform, const uint8_t *restrict greedy,
          double *restrict sums, int64_t *restrict token, double *restrict logprob) {
    const int64_t parts = (V + PART - 1) / PART;
    for (int64_t b = 0; b < B; b++, x += V) {
        float most = -INFINITY;
        for (int64_t i = 0; i < V; i++) most = x[i] > most ? x[i] : most;
        int64_t chosen = V - 1;
        if (greedy[b])
            for (int64_t i = V - 1; i >= 0; i--) chosen = x[i] == most ? i : chosen;
        for (int64_t i = 0; i < V; i++) {
            float below = x[i] - most;
            x[i] = below < -87.0f ? 0.0f : exponential(below);
        }
        double total = 0.0;
        for (int64_t p = 0; p < parts; p++)
            total += sums[p] = sum_of(x + p * PART, V - p * PART < PART ? V - p * PART : PART);
        if (!greedy[b]) {
            double target = uniform[b] * total, before = 0.0;
            int64_t part = 0, last = 0;
            for (; part < parts - 1 && before + sums[part] <= target; part++) {
                if (sums[part] > 0.0) last = part;
                before += sums[part];
            }
            if (!(sums[part] > 0.0)) { /* rounding put the target behind the last of all weights, which is taken */
                part = last;
                before = -INFINITY;
            }
            int64_t stop = part * PART + PART < V ? part * PART + PART : V;
            for (int64_t i = part * PART; i < stop; i++)
                if (x[i] > 0.0f) {
                    chosen = i;
                    before += (double)x[i];
                    if (before > target) break;
                }
        }
        token[b] = chosen;
        double found = log((double)x[chosen] / total);
        logprob[b] = found > 0.0 ? 0.0 : found;
    }
}
