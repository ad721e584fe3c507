#include <fmt/format.h>
#include <omp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <mutex>
#include <optional>
#include <sstream>

#include "providers/cpu/choice.h"
#include "providers/cpu/conv.h"
#include "providers/cpu/convert.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/onednn.h"
#include "runtime/crc32c.h"
#include "runtime/disk.h"

namespace steep::cpu {
namespace {

/// The ways to compute a product. The first two read bfloat16 operands; a product takes one of
/// these. The others show what float32 costs.
enum Way : uint8_t { kNative, kWidened, kFloat, kOwnFloat, kWays };
constexpr const char* kWayNames[kWays] = {"bfloat16", "widened", "float32", "own float32"};

struct Measured {
  const char* name;
  int64_t m, n, k;
  bool turn_a, turn_b;
};
/// In the order of ProductKind, as far as they are products of matrices. A layer of 512 columns,
/// its gradients, and a product along a vocabulary.
constexpr Measured kProducts[] = {{"a b", 1024, 512, 512, false, false},
                                  {"a bT", 1024, 512, 512, false, true},
                                  {"aT b", 512, 512, 1024, true, false},
                                  {"vocabulary", 256, 16384, 256, false, false}};
constexpr size_t kKinds = 5;
constexpr const char* kConvolution = "convolution";

/// GFLOP/s by kind and way; 0 where there is no kernel, or its results are wrong.
using Table = std::array<std::array<double, kWays>, kKinds>;

/// The processor's instructions are the rule: widening has to win by this factor, so that noise
/// does not decide.
constexpr double kMargin = 1.1;

bool widened_wins(const std::array<double, kWays>& speed) {
  return speed[kWidened] > kMargin * speed[kNative];
}

// --- Measuring.

/// One thread while it lives: the choice must not depend on the number of threads, since results
/// would then depend on it. And the time of one thread is known even if other processes run.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Numbers of a few digits, so that they are the same in bfloat16.
Tensor operand_of(const Dims& dims, uint32_t salt, DType dtype) {
  Tensor wide = Tensor::empty(DType::f32, dims);
  for (int64_t i = 0; i < wide.size(); ++i) {
    const uint32_t hash = (static_cast<uint32_t>(i) + salt) * 2654435761U;
    wide.data<float>()[i] = static_cast<float>(hash >> 24) / 128.0F - 1.0F;
  }
  if (dtype == DType::f32) return wide;
  Tensor narrow = Tensor::empty(dtype, dims);
  find_convert(DType::f32, dtype)(wide.data(), narrow.data(), wide.size());
  return narrow;
}

/// A kernel of one way with its operands.
struct Contestant {
  std::unique_ptr<Kernel> kernel;
  Tensor a, b, y, scratch;
  double best = std::numeric_limits<double>::infinity();

  void prepare(std::unique_ptr<Kernel> made, const Dims& a_dims, const Dims& b_dims,
               const Dims& y_dims, DType dtype) {
    kernel = std::move(made);
    if (!kernel) return;
    a = operand_of(a_dims, 1, dtype);
    b = operand_of(b_dims, 2, dtype);
    y = Tensor::empty(DType::f32, y_dims);
    scratch = Tensor::empty(DType::u8, {static_cast<int64_t>(kernel->scratch_bytes)});
  }

