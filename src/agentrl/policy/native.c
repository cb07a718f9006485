/* What a step of sampling does besides matrix products, in float32 on one core; see native.py.

   M tokens, one of each conversation, H heads of queries, K heads of keys and values, S = H / K. The width E of a head,
   a multiple of 8, is known when this is compiled, so that a query stays in registers.
   Keys and values of a slot lie as (K, room, E). A query's attention over its prompt and its own slot is summed up
   tile after tile, with the largest score so far in the exponent (online softmax, 1805.02867). */

#ifndef E
#error "compile with -DE=(width of a head)"
#endif
#include "between.h"
#define TILE 16 /* keys that sixteen queries meet at a time */
#define LONG (E <= 32 ? 64 : E <= 64 ? 32 : 16) /* keys that a query alone meets at a time */
#if E % 16 || !defined(__AVX512F__) /* where there are no such registers, wide vectors live in memory */
#define LANES 8
#else
#define LANES 16
#endif
#define W (E / LANES) /* vectors of a head */
#define PAIRS (E <= 64) /* two queries at a time fit into the registers */
#define ROWS (E <= 32 ? 8 : E <= 64 ? 4 : 2) /* results that are summed up in registers */

typedef float v4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef float v8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float v16 __attribute__((vector_size(64), aligned(4), may_alias));
#if LANES == 8
typedef v8 vec;
#else
typedef v16 vec;
#endif
typedef int32_t i16 __attribute__((vector_size(64), aligned(4), may_alias));

/* Where the tokens of a step lie: per token its own slot and its place in it, and the prompt before it (of length 0
   where there is none). `order` has the tokens of one prompt beside each other, and of them those of one slot from the
   first to the last; `group` and `piece` number the prompt and the slot of each place in it. */
typedef struct {
    int64_t query_heads, heads;
    const int64_t *order, *group, *piece, *own_room, *own_place, *prompt_room, *prompt_length;
} Layout;

/* One layer's slots: addresses of keys and values, per token. */
typedef struct {
    float *const *own_keys, *const *own_values, *const *prompt_keys, *const *prompt_values;
} Slots;

INLINE v16 exponential16(v16 x) {
    union {
        v16 whole;
        float part[16];
    } u = {x};
    for (int i = 0; i < 16; i++) u.part[i] = exponential(u.part[i]);
    return u.whole;
}

INLINE v16 larger(v16 a, v16 b) {
    i16 more = a > b;
    return (v16)(((i16)a & more) | ((i16)b & ~more));
}

INLINE v4 folded(vec x) {
#if LANES == 8
    v8 a = x;
#else
    v8 a = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
           __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
#endif
    return __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
}

