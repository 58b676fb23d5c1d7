// NVFP4 W4A4 GEMM for SM90 and up to 16 tokens: weights are streamed once, decoded in registers, multiplied in FP16.
//
// Sixteen weight rows are the M side of mma.m16n8k16 and the tokens its N side, so few tokens waste no tensor work.
// A dot product does not care in which order k runs: each lane keeps the 16 contiguous bytes it copied, and the
// activations are laid out once in that same order. Work is cut into units of one row tile (16 rows of one 128-row
// block, chosen so that their swizzled scales are contiguous) by 256 k. A CTA takes a range of row tiles, or a cluster
// does and its CTAs (ranks) share K; the CTA's warps take equal, contiguous spans of its units, tile by tile, which may
// begin and end inside a tile. Partial tiles meet in shared memory and are summed in warp order, then in rank order:
// the same bits every launch, no atomics, no scratch memory.
//
// Decoding: the magnitude bits of a code at bits 9 to 11 and its sign at bit 15 are an FP16 number worth code * 2^-14
// (subnormal for 0.5). E4M3 scales convert exactly, and code * scale * 2^-14 is a multiple of 2^-24: exact in FP16,
// too. The missing 2^28 is multiplied into the FP32 sum.

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

constexpr int LANES = 32;
constexpr int STEP_BYTES = 128;         // packed bytes of one row in one unit: 256 k
constexpr int UNIT_BYTES = 2048 + 256;  // 16 rows of codes, then their scales
constexpr int ATOM_BYTES = 512;         // 128 rows x 4 scale columns of the swizzle
constexpr int BLOCK_ROWS = 128;
constexpr int TILES_PER_BLOCK = 8;
constexpr int MAX_RANKS = 8;
constexpr u32 MAGNITUDES = 0x0E0E0E0Eu;  // of four codes, each in the upper byte of an FP16 number
constexpr u32 SIGNS = 0x80808080u;
constexpr u32 UPPER_BYTES = 0xFF00FF00u;
constexpr float SUM_SHIFT = 268435456.0f;  // 2^28: each operand is worth 2^-14 of its value

__device__ __forceinline__ u64 l2_policy(bool persist) {
    u64 policy;
    if (persist)
        asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    else
        asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Sixteen bytes to shared memory without passing through registers.
__device__ __forceinline__ void copy16(u32 to, const u8* from, u64 policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;"
                 ::"r"(to), "l"(from), "l"(policy)
                 : "memory");
}