  void run() {
    const void* const in[] = {a.data(), b.data(), nullptr, nullptr};
    void* const out[] = {y.data()};
    const double start = thread_seconds();
    kernel->execute({in, out, scratch.data()});
    best = std::min(best, thread_seconds() - start);
  }
};

/// Whether two results are those of the same product. Their sums of a few hundred numbers below 1
/// are rounded in another order.
bool agree(const Tensor& x, const Tensor& y) {
  constexpr float kTolerance = 1e-2F;
  for (int64_t i = 0; i < x.size(); ++i) {
    if (!(std::abs(x.data<float>()[i] - y.data<float>()[i]) <= kTolerance)) return false;
  }
  return true;
}

/// Runs the contestants by turns, so that a drift of the machine hits all alike. The speeds are
/// those of each one's fastest run. Steep's own float32 kernel says what is right.
std::array<double, kWays> race(std::array<Contestant, kWays>& all, double flops) {
  constexpr int kTurns = 6;
  for (int turn = 0; turn < kTurns; ++turn) {
    for (Contestant& c : all) {
      if (c.kernel) c.run();
    }
  }
  const Contestant& judge = all[all[kOwnFloat].kernel ? kOwnFloat : kFloat];
  std::array<double, kWays> speeds{};
  for (size_t w = 0; w < kWays; ++w) {
    const Contestant& c = all[w];
    const bool right = c.kernel && (!judge.kernel || agree(c.y, judge.y));
    if (right && c.best > 0) speeds[w] = std::round(flops / c.best * 1e-9);
  }
  return speeds;
}

std::array<double, kWays> race_products(const Measured& p) {
  const Dims a = p.turn_a ? Dims{p.k, p.m} : Dims{p.m, p.k};
  const Dims b = p.turn_b ? Dims{p.n, p.k} : Dims{p.k, p.n};
  Attrs attrs;
  if (p.turn_a) attrs.set("perm_a", Ints{1, 0});
  if (p.turn_b) attrs.set("perm_b", Ints{1, 0});
  constexpr std::unique_ptr<Kernel> (*kMake[kWays])(const NodeSpec&, std::string*) = {
      make_onednn_matmul, make_widened_matmul, make_onednn_matmul, make_blocked_matmul};
  std::array<Contestant, kWays> all;
  for (size_t w = 0; w < kWays; ++w) {
    const DType dtype = w == kNative || w == kWidened ? DType::bf16 : DType::f32;
    const NodeSpec node{.name = "",
                        .op = "MatMul",
                        .attrs = attrs,
                        .inputs = {{dtype, a}, {dtype, b}},
                        .outputs = {{DType::f32, {p.m, p.n}}}};
    std::string why_not;
    all[w].prepare(kMake[w](node, &why_not), a, b, {p.m, p.n}, dtype);
  }
  return race(all, 2.0 * static_cast<double>(p.m * p.n * p.k));
}

/// A convolution has float32 operands, which its kernel may round to bfloat16: widening is to leave
/// them as they are.
std::array<double, kWays> race_convolutions() {
  const Dims x = {4, 64, 28, 28}, w = {128, 64, 3, 3}, y = {4, 128, 28, 28};
  const WindowAxis axis{.in = 28, .out = 28, .kernel = 3, .pad_begin = 1};
  const ConvProblem problem{.part = ConvPart::forward,
                            .dtype = DType::f32,
                            .bias = false,
                            .x = x,
                            .w = w,
                            .y = y,
                            .groups = 1,
                            .axes = {axis, axis}};
  std::array<Contestant, kWays> all;
  for (size_t way : {size_t{kNative}, size_t{kFloat}}) {
    ConvProblem p = problem;
    p.bf16 = way == kNative;
    std::string why_not;
    all[way].prepare(make_onednn_conv(p, &why_not), x, w, y, DType::f32);
  }
  auto speeds = race(all, 2.0 * static_cast<double>(problem.multiplications()));
  speeds[kWidened] = speeds[kFloat];
  return speeds;
}

Table measure() {
  const OneThread one;
  Table table{};
  for (size_t i = 0; i < std::size(kProducts); ++i) table[i] = race_products(kProducts[i]);
  table[static_cast<size_t>(ProductKind::convolution)] = race_convolutions();
  return table;
}

// --- Keeping.

/// What a measurement depends on, in one line.
std::string machine() {
  std::string text =
      fmt::format("oneDNN {}.{}.{} isa {}", dnnl_version()->major, dnnl_version()->minor,
                  dnnl_version()->patch, static_cast<int>(dnnl::get_effective_cpu_isa()));
  if (const char* most = std::getenv("STEEP_MAX_ISA")) text += fmt::format(" most {}", most);
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line) && !line.empty();) {  // the first processor
    for (const std::string_view key : {"model", "cpu family", "stepping", "CPU implementer",
                                       "CPU part", "CPU variant", "CPU revision"}) {
      if (line.starts_with(key)) text += " | " + line;
    }
  }
  std::ranges::replace(text, '\t', ' ');
  return text;
}

