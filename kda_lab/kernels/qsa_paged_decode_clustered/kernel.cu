// QSA decode from a paged pool for SM90: a cluster of CTAs attends one query row's group of twelve heads; no scratch
// memory, no atomics, no compaction.
//
// Every CTA ranks the row's valid tokens in column order and keeps the slots of its own tiles in shared memory.
// The row's keys are cut into tiles; tile i belongs to rank i mod C of the cluster, read from the live length on the
// device. A CTA copies its tiles into a ring of stages in shared memory. Each warp scores its share of a tile's keys and
// shows the others its maxima, then its probabilities; then it multiplies all of them with its own slice of V's
// dimensions. So a warp holds few outputs, and the CTA's are complete when its last tile is. Each rank owns a slice of the
// dimensions: the others send it their outputs, and it adds them in rank order. One launch, the same bits every time, any
// launches may overlap.
//
// Products are mma.m16n8k16: twelve of the sixteen rows are heads. A dot product does not care in which order its
// dimensions run: a lane (4 g + t) reads sixteen contiguous bytes of a K row and calls them what two products need. Keys
// are counted in an order in which those reads, and the transposing ones of V, touch every bank once.

using u16 = unsigned short;
using u32 = unsigned int;

constexpr int LANES = 32;
constexpr int HEADS = 12;
constexpr int D = 256;
constexpr int ROW_BYTES = 2 * D;
constexpr int PITCH = ROW_BYTES + 16;
constexpr int MAX_WIDTH = 2055;
constexpr int COLUMNS = 8;  // keys of one product's N side
#define NONE __int_as_float(0xff800000)  // -inf: no score

__device__ __forceinline__ u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ u32 cluster_size() {
    u32 size;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}

__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }

__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ __forceinline__ u32 address_in_rank(u32 at, u32 rank) {
    u32 theirs;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(at), "r"(rank));
    return theirs;
}

// Two numbers to another rank's shared memory; its barrier counts the bytes when they have arrived.
__device__ __forceinline__ void send(const void* at, u32 barrier, u32 rank, float x, float y) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
                     address_in_rank(shared_address(at), rank)),
                 "f"(x), "f"(y), "r"(address_in_rank(barrier, rank))
                 : "memory");
}

// A barrier of one arrival, which every CTA of the cluster may complete.
__device__ __forceinline__ void start_barrier(u32 barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void expect_bytes(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void wait_for_bytes(u32 barrier) {
    asm volatile(
        "{\n .reg .pred done;\nagain:\n mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
        " @!done bra again;\n}" ::"r"(barrier)
        : "memory");
}

// Sixteen bytes to shared memory without passing through registers; zeros where they are not wanted.
__device__ __forceinline__ void copy16(u32 to, const u16* from, bool wanted) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(wanted ? 16 : 0) : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ uint4 load16(u32 at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}

// Four 8 x 8 matrices of BF16, transposed; lane 8 m + r says where row r of matrix m begins.
__device__ __forceinline__ uint4 load_transposed(u32 row) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(row));
    return v;
}