/* The sums of four vectors. */
INLINE v4 sums(v4 a, v4 b, v4 c, v4 d) {
    v4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
    v4 cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
    return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

/* Have a key, or a value, brought from memory while others are computed with. */
INLINE void fetch(const float *row) {
    for (int e = 0; e < E; e += 16) __builtin_prefetch(row + e);
}

/* Scores of four keys with a query, or with two. */
INLINE void four(int both, const vec *first, const vec *second, const float *const *keys, float *one, float *other) {
    vec a[4], b[4];
    for (int i = 0; i < 4; i++) {
        vec x = *(const vec *)keys[i];
        a[i] = first[0] * x;
        if (both) b[i] = second[0] * x;
        for (int w = 1; w < W; w++) {
            x = *(const vec *)(keys[i] + LANES * w);
            a[i] += first[w] * x;
            if (both) b[i] += second[w] * x;
        }
    }
    *(v4 *)one = sums(folded(a[0]), folded(a[1]), folded(a[2]), folded(a[3]));
    if (both) *(v4 *)other = sums(folded(b[0]), folded(b[1]), folded(b[2]), folded(b[3]));
}

/* Scores of `n` keys with a query, or with two that lie side by side, and -1e30 up to the next multiple of 16; as many
   numbers from `next` are brought from memory meanwhile. */
INLINE void scores(int both, const float *q, int64_t n, const float *keys, const float *next, float *one,
                   float *other) {
    vec first[W], second[W];
    int64_t t = 0;
    for (int w = 0; w < W; w++) {
        first[w] = *(const vec *)(q + LANES * w);
        if (both) second[w] = *(const vec *)(q + E + LANES * w);
    }
    for (; t + 4 <= n; t += 4) {
        const float *at[4] = {keys + t * E, keys + (t + 1) * E, keys + (t + 2) * E, keys + (t + 3) * E};
        for (int i = 0; i < 4; i++) fetch(next + (t + i) * E);
        four(both, first, second, at, one + t, other + t);
    }
    if (t < n) {
        const float *at[4];
        for (int i = 0; i < 4; i++) at[i] = keys + (t + i < n ? t + i : t) * E;
        four(both, first, second, at, one + t, other + t);
    }
    for (t = n; t % 16; t++) {
        one[t] = -1e30f;
        if (both) other[t] = -1e30f;
    }
}

/* Scores become shares of what has been summed up so far; returns what the sums before them are multiplied with. */
INLINE float shares(int64_t n, float *score, float *top, float *total) {
    v16 largest = *(v16 *)score, sum = {0};
    float most = *top, added = 0.0f;
    for (int64_t t = 16; t < n; t += 16) largest = larger(*(v16 *)(score + t), largest);
    for (int i = 0; i < 16; i++) most = largest[i] > most ? largest[i] : most;
    for (int64_t t = 0; t < n; t += 16) sum += *(v16 *)(score + t) = exponential16(*(v16 *)(score + t) - most);
    for (int i = 0; i < 16; i++) added += sum[i];
    float kept = exponential(*top - most);
    *top = most;
    *total = *total * kept + added;
    return kept;
}

/* Add the values by their shares; as many numbers from `ahead` are brought from memory meanwhile. */
INLINE void weighed(int both, int64_t n, const float *values, const float *ahead, const float *one, const float *other,
                    float kept_one, float kept_other, float *out) {
    vec a[2][W], b[2][W];
    for (int w = 0; w < W; w++) {
        a[0][w] = *(vec *)(out + LANES * w) * kept_one;
        a[1][w] = (vec){0};
        if (both) {
            b[0][w] = *(vec *)(out + E + LANES * w) * kept_other;
            b[1][w] = (vec){0};
        }
    }
    int64_t t = 0;
    for (; t + 2 <= n; t += 2)
        for (int i = 0; i < 2; i++) {
            fetch(ahead + (t + i) * E);
            for (int w = 0; w < W; w++) {
                vec x = *(const vec *)(values + (t + i) * E + LANES * w);
                a[i][w] += one[t + i] * x;
                if (both) b[i][w] += other[t + i] * x;
            }
        }
    for (; t < n; t++)
        for (int w = 0; w < W; w++) {
            vec x = *(const vec *)(values + t * E + LANES * w);
            a[0][w] += one[t] * x;
            if (both) b[0][w] += other[t] * x;
        }
    for (int w = 0; w < W; w++) {
        *(vec *)(out + LANES * w) = a[0][w] + a[1][w];
        if (both) *(vec *)(out + E + LANES * w) = b[0][w] + b[1][w];
    }
}

/* `count` queries of one token over a tile of keys; `ahead` are the keys that are wanted next. */
INLINE void own_queries(int64_t count, const float *q, int64_t n, const float *keys, const float *values,
                        const float *ahead, float *top, float *total, float *out) {
    float one[LONG], other[LONG];
    int64_t s = 0;
    for (; PAIRS && s + 2 <= count; s += 2, q += 2 * E, out += 2 * E) {
        scores(1, q, n, keys, values, one, other);
        float kept = shares(n, one, top + s, total + s), kept_other = shares(n, other, top + s + 1, total + s + 1);
        weighed(1, n, values, ahead, one, other, kept, kept_other, out);
    }
    for (; s < count; s++, q += E, out += E) {
        scores(0, q, n, keys, values, one, other);
        float kept = shares(n, one, top + s, total + s);
        weighed(0, n, values, ahead, one, other, kept, 0.0f, out);
    }
}

/* Sixteen queries (E, 16) over a tile of the keys that they share: each number of a key meets them all at once. */
INLINE void sixteen_queries(const float *q, int64_t n, const float *keys, const float *values, v16 *top,
                            v16 *total, float *const *out) {
    v16 score[TILE], most = *top, sum = {0};
    int64_t t = 0;
    for (; t + 8 <= n; t += 8) {
        v16 s[8] = {{0}};
        for (int e = 0; e < E; e++) {
            v16 x = *(const v16 *)(q + 16 * e);
            for (int i = 0; i < 8; i++) s[i] += x * keys[(t + i) * E + e];
        }
        for (int i = 0; i < 8; i++) score[t + i] = s[i];
    }
    for (; t < n; t++) {
        v16 s = {0};
        for (int e = 0; e < E; e++) s += *(const v16 *)(q + 16 * e) * keys[t * E + e];
        score[t] = s;
    }
    for (t = 0; t < n; t++) most = larger(score[t], most);
    for (t = 0; t < n; t++) {
        score[t] = exponential16(score[t] - most);
        sum += score[t];
    }
    v16 kept = exponential16(*top - most);
    *top = most;
    *total = *total * kept + sum;
    const float *share = (const float *)score;
    for (int i = 0; i < 16; i += ROWS) {
        vec sums_of[ROWS][W];
        for (int r = 0; r < ROWS; r++)
            for (int w = 0; w < W; w++) sums_of[r][w] = *(vec *)(out[i + r] + LANES * w) * kept[i + r];
        for (t = 0; t < n; t++)
            for (int w = 0; w < W; w++) {
                vec x = *(const vec *)(values + t * E + LANES * w);
                for (int r = 0; r < ROWS; r++) sums_of[r][w] += share[16 * t + i + r] * x;
            }
        for (int r = 0; r < ROWS; r++)
            for (int w = 0; w < W; w++) *(vec *)(out[i + r] + LANES * w) = sums_of[r][w];
    }
}

/* Queries, and of their attention so far the largest score, the sum of exponentials and the sum of values. */
typedef struct {
    const float *q;
    int64_t q_stride;
    float *top, *total, *out;
} Queries;

/* Up to sixteen queries of a head of keys, `count` from the `first` of those of the places from `begin`, over keys that
   all of them see. */
INLINE void block(const Layout *at, const Queries *of, int64_t h, int64_t begin, int64_t first, int64_t count,
                  const float *keys, const float *values, int64_t length) {
    const int64_t H = at->query_heads, S = H / at->heads;
    float many[16 * E], spare[E] = {0}, *out[16];
    int64_t rows[16];
    v16 top = {0}, total = {0};
    for (int r = 0; r < 16; r++) {
        int64_t j = first + (r < count ? r : 0), m = at->order[begin + j / S];
        const float *query = of->q + m * of->q_stride + (h * S + j % S) * E;
        rows[r] = m * H + h * S + j % S;
        out[r] = r < count ? of->out + rows[r] * E : spare;
        top[r] = of->top[rows[r]];
        total[r] = of->total[rows[r]];
        for (int e = 0; e < E; e++) many[16 * e + r] = query[e];
    }
    for (int64_t t = 0; t < length; t += TILE)
        sixteen_queries(many, length - t < TILE ? length - t : TILE, keys + t * E, values + t * E, &top, &total, out);
    for (int r = 0; r < count; r++) {
        of->top[rows[r]] = top[r];
        of->total[rows[r]] = total[r];
    }
}

/* The queries of a token that one head of keys serves, over the keys `from` to `to`; `ahead` are those wanted next. */
INLINE void alone(const Layout *at, const Queries *of, int64_t h, int64_t m, const float *keys, const float *values,
                  int64_t from, int64_t to, const float *ahead) {
    const int64_t S = at->query_heads / at->heads, row = m * at->query_heads + h * S;
    const float *q = of->q + m * of->q_stride + h * S * E;
    for (int64_t t = from > 0 ? from : 0; t < to; t += LONG)
        own_queries(S, q, to - t < LONG ? to - t : LONG, keys + t * E, values + t * E,
                    t + LONG < to ? keys + (t + LONG) * E : ahead, of->top + row, of->total + row, of->out + row * E);
}

/* Six queries one by one cost as much as sixteen at once. */
INLINE int few(int64_t count, int64_t window) { return window || count < 6; }

/* The places from `begin` to `end`, which have one prompt, over it. */
INLINE void over_prompt(const Layout *at, const Slots *slots, const Queries *of, int64_t window, int64_t begin,
                        int64_t end) {
    const int64_t S = at->query_heads / at->heads, m = at->order[begin];
    const int64_t length = at->prompt_length[m], count = (end - begin) * S;
    for (int64_t h = 0; length && h < at->heads; h++) {
        const float *keys = slots->prompt_keys[m] + h * at->prompt_room[m] * E;
        const float *values = slots->prompt_values[m] + h * at->prompt_room[m] * E;
        if (few(count, window))
            for (int64_t i = begin; i < end; i++) {
                int64_t one = at->order[i], from = window ? length + at->own_place[one] + 1 - window : 0;
                alone(at, of, h, one, keys, values, from, length, keys);
            }
        else
            for (int64_t j = 0; j < count; j += 16)
                block(at, of, h, begin, j, count - j < 16 ? count - j : 16, keys, values, length);
    }
}

/* The places from `begin` to `end`, which have one slot, over what each sees of it: itself and what is before it. */
INLINE void over_own(const Layout *at, const Slots *slots, const Queries *of, int64_t window, int64_t begin,
                     int64_t end, const float *ahead) {
    const int64_t S = at->query_heads / at->heads, m = at->order[begin], count = (end - begin) * S;
    for (int64_t h = 0; h < at->heads; h++) {
        const float *keys = slots->own_keys[m] + h * at->own_room[m] * E;
        const float *values = slots->own_values[m] + h * at->own_room[m] * E;
        if (few(count, window))
            for (int64_t i = begin; i < end; i++) {
                int64_t one = at->order[i], seen = at->own_place[one] + 1;
                alone(at, of, h, one, keys, values, window ? seen - window : 0, seen,
                      h + 1 < at->heads ? keys + at->own_room[m] * E : ahead);
            }
        else
            for (int64_t j = 0; j < count; j += 16) {
                int64_t most = count - j < 16 ? count - j : 16, first = j / S, last = (j + most - 1) / S;
                int64_t all_see = at->own_place[at->order[begin + first]] + 1;
                block(at, of, h, begin, j, most, keys, values, all_see);
                for (int64_t r = j; last > first && r < j + most; r++) {
                    int64_t one = at->order[begin + r / S], row = one * at->query_heads + h * S + r % S;
                    int64_t more = at->own_place[one] + 1 - all_see;
                    if (more)
                        own_queries(1, of->q + one * of->q_stride + (h * S + r % S) * E, more, keys + all_see * E,
                                    values + all_see * E, keys, of->top + row, of->total + row, of->out + row * E);
                }
            }
    }
}

/* Put the keys and values of M tokens into their slots; strides are those of a token, in numbers. */
void keep(const Layout *at, const Slots *slots, int64_t M, const float *k, int64_t k_stride, const float *v,
          int64_t v_stride) {
    for (int64_t m = 0; m < M; m++)
        for (int64_t h = 0; h < at->heads; h++) {
            int64_t place = (h * at->own_room[m] + at->own_place[m]) * E;
            memcpy(slots->own_keys[m] + place, k + m * k_stride + h * E, E * sizeof(float));
            memcpy(slots->own_values[m] + place, v + m * v_stride + h * E, E * sizeof(float));
        }
}

/* Attention (M, H, E) of the tokens at the places from `begin` to `end`, whose keys are in their slots. Queries come
   scaled; `window` is how many positions are seen, 0 for all; `top` and `total` (M, H) are scratch. */
void attend(const Layout *at, const Slots *slots, const float *q, int64_t q_stride, int64_t window, int64_t begin,
            int64_t end, float *top, float *total, float *out) {
    const int64_t H = at->query_heads;
    const Queries of = {q, q_stride, top, total, out};
    for (int64_t i = begin; i < end; i++) {
        int64_t m = at->order[i];
        memset(out + m * H * E, 0, H * E * sizeof(float));
        for (int64_t row = m * H; row < m * H + H; row++) {
            top[row] = -1e30f;
            total[row] = 0.0f;
        }
    }
    for (int64_t i = begin, stop; i < end; i = stop) {
        for (stop = i + 1; stop < end && at->group[stop] == at->group[i];) stop++;
        over_prompt(at, slots, &of, window, i, stop);
    }
    for (int64_t i = begin, stop; i < end; i = stop) {
        for (stop = i + 1; stop < end && at->piece[stop] == at->piece[i];) stop++;
        over_own(at, slots, &of, window, i, stop, slots->own_keys[at->order[stop < end ? stop : begin]]);
    }
    for (int64_t i = begin; i < end; i++)
        for (int64_t row = at->order[i] * H; row < at->order[i] * H + H; row++) {
            float scale = 1.0f / total[row];
            for (int e = 0; e < E; e++) out[row * E + e] *= scale;
        }
}