// As above; zeros where the bytes are not wanted.
__device__ __forceinline__ void copy16(u32 to, const u8* from, u64 policy, bool wanted) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;"
                 :: "r"(to), "l"(from), "r"(wanted ? 16 : 0), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ u32 multiply_half2(u32 a, u32 b) {
    u32 d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

// Two E4M3 bytes (low first) to two scales in half2, each twice: `first` and `second`.
__device__ __forceinline__ void scale_pairs(u16 two_bytes, u32& first, u32& second) {
    asm("{\n .reg .b32 both;\n .reg .b16 low, high;\n cvt.rn.f16x2.e4m3x2 both, %2;\n mov.b32 {low, high}, both;\n"
        " mov.b32 %0, {low, low};\n mov.b32 %1, {high, high};\n}"
        : "=r"(first), "=r"(second)
        : "h"(two_bytes));
}

// Eight codes to four half2 in the order (0,4) (2,6) (1,5) (3,7): any order is right, if both operands use it.
// The upper byte of such a number holds all of it, so four codes at a time are brought into place as bytes.
__device__ __forceinline__ void decode(u32 word, u32 scale, u32 (&pairs)[4]) {
    u32 even = ((word << 4) & SIGNS) | ((word << 1) & MAGNITUDES);
    u32 odd = (word & SIGNS) | ((word >> 3) & MAGNITUDES);
    pairs[0] = multiply_half2(__byte_perm(even, 0, 0x2404), scale);
    pairs[1] = multiply_half2(even & UPPER_BYTES, scale);
    pairs[2] = multiply_half2(__byte_perm(odd, 0, 0x2404), scale);
    pairs[3] = multiply_half2(odd & UPPER_BYTES, scale);
}

__device__ __forceinline__ void multiply_add(float4& sum, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum.x), "+f"(sum.y), "+f"(sum.z), "+f"(sum.w)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float4 add(const float4& a, const float4& b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

__device__ __forceinline__ u32 word_of(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ u32 cluster_index() {
    u32 index;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
    return index;
}

__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ float4 load_of_rank(const void* at, u32 rank) {
    u32 mine = (u32)__cvta_generic_to_shared(at), theirs;
    float4 v;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(mine), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(theirs)
                 : "memory");
    return v;
}

struct Problem {
    const u8* x;
    const u8* weight;
    const u8* x_scales;
    const u8* weight_scales;
    const float* alpha;
    void* out;
    int M, N, K;
    bool out_is_float;
};

// Row g of a tile for the lane's accumulators x and y; row g + 8 (z and w) lies 32 rows further.
__device__ __forceinline__ int first_row(int tile, int lane) {
    int g = lane >> 2;
    return tile / TILES_PER_BLOCK * BLOCK_ROWS + tile % TILES_PER_BLOCK * 4 + (g & 3) + (g >> 2) * 64;
}

__device__ __forceinline__ void store_one(const Problem& p, int m, int n, float sum, float alpha) {
    if (m >= p.M || n >= p.N) return;
    float y = sum * SUM_SHIFT * alpha;
    u64 at = (u64)m * p.N + n;
    if (p.out_is_float) {
        ((float*)p.out)[at] = y;
        return;
    }
    u16 rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(y));
    ((u16*)p.out)[at] = rounded;
}

__device__ __forceinline__ void store_tile(const Problem& p, int tile, int token_tile, int lane, const float4& sum,
                                           float alpha) {
    int n = first_row(tile, lane), m = token_tile * 8 + (lane & 3) * 2;
    store_one(p, m, n, sum.x, alpha);
    store_one(p, m + 1, n, sum.y, alpha);
    store_one(p, m, n + 32, sum.z, alpha);
    store_one(p, m + 1, n + 32, sum.w, alpha);
}

// A thread's share of the activations of its CTA's K, decoded into the order in which lanes meet them:
// [step][token tile][half][word][lane] of four half2. An item is 32 codes of one token, four of those 16-byte places.
// Its raw bytes are first copied into two of its own places, so that every copy is in flight at once, and decoded later
// by the thread that copied them. A thread's items are those of one token and one lane, in every STRIDE-th step.
template <int TOKEN_TILES, int WARPS>
struct Activations {
    static constexpr int STRIDE = WARPS / 2 / TOKEN_TILES;
    static_assert(WARPS % (2 * TOKEN_TILES) == 0);
    uint4* place;
    int lane, half, m, first, steps;

    __device__ __forceinline__ Activations(uint4* staged, int lane, int warp, int steps)
        : place(staged + warp * 4 * LANES + lane), lane(lane), half(warp % 2), m(warp / 2 % TOKEN_TILES * 8 + lane / 4),
          first(warp / 2 / TOKEN_TILES), steps(steps) {}

    __device__ __forceinline__ void copy(const Problem& p, int first_step) const {
        int byte = (first_step + first) * STEP_BYTES + half * 64 + (lane & 3) * 16;
        const u8* codes = p.x + min(m, p.M - 1) * (p.K / 2) + byte;
        // Four scales: the item's two are the first or the last of them.
        const u8* scales = p.x_scales + byte / 32 * ATOM_BYTES + m * 16;
        u32 to = (u32)__cvta_generic_to_shared(place);
        // Tokens that are not there become zeros.
        int rest = m < p.M ? p.K / 2 - byte : 0;
#pragma unroll 1
        for (int step = first; step < steps; step += STRIDE) {
            bool wanted = rest > 0;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                         ::"r"(to), "l"(wanted ? codes : p.x), "r"(wanted ? 16 : 0)
                         : "memory");
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                         ::"r"(to + LANES * 16), "l"(wanted ? scales : p.x_scales), "r"(wanted ? 4 : 0)
                         : "memory");
            codes += STRIDE * STEP_BYTES;
            rest -= STRIDE * STEP_BYTES;
            scales += STRIDE * 4 * ATOM_BYTES;
            to += WARPS * 4 * LANES * 16;
        }
    }

    __device__ __forceinline__ void decode_in_place() const {
        uint4* at = place;
#pragma unroll 1
        for (int step = first; step < steps; step += STRIDE) {
            uint4 codes = *at;
            u32 scales[2], pairs[4];
            scale_pairs(((const u16*)(at + LANES))[lane & 1], scales[0], scales[1]);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                decode(word_of(codes, j), scales[j / 2], pairs);
                at[j * LANES] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
            }
            at += WARPS * 4 * LANES;
        }
    }
};