__device__ __forceinline__ void multiply_add(float4& sum, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum.x), "+f"(sum.y), "+f"(sum.z), "+f"(sum.w)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 to_bf16_pair(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Largest, or sum, over the four lanes that share g.
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

// Launched programmatically, this kernel's CTAs may start while an earlier kernel of the stream still runs: nothing of its
// memory may be touched before it has ended.
__device__ __forceinline__ void wait_for_earlier_kernels() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// The stream's next kernel may come in once all CTAs have said so. Said before the tiles were read, its CTAs would take
// their places beside ours on few SMs: 16 saturated rows then took 30.5 us, and 24.9 us this way (H200).
__device__ __forceinline__ void let_next_kernel_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// The key, of eight, that stands in a column of a score product (and in a row of the V operand).
__device__ __forceinline__ int key_of_column(int column) { return (column >> 1) + 4 * (column & 1); }

// Where the selected KV rows of one sequence and one KV head lie: the pool's slots of this CTA's tiles, one tile behind
// another. Slots are multiplied in 64 bits: a pool may hold more than 2^31 elements.
template <int KEYS>
struct PagedRows {
    const u16* k;
    const u16* v;
    int stride;        // elements from slot to slot: KV heads x D
    const int* slots;  // in shared memory
    int shift;         // log2 of KEYS x ranks: a division here costs microseconds
    __device__ __forceinline__ long long offset(int row) const {
        return (long long)slots[(row >> shift) * KEYS + row % KEYS] * stride;
    }
};

// Shapes that follow from how a launch is cut.
template <int WARPS, int KEYS, int STAGES>
struct Cut {
    static constexpr int THREADS = WARPS * LANES;
    static constexpr int STAGE_BYTES = 2 * KEYS * PITCH;   // a tile's K rows, then its V rows
    static constexpr int MINE = KEYS / COLUMNS / WARPS;    // score products of a warp, eight keys each
    static constexpr int SLICES = D / COLUMNS / WARPS;     // output products of a warp, eight dimensions each
    static constexpr int P_AT = STAGES * STAGE_BYTES;      // [KEYS / 16][LANES] left operands of PV
    static constexpr int ROWS_AT = P_AT + KEYS * 32;       // [16][WARPS] maxima or sums of rows
    static constexpr int PARTS_AT = ROWS_AT + WARPS * 64;  // [ranks][HEADS][D / ranks] FP32 for this rank's slice
    static constexpr int STATES_AT = PARTS_AT + HEADS * D * 4;  // [ranks][HEADS] pairs of top and sum
    static constexpr int BARRIER_AT = STATES_AT + 16 * HEADS * 8;
};

// Softmax state of rows g and g + 8 of the sixteen, and this warp's outputs. `sum` is what this lane has added.
template <int SLICES>
struct Heads {
    float top[2];
    float sum[2];
    float4 out[SLICES];  // columns 2 t and 2 t + 1 of both rows
};

// The threads copy a tile's K or V rows, sixteen bytes each; rows behind the live end become zeros.
template <class C, int KEYS, class Rows>
__device__ __forceinline__ void copy_tile(u32 to, const u16* from, const Rows& rows, int first, int length) {
    constexpr int AT_ONCE = C::THREADS / LANES;
    int row = threadIdx.x / LANES, column = threadIdx.x % LANES;
    to += row * PITCH + column * 16;
#pragma unroll
    for (int i = 0; i < KEYS / AT_ONCE; i++) {
        int key = first + row + i * AT_ONCE;
        bool live = key < length;
        copy16(to + i * AT_ONCE * PITCH, from + rows.offset(live ? key : first) + column * 8, live);
    }
}

// Scores of this warp's keys, scaled for base two; behind the live end -inf.
template <class C>
__device__ __forceinline__ void score_keys(u32 stage, const uint4 (&q)[8][2], float scale, int live, float4 (&p)[C::MINE]) {
    int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < C::MINE; n++) {
        int first = (warp * C::MINE + n) * COLUMNS;
        u32 at = stage + (first + key_of_column(g)) * PITCH + t * 16;
        float4 parts[4] = {};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint4 k = load16(at + i * 64);
            multiply_add(parts[i % 2], q[i][0].x, q[i][1].x, q[i][0].y, q[i][1].y, k.x, k.y);
            multiply_add(parts[2 + i % 2], q[i][0].z, q[i][1].z, q[i][0].w, q[i][1].w, k.z, k.w);
        }
        bool even = first + t < live, odd = first + t + 4 < live;
        p[n].x = even ? (parts[0].x + parts[1].x + parts[2].x + parts[3].x) * scale : NONE;
        p[n].y = odd ? (parts[0].y + parts[1].y + parts[2].y + parts[3].y) * scale : NONE;
        p[n].z = even ? (parts[0].z + parts[1].z + parts[2].z + parts[3].z) * scale : NONE;
        p[n].w = odd ? (parts[0].w + parts[1].w + parts[2].w + parts[3].w) * scale : NONE;
    }
}

// Shows the other warps a number for each of the sixteen rows; after a barrier `read_rows` gives all warps' numbers.
template <int WARPS>
__device__ __forceinline__ void show_rows(float* rows, float low, float high) {
    int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, g = lane / 4;
    if (lane % 4 == 0) {
        rows[g * WARPS + warp] = low;
        rows[(g + 8) * WARPS + warp] = high;
    }
}

