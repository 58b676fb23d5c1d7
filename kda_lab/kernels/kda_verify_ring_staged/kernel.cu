// KDA verification of T draft tokens for SM90: what the tokens are is worked out once, then the state is read once.
//
// A CTA owns ROWS value rows of one head of one request. Bulk copies bring these rows to shared memory while four warps
// work out the tokens: q, k and v behind their convolution, gates and strengths, a warp each, four channels a lane. The
// recurrence is then unrolled. With P_t the product of the decays up to t and R_st that of the decays behind s,
//
//     d_t = beta_t (v_t - S P_t k_t - sum over s < t of d_s (k_t R_st k_s))
//     o_t = S P_t q_t + sum over s <= t of d_s (q_t R_st k_s)
//
// where S is the state before all tokens: no token waits for the one before it, the 2 T products of a row with S are
// one pass over the row, and without snapshots the state is never updated. No decay is divided by, so any gate will do.
// Eight lanes share a row; a warp needs no other warp once the tokens are known. One launch, the same bits every time.
//
// The same text stands beside kda.verify_ring and kda.verify_snapshots, but for the line that says which this is.

constexpr bool RING = true;  // else a snapshot of the state after each token

using u16 = unsigned short;
using u32 = unsigned int;

constexpr int LANES = 32;
constexpr int WARPS = 4;
constexpr int THREADS = WARPS * LANES;
constexpr int TOGETHER = 4;   // tokens whose products with the state are summed in one pass over it
constexpr int UPDATED = 8;    // tokens whose keys and decays a lane holds while it updates rows
constexpr float LOG2_E = 1.4426950408889634f;
enum Role { QUERY, KEY, VALUE, GATE };  // of a warp, while the tokens are worked out

// Where things lie in shared memory, counted in floats.
template <int T, int K, int ROWS>
struct Cut {
    static constexpr int MINE = ROWS / WARPS;  // rows of a warp
    static constexpr int HELD = MINE / 4;      // rows that eight lanes sum at once
    static constexpr int PITCH = (T + 3) / 4 * 4;
    // What is not needed beside the state may lie where the last warp's rows come later: three CTAs then fit an SM.
    static constexpr bool FITS = T * (2 * K + ROWS) <= MINE * K;
    static constexpr bool LATE = RING && ROWS == 128 && T > 4 && T <= 8 && FITS;
    static constexpr int PRODUCTS_AT = ROWS * K;                   // [T][2][K] P_t k_t and P_t q_t; q_t before that
    static constexpr int PAIRS_AT = PRODUCTS_AT + 2 * T * K;       // [T][2][PITCH] k_t R_st k_s and q_t R_st k_s
    static constexpr int STRENGTHS_AT = PAIRS_AT + 2 * T * PITCH;  // [T]
    static constexpr int BARRIERS_AT = STRENGTHS_AT + PITCH;       // [WARPS] of eight bytes
    static constexpr int BEHIND = BARRIERS_AT + 2 * WARPS;
    static constexpr int KEYS_AT = LATE ? 3 * MINE * K : BEHIND;   // [T][K]
    static constexpr int DECAYS_AT = KEYS_AT + T * K;              // [T][K]
    static constexpr int VALUES_AT = DECAYS_AT + T * K;            // [T][ROWS] v, then d
    static constexpr int END = VALUES_AT + T * ROWS;
    static constexpr int SIZE = LATE ? BEHIND : END;               // the launch gives so many
    static_assert(WARPS * MINE * K <= PRODUCTS_AT && PRODUCTS_AT + 2 * T * K <= PAIRS_AT, "rows, products");
    static_assert(PAIRS_AT + 2 * T * PITCH <= STRENGTHS_AT && T <= PITCH, "pairs");
    static_assert(STRENGTHS_AT + T <= BARRIERS_AT && BARRIERS_AT + 2 * WARPS <= BEHIND, "strengths, barriers");
    static_assert(KEYS_AT + T * K <= DECAYS_AT && DECAYS_AT + T * K <= VALUES_AT, "keys, decays");
    static_assert(LATE ? 3 * MINE * K <= KEYS_AT && END <= PRODUCTS_AT : BEHIND <= KEYS_AT, "beside the state");
    static_assert(BEHIND <= SIZE && END <= SIZE, "nothing beyond the size");
    static_assert(MINE * K % 4 == 0 && PRODUCTS_AT % 4 == 0 && KEYS_AT % 4 == 0 && K % 4 == 0, "vectors of four");
    static_assert(BARRIERS_AT % 2 == 0, "barriers of eight bytes");
};