// Where the next unit of a warp's span is copied from.
struct Cursor {
    const u8* row;         // row g of the tile, at the lane's bytes of the next step
    const u8* far_row;     // row g + 8
    const u8* scales;      // of the four rows and four atoms that lanes 0 to 15 copy
    int step, tile;

    __device__ __forceinline__ void to(const Problem& p, int lane, int new_tile, int new_step) {
        tile = new_tile;
        step = new_step;
        int n = first_row(tile, lane), byte = step * STEP_BYTES + (lane & 3) * 16;
        u64 row_bytes = p.K / 2, atoms = p.K / 64;
        // Rows behind N are read from the last row, and their results are not stored.
        row = p.weight + min(n, p.N - 1) * row_bytes + byte;
        far_row = p.weight + min(n + 32, p.N - 1) * row_bytes + byte;
        scales = p.weight_scales + (tile / TILES_PER_BLOCK * atoms + step * 4 + (lane >> 2)) * ATOM_BYTES +
                 (tile % TILES_PER_BLOCK * 4 + (lane & 3)) * 16;
    }

    __device__ __forceinline__ void copy(const Problem& p, int lane, u32 to, u64 codes_policy,
                                         u64 scales_policy) const {
        if (step * 256 + 256 <= p.K) {
            copy16(to, row, codes_policy);
            copy16(to + 512, far_row, codes_policy);
            copy16(to + 1024, row + 64, codes_policy);
            copy16(to + 1536, far_row + 64, codes_policy);
            if (lane < 16) copy16(to + 2048, scales, scales_policy);
            return;
        }
        // The last step of a K that is no multiple of 256: bytes of a row that are left from the lane's first on.
        int rest = p.K / 2 - step * STEP_BYTES - (lane & 3) * 16;
        copy16(to, row, codes_policy, rest > 0);
        copy16(to + 512, far_row, codes_policy, rest > 0);
        copy16(to + 1024, row + 64, codes_policy, rest > 64);
        copy16(to + 1536, far_row + 64, codes_policy, rest > 64);
        if (lane < 16) copy16(to + 2048, scales, scales_policy, step * 256 + (lane >> 2) * 64 < p.K);
    }

    __device__ __forceinline__ void advance(const Problem& p, int lane, int first_step, int steps) {
        ++step;
        row += STEP_BYTES;
        far_row += STEP_BYTES;
        scales += 4 * ATOM_BYTES;
        if (step == first_step + steps) to(p, lane, tile + 1, first_step);
    }
};