template <int WARPS>
__device__ __forceinline__ void read_rows(const float* rows, int row, float (&numbers)[WARPS]) {
#pragma unroll
    for (int w = 0; w < WARPS; w += 4) {
        float4 four = *reinterpret_cast<const float4*>(rows + row * WARPS + w);
        numbers[w] = four.x;
        numbers[w + 1] = four.y;
        numbers[w + 2] = four.z;
        numbers[w + 3] = four.w;
    }
}

// Brings earlier outputs to the new maxima, which all warps have shown.
template <int WARPS, int SLICES>
__device__ __forceinline__ void raise_tops(Heads<SLICES>& heads, const float* rows) {
    int g = threadIdx.x % LANES / 4;
    float decay[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float tops[WARPS], top = heads.top[r];
        read_rows<WARPS>(rows, g + 8 * r, tops);
#pragma unroll
        for (int w = 0; w < WARPS; w++) top = fmaxf(top, tops[w]);
        decay[r] = exp2_of(heads.top[r] - top);
        heads.top[r] = top;
        heads.sum[r] *= decay[r];
    }
#pragma unroll
    for (int i = 0; i < SLICES; i++) {
        heads.out[i].x *= decay[0];
        heads.out[i].y *= decay[0];
        heads.out[i].z *= decay[1];
        heads.out[i].w *= decay[1];
    }
}

// Probabilities of this warp's keys, shown to all as left operands of PV in BF16; the sums keep them unrounded.
template <class C>
__device__ __forceinline__ void show_probabilities(Heads<C::SLICES>& heads, const float4 (&scores)[C::MINE], u32 p_at) {
    int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
#pragma unroll
    for (int n = 0; n < C::MINE; n++) {
        int tile = warp * C::MINE + n;
        float x = exp2_of(scores[n].x - heads.top[0]), y = exp2_of(scores[n].y - heads.top[0]);
        float z = exp2_of(scores[n].z - heads.top[1]), w = exp2_of(scores[n].w - heads.top[1]);
        heads.sum[0] += x + y;
        heads.sum[1] += z + w;
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(p_at + (tile / 2 * LANES + lane) * 16 + tile % 2 * 8),
                     "r"(to_bf16_pair(x, y)), "r"(to_bf16_pair(z, w))
                     : "memory");
    }
}

// This warp's slice of a tile's V, as right operands.
template <class C, int KEYS>
__device__ __forceinline__ void load_values(u32 values_at, uint4 (&v)[KEYS / 16][C::SLICES / 2]) {
    int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    // Matrices 0 and 1 are eight dimensions of sixteen keys, 2 and 3 the next eight dimensions.
    int key = lane / 8 % 2 * 8 + key_of_column(lane % 8), slice = warp * C::SLICES + lane / 16;
    u32 at = values_at + key * PITCH + slice * 16;
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++)
#pragma unroll
        for (int i = 0; i < C::SLICES / 2; i++) v[n][i] = load_transposed(at + n * 16 * PITCH + i * 32);
}

// Adds probabilities times values.
template <class C, int KEYS>
__device__ __forceinline__ void add_values(Heads<C::SLICES>& heads, u32 p_at, const uint4 (&v)[KEYS / 16][C::SLICES / 2]) {
    int lane = threadIdx.x % LANES;
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++) {
        uint4 p = load16(p_at + (n * LANES + lane) * 16);
#pragma unroll
        for (int i = 0; i < C::SLICES / 2; i++) {
            multiply_add(heads.out[2 * i], p.x, p.y, p.z, p.w, v[n][i].x, v[n][i].y);
            multiply_add(heads.out[2 * i + 1], p.x, p.y, p.z, p.w, v[n][i].z, v[n][i].w);
        }
    }
}

// The row sums of all warps, in warp order.
template <int WARPS, int SLICES>
__device__ __forceinline__ void add_sums(Heads<SLICES>& heads, float* rows) {
    int g = threadIdx.x % LANES / 4;
    show_rows<WARPS>(rows, quad_sum(heads.sum[0]), quad_sum(heads.sum[1]));
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sums[WARPS];
        read_rows<WARPS>(rows, g + 8 * r, sums);
        heads.sum[r] = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) heads.sum[r] += sums[w];
    }
}

