/* The interface by which a plug-in adds devices, memory, kernels and operators to Steep. It is
 * plain C, so that engine and plug-in may be built by different compilers.
 *
 *   static const SteepHost* host;
 *   static const SteepProvider provider = {.size = sizeof(SteepProvider), .name = "Mirror", …};
 *   const SteepProvider* steep_provider_0(const SteepHost* h) { host = h; return &provider; }
 *
 * examples/provider is a complete plug-in. This is version 0: the interface may change until three
 * providers use it; then the number in the symbol becomes 1.
 *
 * Rules
 *   Versions   The name of the symbol contains the major version. Every struct begins with its
 *              `size`, as its author knows it. New fields are only appended. A field beyond `size`
 *              does not exist on the other side. A function that fills a struct of the other side
 *              writes no more than its `size`.
 *
 *   Errors     An error is a value; NULL is success. SteepHost::error makes an error, and its
 *              receiver owns it. No C++ exception may cross the interface.
 *
 *   Ownership  A `const` result belongs to the side that returned it. Tables of the provider live
 *              as long as the process. A SteepNode or SteepGraph is valid until the end of the call
 *              that received it.
 *
 *   Threads    The engine calls one open device from one thread at a time, and several devices at
 *              the same time. Exceptions: any thread may call `release`, `drop_stream`, a kernel's
 *              `destroy` and SteepOp::infer; and with STEEP_HOST_MEMORY all sessions share the one
 *              device, whose kernels run in many threads. Any thread may call SteepHost.
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
typedef void* SteepStream; /* work in order; NULL if a provider has none and computes at once */

/* Which of Steep's errors (steep/error.h) an error becomes. */
typedef enum SteepErrorKind {
  STEEP_BUG = 1,     /* InternalError */
  STEEP_MODEL,       /* ModelError */
  STEEP_SHAPE,       /* ShapeError */
  STEEP_DATA,        /* DataError: the data has wrong values */
  STEEP_PROVIDER,    /* ProviderError: the device failed */
  STEEP_MEMORY,      /* OutOfMemoryError */
  STEEP_INTERRUPTED, /* InterruptedError: what SteepHost::poll returned */
} SteepErrorKind;

/* Texts may be NULL or "". The engine fills in `node` and `op` if they are missing. */
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
  const void* constant; /* the bytes of a constant, in host memory; else NULL */
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

/* The functions of the engine. */
typedef struct SteepHost {
  size_t size;
  const char* version; /* of Steep: "0.1.0" */
  SteepError* (*error)(SteepErrorKind kind, const SteepErrorText* text);
  void (*drop_error)(SteepError* error); /* for an error that is not passed on */

  /* A node. The operator is ONNX's name at the newest opset ("Softmax"), "steep.Name", or that of
   * an operator of a provider ("mirror.Swish"). */
  const char* (*op)(const SteepNode* node);
  const char* (*name)(const SteepNode* node);
  int (*input_count)(const SteepNode* node);
  int (*output_count)(const SteepNode* node);
  /* Fill `operand`, up to its `size`; absent for an index out of range. */
  void (*input)(const SteepNode* node, int index, SteepOperand* operand);
  void (*output)(const SteepNode* node, int index, SteepOperand* operand);
  /* Attributes by position, in [0, attr_count). If a node leaves one out, it has the operator's
   * default; without a default it is absent. */
  int (*attr_count)(const SteepNode* node);
  void (*attr)(const SteepNode* node, int index, SteepAttr* attr);

  /* A graph. If it is the body of a node, its inputs are the inputs of that node, in order. */
  int (*graph_input_count)(const SteepGraph* graph);
  void (*graph_input)(const SteepGraph* graph, int index, SteepOperand* operand);
  int (*graph_output_count)(const SteepGraph* graph);
  void (*graph_output)(const SteepGraph* graph, int index, SteepOperand* operand);
  int (*node_count)(const SteepGraph* graph); /* in topological order */
  const SteepNode* (*node)(const SteepGraph* graph, int index);

  /* Within SteepProvider::fuse: when fuse returns, replaces `count` nodes of the graph by one,
   * whose attribute "body" is a graph of them. Its kernels are found under `name`, which has a dot
   * ("mirror.AddNorm"). Its inputs are the values that the nodes read from outside, in the order in
   * which they read them. Its outputs are the values that other nodes read, in the order of the
   * nodes. If no kernel accepts it, its nodes come back. An error if it cannot be one node: a node
   * is claimed already, is of the other phase, updates a state, or depends on another through a
   * node outside of the claim. */
  SteepError* (*claim)(SteepGraph* graph, const SteepNode* const* nodes, size_t count,
                       const char* name);
  /* Memory for output `index` of a data-shaped node; the kernel writes it before it returns. */
  SteepError* (*new_output)(SteepNode* node, int index, int32_t rank, const int64_t* dims,
                            void** data);
  /* NULL, or an error that the kernel has to return because the user stopped the call. It costs a
   * read of the clock. Long kernels call it, on the thread that called them. */
  SteepError* (*poll)(void);
  /* Greatest size of one value in bytes: the budget of the current call. */
  size_t (*max_bytes)(void);
  /* Within SteepOp::infer: sets the dtype and extents of output `index`. A negative extent is
   * unknown until the model runs: -1, or the negative extent of an operand that is equal to it. A
   * rank of -1 is unknown. */
  SteepError* (*set_output)(SteepNode* node, int index, int32_t dtype, int32_t rank,
                            const int64_t* dims);
} SteepHost;

