// Training in several processes: Peers, which a class in Python may be, and DataParallel.
#include "steep/parallel.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"

namespace steep::python {
namespace {

/// An exception of Python on its way through the engine. Destroyed with the GIL.
class Raised : public std::exception {
 public:
  explicit Raised(nb::python_error error)
      : error_(std::move(error)) {  // NOLINT(bugprone-throw-keyword-missing): a member
    text_ = nb::cast<std::string>(error_.type().attr("__name__")) + ": " +
            nb::cast<std::string>(nb::str(error_.value()));
  }
  const char* what() const noexcept override { return text_.c_str(); }
  nb::python_error& error() { return error_; }

 private:
  nb::python_error error_;
  std::string text_;
};

/// The same for KeyboardInterrupt and its like: nobody takes it for a failure of a process.
struct Interruption {
  nb::python_error error;
};

/// Runs a call of the engine without the GIL, and raises what Python raised within it.
template <typename F>
auto call_engine(F&& call) {
  try {
    const nb::gil_scoped_release release;
    return call();
  } catch (Raised& raised) {
    throw std::move(raised.error());
  } catch (Interruption& interruption) {
    throw std::move(interruption.error);
  }
}

/// Runs code of Python that exchanges something itself, which fails with std::exception.
template <typename F>
void exchange_in_python(F&& run) {
  const nb::gil_scoped_acquire locked;
  try {
    run();
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw Interruption{std::move(error)};
    throw std::runtime_error(nb::cast<std::string>(nb::str(error.value())));
  }
}

/// Peers whose operations are methods of a class in Python, with memory to read and to write.
class PythonPeers : public Peers {
 public:
  PythonPeers(int rank, int size) : rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool exchanges() const override {
    const nb::gil_scoped_acquire locked;
    return nb::hasattr(in_python(), "exchange");
  }
  bool any_thread() const override {
    const nb::gil_scoped_acquire locked;
    return nb::cast<bool>(nb::getattr(in_python(), "any_thread", nb::bool_(false)));
  }

 protected:
  void gather_bytes(const void* own, void* every, size_t bytes) override {
    call("gather_bytes", memory(own, bytes), memory(every, bytes * static_cast<size_t>(size_)));
  }
  void sum(float* values, size_t count) override {
    call("sum", memory(values, count * sizeof(float)), "float32");
  }
  void sum(double* values, size_t count) override {
    call("sum", memory(values, count * sizeof(double)), "float64");
  }
  void broadcast(void* bytes, size_t count, int from) override {
    call("broadcast", memory(bytes, count), from);
  }
  void exchange(const void* out, size_t out_bytes, int to, void* in, size_t in_bytes,
                int from) override {
    call("exchange", memory(out, out_bytes), to, memory(in, in_bytes), from);
  }

 private:
  nb::object in_python() const { return nb::find(static_cast<const Peers*>(this)); }

  struct Memory {
    char* bytes;
    Py_ssize_t count;
    int flags;
  };
  static Memory memory(void* bytes, size_t count) {
    return {static_cast<char*>(bytes), static_cast<Py_ssize_t>(count), PyBUF_WRITE};
  }
  static Memory memory(const void* bytes, size_t count) {  // CPython's function takes no const
    return {static_cast<char*>(const_cast<void*>(bytes)), static_cast<Py_ssize_t>(count),
            PyBUF_READ};
  }
  static nb::object argument(const Memory& m) {
    return nb::steal(PyMemoryView_FromMemory(m.bytes, m.count, m.flags));
  }
  template <typename T>
  static nb::object argument(const T& value) {
    return nb::cast(value);
  }

  template <typename... Args>
  void call(const char* method, const Args&... args) {
    exchange_in_python([&] { in_python().attr(method)(argument(args)...); });
  }

  int rank_, size_;
};

std::vector<Tensor> in_order(const TrainingSession& session, const nb::kwargs& named_arrays) {
  const std::map<std::string, Tensor> tensors = named(named_arrays);
  std::vector<std::string> names;
  std::vector<Tensor> inputs;
  for (const TensorInfo& info : session.input_info()) {
    names.push_back(info.name);
    if (const auto found = tensors.find(info.name); found != tensors.end()) {
      inputs.push_back(found->second);
    }
  }
  if (inputs.size() == names.size() && tensors.size() == names.size()) return inputs;
  throw DataError({.what = "The inputs given by name are not those of the model.",
                   .expected = nb::cast<std::string>(nb::str(nb::cast(names))),
                   .received = nb::cast<std::string>(nb::str(nb::list(named_arrays.keys())))});
}

/// What reads the arguments of a step as the inputs of a session.
DataParallel::Read reader(const TrainingSession& session, const nb::args& arrays,
                          const nb::kwargs& named_arrays) {
  return [&] {
    const nb::gil_scoped_acquire locked;
    try {
      if (!arrays.empty() && !named_arrays.empty()) {
        throw DataError({.what = "Inputs are given in order or by name, not both.",
                         .expected = "arrays alone, or names alone",
                         .received = nb::cast<std::string>(nb::str(named_arrays.keys()))});
      }
      std::vector<Tensor> inputs;
      for (nb::handle array : arrays) inputs.push_back(to_tensor(array));
      return named_arrays.empty() ? inputs : in_order(session, named_arrays);
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_Exception)) throw Interruption{std::move(error)};
      throw Raised(std::move(error));
    }
  };
}