// Alone, a CTA stores what its warps hold.
template <int SLICES>
__device__ __forceinline__ void store_outputs(const Heads<SLICES>& heads, u16* out) {
    int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int head = g + 8 * r;
        // A row without keys has no sum: exactly zero.
        float inverse = heads.sum[r] > 0.0f ? 1.0f / heads.sum[r] : 0.0f;
        if (head >= HEADS) continue;
        u16* to = out + head * D + warp * SLICES * COLUMNS + 2 * t;
#pragma unroll
        for (int i = 0; i < SLICES; i++) {
            float x = r ? heads.out[i].z : heads.out[i].x, y = r ? heads.out[i].w : heads.out[i].y;
            *reinterpret_cast<u32*>(to + i * COLUMNS) = to_bf16_pair(x * inverse, y * inverse);
        }
    }
}

// Sends every rank of the cluster this CTA's outputs for its slice.
template <class C>
__device__ __forceinline__ void send_outputs(const Heads<C::SLICES>& heads, char* shared, int rank, int ranks) {
    int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, g = lane / 4, t = lane % 4;
    int width = D / ranks;
    float* parts = reinterpret_cast<float*>(shared + C::PARTS_AT) + rank * HEADS * width;
    u32 barrier = shared_address(shared + C::BARRIER_AT);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int head = g + 8 * r;
        if (head >= HEADS) continue;
#pragma unroll
        for (int i = 0; i < C::SLICES; i++) {
            int dimension = (warp * C::SLICES + i) * COLUMNS, owner = dimension * ranks / D;
            float x = r ? heads.out[i].z : heads.out[i].x, y = r ? heads.out[i].w : heads.out[i].y;
            send(parts + head * width + (dimension & (width - 1)) + 2 * t, barrier, owner, x, y);
        }
    }
}

// Sends the softmax state behind the outputs. Every warp has it whole: they share the ranks.
template <class C>
__device__ __forceinline__ void send_states(const Heads<C::SLICES>& heads, char* shared, int rank, int ranks) {
    int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, g = lane / 4, t = lane % 4;
    float2* states = reinterpret_cast<float2*>(shared + C::STATES_AT) + rank * HEADS;
    u32 barrier = shared_address(shared + C::BARRIER_AT);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int head = g + 8 * r;
        if (head >= HEADS) continue;
        for (int owner = warp * 4 + t; owner < ranks; owner += C::THREADS / 8)
            send(states + head, barrier, owner, heads.top[r], heads.sum[r]);
    }
}

// Adds, in rank order, what the ranks handed to this one, and stores its slice.
template <class C, int RANKS>
__device__ __forceinline__ void take_in(const char* shared, u16* out, int rank, int live) {
    constexpr int WIDTH = D / RANKS, PAIRS = HEADS * WIDTH / 2;
    const float2* parts = reinterpret_cast<const float2*>(shared + C::PARTS_AT);
    const float2* states = reinterpret_cast<const float2*>(shared + C::STATES_AT);
#pragma unroll
    for (int i = 0; i < (PAIRS + C::THREADS - 1) / C::THREADS; i++) {
        int pair = threadIdx.x + i * C::THREADS;
        if (pair >= PAIRS) return;
        int head = pair / (WIDTH / 2), column = pair % (WIDTH / 2) * 2;
        float2 state[RANKS], part[RANKS];
        float top = NONE, total = 0.0f, x = 0.0f, y = 0.0f;
#pragma unroll
        for (int r = 0; r < RANKS; r++) {
            state[r] = states[r * HEADS + head];
            part[r] = parts[r * PAIRS + pair];
            if (r < live) top = fmaxf(top, state[r].x);
        }
#pragma unroll
        for (int r = 0; r < RANKS; r++) {
            if (r < live) {
                float weight = exp2_of(state[r].x - top);
                total += weight * state[r].y;
                x += weight * part[r].x;
                y += weight * part[r].y;
            }
        }
        float inverse = total > 0.0f ? 1.0f / total : 0.0f;
        *reinterpret_cast<u32*>(out + head * D + rank * WIDTH + column) = to_bf16_pair(x * inverse, y * inverse);
    }
}

