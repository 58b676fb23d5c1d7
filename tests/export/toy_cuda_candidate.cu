// Packed decode, one block a (row, query head), one thread a value of D: a toy for the exporter's tests.

__device__ float from_bf16(unsigned short bits) { return __uint_as_float((unsigned int)bits << 16); }

__device__ unsigned short to_bf16(float value) {
    unsigned int bits = __float_as_uint(value);
    return (unsigned short)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

template <int GROUP, int D>
__global__ void __launch_bounds__(D) toy_decode(
    const unsigned short* p_q, const unsigned short* p_k, const unsigned short* p_v, const int* p_ends,
    unsigned short* p_out, double scale, long long kv_heads) {
    extern __shared__ float b_part[];  // [D]
    const int o_d = threadIdx.x;
    const long long i_b = blockIdx.x, i_h = blockIdx.y, i_kv = i_h / GROUP;
    const long long o_q = (i_b * gridDim.y + i_h) * D + o_d;
    const float b_q = from_bf16(p_q[o_q]) * (float)scale;
    float top = __uint_as_float(0xFF800000u), total = 0.0f, b_acc = 0.0f;
    for (long long n = p_ends[i_b]; n < p_ends[i_b + 1]; ++n) {
        const long long o_kv = (n * kv_heads + i_kv) * D + o_d;
        b_part[o_d] = b_q * from_bf16(p_k[o_kv]);
        __syncthreads();
        for (int half = D / 2; half > 0; half /= 2) {
            if (o_d < half) b_part[o_d] += b_part[o_d + half];
            __syncthreads();
        }
        const float score = b_part[0];
        __syncthreads();
        const float highest = fmaxf(top, score);
        const float kept = __expf(top - highest), weight = __expf(score - highest);
        b_acc = b_acc * kept + weight * from_bf16(p_v[o_kv]);
        total = total * kept + weight;
        top = highest;
    }
    p_out[o_q] = to_bf16(total > 0.0f ? b_acc / total : 0.0f);
}
