// The matrix products of one training step as plain oneDNN calls: the time that no step which calls
// them can beat.
//
//   matmul_limit fp32|bf16 M,N,K,BATCH,COUNT …
//
// Operands and results are of that type, in the layouts that oneDNN asks for (format_tag::any);
// memory is warm. Speaks the protocol of bench/worker.py: one JSON line at the start, then `step N`
// answers with N times in seconds. `products` answers with the seconds of each product, count
// included.

#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "dnnl.hpp"

namespace {

using dnnl::memory;

struct Product {
  dnnl::matmul primitive;
  memory a, b, y;
  int count;
};

Product make_product(const dnnl::engine& engine, memory::data_type type, const std::string& text) {
  int64_t m = 0, n = 0, k = 0, batch = 1;
  int count = 1;
  if (std::sscanf(text.c_str(), "%ld,%ld,%ld,%ld,%d", &m, &n, &k, &batch, &count) < 3) {
    std::fprintf(stderr, "matmul_limit: cannot read \"%s\"; expected M,N,K,BATCH,COUNT\n",
                 text.c_str());
    std::exit(2);
  }
  auto any = [type](const memory::dims& dims) {
    return memory::desc(dims, type, memory::format_tag::any);
  };
  const bool batched = batch > 1;
  const dnnl::matmul::primitive_desc desc(
      engine, any(batched ? memory::dims{batch, m, k} : memory::dims{m, k}),
      any(batched ? memory::dims{batch, k, n} : memory::dims{k, n}),
      any(batched ? memory::dims{batch, m, n} : memory::dims{m, n}));
  auto warm = [&](const memory::desc& d) {
    memory mem(d, engine);
    auto* p = static_cast<unsigned char*>(mem.get_data_handle());
    // 0x3C3C…: about 0.011 in either type. Zeros or subnormals would be another measurement.
    std::memset(p, 0x3C, d.get_size());
    return mem;
  };
  return {dnnl::matmul(desc), warm(desc.src_desc()), warm(desc.weights_desc()),
          warm(desc.dst_desc()), count};
}

}  // namespace

int main(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  const std::string_view precision = argc > 1 ? argv[1] : "";
  if (precision != "fp32" && precision != "bf16") {
    std::fprintf(stderr, "matmul_limit: the first argument is fp32 or bf16\n");
    return 2;
  }
  const auto type = precision == "fp32" ? memory::data_type::f32 : memory::data_type::bf16;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  std::vector<Product> products;
  for (int i = 2; i < argc; ++i) products.push_back(make_product(engine, type, argv[i]));
  auto run = [&](Product& p) {
    const auto start = Clock::now();
    for (int i = 0; i < p.count; ++i) {
      p.primitive.execute(stream,
                          {{DNNL_ARG_SRC, p.a}, {DNNL_ARG_WEIGHTS, p.b}, {DNNL_ARG_DST, p.y}});
    }
    stream.wait();
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  auto step = [&] {
    double seconds = 0;
    for (Product& p : products) seconds += run(p);
    return seconds;
  };
  std::cout << "{\"first_step_s\": " << step() << "}" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    int count = 0;
    words >> command >> count;
    if (command != "step" && command != "products") break;
    std::cout << "[";
    if (command == "step") {
      for (int i = 0; i < count; ++i) std::cout << (i == 0 ? "" : ", ") << step();
    } else {
      for (Product& p : products) std::cout << (&p == products.data() ? "" : ", ") << run(p);
    }
    std::cout << "]" << std::endl;
  }
}