// A call's extents, and this CTA's place in it.
struct Place {
    int request, head, first;  // of the value rows
    int heads, value_heads, group;
    long long width;     // channels of a row
    long long b_b, b_t;  // strides of the raw strengths
};

// Everything that is written. Rings or snapshots are null where they are not wanted.
struct Outputs {
    u16 *out, *windows;
    float* snapshots;
    u16 *ring_k, *ring_v;
    float *ring_g, *ring_beta;
};

__device__ __forceinline__ u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float sigmoid(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + exp2_of(-LOG2_E * x)));
    return y;
}

__device__ __forceinline__ u32 to_bf16_pair(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ uint2 to_bf16(float4 x) {
    return make_uint2(to_bf16_pair(x.x, x.y), to_bf16_pair(x.z, x.w));
}

__device__ __forceinline__ float4 from_bf16(uint2 x) {
    return make_float4(__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u), __uint_as_float(x.y << 16),
                       __uint_as_float(x.y & 0xffff0000u));
}

__device__ __forceinline__ float bf16_of(u16 x) { return __uint_as_float((u32)x << 16); }

__device__ __forceinline__ float4 operator*(float4 x, float4 y) {
    return make_float4(x.x * y.x, x.y * y.y, x.z * y.z, x.w * y.w);
}

__device__ __forceinline__ float4 operator*(float4 x, float y) {
    return make_float4(x.x * y, x.y * y, x.z * y, x.w * y);
}

__device__ __forceinline__ float dot(float4 x, float4 y, float sum) {
    return fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, sum))));
}

__device__ __forceinline__ float4 multiply_add(float4 x, float4 y, float4 z) {
    return make_float4(fmaf(x.x, y.x, z.x), fmaf(x.y, y.y, z.y), fmaf(x.z, y.z, z.z), fmaf(x.w, y.w, z.w));
}

__device__ __forceinline__ float4 multiply_add(float4 x, float y, float4 z) {
    return make_float4(fmaf(x.x, y, z.x), fmaf(x.y, y, z.y), fmaf(x.z, y, z.z), fmaf(x.w, y, z.w));
}

// Four channels of a row. Volatile: they shall be asked for where they stand, ahead of what waits for the slot.
template <bool WIDE>
__device__ __forceinline__ uint2 load4(const u16* at) {
    uint2 x;
    if constexpr (WIDE) {
        asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(at));
    } else {
        x = make_uint2(at[0] | (u32)at[1] << 16, at[2] | (u32)at[3] << 16);
    }
    return x;
}

__device__ __forceinline__ float4 load_weights(const float* at) { return *reinterpret_cast<const float4*>(at); }

__device__ __forceinline__ float4 load_weights(const u16* at) { return from_bf16(*reinterpret_cast<const uint2*>(at)); }

__device__ __forceinline__ void store4(u16* at, uint2 x) { __stcs(reinterpret_cast<uint2*>(at), x); }

__device__ __forceinline__ void store4(float* at, float4 x) { __stcs(reinterpret_cast<float4*>(at), x); }

// Sums over the warp: lane l gets that of x[l % N], N a power of two. Each time a lane gives half of its numbers away.
template <int N, int HALF = N / 2>
__device__ __forceinline__ float warp_sums(float (&x)[N]) {
    if constexpr (HALF > 0) {
        bool upper = threadIdx.x & HALF;
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            float given = upper ? x[i] : x[i + HALF], kept = upper ? x[i + HALF] : x[i];
            x[i] = kept + __shfl_xor_sync(~0u, given, HALF);
        }
        return warp_sums<N, HALF / 2>(x);
    }
#pragma unroll
    for (int bit = N; bit < LANES; bit *= 2) x[0] += __shfl_xor_sync(~0u, x[0], bit);
    return x[0];
}

