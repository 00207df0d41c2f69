// Giving every ATen op that needs a backend kernel its recorder.
#include "recorder.h"

namespace torch_pjrt {
namespace {

// View ops, also those that turn a tensor into a view in place (unsqueeze_), are metadata: never recorded.
bool is_view(const c10::OperatorHandle& op) {
  if (op.hasTag(at::Tag::inplace_view))
    return true;
  for (const auto& r : op.schema().returns())
    if (r.alias_info() != nullptr && !r.alias_info()->isWrite())
      return true;
  return false;
}

// Factories choose a device themselves, so PyTorch's own composites (empty, then an in-place op) serve them.
bool chooses_device(const c10::FunctionSchema& schema) {
  for (const auto& a : schema.arguments())
    if (a.name() == "device")
      return true;
  return false;
}

bool has_tensor_argument(const c10::FunctionSchema& schema) {
  for (const auto& a : schema.arguments()) {
    auto type = a.type();
    if (type->isSubtypeOf(*c10::TensorType::get()) || type->isSubtypeOf(*c10::OptionalType::ofTensor()) ||
        type->isSubtypeOf(*c10::ListType::ofTensors()) || type->isSubtypeOf(*c10::ListType::ofOptionalTensors()))
      return true;
  }
  return false;
}

} // namespace

void register_recorders() {
  auto& dispatcher = c10::Dispatcher::singleton();
  static auto* handles = new std::vector<c10::RegistrationHandleRAII>;
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0 && name.name.rfind("torch_pjrt::", 0) != 0)
      continue;
    auto op = dispatcher.findSchema(name);
    // clone is PyTorch's composite of empty_like and copy_, which shares the value where it can.
    if (name.name == "aten::clone" || !op || op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) || is_view(*op) ||
        chooses_device(op->schema()) || !has_tensor_argument(op->schema()))
      continue;
    handles->push_back(dispatcher.registerImpl(
        name,
        c10::DispatchKey::PrivateUse1,
        c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Recorder>(*op)),
        std::nullopt,
        nullptr,
        "torch_pjrt recorder"));
  }
}

} // namespace torch_pjrt
