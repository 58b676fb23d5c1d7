// Concatenate two row blocks, the second one behind the first.
#include <cuda_runtime.h>

#define ROW_THREADS 128

template <int WIDTH>
__global__ __launch_bounds__(ROW_THREADS, 2) void concat_rows_kernel(const float* left, const float* right, float* out) {
    static_assert(WIDTH % 4 == 0, "rows are copied in float4");
    asm volatile("griddepcontrol.wait;" ::: "memory");
    int row = blockIdx.x;
    for (int i = threadIdx.x; i < WIDTH; i += ROW_THREADS) {
        out[row * 2 * WIDTH + i] = left[row * WIDTH + i];
        out[row * 2 * WIDTH + WIDTH + i] = right[row * WIDTH + i];
    }
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

template <int WIDTH>
cudaError_t concat_rows(const float* left, const float* right, float* out, int rows, cudaStream_t stream) {
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = rows;
    config.blockDim = ROW_THREADS;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, concat_rows_kernel<WIDTH>, left, right, out);
}
