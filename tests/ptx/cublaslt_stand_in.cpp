// Stand-in for libcublasLt.so, a shared object: products on the CPU when their stream comes to them, with
// bias, ReLU and GELU. Other epilogues are refused, so that mezzo's kernels compute them.
// MEZZO_PTX_PRODUCTS=plain refuses all epilogues; "none" has no algorithm, so that mezzo's own kernel
// multiplies. It is compiled against NVIDIA's header: calls and constants are those of the library.
#include <cublasLt.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/ptx/half.h"
#include "tests/ptx/stand_in.h"

namespace {

using namespace mezzo::ptx;

const StandInHooks* hooks = nullptr;

const std::string& choice() {
    static const std::string value = [] {
        const char* const text = std::getenv("MEZZO_PTX_PRODUCTS");
        return std::string(text != nullptr ? text : "");
    }();
    return value;
}

// Descriptors are plain words of the caller's. The first one here is the scale type.
constexpr int first_attribute = 1;
std::uint64_t& attribute(cublasLtMatmulDesc_t op, int number) { return op->data[first_attribute + number]; }
constexpr std::size_t attribute_count = sizeof(cublasLtMatmulDescOpaque_t) / 8 - first_attribute;

struct Matrix {
    char* data;
    int type;
    std::int64_t rows, columns, ld, batch, stride;

    Matrix(const void* at, cublasLtMatrixLayout_t layout)
        : data(static_cast<char*>(const_cast<void*>(at))),
          type(int(layout->data[0])),
          rows(word(layout, 1)),
          columns(word(layout, 2)),
          ld(word(layout, 3)),
          batch(word(layout, 4)),
          stride(word(layout, 5)) {}

    std::size_t element_bytes() const { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }
    std::int64_t index(std::int64_t b, std::int64_t i, std::int64_t j) const {
        return b * stride + j * ld + i;
    }
    double load(std::int64_t k) const {
        switch (type) {
            case CUDA_R_64F:
                return reinterpret_cast<const double*>(data)[k];
            case CUDA_R_32F:
                return reinterpret_cast<const float*>(data)[k];
            case CUDA_R_16F:
                return from_half(reinterpret_cast<const std::uint16_t*>(data)[k]);
            default:
                return from_bfloat(reinterpret_cast<const std::uint16_t*>(data)[k]);
        }
    }
    void store(std::int64_t k, double x) const {
        switch (type) {
            case CUDA_R_64F:
                reinterpret_cast<double*>(data)[k] = x;
                break;
            case CUDA_R_32F:
                reinterpret_cast<float*>(data)[k] = float(x);
                break;
            case CUDA_R_16F:
                reinterpret_cast<std::uint16_t*>(data)[k] = to_half(float(x));
                break;
            default:
                reinterpret_cast<std::uint16_t*>(data)[k] = to_bfloat(float(x));
        }
    }

private:
    static std::int64_t word(cublasLtMatrixLayout_t layout, int n) { return std::int64_t(layout->data[n]); }
};

struct Product {
    Matrix a, b, c, d;
    bool transpose_a, transpose_b;
    double alpha, beta;
    int epilogue;
    Matrix bias;

