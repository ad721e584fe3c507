/* How a plug-in offers devices, memory, kernels and operators to Steep. Plain C, so that engine and
 * plug-in may be built by different compilers.
 *
 *   static const SteepHost* host;
 *   static const SteepProvider provider = {.size = sizeof(SteepProvider), .name = "Mirror", …};
 *   const SteepProvider* steep_provider_0(const SteepHost* h) { host = h; return &provider; }
 *
 * examples/provider is a whole one. Version 0: what stands here may change until three providers
 * use it; the symbol's number then becomes 1.
 *
 * Rules of the boundary
 *   Versions   The symbol has the major version in its name. Every struct begins with its `size` as
 *              its author knows it: fields are only appended, and whoever reads a field beyond
 *              `size` finds that the other side does not have it. Whoever fills a struct that the
 *              other side made writes no more than its `size`.
 *
 *   Errors     are values: NULL is success. They are made by SteepHost::error and belong to whoever
 *              receives them. No C++ exception may cross.
 *
 *   Ownership  What a function returns as `const` belongs to the side that returned it; a table of
 *              the provider's lives as long as the process. SteepNode and SteepGraph live during
 *              the call that they were given to.
 *
 *   Threads    The engine calls an open device from one thread at a time, several at once; but
 *              `release`, `drop_stream` and a kernel's `destroy` may be called from any thread, as
 *              may SteepOp::infer, and the kernels of host memory (STEEP_HOST_MEMORY), whose one
 *              device all sessions share, run in many. Functions of SteepHost may be called from
 *              any thread.
 *
 *   Order      Work on a stream runs in the order in which it was enqueued. The engine uses one
 *              stream for each run of a plan, and calls `sync` before the host reads what the
 *              device wrote and before the host overwrites what the device may still read.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STEEP_PROVIDER_MAJOR 0
#define STEEP_PROVIDER_SYMBOL "steep_provider_0"

typedef struct SteepNode SteepNode;   /* one operator with its operands */
typedef struct SteepGraph SteepGraph; /* the body of a fused operator */
typedef struct SteepError SteepError;
typedef void* SteepStream; /* work in order; NULL where a provider has none: all is done at once */

/* Which of Steep's errors (steep/error.h) an error becomes. */
typedef enum SteepErrorKind {
  STEEP_BUG = 1,     /* InternalError */
  STEEP_MODEL,       /* ModelError */
  STEEP_SHAPE,       /* ShapeError */
  STEEP_DATA,        /* DataError: values that the data's owner got wrong */
  STEEP_PROVIDER,    /* ProviderError: the device failed */
  STEEP_MEMORY,      /* OutOfMemoryError */
  STEEP_INTERRUPTED, /* InterruptedError: what SteepHost::poll returned */
} SteepErrorKind;

/* Texts may be NULL or "". `node` and `op` are filled in by the engine where they are missing. */
typedef struct SteepErrorText {
  size_t size;
  const char* what; /* one sentence: what went wrong */
  const char* node;
  const char* op;
  const char* expected;
  const char* received;
  const char* remedy;
} SteepErrorText;

/* An input or output of a node, or an edge of a graph. */
typedef struct SteepOperand {
  size_t size;
  int32_t dtype; /* ONNX's TensorProto.DataType; 0: absent */
  int32_t rank;
  const int64_t* dims;  /* outermost first; arrays are dense and row-major */
  const void* constant; /* the bytes, in host memory, of what never changes; else NULL */
  int64_t value;        /* in a graph: one number for each edge; else -1 */
} SteepOperand;

typedef enum SteepAttrKind {
  STEEP_ATTR_NONE = 0,
  STEEP_ATTR_INT,
  STEEP_ATTR_REAL,
  STEEP_ATTR_STRING,
  STEEP_ATTR_INTS,
  STEEP_ATTR_REALS,
  STEEP_ATTR_STRINGS,
  STEEP_ATTR_TENSOR,
  STEEP_ATTR_BODY,
} SteepAttrKind;

