// What is known of an op: from its schema at registration, from Python at its first call.
#pragma once

#include <torch/csrc/python_headers.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace torch_pjrt {

// What the schema, and on first use the lowering, say of one argument.
struct ArgInfo {
  enum class Kind : uint8_t { kTensor, kTensorList, kScalar, kFloat, kScalarList, kGenerator, kStatic };
  Kind kind = Kind::kStatic;
  bool written = false;
  bool out = false; // a keyword-only `out=` tensor
  bool write_only = false; // its old content does not matter
  bool run_time = false; // floats travel at run time
};

// How an op is carried out; Python decides on first use.
enum class Treatment : uint8_t { kUnknown, kRecord, kComposite, kPython, kFallback };

struct OpInfo {
  std::string name; // "aten::add.Tensor"
  std::vector<ArgInfo> args;
  std::vector<int> returns_arg; // for each return: the argument it aliases, or -1 for a fresh result
  std::vector<bool> returns_list;
  std::atomic<Treatment> treatment{Treatment::kUnknown};
  PyObject* function = nullptr; // for kPython
  PyObject* check_numbers = nullptr; // (args...) raises what the CPU kernel says of numbers that come at run time
  bool random = false; // draws numbers: gets a key
  bool writes = false; // some argument is written
  uint8_t refusals = 0; // of overlapping memory: Refusal bits
  bool composite = false; // PyTorch has a composite kernel of it
  bool indexes = false; // index-like: a bool mask or a CPU index tensor goes to `function`
};

} // namespace torch_pjrt