// `codes` are the lane's own; `scales` those of its row g and first two columns, `staged` the activations of the step.
template <int TOKEN_TILES>
__device__ __forceinline__ void multiply_unit(const uint4* codes, const u16* scales, const uint4* staged,
                                              float4 (&sums)[TOKEN_TILES][2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        uint4 near_codes = codes[half * 2 * LANES], far_codes = codes[(half * 2 + 1) * LANES];
        u32 near_scales[2], far_scales[2];
        scale_pairs(scales[half * 64], near_scales[0], near_scales[1]);
        scale_pairs(scales[half * 64 + 2], far_scales[0], far_scales[1]);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            u32 near[4], far[4];
            decode(word_of(near_codes, j), near_scales[j / 2], near);
            decode(word_of(far_codes, j), far_scales[j / 2], far);
#pragma unroll
            for (int token_tile = 0; token_tile < TOKEN_TILES; ++token_tile) {
                uint4 b = staged[(token_tile * 8 + half * 4 + j) * LANES];
                multiply_add(sums[token_tile][0], near[0], far[0], near[1], far[1], b.x, b.y);
                multiply_add(sums[token_tile][1], near[2], far[2], near[3], far[3], b.z, b.w);
            }
        }
    }
}

// `total` items in `count` contiguous spans, the first `longer` of which hold one item more than the others.
struct Split {
    int each, longer;

    __device__ __forceinline__ int begin(int index) const { return index * each + min(index, longer); }
    __device__ __forceinline__ int size(int index) const { return each + (index < longer); }
    __device__ __forceinline__ int owner(int item) const;
};

// Rounding down, for numbers below 2^20: an integer division costs ten times as much.
__device__ __forceinline__ int divide(int a, int b) { return (int)(((float)a + 0.5f) * __frcp_rn((float)b)); }

__device__ __forceinline__ int Split::owner(int item) const {
    int in_longer = longer * (each + 1);
    return item < in_longer ? divide(item, each + 1) : longer + divide(item - in_longer, each);
}

