// Transfers between devices: synchronisation, and the memory that is used. The devices are
// Mirror's, with their functions wrapped to record calls.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "device/boundary.h"
#include "kernels/run_kernel.h"
#include "ops/build.h"
#include "program/program.h"
#include "providers/mirror.h"

namespace steep {
namespace {

const SteepProvider& mirror() {
  testing::on_mirror();  // stays loaded
  void* library = dlopen(STEEP_MIRROR, RTLD_NOW | RTLD_NOLOAD);
  static const SteepProvider& table =
      *reinterpret_cast<SteepProviderEntry>(dlsym(library, STEEP_PROVIDER_SYMBOL))(&host_table());
  return table;
}

struct Watched {
  int syncs = 0, waits = 0, pageable = 0;
  std::map<void*, size_t> pinned{};
};
Watched seen;
std::map<void*, std::string> op_of_device;  // the one op that the device computes

bool is_pinned(const void* p) {
  for (const auto& [begin, bytes] : seen.pinned) {
    const auto* first = static_cast<const std::byte*>(begin);
    if (p >= first && p < first + bytes) return true;
  }
  return false;
}

/// The Mirror provider with recorded calls.
Provider watched() {
  Provider p{.table = mirror(), .name = "watched"};
  p.table.candidates = [](void* device, const char* op, size_t* count) {
    *count = 0;
    return op_of_device[device] == op ? mirror().candidates(device, op, count) : nullptr;
  };
  p.table.sync = [](void* device, SteepStream stream) {
    ++seen.syncs;
    return mirror().sync(device, stream);
  };
  p.table.wait = [](void* device, SteepStream stream, SteepStream other) {
    ++seen.waits;
    return mirror().wait(device, stream, other);
  };
  p.table.allocate = [](void* device, SteepMemory kind, size_t bytes, void** data) {
    SteepError* error = mirror().allocate(device, kind, bytes, data);
    if (error == nullptr && kind == STEEP_PINNED_MEMORY) seen.pinned[*data] = bytes;
    return error;
  };
  p.table.copy = [](void* device, void* to, const void* from, size_t bytes,
                    SteepDirection direction, SteepStream stream) {
    seen.pageable += is_pinned(direction == STEEP_TO_HOST ? to : from) ? 0 : 1;
    return mirror().copy(device, to, from, bytes, direction, stream);
  };
  return p;
}

/// exp(tanh(x)) with each node on its own device.
Graph apart() {
  Graph g;
  const Value x = g.add_input("x", {DType::f32, Shape{40, 30}});
  g.add_output("y", exp(tanh(x)));
  return g;
}

Program on_two(const Provider& provider) {
  const std::vector<std::string> options{"memory_mb", "64"};
  auto first = Device::open(provider, 0, options), second = Device::open(provider, 1, options);
  op_of_device = {{first->handle(), "Tanh"}, {second->handle(), "Exp"}};
  seen = {};
  return Program(
      apart(),
      {.disabled_passes = {"fuse_elementwise"},
       .devices = Devices(std::vector{std::move(first), std::move(second), host_device()})});
}

void expect_results(Program& program) {
  Program here(apart(), {.devices = Devices::host_alone()});
  for (uint32_t seed : {1, 2, 3}) {
    const Tensor x = test::random_tensor(DType::f32, {40, 30}, seed);
    const Tensor got = program.forward({&x, 1}).outputs[0];
    test::expect_close(got, test::values(here.forward({&x, 1}).outputs[0]), 1e-5, 1e-5);
  }
}

TEST(Crossing, ADeviceWaitsForAnotherWithoutTheHost) {
  static const Provider provider = watched();
  Program program = on_two(provider);
  const Tensor x = test::random_tensor(DType::f32, {40, 30});
  program.forward({&x, 1});  // plans, and allocates
  seen.syncs = seen.waits = 0;
  program.forward({&x, 1});
  EXPECT_EQ(seen.syncs, 2) << "at the end of the run, each device";
  EXPECT_GE(seen.waits, 1);
  expect_results(program);
}

TEST(Crossing, TheHostWaitsWhereDevicesCannot) {
  static const Provider provider = [] {
    Provider p = watched();
    p.table.wait = nullptr;
    return p;
  }();
  Program program = on_two(provider);
  const Tensor x = test::random_tensor(DType::f32, {40, 30});
  program.forward({&x, 1});
  EXPECT_GT(seen.syncs, 2);
  expect_results(program);
}

TEST(Crossing, WhatCrossesLiesInPinnedMemoryWhereADeviceAsksForIt) {
  static const Provider asks = watched(), does_not = [] {
    Provider p = watched();
    p.table.flags &= ~static_cast<uint32_t>(STEEP_COPIES_PINNED);
    return p;
  }();
  Program pinned = on_two(asks);
  expect_results(pinned);
  // Three runs: the input comes from the caller's memory, and the result goes to the caller's
  // memory.
  EXPECT_EQ(seen.pageable, 3 * 2);
  EXPECT_EQ(seen.pinned.size(), 1U) << "kept from run to run";
  Program pageable = on_two(does_not);
  expect_results(pageable);
  EXPECT_EQ(seen.pageable, 3 * 4);
  EXPECT_TRUE(seen.pinned.empty());
}

}  // namespace
}  // namespace steep
