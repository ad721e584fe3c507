// Checks that oneDNN is found at build time and at run time, with a matrix product of known
// numbers.

#include <gtest/gtest.h>

#include <array>
#include <oneapi/dnnl/dnnl.hpp>

namespace steep {
namespace {

TEST(OneDnn, MultipliesMatrices) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  constexpr auto f32 = dnnl::memory::data_type::f32;
  constexpr auto ab = dnnl::memory::format_tag::ab;

  std::array<float, 6> x = {1, 2, 3, 4, 5, 6};  // (2, 3)
  std::array<float, 6> w = {1, 0, 0, 1, 1, 1};  // (3, 2)
  std::array<float, 4> y = {};                  // (2, 2)
  const dnnl::memory::desc x_desc({2, 3}, f32, ab);
  const dnnl::memory::desc w_desc({3, 2}, f32, ab);
  const dnnl::memory::desc y_desc({2, 2}, f32, ab);
  const dnnl::matmul product(dnnl::matmul::primitive_desc(engine, x_desc, w_desc, y_desc));
  product.execute(stream, {{DNNL_ARG_SRC, dnnl::memory(x_desc, engine, x.data())},
                           {DNNL_ARG_WEIGHTS, dnnl::memory(w_desc, engine, w.data())},
                           {DNNL_ARG_DST, dnnl::memory(y_desc, engine, y.data())}});
  stream.wait();
  EXPECT_EQ(y, (std::array<float, 4>{4, 5, 10, 11}));
}

}  // namespace
}  // namespace steep