template <int TOKEN_TILES, int WARPS, int DEPTH>
__global__ void __launch_bounds__(WARPS* LANES, 1)
    nvfp4_gemm(const u8* x, const u8* weight, const u8* x_scales, const u8* weight_scales, const float* alpha_at,
               void* out, int M, int N, int K, int out_is_float, int ranks, int slots, int persist, Split all_tiles,
               Split all_steps) {
    extern __shared__ uint4 shared[];
    Problem p{x, weight, x_scales, weight_scales, alpha_at, out, M, N, K, out_is_float != 0};
    constexpr int WIDTH = TOKEN_TILES * LANES;
    int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    int rank = ranks > 1 ? (int)cluster_rank() : 0, group = ranks > 1 ? (int)cluster_index() : blockIdx.x;
    int first_tile = all_tiles.begin(group), tiles = all_tiles.size(group);
    int first_step = all_steps.begin(rank), steps = all_steps.size(rank);
    uint4* ring = shared + warp * DEPTH * (UNIT_BYTES / 16);
    float4* partials = (float4*)(shared + WARPS * DEPTH * (UNIT_BYTES / 16));
    uint4* staged = (uint4*)(partials + WARPS * slots * WIDTH);
    // Sums of the CTA take the place of the activations, which are no longer needed then.
    float4* tile_sums = (float4*)staged;
    // A warp's last partial tile goes where its units were, the ones before into its slots.
    auto partial = [&](int w, int slot, bool last) {
        return last ? (float4*)(shared + w * DEPTH * (UNIT_BYTES / 16)) : partials + (w * slots + slot) * WIDTH;
    };
    Activations<TOKEN_TILES, WARPS> activations(staged, lane, warp, steps);

    activations.copy(p, first_step);
    commit_copies();
    Split spans{tiles * steps / WARPS, tiles * steps % WARPS};
    int begin = spans.begin(warp), end = begin + spans.size(warp);
    int tile = divide(begin, steps), step = begin - tile * steps, copied = begin;
    u64 codes_policy = l2_policy(persist & 1), scales_policy = l2_policy(persist & 2);
    u32 ring_at = (u32)__cvta_generic_to_shared(ring) + lane * 16;
    const uint4* codes = ring + lane;
    const u16* scales =
        (const u16*)(ring + 4 * LANES) + (lane & 2) * 16 + (lane >> 2 & 3) * 8 + (lane >> 4) * 4 + (lane & 1);
    Cursor next;
    next.to(p, lane, first_tile + tile, first_step + step);
#pragma unroll 1
    for (int d = 0; d < DEPTH; ++d) {
        if (copied < end) {
            next.copy(p, lane, ring_at + d * UNIT_BYTES, codes_policy, scales_policy);
            next.advance(p, lane, first_step, steps);
        }
        ++copied;
        commit_copies();
    }
    float alpha = *alpha_at;
    wait_for_copies<DEPTH>();
    activations.decode_in_place();
    __syncthreads();

    float4 sums[TOKEN_TILES][2] = {};
    int span_tile = tile;
    bool from_start = step == 0;
    int tile_end = (tile + 1) * steps;
    const uint4* x_at = staged + step * TOKEN_TILES * 8 * LANES + lane;
    int unit = begin;
    // Unrolled over the ring, so that a stage's addresses are constants.
#pragma unroll 1
    while (unit < end) {
#pragma unroll
        for (int stage = 0; stage < DEPTH; ++stage) {
            if (unit >= end) break;
            wait_for_copies<DEPTH - 1>();
            __syncwarp();
            multiply_unit<TOKEN_TILES>(codes + stage * (UNIT_BYTES / 16), scales + stage * (UNIT_BYTES / 2), x_at,
                                       sums);
            __syncwarp();
            if (copied < end) {
                next.copy(p, lane, ring_at + stage * UNIT_BYTES, codes_policy, scales_policy);
                next.advance(p, lane, first_step, steps);
            }
            ++copied;
            commit_copies();
            ++unit;
            x_at += TOKEN_TILES * 8 * LANES;
            if (unit < tile_end && unit < end) continue;
            bool whole = ranks == 1 && unit == tile_end && from_start;
            float4* to = partial(warp, ranks == 1 ? 0 : tile - span_tile, unit == end);
            __syncwarp();
#pragma unroll
            for (int i = 0; i < TOKEN_TILES; ++i) {
                float4 sum = add(sums[i][0], sums[i][1]);
                if (whole)
                    store_tile(p, first_tile + tile, i, lane, sum, alpha);
                else
                    to[i * LANES + lane] = sum;
                sums[i][0] = sums[i][1] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            }
            tile_end += steps, from_start = true, ++tile;
            x_at = staged + lane;
        }
    }
    __syncthreads();

    // Sum what the CTA's warps hold of each tile, in warp order.
    int column = threadIdx.x % WIDTH;
#pragma unroll 1
    for (int j = threadIdx.x / WIDTH; j < tiles; j += WARPS * LANES / WIDTH) {
        int from = spans.owner(j * steps), to = spans.owner((j + 1) * steps - 1);
        if (ranks == 1 && from == to) continue;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (int w = from; w <= to; ++w) {
            // Only the first warp may have begun in an earlier tile.
            int slot = w > from || ranks == 1 ? 0 : j - divide(spans.begin(w), steps);
            sum = add(sum, partial(w, slot, spans.begin(w) + spans.size(w) <= (j + 1) * steps)[column]);
        }
        if (ranks == 1)
            store_tile(p, first_tile + j, column / LANES, column % LANES, sum, alpha);
        else
            tile_sums[j * WIDTH + column] = sum;
    }
    if (ranks == 1) return;

    // Then the ranks of the cluster, each for its share of the tiles, in rank order.
    cluster_sync();
#pragma unroll 1
    for (int j = rank + (int)threadIdx.x / WIDTH * ranks; j < tiles; j += WARPS * LANES / WIDTH * ranks) {
        float4 parts[MAX_RANKS];
#pragma unroll
        for (int r = 0; r < MAX_RANKS; ++r)
            if (r < ranks) parts[r] = load_of_rank(tile_sums + j * WIDTH + column, r);
        float4 sum = parts[0];
#pragma unroll
        for (int r = 1; r < MAX_RANKS; ++r)
            if (r < ranks) sum = add(sum, parts[r]);
        store_tile(p, first_tile + j, column / LANES, column % LANES, sum, alpha);
    }
    // Nobody may leave while others still read its sums.
    cluster_sync();
}
