#include "cuda/gemm/gemm.h"

#include <algorithm>

#include "cuda/gemm/fallbacks.h"
#include "cuda/gemm/plans.h"
#include "cuda/runtime/runtime.h"
#include "kernels/self_check.h"
#include "mezzo/cuda.h"
#include "mezzo/error.h"

namespace mezzo::cuda {
namespace {

bool is_float8_product(const Gemm& g) { return lt::is_float8(g.a_type) && lt::is_float8(g.b_type); }

void check_gemm(const Gemm& g) {
    check(g.m >= 0 && g.n >= 0 && g.k >= 0 && g.batch >= 0, ErrorKind::shape,
          "gemm: negative size, m = ", g.m, ", n = ", g.n, ", k = ", g.k, ", batch = ", g.batch);
    const bool codes = is_float8_product(g);
    for (Dtype t : {codes ? float32 : g.a_type, codes ? float32 : g.b_type, g.c_type, g.bias_type})
        check(is_floating(t), ErrorKind::dtype, "gemm: operands must be floating, one is ", t);
    check(codes == (g.a_scale != nullptr) && codes == (g.b_scale != nullptr), ErrorKind::value,
          "gemm: scales for ", g.a_type, " x ", g.b_type,
          "; float8 codes have them, and no other operands do");
    check(g.lda >= (g.trans_a ? g.m : g.k) && g.ldb >= (g.trans_b ? g.k : g.n) && g.ldc >= g.n,
          ErrorKind::shape, "gemm: a leading dimension is shorter than a row: lda = ", g.lda,
          ", ldb = ", g.ldb, ", ldc = ", g.ldc, " for m = ", g.m, ", n = ", g.n, ", k = ", g.k);
    check(g.batch < 2 || g.stride_c >= (g.m - 1) * g.ldc + g.n, ErrorKind::value,
          "gemm: stride_c = ", g.stride_c, " makes results of the batch overlap");
    check(g.beta == 0 || (g.activation == Activation::none && g.pre_activation == nullptr), ErrorKind::value,
          "gemm: beta = ", double(g.beta), " with an activation; add in a separate op");
    check((g.mask == nullptr && g.saved == nullptr) || (g.batch == 1 && g.ldc == g.n), ErrorKind::value,
          "gemm: a mask or an activation's gradient with batch = ", g.batch, ", ldc = ", g.ldc, ", n = ", g.n,
          "; it is for one matrix without gaps");
    check(g.a_sums == nullptr || (g.batch == 1 && g.trans_a && g.lda == g.m && g.bias == nullptr &&
                                  g.activation == Activation::none && g.saved == nullptr),
          ErrorKind::value, "gemm: sums of A's rows with batch = ", g.batch, ", lda = ", g.lda, ", m = ", g.m,
          "; they are for one product alone, of an A that is stored k x m without gaps");
}

// Whether the library may run the epilogue if nothing was timed or loaded: not with aux; no sums, which have
// been reported to be slow next to a product; and no GELU of float32 values, which are to have the same bits
// in inference and in training, which saves the GELU's argument.
bool is_usual(const Gemm& g, lt::Epilogue e) {
    const bool own_gelu = g.activation == Activation::gelu_tanh && !is_16bit(g.c_type);
    return !lt::has_aux(e) && !lt::has_bias_grad(e) && !(own_gelu && lt::has_activation(e));
}

// Epilogue that the library is to run: the choice of timing or of a file, otherwise the most complete usual
// one.
lt::Epilogue epilogue_for(GemmService& s, const Gemm& g, const std::vector<lt::Epilogue>& epilogues) {
    const lt::Epilogue usual =
        *std::find_if(epilogues.begin(), epilogues.end(), [&](lt::Epilogue e) { return is_usual(g, e); });
    const bool autotune = gemm_options().autotune;
    if (!autotune && s.settled.empty() && s.loaded.empty()) return usual;
    const lt::Request request = request_of(g, epilogues[0]);
    if (const auto settled = s.settled.find(request); settled != s.settled.end())
        return settled->second ? settled->second->epilogue : usual;
    if (stream_is_capturing()) return usual;  // timing and checking wait for the device
    std::optional<lt::Choice> choice;
    if (const auto file = s.loaded.find(request); file != s.loaded.end()) {
        const lt::Choice stored = file->second;
        if (take_over(s, g, epilogues, stored)) choice = stored;
        s.loaded.erase(request);
    }
    if (!choice && !autotune) return usual;
    if (!choice) choice = tune(s, g, epilogues);
    s.settled.insert_or_assign(request, choice);
    return choice ? choice->epilogue : usual;
}

void multiply_by_own_kernels(const Gemm& g) {
    Gemm product = g;
    if (g.saved != nullptr) product.activation = Activation::none;
    gemm_fallback(product);
    if (g.saved != nullptr)
        gemm_activation_grad(g);
    else if (g.mask != nullptr)
        gemm_mask(g);
    if (g.a_sums != nullptr) gemm_a_sums(g);
}

// Runs the product by the library. If that does not take it, returns the reason, otherwise "".
std::string refusal_of(const Gemm& g) {
    if (const char* reason = outside_library(g)) return reason;
    GemmService& s = gemm_service();
    const std::lock_guard lock(s.mutex);
    const std::vector<lt::Epilogue> epilogues = epilogues_of(g);
    const lt::Epilogue chosen = epilogue_for(s, g, epilogues);
    if (run_library(s, g, chosen)) return "";
    for (auto e = std::find(epilogues.begin(), epilogues.end(), chosen); ++e != epilogues.end();)
        if (is_usual(g, *e) && run_library(s, g, *e)) return "";
    const std::string refusal = lt::refusal(*plan_for(s, g, lt::Epilogue::none).plan);
    return refusal.empty() ? "no algorithm executes and sums correctly" : refusal;
}

// Runs the product without the library, for the given reason.
void without_library(const Gemm& g, const std::string& reason) {
    if (g.k > 0) count_fallback(g, reason);
    multiply_by_own_kernels(g);
}

}  // namespace

void gemm(const Gemm& g) {
    check_gemm(g);
    check(!is_float8_product(g), ErrorKind::dtype, "gemm: operands are float8 codes; try_gemm() takes them");
    if (g.m == 0 && g.bias_grad != nullptr)
        fill_zero(g.bias_grad, static_cast<std::size_t>(g.n) * size_of(lt::bias_grad_type(g.c_type)));
    if (g.n == 0 && g.m != 0 && g.a_sums != nullptr) gemm_a_sums(g);
    if (g.m == 0 || g.n == 0 || g.batch == 0) return;
    if (in_self_check()) return multiply_by_own_kernels(g);
    const std::string reason = refusal_of(g);
    if (!reason.empty()) without_library(g, reason);
}

bool try_gemm(const Gemm& g) {
    check_gemm(g);
    check(is_float8_product(g), ErrorKind::dtype, "try_gemm: operands are ", g.a_type, " and ", g.b_type,
          "; gemm() takes them");
    if (g.m == 0 || g.n == 0) return true;
    if (outside_library(g) != nullptr || in_self_check()) return false;
    const std::string reason = refusal_of(g);
    if (!reason.empty()) count_fallback(g, reason);
    return reason.empty();
}

}  // namespace mezzo::cuda