/* Pointers for one execution, in the order of the node's inputs and outputs; NULL where absent.
 * They point to device memory, except inputs in `host_inputs`. Scratch is aligned to 64 bytes. */
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
  /* Enqueues on args->stream, or computes at once if that is NULL. `sync` returns errors that occur
   * while the work runs. */
  SteepError* (*execute)(void* self, const SteepArgs* args);
  void (*destroy)(void* self);
  size_t scratch_bytes;
  double flops; /* of one execution, for traces; 0 if memory bounds the time, not arithmetic */
  /* Pairs (input, output) that may share one buffer: each input element is read before the output
   * element that takes its place is written. */
  const int32_t (*may_share)[2];
  size_t may_share_count;
  uint64_t host_inputs; /* bit i: input i is read in host memory, before execute returns */
} SteepKernel;

/* A way to compute an operator. `make` fills `kernel` and returns 1, or declines: returns 0 with
 * the reason ("dtype is float64") in `why`, of `why_size` bytes, zero-terminated. It may instead
 * set *error; to decline is not an error. */
typedef struct SteepCandidate {
  size_t size;      /* of one entry of the table, which may have more fields after `make` */
  const char* name; /* shown in plans and traces: "onednn", "simd" */
  int (*make)(const struct SteepCandidate* self, void* device, const SteepNode* node,
              SteepKernel* kernel, char* why, size_t why_size, SteepError** error);
} SteepCandidate;

/* Computes, on the host, a node whose output shapes depend on data. Inputs are constants.
 * SteepHost::new_output allocates outputs; `node` has the dtypes of those that are read. */
typedef SteepError* (*SteepDataShaped)(void* device, SteepNode* node);

/* The type of output 0 of an operator that reads a narrow type. */
typedef enum SteepNarrowResult {
  STEEP_RESULT_WIDE = 0,    /* float32 */
  STEEP_RESULT_NARROW_READ, /* narrow if a reader needs it narrow, by `casts` */
  STEEP_RESULT_NARROW,
} SteepNarrowResult;

/* How kernels of an operator read and write a float type of 16 bits while they compute in float32.
 * A result that may be narrow has its type in the attribute "dtype", unless it follows the inputs.
 */
typedef struct SteepNarrow {
  size_t size;
  uint64_t casts;  /* bit i: input i has to be narrow, by a Cast if needed */
  uint64_t reads;  /* bit i: input i may be narrow, if it is so already */
  int32_t prefers; /* 1: read the narrow value even if a float32 one exists; else 0 */
  int32_t result;  /* of SteepNarrowResult */
  int32_t follow;  /* number of outputs that are narrow because the inputs are */
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
  STEEP_PINNED_MEMORY = 1, /* host memory from and to which copies are fastest */
} SteepMemory;

/* An operator that the provider adds. Models name it by "domain" and "name"; its kernels are found
 * under "domain.name" ("mirror.Swish"). Its results depend only on its operands and attributes. On
 * a device without a kernel that accepts the node, its decomposition runs.
 *
 * A function is a serialised FunctionProto, or text in the syntax of onnx.parser, which begins with
 * '<'. It may call operators of ONNX and of the provider. */