// The same for rows of N sums over the eight lanes of a group: lane l gets row l % HELD, in x[0].
template <int HELD, int N>
__device__ __forceinline__ void sum_rows(float (&x)[HELD][N]) {
    int lane = threadIdx.x % LANES;
#pragma unroll
    for (int bit = 4; bit; bit /= 2) {
#pragma unroll
        for (int i = 0; i < (bit < HELD ? bit : HELD); i++) {
#pragma unroll
            for (int n = 0; n < N; n++) {
                int other = bit < HELD ? i + bit : i;
                float given = lane & bit ? x[i][n] : x[other][n], kept = lane & bit ? x[other][n] : x[i][n];
                x[i][n] = kept + __shfl_xor_sync(~0u, given, bit);
            }
        }
    }
}

// The power of two that N numbers, at most 32, are padded to.
template <int N>
constexpr int PADDED = N > 16 ? 32 : N > 8 ? 16 : N > 4 ? 8 : N > 2 ? 4 : N;

// Launched programmatically, this kernel's CTAs may start while an earlier kernel of the stream still runs: nothing of
// its memory may be touched before it has ended.
__device__ __forceinline__ void wait_for_earlier_kernels() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ void let_next_kernel_start() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// A barrier of one arrival, seen by the copy engine too.
__device__ __forceinline__ void start_barrier(u32 barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void wait_for_bytes(u32 barrier) {
    asm volatile(
        "{\n .reg .pred done;\nagain:\n mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
        " @!done bra again;\n}" ::"r"(barrier)
        : "memory");
}

// One lane has a warp's rows copied; the barrier counts their bytes.
__device__ __forceinline__ void copy_rows(float* to, const float* from, int bytes, u32 barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

// Where the rows of this warp are, and their copy to shared memory. Without WIDE they lie at any four bytes.
template <int K, bool WIDE>
struct Rows {
    const float* from;
    float* to;
    u32 barrier;
    int count;
    __device__ __forceinline__ void begin() const {
        int lane = threadIdx.x % LANES;
        if constexpr (WIDE) {
            if (lane == 0 && count > 0) copy_rows(to, from, count * K * 4, barrier);
        } else {
            for (int i = lane; i < count * K; i += LANES) to[i] = from[i];
        }
    }
    __device__ __forceinline__ void wait() const {
        if constexpr (WIDE) {
            if (count > 0) wait_for_bytes(barrier);
        }
        __syncwarp();
    }
};

// The last three raw tokens of a lane's channels after each token, oldest first.
template <int T>
__device__ __forceinline__ void store_windows(const uint2 (&raw)[T + 3], u16* to, long long width) {
#pragma unroll
    for (int t = 0; t < T; t++)
#pragma unroll
        for (int j = 0; j < 3; j++) store4(to + (3 * t + j) * width, raw[t + j + 1]);
}

// SiLU of four weighted tokens, rounded to BF16 as the chain of separate kernels rounds it.
template <int T, class W>
__device__ __forceinline__ void convolve(const uint2 (&raw)[T + 3], const W* weight, long long width, uint2 (&y)[T]) {
    float4 w[4];
#pragma unroll
    for (int j = 0; j < 4; j++) w[j] = load_weights(weight + j * width);
#pragma unroll
    for (int t = 0; t < T; t++) {
        float4 x = from_bf16(raw[t]) * w[0];
#pragma unroll
        for (int j = 1; j < 4; j++) x = multiply_add(from_bf16(raw[t + j]), w[j], x);
        y[t] = to_bf16(make_float4(x.x * sigmoid(x.x), x.y * sigmoid(x.y), x.z * sigmoid(x.z), x.w * sigmoid(x.w)));
    }
}

// Divides q or k of each token by its length, times `scale`, into rows of K.
template <int T, int K>
__device__ __forceinline__ void normalise(const uint2 (&y)[T], bool mine, float scale, float* to, int pitch) {
    constexpr int N = PADDED<T>;
    int lane = threadIdx.x % LANES;
    float squares[N];
#pragma unroll
    for (int t = 0; t < N; t++) squares[t] = 0.0f;
#pragma unroll
    for (int t = 0; t < T; t++) squares[t] = dot(from_bf16(y[t]), from_bf16(y[t]), 0.0f);
    float factor = rsqrtf(warp_sums(squares) + 1e-6f) * scale;
#pragma unroll
    for (int t = 0; t < T; t++) {
        float4 x = from_bf16(y[t]) * __shfl_sync(~0u, factor, t);
        if (mine) *reinterpret_cast<float4*>(to + t * pitch + 4 * lane) = x;
    }
}

// Log-decay of a raw gate: lower_bound sigmoid(rate x), or -rate softplus(x).
template <bool SAFE>
__device__ __forceinline__ float log_decay(float x, float rate, float lower_bound) {
    if constexpr (SAFE) {
        return lower_bound * sigmoid(rate * x);
    } else {
        return -rate * (x > 20.0f ? x : logf(1.0f + exp2_of(LOG2_E * x)));
    }
}

// Decays of a lane's four channels, and write strengths, a token a lane.
template <int T, int K, int ROWS, bool SAFE>
__device__ __forceinline__ void work_out_gates(const Place& at, const uint2 (&raw)[T + 3], const u16* b,
                                               const float* a_log, const float* dt, float lower_bound,
                                               const Outputs& to, float* shared) {
    using C = Cut<T, K, ROWS>;
    int lane = threadIdx.x % LANES;
    long long head = (long long)at.request * T * at.value_heads + at.head;  // of the first token
    bool mine = 4 * lane < K;
    if (lane < T) {
        float strength = sigmoid(bf16_of(b[at.request * at.b_b + lane * at.b_t + at.head]));
        shared[C::STRENGTHS_AT + lane] = strength;
        if (RING && at.first == 0) to.ring_beta[head + (long long)lane * at.value_heads] = strength;
    }
    if (!mine) return;
    float rate = exp2_of(LOG2_E * a_log[at.head]);
    float4 bias = *reinterpret_cast<const float4*>(dt + at.head * K + 4 * lane);
#pragma unroll
    for (int t = 0; t < T; t++) {
        float4 x = from_bf16(raw[t + 3]);
        float4 g = make_float4(
            log_decay<SAFE>(x.x + bias.x, rate, lower_bound), log_decay<SAFE>(x.y + bias.y, rate, lower_bound),
            log_decay<SAFE>(x.z + bias.z, rate, lower_bound), log_decay<SAFE>(x.w + bias.w, rate, lower_bound));
        float4 scaled = g * LOG2_E;
        float4 decay = make_float4(exp2_of(scaled.x), exp2_of(scaled.y), exp2_of(scaled.z), exp2_of(scaled.w));
        *reinterpret_cast<float4*>(shared + C::DECAYS_AT + t * K + 4 * lane) = decay;
        if (RING && at.first == 0) store4(to.ring_g + (head + (long long)t * at.value_heads) * K + 4 * lane, g);
    }
}

// Keeps q, k or v of the tokens in shared memory, and in the ring.
template <int T, int K, int V, int ROWS>
__device__ __forceinline__ void keep(int role, const Place& at, const uint2 (&y)[T], bool mine, bool own, float scale,
                                     const Outputs& to, float* shared) {
    using C = Cut<T, K, ROWS>;
    int lane = threadIdx.x % LANES;
    long long token = (long long)at.request * T;
    if (role == VALUE) {
#pragma unroll
        for (int t = 0; t < T; t++) {
            if (mine) *reinterpret_cast<float4*>(shared + C::VALUES_AT + t * ROWS + 4 * lane) = from_bf16(y[t]);
            long long head = (token + t) * at.value_heads + at.head;
            if (RING && mine) store4(to.ring_v + head * V + at.first + 4 * lane, y[t]);
        }
        return;
    }
    bool query = role == QUERY;
    float* rows = shared + (query ? C::PRODUCTS_AT + K : C::KEYS_AT);
    normalise<T, K>(y, mine, query ? scale : 1.0f, rows, query ? 2 * K : K);
#pragma unroll
    for (int t = 0; t < T; t++) {
        long long head = (token + t) * at.heads + at.head / at.group;
        if (RING && !query && own) store4(to.ring_k + head * K + 4 * lane, y[t]);
    }
}

// Products of the keys of token t and before with its key and query, and what the state is multiplied by (over q_t).
template <int T, int K, int ROWS>
__device__ __forceinline__ void pair_up(int t, float* shared) {
    using C = Cut<T, K, ROWS>;
    constexpr int N = PADDED<2 * T>;
    int lane = threadIdx.x % LANES;
    bool mine = 4 * lane < K;
    float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f), since = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
    float4* key = reinterpret_cast<float4*>(shared + C::PRODUCTS_AT + 2 * t * K + 4 * lane);
    float4* query = key + K / 4;
    float4 k = mine ? *reinterpret_cast<const float4*>(shared + C::KEYS_AT + t * K + 4 * lane) : none;
    float4 q = mine ? *query : none;
    float sums[N];
#pragma unroll
    for (int i = 0; i < N; i++) sums[i] = 0.0f;
#pragma unroll
    for (int s = T - 1; s >= 0; s--) {
        if (s <= t && mine) {
            float4 before = *reinterpret_cast<const float4*>(shared + C::KEYS_AT + s * K + 4 * lane) * since;
            sums[s] = dot(k, before, 0.0f);
            sums[T + s] = dot(q, before, 0.0f);
            since = since * *reinterpret_cast<const float4*>(shared + C::DECAYS_AT + s * K + 4 * lane);
        }
    }
    if (mine) {
        *key = k * since;
        *query = q * since;
    }
    float sum = warp_sums(sums);
    int row = lane < T ? 2 * t : 2 * t + 1;
    if (lane < 2 * T) shared[C::PAIRS_AT + row * C::PITCH + lane % T] = sum;
}

// Products of a lane's row with P_t k_t and P_t q_t of COUNT tokens from FROM on.
template <int FROM, int COUNT, int T, int K, int ROWS>
__device__ __forceinline__ void multiply_rows(const float* shared, const float* rows, float (&products)[T][2]) {
    using C = Cut<T, K, ROWS>;
    int lane = threadIdx.x % LANES;
    float sums[C::HELD][2 * COUNT];
#pragma unroll
    for (int i = 0; i < C::HELD; i++)
#pragma unroll
        for (int n = 0; n < 2 * COUNT; n++) sums[i][n] = 0.0f;
#pragma unroll 1
    for (int c = lane % 8 * 4; c < K; c += LANES) {
        float4 state[C::HELD];
#pragma unroll
        for (int i = 0; i < C::HELD; i++)
            state[i] = *reinterpret_cast<const float4*>(rows + (lane / 8 * C::HELD + i) * K + c);
#pragma unroll
        for (int n = 0; n < 2 * COUNT; n++) {
            float4 x = *reinterpret_cast<const float4*>(shared + C::PRODUCTS_AT + (2 * FROM + n) * K + c);
#pragma unroll
            for (int i = 0; i < C::HELD; i++) sums[i][n] = dot(state[i], x, sums[i][n]);
        }
    }
    __syncwarp();
    sum_rows(sums);
#pragma unroll
    for (int n = 0; n < 2 * COUNT; n++) products[FROM + n / 2][n % 2] = sums[0][n];
}

// All tokens, as many at once as registers allow.
template <int FROM, int T, int K, int ROWS>
__device__ __forceinline__ void multiply_all(const float* shared, const float* rows, float (&products)[T][2]) {
    if constexpr (FROM < T) {
        constexpr int COUNT = T - FROM < TOGETHER ? T - FROM : TOGETHER;
        multiply_rows<FROM, COUNT, T, K, ROWS>(shared, rows, products);
        multiply_all<FROM + COUNT, T, K, ROWS>(shared, rows, products);
    }
}

// The tokens' outputs for a lane's row; v becomes d.
template <int T, int K, int ROWS>
__device__ __forceinline__ void solve(const float* shared, const float (&products)[T][2], float (&v)[T], bool mine,
                                      u16* out, long long stride) {
    using C = Cut<T, K, ROWS>;
#pragma unroll
    for (int t = 0; t < T; t++) {
        const float* pairs = shared + C::PAIRS_AT + 2 * t * C::PITCH;
        float value = v[t] - products[t][0], o = products[t][1];
#pragma unroll
        for (int s = 0; s < t; s++) {
            value = fmaf(-pairs[s], v[s], value);
            o = fmaf(pairs[C::PITCH + s], v[s], o);
        }
        v[t] = shared[C::STRENGTHS_AT + t] * value;
        o = fmaf(pairs[C::PITCH + t], v[t], o);
        if (mine) out[t * stride] = (u16)to_bf16_pair(o, 0.0f);
    }
}

// The state after each token, row after row: a warp writes a row at a time.
template <int T, int K, int ROWS>
__device__ __forceinline__ void store_snapshots(const float* shared, float* rows, int count, float* to,
                                                long long stride) {
    using C = Cut<T, K, ROWS>;
    int lane = threadIdx.x % LANES;
    const float* d = shared + C::VALUES_AT + threadIdx.x / LANES * C::MINE;
    if (4 * lane >= K) return;
#pragma unroll
    for (int from = 0; from < T; from += UPDATED) {
        constexpr int MOST = T < UPDATED ? T : UPDATED;
        float4 key[MOST], decay[MOST];
#pragma unroll
        for (int i = 0; i < MOST && from + i < T; i++) {
            key[i] = *reinterpret_cast<const float4*>(shared + C::KEYS_AT + (from + i) * K + 4 * lane);
            decay[i] = *reinterpret_cast<const float4*>(shared + C::DECAYS_AT + (from + i) * K + 4 * lane);
        }
#pragma unroll 2
        for (int row = 0; row < count; row++) {
            float4* held = reinterpret_cast<float4*>(rows + row * K + 4 * lane);
            float4 state = *held;
#pragma unroll
            for (int i = 0; i < MOST && from + i < T; i++) {
                state = multiply_add(key[i], d[(from + i) * ROWS + row], state * decay[i]);
                store4(to + (from + i) * stride + row * K + 4 * lane, state);
            }
            if (from + UPDATED < T) *held = state;
        }
    }
}

// A request without a slot: all of its outputs are zero.
template <int T, int K, int V, int ROWS>
__device__ __forceinline__ void store_zeros(int role, const Place& at, int channel, bool mine, bool own,
                                            const Outputs& to) {
    int lane = threadIdx.x % LANES;
    uint2 zero = make_uint2(0, 0);
    float4 zeros = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int t = 0; t < T; t++) {
        long long token = (long long)at.request * T + t, head = token * at.value_heads + at.head;
        if (own)
            for (int j = 0; j < 3; j++) store4(to.windows + (3 * token + j) * at.width + channel, zero);
        if (mine && role == VALUE) store4(to.out + head * V + at.first + 4 * lane, zero);
        if (RING) {
            if (mine && role == VALUE) store4(to.ring_v + head * V + at.first + 4 * lane, zero);
            if (own && role == KEY) store4(to.ring_k + (token * at.heads + at.head / at.group) * K + 4 * lane, zero);
            if (mine && role == GATE && at.first == 0) store4(to.ring_g + head * K + 4 * lane, zeros);
            if (lane == 0 && role == GATE && at.first == 0) to.ring_beta[head] = 0.0f;
        } else {
            float* rows = to.snapshots + (head * V + at.first) * K;
            int count = min(ROWS, V - at.first) * K / 4;
            for (int i = threadIdx.x; i < count; i += THREADS) store4(rows + 4 * i, zeros);
        }
    }
}