/// The class of an exception and its parts, which are all text if it is not Steep's.
std::pair<std::string, ErrorParts> described(nb::handle error) {
  const auto part = [&](const char* name) {
    const nb::object text = nb::getattr(error, name, nb::none());
    return nb::isinstance<nb::str>(text) ? nb::cast<std::string>(text) : std::string();
  };
  ErrorParts parts{.what = part("what"),
                   .op = part("op"),
                   .expected = part("expected"),
                   .received = part("received"),
                   .remedy = part("remedy")};
  if (parts.what.empty()) parts.what = nb::cast<std::string>(nb::str(error));
  return {nb::cast<std::string>(error.type().attr("__name__")), std::move(parts)};
}

/// DataParallel, with the session whose inputs it reads.
class Ranks {
 public:
  Ranks(TrainingSession& session, std::shared_ptr<Peers> peers,
        std::map<std::string, std::string> facts, int zero, const std::string& wire_precision)
      : session_(&session),
        parallel_(session, std::move(peers), std::move(facts), zero, wire_precision) {}

  StepResult step(const nb::args& arrays, const nb::kwargs& named_arrays) {
    const DataParallel::Read read = reader(*session_, arrays, named_arrays);
    return call_engine([&] { return parallel_.step_reading(read); });
  }
  StepResult accumulate(int64_t rows, const nb::args& arrays, const nb::kwargs& named_arrays) {
    const DataParallel::Read read = reader(*session_, arrays, named_arrays);
    return call_engine([&] { return parallel_.accumulate_reading(read, rows); });
  }
  StepResult apply_gradients() {
    return call_engine([&] { return parallel_.apply_gradients(); });
  }
  void drop_gradients() {
    call_engine([&] { parallel_.drop_gradients(); });
  }
  void refresh() { parallel_.refresh(); }
  void loaded() {
    call_engine([&] { parallel_.loaded(); });
  }
  void divide(int zero) {
    call_engine([&] { parallel_.divide(zero); });
  }
  void set_loaded(std::string text) { parallel_.set_loaded(std::move(text)); }
  nb::dict optimizer_state() {
    const auto states = call_engine([&] { return parallel_.optimizer_state(); });
    nb::dict result;
    for (const auto& [name, tensor] : states) result[name.c_str()] = tensor;
    return result;
  }
  void save_checkpoint(const std::filesystem::path& path, const std::string& user, bool full) {
    call_engine([&] { parallel_.save_checkpoint(path, user, full); });
  }
  std::string warning() const { return parallel_.warning(); }
  void move_to(TrainingSession& session, std::map<std::string, std::string> facts,
               nb::callable copy) {
    parallel_.move_to(session, std::move(facts), [this] { exchange_in_python([&] { copy_(); }); });
    session_ = &session;
    // Destroyed with this object, which Python does with the GIL.
    copy_ = std::move(copy);
  }
  void count(double elements, std::string form) { parallel_.count(elements, std::move(form)); }
  void set_settings(std::string text) { parallel_.set_settings(std::move(text)); }
  bool opened() const { return parallel_.opened(); }
  int64_t accumulated() const { return parallel_.accumulated(); }
  void fail(nb::handle error) {
    const auto said = described(error);
    call_engine([&] { parallel_.fail(said.first, said.second); });
  }

 private:
  TrainingSession* session_;
  nb::object copy_;
  DataParallel parallel_;
};

}  // namespace