// One cluster's work: rows [0, length) of one sequence for one group of heads.
template <int WARPS, int KEYS, int STAGES, class Rows>
__device__ __forceinline__ void attend(char* shared, const uint4 (&q)[8][2], const Rows& rows, int length, float scale,
                                       u16* out) {
    using C = Cut<WARPS, KEYS, STAGES>;
    int ranks = cluster_size(), rank = ranks > 1 ? cluster_rank() : 0;
    int tiles = (length + KEYS - 1) / KEYS;
    u32 ring = shared_address(shared), p_at = shared_address(shared + C::P_AT);
    float* shown = reinterpret_cast<float*>(shared + C::ROWS_AT);
    constexpr int VALUES_AT = KEYS * PITCH;  // in a stage
#pragma unroll
    for (int s = 0; s < STAGES; s++) {
        u32 at = ring + s * C::STAGE_BYTES;
        int tile = rank + s * ranks;
        if (tile < tiles) copy_tile<C, KEYS>(at, rows.k, rows, tile * KEYS, length);
        commit_copies();
        if (tile < tiles) copy_tile<C, KEYS>(at + VALUES_AT, rows.v, rows, tile * KEYS, length);
        commit_copies();
    }
    Heads<C::SLICES> heads;
    heads.top[0] = heads.top[1] = NONE;
    heads.sum[0] = heads.sum[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < C::SLICES; i++) heads.out[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    u32 at = ring;
    for (int tile = rank; tile < tiles; tile += ranks) {
        float4 scores[C::MINE];
        uint4 v[KEYS / 16][C::SLICES / 2];
        // K of this tile is there for all threads.
        wait_for_copies<2 * STAGES - 1>();
        __syncthreads();
        score_keys<C>(at, q, scale, length - tile * KEYS, scores);
        float low = NONE, high = NONE;
#pragma unroll
        for (int n = 0; n < C::MINE; n++) {
            low = fmaxf(low, fmaxf(scores[n].x, scores[n].y));
            high = fmaxf(high, fmaxf(scores[n].z, scores[n].w));
        }
        show_rows<WARPS>(shown, quad_max(low), quad_max(high));
        // V of this tile is there for all threads, and all have read its K.
        wait_for_copies<2 * STAGES - 2>();
        __syncthreads();
        int next = tile + STAGES * ranks;
        if (next < tiles) copy_tile<C, KEYS>(at, rows.k, rows, next * KEYS, length);
        commit_copies();
        load_values<C, KEYS>(at + VALUES_AT, v);
        raise_tops<WARPS>(heads, shown);
        show_probabilities<C>(heads, scores, p_at);
        // All have read V, and shown P.
        __syncthreads();
        if (next < tiles) copy_tile<C, KEYS>(at + VALUES_AT, rows.v, rows, next * KEYS, length);
        commit_copies();
        add_values<C, KEYS>(heads, p_at, v);
        at = at + C::STAGE_BYTES == ring + STAGES * C::STAGE_BYTES ? ring : at + C::STAGE_BYTES;
    }
    let_next_kernel_start();
    int live = min(tiles, ranks);
    if (live <= 1) {
        // Nothing to merge, and nobody waits: a CTA that has left counts as arrived.
        add_sums<WARPS>(heads, shown);
        if (rank == 0) store_outputs(heads, out);
        return;
    }
    u32 barrier = shared_address(shared + C::BARRIER_AT);
    if (threadIdx.x == 0) expect_bytes(barrier, live * HEADS * (D / ranks * 4 + 8));
    // All CTAs of the cluster have begun, and with them their barriers.
    cluster_wait();
    if (rank < live) {
        send_outputs<C>(heads, shared, rank, ranks);
        add_sums<WARPS>(heads, shown);
        send_states<C>(heads, shared, rank, ranks);
    }
    wait_for_bytes(barrier);
    if (ranks == 2) take_in<C, 2>(shared, out, rank, live);
    if (ranks == 4) take_in<C, 4>(shared, out, rank, live);
    if (ranks == 8) take_in<C, 8>(shared, out, rank, live);
    if (ranks == 16) take_in<C, 16>(shared, out, rank, live);
}

// The query rows of one group, in the order in which QK multiplies; heads 12 to 15 do not exist.
__device__ __forceinline__ void load_query(const u16* query, uint4 (&q)[8][2]) {
    int lane = threadIdx.x % LANES, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const u16* chunk = query + 8 * (t + 4 * i);
        q[i][0] = *reinterpret_cast<const uint4*>(chunk + g * D);
        q[i][1] = g + 8 < HEADS ? *reinterpret_cast<const uint4*>(chunk + (g + 8) * D) : make_uint4(0, 0, 0, 0);
    }
}

