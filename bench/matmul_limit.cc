// The matrix products of one training step as plain oneDNN calls: the time that no step which calls
// them can beat.
//
//   matmul_limit M,N,K,BATCH,COUNT …
//
// Operands are in the layouts that oneDNN asks for (format_tag::any), memory is warm. Speaks the
// protocol of bench/worker.py: one JSON line at the start, then `step N` answers with N times in
// seconds.

#include <chrono>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "dnnl.hpp"

namespace {

using dnnl::memory;

struct Product {
  dnnl::matmul primitive;
  memory a, b, y;
  int count;
};

Product make_product(const dnnl::engine& engine, const std::string& text) {
  int64_t m = 0, n = 0, k = 0, batch = 1;
  int count = 1;
  if (std::sscanf(text.c_str(), "%ld,%ld,%ld,%ld,%d", &m, &n, &k, &batch, &count) < 3) {
    std::fprintf(stderr, "matmul_limit: cannot read \"%s\"; expected M,N,K,BATCH,COUNT\n",
                 text.c_str());
    std::exit(2);
  }
  auto any = [](const memory::dims& dims) {
    return memory::desc(dims, memory::data_type::f32, memory::format_tag::any);
  };
  const bool batched = batch > 1;
  const dnnl::matmul::primitive_desc desc(
      engine, any(batched ? memory::dims{batch, m, k} : memory::dims{m, k}),
      any(batched ? memory::dims{batch, k, n} : memory::dims{k, n}),
      any(batched ? memory::dims{batch, m, n} : memory::dims{m, n}));
  auto warm = [&](const memory::desc& d) {
    memory mem(d, engine);
    auto* p = static_cast<float*>(mem.get_data_handle());
    for (size_t i = 0; i < d.get_size() / sizeof(float); ++i)
      p[i] = static_cast<float>(i % 17) * 0.01F;
    return mem;
  };
  return {dnnl::matmul(desc), warm(desc.src_desc()), warm(desc.weights_desc()),
          warm(desc.dst_desc()), count};
}

}  // namespace

int main(int argc, char** argv) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  std::vector<Product> products;
  for (int i = 1; i < argc; ++i) products.push_back(make_product(engine, argv[i]));
  auto step = [&] {
    const auto start = std::chrono::steady_clock::now();
    for (Product& p : products) {
      for (int i = 0; i < p.count; ++i) {
        p.primitive.execute(stream,
                            {{DNNL_ARG_SRC, p.a}, {DNNL_ARG_WEIGHTS, p.b}, {DNNL_ARG_DST, p.y}});
      }
    }
    stream.wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::cout << "{\"first_step_s\": " << step() << "}" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    int count = 0;
    words >> command >> count;
    if (command != "step") break;
    std::cout << "[";
    for (int i = 0; i < count; ++i) std::cout << (i == 0 ? "" : ", ") << step();
    std::cout << "]" << std::endl;
  }
}