/* An attribute; the field of its kind is filled. */
typedef struct SteepAttr {
  size_t size;
  const char* name;
  SteepAttrKind kind;
  int64_t integer;
  double real;
  const char* string; /* of `count` bytes and a zero: bytes may be zero too */
  const int64_t* ints;
  const double* reals;
  const char* const* strings;
  const size_t* lengths; /* of `strings`, in bytes */
  size_t count;          /* of ints, reals, strings, or of the bytes of `string` */
  SteepOperand tensor;   /* its bytes are `tensor.constant` */
  const SteepGraph* body;
} SteepAttr;

/* What the engine offers. */
typedef struct SteepHost {
  size_t size;
  const char* version; /* of Steep: "0.1.0" */
  SteepError* (*error)(SteepErrorKind kind, const SteepErrorText* text);
  void (*drop_error)(SteepError* error); /* of one that is not passed on */

  /* A node. The operator is ONNX's name at the newest opset ("Softmax"), "steep.Name", or that of a
   * provider's own ("mirror.Swish"). */
  const char* (*op)(const SteepNode* node);
  const char* (*name)(const SteepNode* node);
  int (*input_count)(const SteepNode* node);
  int (*output_count)(const SteepNode* node);
  /* Fill `operand`, up to its `size`; absent for an index out of range. */
  void (*input)(const SteepNode* node, int index, SteepOperand* operand);
  void (*output)(const SteepNode* node, int index, SteepOperand* operand);
  /* Attributes by position, in [0, attr_count). Those that a node leaves out have the operator's
   * defaults; one without a default is absent. */
  int (*attr_count)(const SteepNode* node);
  void (*attr)(const SteepNode* node, int index, SteepAttr* attr);

  /* A graph: its inputs are the inputs of the node that it is the body of, in order. */
  int (*graph_input_count)(const SteepGraph* graph);
  void (*graph_input)(const SteepGraph* graph, int index, SteepOperand* operand);
  int (*graph_output_count)(const SteepGraph* graph);
  void (*graph_output)(const SteepGraph* graph, int index, SteepOperand* operand);
  int (*node_count)(const SteepGraph* graph); /* every node behind those that it reads */
  const SteepNode* (*node)(const SteepGraph* graph, int index);

  /* Within SteepProvider::fuse: makes one node of `count` nodes of the graph, once fuse returns.
   * They become its body; kernels are asked for it under `name`, with a dot in it
   * ("mirror.AddNorm"). Its inputs are what the nodes read from elsewhere, in the order in which
   * they read it, its outputs what others read of theirs, in the order of the nodes; the body's
   * attribute is "body". Where no kernel takes it, it is its nodes again. An error where it cannot
   * be one node: a node is claimed already, is of the other phase, updates a state, or depends on
   * another by way of a third. */
  SteepError* (*claim)(SteepGraph* graph, const SteepNode* const* nodes, size_t count,
                       const char* name);
  /* Memory for output `index` of a data-shaped node; to be written before the kernel returns. */
  SteepError* (*new_output)(SteepNode* node, int index, int32_t rank, const int64_t* dims,
                            void** data);
  /* NULL, or an error that the kernel is to return: the call was asked to stop. Costs a look at the
   * clock; to be asked by long kernels, on the thread that called them. */
  SteepError* (*poll)(void);
  /* What one value may take at most: the budget of the call under way, in bytes. */
  size_t (*max_bytes)(void);
  /* Within SteepOp::infer: the dtype and extents of output `index`. An extent that is negative is
   * not known before the model runs: -1, or that of an operand with which it agrees. A rank of -1
   * is not known either. */
  SteepError* (*set_output)(SteepNode* node, int index, int32_t dtype, int32_t rank,
                            const int64_t* dims);
} SteepHost;

/* Pointers for one execution, in the order of the node's inputs and outputs; NULL where absent.
 * They are of the device, but for inputs in `host_inputs`. Scratch is aligned to 64 bytes. */
typedef struct SteepArgs {
  size_t size;
  const void* const* in;
  void* const* out;
  void* scratch;
  SteepStream stream;
} SteepArgs;

