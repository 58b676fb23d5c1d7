// KDA fused decode for SM90: a token's convolution, gate, recurrence, output norm and output gate in one pass over the
// state.
//
// A CTA owns ROWS value rows of one head of one request: all of them, or with few heads a cluster of RANKS CTAs shares
// a head. Bulk copies bring the rows to shared memory while four warps work out the token: q, k and v behind their
// convolution, decays and write strength, a warp each, four channels a lane. Each warp then walks its rows as they
// arrive, eight lanes a row, and waits for no other warp. Both sums run on the decayed row side by side:
//
//     S' = S exp(g)      d = beta (v - S' k)      o = S' q + d (k q)      S <- S' + d k
//
// so that the new row is stored from registers. Outputs stay in shared memory until all their squares are known; in a
// cluster each warp sends its sum of squares to every CTA. The convolution is rounded to BF16 before the recurrence, as
// separate kernels round it. Channels of a window are read and shifted by one lane; those of q and k, which all CTAs of
// a cluster read, are shifted by its first one when all have read them. The same bits every time.

using u16 = unsigned short;
using u32 = unsigned int;

constexpr int LANES = 32;
constexpr int WARPS = 4;
constexpr int THREADS = WARPS * LANES;
constexpr int EIGHT = 8;          // lanes that share a row
constexpr int MOST_HELD = 2;      // rows that they hold at once
constexpr bool FIRST_OUT = true;  // lines of the state leave the cache first: the next token is far away
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float EPSILON = 1e-6f;        // of the norms of q and k
enum Role { QUERY, KEY, VALUE, GATE };  // of a warp, while the token is worked out

// Where things lie in shared memory, counted in floats; the state's rows come first.
template <int V, int ROWS, int RANKS, class S>
struct Cut {
    static constexpr int MINE = ROWS / WARPS;  // rows of a warp
    static constexpr int HELD = MINE / 4 < MOST_HELD ? MINE / 4 : MOST_HELD;
    static constexpr int PASS = 4 * HELD;      // rows that a warp works on at once; each pass has a copy and a barrier
    static constexpr int PASSES = MINE / PASS;
    static constexpr int STEPS = (V + 4 * EIGHT - 1) / (4 * EIGHT);  // of four channels of a lane along a row
    static constexpr int KEY_AT = ROWS * V * (int)sizeof(S) / 4;     // [V]
    static constexpr int QUERY_AT = KEY_AT + V;                      // [V]
    static constexpr int DECAY_AT = QUERY_AT + V;                    // [V]
    static constexpr int VALUES_AT = DECAY_AT + V;                   // [ROWS]
    static constexpr int OUTPUTS_AT = VALUES_AT + ROWS;              // [ROWS]
    static constexpr int SQUARES_AT = OUTPUTS_AT + ROWS;             // [RANKS][WARPS]
    static constexpr int STRENGTH_AT = SQUARES_AT + RANKS * WARPS;
    static constexpr int BARRIERS_AT = STRENGTH_AT + 2;              // [WARPS][PASSES] of eight bytes
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

// Four channels in memory. Volatile: they shall be asked for where they stand, ahead of what waits for the slot, and
// before they are overwritten.
template <bool WIDE>
__device__ __forceinline__ uint2 load4(const u16* at) {
    uint2 x;
    if constexpr (WIDE) {
        asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(at) : "memory");
    } else {
        x = make_uint2(at[0] | (u32)at[1] << 16, at[2] | (u32)at[3] << 16);
    }
    return x;
}

template <bool WIDE>
__device__ __forceinline__ float4 load4(const float* at) {
    float4 x;
    if constexpr (WIDE) {
        asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                     : "l"(at)
                     : "memory");
    } else {
        x = make_float4(at[0], at[1], at[2], at[3]);
    }
    return x;
}

template <bool WIDE>
__device__ __forceinline__ void store4(u16* at, uint2 x) {
    if constexpr (WIDE) {
        __stcs(reinterpret_cast<uint2*>(at), x);
    } else {
        at[0] = (u16)x.x, at[1] = (u16)(x.x >> 16), at[2] = (u16)x.y, at[3] = (u16)(x.y >> 16);
    }
}

template <bool WIDE>
__device__ __forceinline__ void store_state(u16* at, float4 x) {
    store4<WIDE>(at, to_bf16(x));
}