template <int T, int K, int V, int ROWS, bool SAFE, bool WIDE, class W>
__global__ void __launch_bounds__(THREADS, (ROWS == 128 ? 3 : 4) - (T > 8))
    kda_verify(const u16* qkv, const u16* conv, const W* weight, const u16* a, const u16* b, const float* a_log,
               const float* dt, const float* state, const int* index, u16* out, u16* windows, float* snapshots,
               u16* ring_k, u16* ring_v, float* ring_g, float* ring_beta, long long qkv_b, long long qkv_t,
               long long conv_s, long long a_b, long long a_t, long long b_b, long long b_t, long long state_s,
               double lower_bound, double scale, int heads, int value_heads) {
    using C = Cut<T, K, ROWS>;
    extern __shared__ __align__(128) float shared[];
    // By a shuffle, so that the compiler knows that a warp has one role.
    int warp = __shfl_sync(~0u, (int)threadIdx.x / LANES, 0), lane = threadIdx.x % LANES, role = warp;
    long long width = 2LL * heads * K + (long long)value_heads * V;
    int request = blockIdx.z, first_row = blockIdx.x * ROWS;
    Place at = {request, (int)blockIdx.y, first_row, heads, value_heads, value_heads / heads, width, b_b, b_t};
    Outputs to = {out, windows, snapshots, ring_k, ring_v, ring_g, ring_beta};
    Rows<K, WIDE> rows;
    rows.barrier = shared_address(shared + C::BARRIERS_AT + 2 * warp);
    if (lane == 0) start_barrier(rows.barrier);
    __syncwarp();
    wait_for_earlier_kernels();

    // Channels of this lane: q and k of the head that this one reads, v of this CTA's rows, or the gates.
    int slot = index[at.request];
    int channel = (role == KEY ? heads * K : 0) + at.head / at.group * K + 4 * lane;
    if (role == VALUE) channel = 2 * heads * K + at.head * V + at.first + 4 * lane;
    bool mine = role == VALUE ? 4 * lane < ROWS && at.first + 4 * lane < V : 4 * lane < K;
    // Windows of q and k, and ring_k, are stored once a query head.
    bool own = mine && role != GATE && (role == VALUE || (at.first == 0 && at.head % at.group == 0));
    const u16* newest = qkv + at.request * qkv_b + channel;
    if (role == GATE) newest = a + at.request * a_b + at.head * K + 4 * lane;
    long long step = role == GATE ? a_t : qkv_t;
    uint2 raw[T + 3] = {};
#pragma unroll
    for (int t = 0; t < T; t++)
        if (mine) raw[t + 3] = load4<WIDE>(newest + t * step);
    if (slot < 0) {
        store_zeros<T, K, V, ROWS>(role, at, channel, mine, own, to);
        return;
    }
    rows.count = min(max(V - at.first - warp * C::MINE, 0), C::MINE);
    rows.from = state + slot * state_s + ((long long)at.head * V + at.first + warp * C::MINE) * K;
    rows.to = shared + warp * C::MINE * K;
    if (!C::LATE || warp < WARPS - 1) rows.begin();
    if (role == GATE) {
        work_out_gates<T, K, ROWS, SAFE>(at, raw, b, a_log, dt, (float)lower_bound, to, shared);
    } else {
        const u16* past = conv + slot * conv_s + channel;
        uint2 y[T] = {};
        if (mine) {
#pragma unroll
            for (int j = 0; j < 3; j++) raw[j] = load4<WIDE>(past + j * width);
            convolve<T>(raw, weight + channel, width, y);
            if (own) store_windows<T>(raw, windows + 3LL * at.request * T * width + channel, width);
        }
        keep<T, K, V, ROWS>(role, at, y, mine, own, (float)scale, to, shared);
    }
    __syncthreads();

    // The row whose sums this lane will have; others of its eight may have the same.
    int row = lane / 8 * C::HELD + lane % C::HELD, place = warp * C::MINE + row;
    float v[T];
#pragma unroll
    for (int t = 0; t < T; t++) v[t] = shared[C::VALUES_AT + t * ROWS + place];
    // Late tokens have more before them: each warp gets as many of them as of early ones.
#pragma unroll
    for (int round = 0; round * WARPS < T; round++) {
        int t = round * WARPS + (round % 2 ? WARPS - 1 - warp : warp);
        if (t < T) pair_up<T, K, ROWS>(t, shared);
    }
    if (C::LATE) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (C::LATE && warp == WARPS - 1) rows.begin();

    if (rows.count == 0) return;
    rows.wait();
    let_next_kernel_start();
    float products[T][2];
    multiply_all<0, T, K, ROWS>(shared, rows.to, products);
    mine = lane % 8 < C::HELD && row < rows.count;
    long long head = ((long long)at.request * T * value_heads + at.head) * V, stride = (long long)value_heads * V;
    solve<T, K, ROWS>(shared, products, v, mine, out + head + at.first + place, stride);
    if constexpr (!RING) {
        if (mine) {
#pragma unroll
            for (int t = 0; t < T; t++) shared[C::VALUES_AT + t * ROWS + place] = v[t];
        }
        __syncwarp();
        float* first = snapshots + (head + at.first + warp * C::MINE) * K;
        store_snapshots<T, K, ROWS>(shared, rows.to, rows.count, first, stride * K);
    }
}
