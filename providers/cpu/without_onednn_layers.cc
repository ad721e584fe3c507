// The library without oneDNN (STEEP_ONEDNN=OFF): Steep's own kernels compute layers, too.
#include <algorithm>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/conv.h"
#include "providers/cpu/parallel.h"
#include "providers/cpu/pool.h"
#include "providers/cpu/recurrent.h"

namespace steep::cpu {
namespace {

std::unique_ptr<Kernel> decline_all(std::string* why_not) {
  return decline(why_not, "this library is built without oneDNN");
}

}  // namespace

std::unique_ptr<Kernel> make_onednn_conv(const NodeSpec&, std::string* why_not) {
  return decline_all(why_not);
}

std::unique_ptr<Kernel> make_onednn_pool(const NodeSpec&, std::string* why_not) {
  return decline_all(why_not);
}

std::unique_ptr<Kernel> make_onednn_recurrent(const NodeSpec&, std::string* why_not) {
  return decline_all(why_not);
}

void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
          const float* b, int64_t ldb, bool add, float* c, int64_t ldc) {
  const int64_t a_row = ta ? 1 : lda, a_term = ta ? lda : 1;
  const int64_t b_term = tb ? 1 : ldb, b_column = tb ? ldb : 1;
  parallel_for(m, grain_of(32768, n * k), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* y = c + i * ldc;
      if (!add) std::fill_n(y, n, 0.0F);
      for (int64_t l = 0; l < k; ++l) {
        const float x = a[i * a_row + l * a_term];
        const float* row = b + l * b_term;
        for (int64_t j = 0; j < n; ++j) y[j] += x * row[j * b_column];
      }
    }
  });
}

}  // namespace steep::cpu