/// The file of this machine's measurement; nothing if there is no cache.
std::optional<std::filesystem::path> file_of(const std::string& machine) {
  const auto is_off = [](std::string_view s) { return s.empty() || s == "0" || s == "off"; };
  const char* const folder = std::getenv("STEEP_CACHE");
  const char* const base = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  std::filesystem::path path;
  if (folder != nullptr) {
    // "~user" is not looked up here: without the measurement's file nothing is lost.
    if (is_off(folder) || *folder == '~') return {};
    path = folder;
  } else if (base != nullptr && *base == '/') {
    path = std::filesystem::path(base) / "steep";
  } else if (home != nullptr && *home == '/') {
    path = std::filesystem::path(home) / ".cache" / "steep";
  } else {
    return {};
  }
  const uint32_t checksum = crc32c(0, machine.data(), machine.size());
  return std::filesystem::absolute(path) / fmt::format("products-{:08x}.txt", checksum);
}

constexpr std::string_view kMagic = "steep products 1";

std::string contents(const std::string& machine, const Table& table) {
  std::string text = fmt::format("{}\n{}\n", kMagic, machine);
  for (const auto& speeds : table) text += fmt::format("{:.0f}\n", fmt::join(speeds, " "));
  return text;
}

/// The stored measurement; nothing if it is missing, damaged, or if other users may write it.
std::optional<Table> load(const std::filesystem::path& path, const std::string& machine) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != geteuid() ||
      (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return {};
  }
  std::ifstream file(path);
  std::string magic, of;
  std::getline(file, magic);
  std::getline(file, of);
  if (magic != kMagic || of != machine) return {};
  Table table{};
  for (auto& speeds : table) {
    for (double& speed : speeds) {
      if (!(file >> speed) || !(speed >= 0)) return {};
    }
  }
  return table;
}

/// Without a cache, or where it cannot be written, the measurement is this process's own.
void store(const std::filesystem::path& path, const std::string& text) {
  try {
    std::filesystem::create_directories(path.parent_path());
    write_file(path, [&](FileWriter& file) { file.write(text); });
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): a cache never ends a run
  }
}

/// The measurement of this process, made once. With `again`, a new one is stored, and processes
/// that start later use it.
const Table& measurement() {
  static const Table table = [] {
    const std::string key = machine();
    const auto path = file_of(key);
    if (path) {
      if (const auto stored = load(*path, key)) return *stored;
    }
    const Table fresh = measure();
    if (path) store(*path, contents(key, fresh));
    return fresh;
  }();
  return table;
}

enum class Wish : uint8_t { measured, native, widened };

Wish wish() {
  static const Wish wish = [] {
    const char* text = std::getenv("STEEP_PRODUCTS");
    const std::string_view name = text == nullptr ? "" : text;
    if (name.empty() || name == "measured") return Wish::measured;
    if (name == "native") return Wish::native;
    if (name == "widened") return Wish::widened;
    throw ProviderError({.what = "The environment variable STEEP_PRODUCTS has an unknown value.",
                         .node = "STEEP_PRODUCTS",
                         .expected = "measured, native or widened",
                         .received = std::string(name),
                         .remedy = "Correct the variable, or unset it (docs/precision.md)."});
  }();
  return wish;
}

}  // namespace

bool widens_bf16(ProductKind kind) {
  if (wish() != Wish::measured) return wish() == Wish::widened;
  return widened_wins(measurement()[static_cast<size_t>(kind)]);
}

std::string product_table(bool again) {
  const std::string key = machine();
  Table table;
  if (again) {
    table = measure();
    if (const auto path = file_of(key)) store(*path, contents(key, table));
  } else {
    table = measurement();
  }
  std::string text = fmt::format("{}\nGFLOP/s of one thread\n{:12}", key, "");
  for (const char* way : kWayNames) text += fmt::format("{:>13}", way);
  text += "  bfloat16 operands are\n";
  for (size_t i = 0; i < kKinds; ++i) {
    text += fmt::format("{:12}", i < std::size(kProducts) ? kProducts[i].name : kConvolution);
    for (const double speed : table[i]) {
      text += speed > 0 ? fmt::format("{:13.0f}", speed) : fmt::format("{:>13}", "-");
    }
    text += widened_wins(table[i]) ? "  widened\n" : "  multiplied as they are\n";
  }
  if (wish() != Wish::measured) {
    text += fmt::format("STEEP_PRODUCTS={} decides instead\n", std::getenv("STEEP_PRODUCTS"));
  }
  return text;
}

}  // namespace steep::cpu