// What says which pool rows a sequence has selected.
struct Selection {
    const int* tokens;   // [B, width]; -1 and tokens behind the length are no selection
    const int* lengths;  // [B]
    const int* requests;  // [B], rows of the table
    const int* table;    // [R, table_width] slots
    int width;
    int table_width;
};

// Ranks a sequence's valid tokens in column order; keeps the slots of this rank's tiles. Returns how many are valid.
template <int WARPS, int KEYS>
__device__ __forceinline__ int select_slots(const Selection& from, int sequence, int* slots, int* counts, int rank, int shift) {
    constexpr int MOST = (MAX_WIDTH + WARPS * LANES - 1) / (WARPS * LANES);
    int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    // Each warp ranks one run of columns.
    int run = (from.width + WARPS * LANES - 1) / (WARPS * LANES), first = warp * run * LANES + lane;
    const int* tokens = from.tokens + (long long)sequence * from.width;
    int length = __ldcg(from.lengths + sequence), request = __ldcg(from.requests + sequence);
    int token[MOST], slot[MOST], place[MOST], count = 0;
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        int column = first + i * LANES;
        token[i] = i < run && column < from.width ? __ldcg(tokens + column) : -1;
    }
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        if (token[i] >= length) token[i] = -1;
        u32 valid = __ballot_sync(~0u, token[i] >= 0);
        place[i] = count + __popc(valid & ((1u << lane) - 1));
        count += __popc(valid);
    }
    if (lane == 0) counts[warp] = count;
    __syncthreads();
    int before = 0, total = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        if (w < warp) before += counts[w];
        total += counts[w];
    }
    const int* table = from.table + (long long)request * from.table_width;
    int tile_mask = (1 << shift) / KEYS - 1;
    // All of the table's loads before the first store: otherwise each waits for the one before it.
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        place[i] += before;
        if (token[i] < 0 || (place[i] / KEYS & tile_mask) != rank) place[i] = -1;
        slot[i] = place[i] >= 0 ? __ldcg(table + token[i]) : 0;
    }
#pragma unroll
    for (int i = 0; i < MOST; i++)
        if (place[i] >= 0) slots[(place[i] >> shift) * KEYS + place[i] % KEYS] = slot[i];
    __syncthreads();
    return total;
}

template <int WARPS, int KEYS, int STAGES, int CTAS>
__global__ void __launch_bounds__(WARPS* LANES, CTAS)
    qsa_paged_decode(const u16* q, const u16* k, const u16* v, const int* tokens, const int* lengths, const int* requests,
                     const int* table, u16* out, double scale, int kv_heads, int width, int table_width) {
    using C = Cut<WARPS, KEYS, STAGES>;
    extern __shared__ __align__(128) char shared[];
    int ranks = cluster_size(), slot = blockIdx.x / ranks;
    int sequence = slot / kv_heads, group = slot % kv_heads;
    if (ranks > 1) {
        if (threadIdx.x == 0) start_barrier(shared_address(shared + C::BARRIER_AT));
        __syncwarp();
        cluster_arrive();
    }
    wait_for_earlier_kernels();
    long long heads = (long long)slot * HEADS * D;
    uint4 query[8][2];
    load_query(q + heads, query);
    // Alone, a CTA receives nothing: its slots stand where the parts would.
    int* slots = reinterpret_cast<int*>(shared + (ranks > 1 ? C::BARRIER_AT + 16 : C::PARTS_AT));
    int* counts = reinterpret_cast<int*>(shared + C::ROWS_AT);
    Selection from = {tokens, lengths, requests, table, width, table_width};
    int shift = 31 - __clz(KEYS * ranks), rank = ranks > 1 ? cluster_rank() : 0;
    int length = select_slots<WARPS, KEYS>(from, sequence, slots, counts, rank, shift);
    PagedRows<KEYS> rows = {k + group * D, v + group * D, kv_heads * D, slots, shift};
    attend<WARPS, KEYS, STAGES>(shared, query, rows, length, (float)scale, out + heads);
}