    double finished(double x, std::int64_t row) const {
        if ((epilogue & CUBLASLT_EPILOGUE_BIAS) != 0) x += bias.load(row);
        if ((epilogue & CUBLASLT_EPILOGUE_RELU) != 0) return x < 0 ? 0 : x;
        if ((epilogue & CUBLASLT_EPILOGUE_GELU) != 0)
            return 0.5 * x * (1 + std::tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
        return x;
    }
    // op(m) by its rows, or with `by_columns` by its columns.
    static std::vector<double> operand(const Matrix& m, std::int64_t batch, bool transpose, bool by_columns) {
        const std::int64_t rows = transpose ? m.columns : m.rows, columns = transpose ? m.rows : m.columns;
        std::vector<double> values;
        values.reserve(std::size_t(rows * columns));
        for (std::int64_t x = 0; x < (by_columns ? columns : rows); ++x)
            for (std::int64_t y = 0; y < (by_columns ? rows : columns); ++y) {
                const std::int64_t i = by_columns ? y : x, j = by_columns ? x : y;
                values.push_back(m.load(transpose ? m.index(batch, j, i) : m.index(batch, i, j)));
            }
        return values;
    }
    void run() const {
        const std::int64_t k = transpose_a ? a.rows : a.columns;
        for (std::int64_t n = 0; n < d.batch; ++n) {
            const std::vector<double> x = operand(a, n, transpose_a, false),
                                      y = operand(b, n, transpose_b, true);
            for (std::int64_t j = 0; j < d.columns; ++j) {
                for (std::int64_t i = 0; i < d.rows; ++i) {
                    double sum = 0;
                    for (std::int64_t l = 0; l < k; ++l)
                        sum += x[std::size_t(i * k + l)] * y[std::size_t(j * k + l)];
                    if (d.type != CUDA_R_64F) sum = float(sum);  // the accumulator
                    sum *= alpha;
                    if (beta != 0) sum += beta * c.load(c.index(n, i, j));
                    d.store(d.index(n, i, j), finished(sum, i));
                }
                hooks->mark_written(d.data + std::size_t(d.index(n, 0, j)) * d.element_bytes(),
                                    std::size_t(d.rows) * d.element_bytes());
            }
        }
    }
};

bool takes(std::uint64_t epilogue) {
    switch (epilogue) {
        case CUBLASLT_EPILOGUE_DEFAULT:
            return true;
        case CUBLASLT_EPILOGUE_BIAS:
        case CUBLASLT_EPILOGUE_RELU:
        case CUBLASLT_EPILOGUE_RELU_BIAS:
        case CUBLASLT_EPILOGUE_GELU:
        case CUBLASLT_EPILOGUE_GELU_BIAS:
            return choice() != "plain";
        default:
            return false;
    }
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) void mezzo_stand_in_hooks(const StandInHooks* of) { hooks = of; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    static char context;
    *handle = reinterpret_cast<cublasLtHandle_t>(&context);
    return CUBLAS_STATUS_SUCCESS;
}
std::size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
const char* cublasLtGetStatusName(cublasStatus_t status) {
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS";
}
cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t op, std::size_t size, cublasComputeType_t,
                                               cudaDataType_t scale) {
    if (size < sizeof *op) return CUBLAS_STATUS_INVALID_VALUE;
    *op = {};
    op->data[0] = std::uint64_t(scale);
    attribute(op, CUBLASLT_MATMUL_DESC_EPILOGUE) = CUBLASLT_EPILOGUE_DEFAULT;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t number,
                                              const void* value, std::size_t size) {
    if (size > sizeof(std::uint64_t) || std::size_t(number) >= attribute_count)
        return CUBLAS_STATUS_INVALID_VALUE;
    attribute(op, number) = 0;
    std::memcpy(&attribute(op, number), value, size);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, std::size_t size,
                                                 cudaDataType type, std::uint64_t rows, std::uint64_t columns,
                                                 std::int64_t ld) {
    if (size < sizeof *layout) return CUBLAS_STATUS_INVALID_VALUE;
    *layout = {{std::uint64_t(type), rows, columns, std::uint64_t(ld), 1}};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t number, const void* value,
                                                std::size_t size) {
    const bool is_count = number == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
    if (!is_count && number != CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
        return CUBLAS_STATUS_INVALID_VALUE;
    std::uint64_t& word = layout->data[is_count ? 4 : 5];
    word = 0;
    std::memcpy(&word, value, size);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t, std::size_t) {
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t, const void*,
                                                    std::size_t) {
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t op,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
    *found = 0;
    if (choice() == "none" || !takes(attribute(op, CUBLASLT_MATMUL_DESC_EPILOGUE)))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (requested < 1) return CUBLAS_STATUS_INVALID_VALUE;
    results[0] = {};
    results[0].state = CUBLAS_STATUS_SUCCESS;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t op, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t*, void*,
                              std::size_t, cudaStream_t stream) {
    const bool wide = op->data[0] == CUDA_R_64F;
    const auto scalar = [&](const void* p) {
        return wide ? *static_cast<const double*>(p) : double(*static_cast<const float*>(p));
    };
    const auto transposed = [&](int number) { return attribute(op, number) == CUBLAS_OP_T; };
    const auto* const bias = reinterpret_cast<const void*>(attribute(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER));
    const Product product{{a, a_layout},
                          {b, b_layout},
                          {c, c_layout},
                          {d, d_layout},
                          transposed(CUBLASLT_MATMUL_DESC_TRANSA),
                          transposed(CUBLASLT_MATMUL_DESC_TRANSB),
                          scalar(alpha),
                          scalar(beta),
                          int(attribute(op, CUBLASLT_MATMUL_DESC_EPILOGUE)),
                          {bias, d_layout}};
    hooks->enqueue(stream, [product] { product.run(); });
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t*, cublasLtMatmulHeuristicResult_t* result) {
    *result = {};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t*,
                                                    cublasLtMatmulAlgoConfigAttributes_t, void* value,
                                                    std::size_t size, std::size_t* written) {
    std::memset(value, 0, size);
    if (written != nullptr) *written = size;
    return CUBLAS_STATUS_SUCCESS;
}
// There is one algorithm, without properties.
cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t*,
                                                    cublasLtMatmulAlgoConfigAttributes_t, const void*,
                                                    std::size_t) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulAlgoGetIds(cublasLtHandle_t, cublasComputeType_t, cudaDataType_t, cudaDataType_t,
                                        cudaDataType_t, cudaDataType_t, cudaDataType_t, int, int[],
                                        int* found) {
    *found = 0;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t, cublasComputeType_t, cudaDataType_t, cudaDataType_t,
                                      cudaDataType_t, cudaDataType_t, cudaDataType_t, int,
                                      cublasLtMatmulAlgo_t*) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t*,
                                                 cublasLtMatmulAlgoCapAttributes_t, void*, std::size_t,
                                                 std::size_t*) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

}  // extern "C"