/* A kernel for the exact types of one node. */
typedef struct SteepKernel {
  size_t size;
  void* self;
  /* Enqueues on args->stream, or computes at once where that is NULL. What shows only as it runs is
   * returned by `sync`. */
  SteepError* (*execute)(void* self, const SteepArgs* args);
  void (*destroy)(void* self);
  size_t scratch_bytes;
  double flops; /* of one execution, for traces; 0 where memory decides, not arithmetic */
  /* Pairs (input, output) that may share one buffer: each input element is read before the output
   * element that takes its place is written. */
  const int32_t (*may_share)[2];
  size_t may_share_count;
  uint64_t host_inputs; /* bit i: input i is read in host memory, before execute returns */
} SteepKernel;

/* A way to compute an operator. `make` fills `kernel` and returns 1, or declines: returns 0 with
 * the reason ("dtype is float64") in `why`, of `why_size` bytes, zero-terminated. It may report an
 * error instead, in *error; a decline is none. */
typedef struct SteepCandidate {
  size_t size;      /* of one entry of the provider's table, which may hold more behind `make` */
  const char* name; /* shown in plans and traces: "onednn", "simd" */
  int (*make)(const struct SteepCandidate* self, void* device, const SteepNode* node,
              SteepKernel* kernel, char* why, size_t why_size, SteepError** error);
} SteepCandidate;

/* Computes, on the host, a node whose output shapes depend on data: inputs are constants, outputs
 * are made by SteepHost::new_output; of those wanted, `node` gives the dtypes. */
typedef SteepError* (*SteepDataShaped)(void* device, SteepNode* node);

/* What becomes of output 0 of an operator that reads a narrow type. */
typedef enum SteepNarrowResult {
  STEEP_RESULT_WIDE = 0,    /* float32 */
  STEEP_RESULT_NARROW_READ, /* narrow where a reader is to have it so, by `casts` */
  STEEP_RESULT_NARROW,
} SteepNarrowResult;

/* How kernels of an operator take a float type of 16 bits, computing in float32. A result that may
 * be narrow has its type in the attribute "dtype", unless results follow the inputs. */
typedef struct SteepNarrow {
  size_t size;
  uint64_t casts;  /* bit i: input i is to be narrow, be it by a Cast */
  uint64_t reads;  /* bit i: input i may be narrow, where something else has made it so */
  int32_t prefers; /* read what may be narrow so even where float32 is there, too: 0 or 1 */
  int32_t result;  /* of SteepNarrowResult */
  int32_t follow;  /* so many outputs are of the narrow type because the inputs are */
} SteepNarrow;

typedef struct SteepDeviceInfo {
  size_t size;
  char name[96];
  uint64_t total_bytes; /* 0: unknown */
} SteepDeviceInfo;

typedef enum SteepDirection {
  STEEP_TO_DEVICE = 1,
  STEEP_TO_HOST,
  STEEP_WITHIN_DEVICE,
} SteepDirection;

typedef enum SteepMemory {
  STEEP_DEVICE_MEMORY = 0,
  STEEP_PINNED_MEMORY = 1, /* of the host, which the device copies from and to fastest */
} SteepMemory;

/* An operator of the provider's own. In models it is "domain" and "name"; kernels are asked for it
 * under "domain.name" ("mirror.Swish"). What it makes depends on its operands and attributes alone.
 * On a device without a kernel that takes it, its decomposition runs.
 *
 * A function is a serialised FunctionProto, or its text in the syntax of onnx.parser, which then
 * begins with '<'. It calls ONNX's operators, and those that the provider offers beside it. */
typedef struct SteepOp {
  size_t size;        /* of one entry of the provider's table, which may hold more behind it */
  const char* domain; /* of your own: neither ONNX's nor "steep" */
  const char* name;
  int32_t version; /* of the domain, from which on it is what stands here; at least 1 */
  int32_t inputs;  /* so many; those that a node leaves out are absent */
  int32_t outputs;
  /* Tells the types of the outputs by SteepHost::set_output. Called before extents are known, and
   * again when they are. An operand's extent that is not known yet is negative: -1, or a number
   * that stands for that extent wherever it occurs. NULL: as the decomposition has them. */
  SteepError* (*infer)(SteepNode* node);
  /* The operator by others, of its domain and name. Its attributes and their defaults are the
   * operator's. NULL: it runs where a kernel takes it, and nowhere else. A node has it, for the
   * attributes of the node, as its attribute "body", in which extents may be -1. */
  const char* decomposition;
  size_t decomposition_size; /* in bytes */
  /* Takes the inputs, the outputs and the gradients of the outputs, and returns the gradients of
   * the inputs (steep/ops.h). NULL: the decomposition is differentiated, and runs in the place of
   * kernels in a graph with gradients. */
  const char* gradient;
  size_t gradient_size;
  /* Attributes, where there is no decomposition to declare them: their names and defaults. Those of
   * STEEP_ATTR_NONE have no default, and every node has to have them. */
  const SteepAttr* attributes;
  size_t attribute_count;
} SteepOp;