template <bool WIDE>
__device__ __forceinline__ void store_state(float* at, float4 x) {
    if constexpr (WIDE) {
        __stcs(reinterpret_cast<float4*>(at), x);
    } else {
        at[0] = x.x, at[1] = x.y, at[2] = x.z, at[3] = x.w;
    }
}

// Four channels of a row in shared memory.
__device__ __forceinline__ float4 held4(const float* at) { return *reinterpret_cast<const float4*>(at); }

__device__ __forceinline__ float4 held4(const u16* at) { return from_bf16(*reinterpret_cast<const uint2*>(at)); }

// The sum over neighbouring lanes, in each of them.
template <int COUNT>
__device__ __forceinline__ float sum_over(float x) {
#pragma unroll
    for (int bit = COUNT / 2; bit; bit /= 2) x += __shfl_xor_sync(~0u, x, bit);
    return x;
}

// Launched programmatically, this kernel's CTAs may start while an earlier kernel of the stream still runs: nothing of
// its memory may be touched before it has ended.
__device__ __forceinline__ void wait_for_earlier_kernels() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ void let_next_kernel_start() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }

__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Writes a number where another CTA of the cluster has the same place.
__device__ __forceinline__ void send(float* at, int rank, float x) {
    asm volatile(
        "{\n .reg .u32 theirs;\n mapa.shared::cluster.u32 theirs, %0, %1;\n"
        " st.shared::cluster.f32 [theirs], %2;\n}" ::"r"(shared_address(at)),
        "r"(rank), "f"(x)
        : "memory");
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

// The barrier counts the bytes of one copy.
__device__ __forceinline__ void copy_rows(void* to, const void* from, int bytes, u32 barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
    if constexpr (FIRST_OUT) {
        asm volatile(
            "{\n .reg .b64 first_out;\n createpolicy.fractional.L2::evict_first.b64 first_out, 1.0;\n"
            " cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
            "first_out;\n}" ::"r"(shared_address(to)),
            "l"(from), "r"(bytes), "r"(barrier)
            : "memory");
    } else {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         shared_address(to)),
                     "l"(from), "r"(bytes), "r"(barrier)
                     : "memory");
    }
}

// A warp's rows of the state: in memory, their copy in shared memory, and a barrier for each pass over some of them.
template <class C, int V, bool WIDE, class S>
struct Rows {
    S *at, *held;
    u32 barriers;
    int count;
    __device__ __forceinline__ void begin() const {
        int lane = threadIdx.x % LANES;
        if constexpr (WIDE) {
            if (lane) return;
            for (int row = 0, pass = 0; row < count; row += C::PASS, pass++) {
                int bytes = min(C::PASS, count - row) * V * (int)sizeof(S);
                copy_rows(held + row * V, at + row * V, bytes, barriers + 8 * pass);
            }
        } else {
            for (int i = lane; i < count * V; i += LANES) held[i] = at[i];
        }
    }
    __device__ __forceinline__ void wait(int pass) const {
        if constexpr (WIDE) wait_for_bytes(barriers + 8 * pass);
        __syncwarp();
    }
};

// SiLU of four channels of the weighted window and token, rounded to BF16.
__device__ __forceinline__ float4 convolve(const uint2 (&raw)[4], const float4 (&w)[4]) {
    float4 x = from_bf16(raw[0]) * w[0];
#pragma unroll
    for (int j = 1; j < 4; j++) x = multiply_add(from_bf16(raw[j]), w[j], x);
    x = make_float4(x.x * sigmoid(x.x), x.y * sigmoid(x.y), x.z * sigmoid(x.z), x.w * sigmoid(x.w));
    return from_bf16(to_bf16(x));
}

// The window after the token.
template <bool WIDE>
__device__ __forceinline__ void shift(const uint2 (&raw)[4], u16* window, long long width) {
#pragma unroll
    for (int j = 0; j < 3; j++) store4<WIDE>(window + j * width, raw[j + 1]);
}

// exp of the log-decay of a raw gate: lower_bound sigmoid(rate x), or -rate softplus(x).
template <bool SAFE>
__device__ __forceinline__ float decay_of(float x, float rate, float lower_bound) {
    if constexpr (SAFE) {
        return exp2_of(lower_bound * LOG2_E * sigmoid(rate * x));
    } else {
        return exp2_of(-rate * LOG2_E * (x > 20.0f ? x : logf(1.0f + exp2_of(LOG2_E * x))));
    }
}