typedef struct SteepOp {
  size_t size;        /* of one entry of the table, which may have more fields at its end */
  const char* domain; /* a domain of the provider: not ONNX's, not "steep" */
  const char* name;
  int32_t version; /* version of the domain from which on this holds; at least 1 */
  int32_t inputs;  /* number of inputs; those that a node leaves out are absent */
  int32_t outputs;
  /* Sets the types of the outputs by SteepHost::set_output. It is called when extents may be
   * unknown, and again when they are known. An unknown extent of an operand is negative: -1, or a
   * number that means the same extent wherever it occurs. NULL: types follow from the
   * decomposition. */
  SteepError* (*infer)(SteepNode* node);
  /* The operator as a function of others, with its domain and name. Its attributes and their
   * defaults are those of the operator. NULL: the operator runs only where a kernel accepts it.
   * Each node has the function, with the node's attributes, as its attribute "body"; extents in it
   * may be -1. */
  const char* decomposition;
  size_t decomposition_size; /* in bytes */
  /* Takes the inputs, the outputs and the gradients of the outputs, and returns the gradients of
   * the inputs (steep/ops.h). NULL: the decomposition is differentiated, and in a graph with
   * gradients it runs instead of kernels. */
  const char* gradient;
  size_t gradient_size;
  /* If there is no decomposition: the names and defaults of the attributes. Those of
   * STEEP_ATTR_NONE have no default, and every node must have them. */
  const SteepAttr* attributes;
  size_t attribute_count;
} SteepOp;

/* The functions of a plug-in. Optional functions may be NULL. Functions of memory, copies and
 * streams are all NULL if the device computes in the host's memory (STEEP_HOST_MEMORY). */
typedef struct SteepProvider {
  size_t size;
  const char* name;    /* "Mirror"; users name it "MirrorExecutionProvider" */
  const char* version; /* the plug-in's own */
  uint32_t flags;      /* of SteepProviderFlag */

  /* Fills up to `room` infos, and *count. To have no device is not an error. */
  SteepError* (*devices)(SteepDeviceInfo* infos, size_t room, size_t* count);
  /* `options`: name, value, name, value, …, NULL. An unknown name is an error. */
  SteepError* (*open)(int index, const char* const* options, void** device);
  void (*close)(void* device);

  SteepError* (*allocate)(void* device, SteepMemory kind, size_t bytes, void** data);
  void (*release)(void* device, SteepMemory kind, void* data);
  SteepError* (*copy)(void* device, void* to, const void* from, size_t bytes,
                      SteepDirection direction, SteepStream stream);
  SteepError* (*stream)(void* device, SteepStream* stream);
  void (*drop_stream)(void* device, SteepStream stream);
  /* Waits for all enqueued work. Returns its first error; the stream can then be used again. */
  SteepError* (*sync)(void* device, SteepStream stream);

  /* Candidates for an operator, fastest first, and their number. */
  const SteepCandidate* (*candidates)(void* device, const char* op, size_t* count);
  SteepDataShaped (*data_shaped)(void* device, const char* op); /* NULL: none */

  /* Whether the pass of this name (docs/providers.md) may rewrite graphs for the device. NULL: all
   * passes may. */
  int (*wants_pass)(void* device, const char* pass);
  /* Whether products of this dtype are faster than float32 products of rounded values. NULL: no. */
  int (*multiplies)(void* device, int32_t dtype);
  /* Fuses nodes of a graph with known shapes, forward and backward, by SteepHost::claim. It is
   * called after the engine's rewrites, and before elementwise nodes are fused. NULL: nothing. */
  SteepError* (*fuse)(void* device, SteepGraph* graph);

  /* If kernels of an operator read or write `dtype` (bfloat16, float16) in that precision, fills
   * *how and returns 1. The engine asks the first device that has candidates for the operator.
   * NULL: all operators compute in float32. */
  int (*narrows)(void* device, const char* op, int32_t dtype, SteepNarrow* how);
  /* Work enqueued on `stream` from now on starts after all work that is now on `other`, a stream of
   * another device of this provider. The host does not wait. NULL: the host waits. */
  SteepError* (*wait)(void* device, SteepStream stream, SteepStream other);
  /* The operators that the provider adds, and their number. NULL: none. */
  const SteepOp* (*ops)(size_t* count);
  /* A table for people of the measurements by which the provider chooses kernels; of new ones,
   * which replace those that it kept, if `again` is not 0. *text is valid until the next call.
   * NULL: it chooses by rules alone. */
  SteepError* (*measurements)(void* device, int again, const char** text);
} SteepProvider;

typedef enum SteepProviderFlag {
  STEEP_HOST_MEMORY = 1, /* its devices compute in the host's memory, at once */
  /* Copies from and to its pinned memory are fastest: the host's intermediate values are there. */
  STEEP_COPIES_PINNED = 2,
} SteepProviderFlag;

/* The one symbol that a plug-in exports, of C linkage: steep_provider_0. `host` lives as long as
 * the process. Returns NULL if the plug-in cannot work on this machine, e.g. without a driver.
 */
typedef const SteepProvider* (*SteepProviderEntry)(const SteepHost* host);

#ifdef __cplusplus
}
#endif