/* What a plug-in offers. Functions that it lacks are NULL: those of memory, copies and streams
 * together where the device computes in the host's memory (STEEP_HOST_MEMORY). */
typedef struct SteepProvider {
  size_t size;
  const char* name;    /* "Mirror"; users name it "MirrorExecutionProvider" */
  const char* version; /* the plug-in's own */
  uint32_t flags;      /* of SteepProviderFlag */

  /* Fills up to `room` infos and *count. No device is no error. */
  SteepError* (*devices)(SteepDeviceInfo* infos, size_t room, size_t* count);
  /* `options`: names and values in turn, then NULL. Unknown ones are an error. */
  SteepError* (*open)(int index, const char* const* options, void** device);
  void (*close)(void* device);

  SteepError* (*allocate)(void* device, SteepMemory kind, size_t bytes, void** data);
  void (*release)(void* device, SteepMemory kind, void* data);
  SteepError* (*copy)(void* device, void* to, const void* from, size_t bytes,
                      SteepDirection direction, SteepStream stream);
  SteepError* (*stream)(void* device, SteepStream* stream);
  void (*drop_stream)(void* device, SteepStream stream);
  /* Waits for all that was enqueued. Returns the first error of it; the stream is then as new. */
  SteepError* (*sync)(void* device, SteepStream stream);

  /* Candidates for an operator, fastest first, and their number. */
  const SteepCandidate* (*candidates)(void* device, const char* op, size_t* count);
  SteepDataShaped (*data_shaped)(void* device, const char* op); /* NULL: none */

  /* Traits. May the pass of this name (docs/providers.md) rewrite graphs for the device? NULL: any
   * may. */
  int (*wants_pass)(void* device, const char* pass);
  /* Are products of this dtype faster than those of float32 rounded to it? NULL: no. */
  int (*multiplies)(void* device, int32_t dtype);
  /* Fuses nodes of a graph whose shapes are known, forward and backward, by SteepHost::claim; after
   * the engine's own rewrites, but for that of elementwise nodes. NULL: nothing. */
  SteepError* (*fuse)(void* device, SteepGraph* graph);

  /* Whether, in the precision of `dtype` (bfloat16, float16), kernels of an operator are to read or
   * write it: fills *how, and returns 1. Asked of the first device that has candidates for the
   * operator. NULL: none; all computes in float32. */
  int (*narrows)(void* device, const char* op, int32_t dtype, SteepNarrow* how);
  /* What is enqueued on `stream` from now on begins after all that was enqueued on `other`, a
   * stream of another device of this provider, so far. The host does not wait. NULL: it does. */
  SteepError* (*wait)(void* device, SteepStream stream, SteepStream other);
  /* Operators of the provider's own, and their number. NULL: none. */
  const SteepOp* (*ops)(size_t* count);
} SteepProvider;

typedef enum SteepProviderFlag {
  STEEP_HOST_MEMORY = 1, /* its devices compute in the host's memory, at once */
  /* Copies are fastest from and to its pinned memory: the host's intermediate values lie there. */
  STEEP_COPIES_PINNED = 2,
} SteepProviderFlag;

/* The one symbol that a plug-in exports, of C linkage: steep_provider_0. `host` lives as long as
 * the process. NULL where the plug-in cannot work here at all, for instance for want of a driver.
 */
typedef const SteepProvider* (*SteepProviderEntry)(const SteepHost* host);

#ifdef __cplusplus
}
#endif
