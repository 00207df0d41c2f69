// c10d::Backend is a C++ interface without a Python trampoline. Each call goes to the method of the same name of a
// Python object (torch_pjrt/distributed/group.py), which dispatches a program and binds its results to the outputs.
#include "process_group.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <utility>

namespace torch_pjrt {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// A collective that was dispatched. Its outputs are bound already: what reads them runs after it, so that waiting for
// it, as for a collective on a CUDA stream, need not block the host.
class Dispatched final : public c10d::Work {
 public:
  Dispatched(int rank, c10d::OpType type, Tensors outputs, int64_t mark)
      : c10d::Work(rank, type), outputs_(std::move(outputs)), mark_(mark) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
    future_->markCompleted(c10::IValue(outputs_));
  }
  bool isCompleted() override {
    py::gil_scoped_acquire gil;
    return bridge().finished(mark_).cast<bool>();
  }
  bool isSuccess() const override {
    return true; // a program that fails raises where its results are read
  }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    return true;
  }
  void synchronize() override {}
  void blockCurrentStream() override {}
  Tensors result() override {
    return outputs_;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }

 private:
  Tensors outputs_;
  int64_t mark_; // see runtime/in_flight.py
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class ProcessGroup final : public c10d::Backend {
 public:
  ProcessGroup(int rank, int size, std::string name, py::object collectives)
      : c10d::Backend(rank, size), name_(std::move(name)), collectives_(std::move(collectives)) {}
  ~ProcessGroup() override {
    if (Py_IsInitialized() == 0) {
      collectives_.release(); // the interpreter is gone, and took the object with it
      return;
    }
    py::gil_scoped_acquire gil;
    collectives_ = py::object();
  }

  const std::string getBackendName() const override {
    return name_;
  }
  bool supportsCoalescing() const override {
    return true;
  }
  void startCoalescing() override {
    tell("start_coalescing");
  }
  WorkPtr endCoalescing() override {
    return call(c10d::OpType::COALESCED, "end_coalescing");
  }
  void setTimeout(std::chrono::milliseconds timeout) override {
    py::gil_scoped_acquire gil;
    collectives_.attr("set_timeout")(timeout);
  }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override {
    return calls_;
  }
  void shutdown() override {
    tell("shutdown");
  }
  void abort() override {
    tell("shutdown");
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& o) override {
    return call(c10d::OpType::BROADCAST, "broadcast", tensors, o.rootRank);
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& o) override {
    return call(c10d::OpType::ALLREDUCE, "all_reduce", tensors, reduction(o.reduceOp));
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& o) override {
    return call(c10d::OpType::ALLREDUCE_COALESCED, "all_reduce", tensors, reduction(o.reduceOp));
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& o) override {
    return call(c10d::OpType::REDUCE, "reduce", tensors, reduction(o.reduceOp), o.rootRank);
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions&) override {
    return call(c10d::OpType::ALLGATHER, "all_gather", outputs, inputs);
  }
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions&) override {
    // Its lists are by rank, those of `allgather` by input.
    std::vector<Tensors> by_input(inputs.size());
    for (const auto& of_rank : outputs) {
      TORCH_CHECK(of_rank.size() == inputs.size(), "allgather_coalesced: expected ", inputs.size(), " outputs a rank");
      for (size_t i = 0; i < inputs.size(); ++i)
        by_input[i].push_back(of_rank[i]);
    }
    return call(c10d::OpType::ALLGATHER_COALESCED, "all_gather", by_input, inputs);
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override {
    return call(c10d::OpType::_ALLGATHER_BASE, "all_gather_single", Tensors{output}, Tensors{input});
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions&) override {
    return call(c10d::OpType::ALLGATHER_COALESCED, "all_gather_single", outputs, inputs);
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& o) override {
    return call(c10d::OpType::GATHER, "gather", outputs, inputs, o.rootRank);
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& o) override {
    return call(c10d::OpType::SCATTER, "scatter", outputs, inputs, o.rootRank);
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& o) override {
    return call(c10d::OpType::REDUCE_SCATTER, "reduce_scatter", outputs, inputs, reduction(o.reduceOp));
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& o) override {
    return call(
        c10d::OpType::_REDUCE_SCATTER_BASE,
        "reduce_scatter_single",
        Tensors{output},
        Tensors{input},
        reduction(o.reduceOp));
  }
  WorkPtr
  reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& o) override {
    return call(
        c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED, "reduce_scatter_single", outputs, inputs, reduction(o.reduceOp));
  }
  WorkPtr alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_sizes,
      std::vector<int64_t>& input_sizes,
      const c10d::AllToAllOptions&) override {
    return call(c10d::OpType::ALLTOALL_BASE, "all_to_all_single", output, input, output_sizes, input_sizes);
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) override {
    return call(c10d::OpType::ALLTOALL, "all_to_all", outputs, inputs);
  }
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return call(c10d::OpType::SEND, "send", tensors, to, tag);
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return call(c10d::OpType::RECV, "recv", tensors, from, tag);
  }
  WorkPtr barrier(const c10d::BarrierOptions& o) override {
    int device = o.device.has_value()   ? o.device->index()
                 : o.device_ids.empty() ? -1
                                        : static_cast<int>(o.device_ids[0]);
    return call(c10d::OpType::BARRIER, "barrier", device);
  }

 private:
  // The op's number, and the factor of PREMUL_SUM, if it is that. Made into Python objects only in `call`, with the
  // GIL.
  using Reduction = std::pair<int, std::variant<std::monostate, double, at::Tensor>>;

  static Reduction reduction(const c10d::ReduceOp& op) {
    Reduction made{static_cast<int>(op.op_), {}};
    if (op.op_ == c10d::ReduceOp::PREMUL_SUM && op.supplement_) {
      const auto* given = static_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
      if (given->tensor_factor.defined())
        made.second = given->tensor_factor;
      else
        made.second = given->double_factor;
    }
    return made;
  }

  // The Python method's tensors are the outputs.
  template <typename... Args>
  WorkPtr call(c10d::OpType type, const char* method, const Args&... args) {
    py::gil_scoped_acquire gil;
    ++calls_;
    auto outputs = py::cast<Tensors>(py::object(collectives_.attr(method)(args...)));
    auto mark = py::cast<int64_t>(py::object(bridge().mark()));
    return c10::make_intrusive<Dispatched>(rank_, type, std::move(outputs), mark);
  }
  void tell(const char* method) {
    py::gil_scoped_acquire gil;
    collectives_.attr(method)();
  }

  std::string name_;
  py::object collectives_;
  uint64_t calls_ = 0;
};

} // namespace

void register_process_group(py::module_& m) {
  // c10d::Backend is known to Python once torch.distributed is imported, so the class is registered when it is needed.
  m.def("make_process_group", [](int rank, int size, const std::string& name, const py::object& collectives) {
    static bool registered = false;
    if (!registered) {
      py::module_::import("torch.distributed");
      auto scope = py::module_::import("torch_pjrt._C");
      py::class_<ProcessGroup, c10d::Backend, c10::intrusive_ptr<ProcessGroup>>(scope, "ProcessGroup");
      registered = true;
    }
    return py::cast(c10::make_intrusive<ProcessGroup>(rank, size, name, collectives));
  });
}

} // namespace torch_pjrt
