// Matrix products as data: what is to be computed, and by which algorithm of a GEMM library. Used by backends
// that have such a library, and by src/io, which writes it to files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/activation.h"
#include "mezzo/dtype.h"
#include "mezzo/matmul_precision.h"

namespace mezzo::gemm_plan {

// True for the dtypes whose codes a product reads: E4M3 and E5M2.
constexpr bool is_float8(Dtype dtype) { return dtype == float8_e4m3fn || dtype == float8_e5m2; }

// Epilogue: operation of the GEMM library on a product before it is stored. With aux it also stores the
// tensor that the activation's gradient reads: for gelu_tanh the pre-activation, for relu a mask. drelu and
// dgelu_tanh read that and multiply by the activation's gradient. With bgrad they also store the sums of D's
// rows, the gradient of a bias. bgrad_b stores the sums of op(B)'s columns over k, the gradient of a layer's
// bias, together with that of its weight.
enum class Epilogue : std::uint8_t {
    none,
    bias,
    relu,
    relu_bias,
    gelu_tanh,
    gelu_tanh_bias,
    gelu_tanh_aux,
    gelu_tanh_aux_bias,
    relu_aux,
    relu_aux_bias,
    drelu,
    drelu_bgrad,
    dgelu_tanh,
    dgelu_tanh_bgrad,
    bgrad_b
};
inline constexpr int epilogue_count = 15;
constexpr bool has_bias(Epilogue e) {
    return e == Epilogue::bias || e == Epilogue::relu_bias || e == Epilogue::gelu_tanh_bias ||
           e == Epilogue::gelu_tanh_aux_bias || e == Epilogue::relu_aux_bias;
}
constexpr bool has_bias_grad(Epilogue e) {
    return e == Epilogue::drelu_bgrad || e == Epilogue::dgelu_tanh_bgrad || e == Epilogue::bgrad_b;
}
constexpr bool writes_mask(Epilogue e) { return e == Epilogue::relu_aux || e == Epilogue::relu_aux_bias; }
constexpr bool reads_mask(Epilogue e) { return e == Epilogue::drelu || e == Epilogue::drelu_bgrad; }
constexpr bool has_mask(Epilogue e) { return writes_mask(e) || reads_mask(e); }
constexpr bool writes_before(Epilogue e) {
    return e == Epilogue::gelu_tanh_aux || e == Epilogue::gelu_tanh_aux_bias;
}
constexpr bool reads_before(Epilogue e) {
    return e == Epilogue::dgelu_tanh || e == Epilogue::dgelu_tanh_bgrad;
}
constexpr bool is_gradient(Epilogue e) { return reads_mask(e) || reads_before(e); }
constexpr bool has_aux(Epilogue e) { return has_mask(e) || writes_before(e) || reads_before(e); }
constexpr bool has_activation(Epilogue e) {
    return e != Epilogue::none && e != Epilogue::bias && e != Epilogue::bgrad_b && !is_gradient(e);
}

// D[m,n] = epilogue(alpha op(A)[m,k] op(B)[k,n] + beta D + bias[m]), column-major, for each of `batch`
// matrices that lie stride elements apart. aux: a mask of relu_mask_ld(m) bits per column, otherwise of D's
// type and layout. The struct has everything that the choice of an algorithm may depend on, so it is also the
// key of a plan.
struct Problem {
    std::int64_t m = 0, n = 0, k = 0;
    std::int64_t lda = 0, ldb = 0, ldd = 0;
    std::int64_t batch = 1, stride_a = 0, stride_b = 0, stride_d = 0;
    int device = 0;
    // Alignments in bytes, of the actual pointers.
    std::uint16_t align_a = 256, align_b = 256, align_d = 256, align_bias = 256, align_aux = 256;
    // A bias has D's type; its gradient has bias_grad_type().
    Dtype a_type = float32, b_type = float32, d_type = float32;
    bool trans_a = false, trans_b = false;
    Epilogue epilogue = Epilogue::none;
    bool tf32 = false;  // float32 operands may be rounded to TF32
    // Float8 operands have scales of the matrices, of rows of op(A) and columns of op(B), or of their blocks.
    Granularity scales = Granularity::tensor;
    bool beta_is_zero = true;

    friend bool operator==(const Problem&, const Problem&) = default;
};
// The dtype of a bias's gradient, which is never rounded to 16 bit.
constexpr Dtype bias_grad_type(Dtype d_type) { return d_type == float64 ? float64 : float32; }

struct Algo {
    std::uint64_t data[8] = {};
    std::size_t workspace = 0;  // bytes it needs

    friend bool operator==(const Algo&, const Algo&) = default;
};

// A product with its activation, as the backend requests it. The library may do all of it or only a part;
// `problem` has the epilogue that does the most.
struct Request {
    Problem problem;
    Activation activation = Activation::none;
    bool keeps_before = false;  // also store the tensor that the activation's gradient reads

    friend bool operator==(const Request&, const Request&) = default;
};

// The epilogue and the algorithm with which the library executes a request.
struct Choice {
    Epilogue epilogue = Epilogue::none;
    Algo algo;

    friend bool operator==(const Choice&, const Choice&) = default;
};

struct TunedGemm {
    Request request;
    Choice choice;

    friend bool operator==(const TunedGemm&, const TunedGemm&) = default;
};

// The device and the library version for which an algorithm was chosen. It is not valid for any other.
struct Library {
    std::string device;                  // the GPU's name
    std::uint64_t major = 0, minor = 0;  // its compute capability
    std::uint64_t version = 0;           // of the GEMM library

    friend bool operator==(const Library&, const Library&) = default;
};

}  // namespace mezzo::gemm_plan

namespace mezzo {

// Access to the choices that a backend has made, for src/io: Backend::gemm_plans.
struct GemmPlanStore {
    std::vector<gemm_plan::Library> (*libraries)();  // by device index; empty without a device
    std::vector<gemm_plan::TunedGemm> (*tuned)();    // of all devices
    void (*adopt)(const gemm_plan::TunedGemm& tuned);
};

}  // namespace mezzo