template <bool SAFE>
__device__ __forceinline__ float4 decays(float4 x, float4 bias, float rate, float lower_bound) {
    return make_float4(
        decay_of<SAFE>(x.x + bias.x, rate, lower_bound), decay_of<SAFE>(x.y + bias.y, rate, lower_bound),
        decay_of<SAFE>(x.z + bias.z, rate, lower_bound), decay_of<SAFE>(x.w + bias.w, rate, lower_bound));
}

// Four channels of a lane's part of a row, or zeros behind its end.
template <int V>
__device__ __forceinline__ void spread(const float* from, float4 (&to)[(V + 31) / 32]) {
    int column = threadIdx.x % EIGHT * 4;
#pragma unroll
    for (int j = 0; j < (V + 31) / 32; j++) {
        to[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (V % 32 == 0 || column + 32 * j < V) to[j] = held4(from + column + 32 * j);
    }
}

// Advances a warp's rows and keeps their outputs; the sum of the outputs' squares, in every lane.
template <class C, int V, bool WIDE, class S>
__device__ __forceinline__ float advance(const Rows<C, V, WIDE, S>& rows, float* shared) {
    const float* values = shared + C::VALUES_AT + threadIdx.x / LANES * C::MINE;
    float* outputs = shared + C::OUTPUTS_AT + threadIdx.x / LANES * C::MINE;
    int lane = threadIdx.x % LANES, column = lane % EIGHT * 4;
    float4 key[C::STEPS], query[C::STEPS], decay[C::STEPS];
    spread<V>(shared + C::KEY_AT, key);
    spread<V>(shared + C::QUERY_AT, query);
    spread<V>(shared + C::DECAY_AT, decay);
    float strength = shared[C::STRENGTH_AT], overlap = 0.0f, squares = 0.0f;
#pragma unroll
    for (int j = 0; j < C::STEPS; j++) overlap = dot(key[j], query[j], overlap);
    overlap = sum_over<EIGHT>(overlap);
#pragma unroll 1
    for (int pass = 0; pass < C::PASSES && pass * C::PASS < rows.count; pass++) {
        int first = pass * C::PASS + lane / EIGHT;
        rows.wait(pass);
        float4 state[C::HELD][C::STEPS];
        float read[C::HELD], out[C::HELD];
#pragma unroll
        for (int i = 0; i < C::HELD; i++) {
            read[i] = out[i] = 0.0f;
#pragma unroll
            for (int j = 0; j < C::STEPS; j++) {
                bool mine = first + 4 * i < rows.count && (V % 32 == 0 || column + 32 * j < V);
                state[i][j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (mine) state[i][j] = held4(rows.held + (first + 4 * i) * V + column + 32 * j) * decay[j];
                read[i] = dot(state[i][j], key[j], read[i]);
                out[i] = dot(state[i][j], query[j], out[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < C::HELD; i++) read[i] = sum_over<EIGHT>(read[i]), out[i] = sum_over<EIGHT>(out[i]);
#pragma unroll
        for (int i = 0; i < C::HELD; i++) {
            int row = first + 4 * i;
            if (row >= rows.count) continue;
            float d = strength * (values[row] - read[i]), o = fmaf(d, overlap, out[i]);
            squares = fmaf(o, o, squares);
#pragma unroll
            for (int j = 0; j < C::STEPS; j++)
                if (V % 32 == 0 || column + 32 * j < V)
                    store_state<WIDE>(rows.at + row * V + column + 32 * j, multiply_add(key[j], d, state[i][j]));
            if (lane % EIGHT == 0) outputs[row] = o;
        }
    }
    squares += __shfl_xor_sync(~0u, squares, EIGHT);
    return squares + __shfl_xor_sync(~0u, squares, 2 * EIGHT);
}

template <int V, int ROWS, int RANKS, bool SAFE, bool WIDE, class S>
__global__ void __launch_bounds__(THREADS, ROWS == 128 ? 3 : 4)
    kda_fused_decode(const u16* qkv, u16* conv, const float* weight, const u16* a, const u16* b, const float* a_log,
                     const float* dt, const u16* gate, const float* norm, S* state, const int* index, u16* out,
                     long long qkv_b, long long conv_s, long long a_b, long long b_b, long long gate_b,
                     long long state_s, double lower_bound, double epsilon, double scale, int heads) {
    using C = Cut<V, ROWS, RANKS, S>;
    extern __shared__ __align__(128) float shared[];
    // By a shuffle, so that the compiler knows that a warp has one role.
    int warp = __shfl_sync(~0u, (int)threadIdx.x / LANES, 0), lane = threadIdx.x % LANES, role = warp;
    int head = blockIdx.x / RANKS, rank = blockIdx.x % RANKS, first = rank * ROWS;
    long long request = blockIdx.y, width = 3LL * heads * V;
    Rows<C, V, WIDE, S> rows;
    rows.barriers = shared_address(shared + C::BARRIERS_AT + 2 * C::PASSES * warp);
    if (WIDE && lane < C::PASSES) start_barrier(rows.barriers + 8 * lane);
    __syncwarp();
    wait_for_earlier_kernels();

    // Channels of this lane: q or k of the head, v of this CTA's rows, or the gates; all that waits for no slot.
    int slot = index[request];
    int channel = role * heads * V + head * V + 4 * lane + (role == VALUE ? first : 0);
    bool mine = role == VALUE ? 4 * lane < ROWS && first + 4 * lane < V : 4 * lane < V;
    uint2 raw[4] = {};
    float4 w[4] = {};
    float strength = 0.0f, rate = 0.0f;
    if (role == GATE) {
        if (mine) raw[3] = load4<WIDE>(a + request * a_b + head * V + 4 * lane);
        if (mine) w[3] = load4<WIDE>(dt + head * V + 4 * lane);
        strength = bf16_of(b[request * b_b + head]);
        rate = a_log[head];
    } else if (mine) {
        raw[3] = load4<WIDE>(qkv + request * qkv_b + channel);
#pragma unroll
        for (int j = 0; j < 4; j++) w[j] = load4<WIDE>(weight + j * width + channel);
    }
    int row = warp * C::MINE + lane;  // whose output this lane stores
    bool shown = lane < C::MINE && first + row < V;
    float opening = 0.0f, factor = 0.0f;
    if (shown) opening = bf16_of(gate[request * gate_b + head * V + first + row]), factor = norm[first + row];
    out += (request * heads + head) * V + first + row;
    if (slot < 0) {
        if (shown) *out = 0;
        return;
    }

    rows.count = V % ROWS == 0 ? C::MINE : min(max(V - first - warp * C::MINE, 0), C::MINE);
    rows.at = state + slot * state_s + ((long long)head * V + first + warp * C::MINE) * V;
    rows.held = reinterpret_cast<S*>(shared) + warp * C::MINE * V;
    u16* window = conv + slot * conv_s + channel;
#pragma unroll
    for (int j = 0; j < 3; j++)
        if (mine && role != GATE) raw[j] = load4<WIDE>(window + j * width);
    rows.begin();
    let_next_kernel_start();
    if (role == GATE) {
        float4 x = decays<SAFE>(from_bf16(raw[3]), w[3], exp2_of(LOG2_E * rate), (float)lower_bound);
        if (mine) *reinterpret_cast<float4*>(shared + C::DECAY_AT + 4 * lane) = x;
        if (lane == 0) shared[C::STRENGTH_AT] = sigmoid(strength);
    } else {
        float4 y = convolve(raw, w);
        if (mine && (RANKS == 1 || role == VALUE)) shift<WIDE>(raw, window, width);
        if (role != VALUE) {
            float length = rsqrtf(sum_over<LANES>(dot(y, y, 0.0f)) + EPSILON);
            y = y * (role == QUERY ? length * (float)scale : length);
        }
        int to = role == QUERY ? C::QUERY_AT : role == KEY ? C::KEY_AT : C::VALUES_AT;
        if (mine) *reinterpret_cast<float4*>(shared + to + 4 * lane) = y;
    }
    __syncthreads();
    // All CTAs of a cluster have begun, and have read what one of them shifts.
    if constexpr (RANKS > 1) cluster_arrive();
    float squares = advance<C, V, WIDE, S>(rows, shared), sum = 0.0f;
    if constexpr (RANKS > 1) {
        cluster_wait();
        if (lane < RANKS) send(shared + C::SQUARES_AT + rank * WARPS + warp, lane, squares);
        cluster_arrive();
        if (mine && rank == 0 && role <= KEY) shift<WIDE>(raw, window, width);
        cluster_wait();
    } else {
        if (lane == 0) shared[C::SQUARES_AT + warp] = squares;
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < RANKS * WARPS; i++) sum += shared[C::SQUARES_AT + i];
    if (shown) {
        float root = rsqrtf(sum * (1.0f / V) + (float)epsilon);
        *out = (u16)to_bf16_pair(shared[C::OUTPUTS_AT + row] * root * factor * sigmoid(opening), 0.0f);
    }
}