void init_parallel(nb::module_& m) {
  nb::class_<Peers, PythonPeers>(
      m, "Peers",
      "The processes of a training. A class in Python has gather_bytes(own, every), sum(values, "
      "dtype), broadcast(bytes, rank) and, for states that are divided, exchange(out, to, into, "
      "from): see include/steep/parallel.h. All but ranks and `dtype` is memory, to read or to "
      "write. `any_thread = True`: another thread may call them, one at a time.")
      .def(nb::init<int, int>(), nb::arg("rank"), nb::arg("size"))
      .def_prop_ro("rank", &Peers::rank, "Of this process, from 0.")
      .def_prop_ro("size", &Peers::size, "Number of processes.")
      .def_prop_ro("agreements", &Peers::agreements, "Calls in which processes agreed so far.")
      .def_prop_ro("failed_together", &Peers::failed_together,
                   "Has the last agreement ended with an error on all processes?")
      .def(
          "agree",
          [](Peers& peers, const std::string& call, const std::vector<double>& numbers) {
            return call_engine([&] { return peers.agree(call, numbers); });
          },
          nb::arg("call"), nb::arg("numbers"),
          "Returns the numbers (12 at most) of every process, by rank. If a process is at another "
          "call, all raise ProviderError.")
      .def(
          "tell",
          [](Peers& peers, nb::handle error) {
            const auto said = described(error);
            call_engine([&] { peers.tell(said.first, said.second); });
          },
          nb::arg("error"), nb::sig("def tell(self, error: Exception) -> None"),
          "Tells the others of an error of this process.");
  m.def("connect", &connect, nb::arg("way"), nb::call_guard<nb::gil_scoped_release>(),
        "Connects to the processes that a launcher has started: by \"gloo\" or \"mpi\". Raises "
        "ProviderError.");
  nb::class_<Ranks>(m, "DataParallel",
                    "This process's part of a training in which each process has a session of its "
                    "own, which outlives this. See include/steep/parallel.h.")
      .def(
          "__init__",
          [](Ranks* self, TrainingSession& session, std::shared_ptr<Peers> peers,
             std::map<std::string, std::string> facts, int zero,
             const std::string& wire_precision) {
            call_engine([&] {
              new (self) Ranks(session, std::move(peers), std::move(facts), zero, wire_precision);
            });
          },
          nb::arg("session"), nb::arg("peers"), nb::arg("facts"), nb::arg("zero") = 0,
          nb::arg("wire_precision") = "float32")
      .def("step", &Ranks::step,
           nb::sig("def step(self, *arrays: object, **named: object) -> StepResult"))
      .def("accumulate", &Ranks::accumulate, nb::arg("rows"), nb::arg("arrays"), nb::arg("named"),
           nb::sig("def accumulate(self, rows: int, /, *arrays: object, **named: object) -> "
                   "StepResult"),
           "rows: of all ranks in this part, or 0; see include/steep/parallel.h.")
      .def("apply_gradients", &Ranks::apply_gradients)
      .def("drop_gradients", &Ranks::drop_gradients)
      .def("refresh", &Ranks::refresh, "The session's state has changed other than by steps.")
      .def("loaded", &Ranks::loaded, "The session has loaded a checkpoint, on all ranks.")
      .def("save_checkpoint", &Ranks::save_checkpoint, nb::arg("path"), nb::arg("user") = "{}",
           nb::arg("full") = false,
           "Rank 0 writes it or, with states that are divided, all do, unless `full`; all ranks "
           "call this.")
      .def(
          "move_to", &Ranks::move_to, nb::arg("session"), nb::arg("facts"), nb::arg("copy"),
          nb::sig("def move_to(self, session: TrainingSession, facts: collections.abc.Mapping[str, "
                  "str], copy: collections.abc.Callable[[], None]) -> None"),
          "Another session, whose options are not compared. `copy` receives from rank 0 what is "
          "outside of it.")
      .def("divide", &Ranks::divide, nb::arg("zero"),
           "Divides the states of this session, and of those that move_to() gets; all ranks call "
           "this.")
      .def("set_loaded", &Ranks::set_loaded, nb::arg("text"),
           "The states that were loaded, other than by a checkpoint; the same on all ranks.")
      .def("optimizer_state", &Ranks::optimizer_state,
           nb::sig("def optimizer_state(self) -> dict[str, Tensor]"),
           "As the session's; on rank 0 of all parameters. All ranks call this.")
      .def("count", &Ranks::count, nb::arg("elements"), nb::arg("form"),
           "Over how many elements the loss of the parts that come is the mean; form of a row.")
      .def_prop_ro("accumulated", &Ranks::accumulated, "Parts that wait, the same on all ranks.")
      .def("set_settings", &Ranks::set_settings, nb::arg("text"))
      .def_prop_ro("opened", &Ranks::opened, "Has a step begun?")
      .def("fail", &Ranks::fail, nb::arg("error"),
           nb::sig("def fail(self, error: Exception) -> None"),
           "Ends a step that has begun, and tells the others of an error.")
      .def_prop_ro("warning", &Ranks::warning, "On running statistics; else empty.");
}

}  // namespace steep::python
