#include "plan.h"

#include "layout_python.h"
#include "python.h"
#include "state.h"
#include "storage.h"

#include <c10/util/flat_hash_map.h>

#include <pybind11/stl.h>

namespace torch_pjrt {
namespace {

struct PlanKey {
  const Layout* base;
  const Layout* view;
  int64_t offset;
  bool operator==(const PlanKey& o) const {
    return base == o.base && view == o.view && offset == o.offset;
  }
};
struct PlanKeyHash {
  size_t operator()(const PlanKey& k) const {
    Hash128 h;
    h.add(k.base);
    h.add(k.view);
    h.add(static_cast<uint64_t>(k.offset));
    return h.a;
  }
};
// Bounded, since every offset of a sliding view has a plan of its own; structures are few and live for ever.
constexpr size_t kMaxPlans = 1 << 18;
ska::flat_hash_map<PlanKey, Plan, PlanKeyHash>& plans() {
  static auto* p = new ska::flat_hash_map<PlanKey, Plan, PlanKeyHash>;
  return *p;
}

// Equal structures (by Python's ==) become one ViewStructure. Called with the GIL.
const ViewStructure* intern_structure(const py::object& structure) {
  static auto* known = new py::dict;
  if (known->contains(structure))
    return reinterpret_cast<const ViewStructure*>((*known)[structure].cast<uintptr_t>());
  auto* s = new ViewStructure{py::object(structure).release().ptr(), static_cast<uint32_t>(known->size() + 1)};
  (*known)[py::handle(s->object)] = reinterpret_cast<uintptr_t>(s);
  return s;
}

// What kept a tensor from being referred to: a plan to work out, or a value whose flush failed.
struct Obstacle {
  const Layout* base = nullptr;
  const Layout* view = nullptr;
  int64_t offset = 0;
  ValuePtr failed;
};
thread_local Obstacle obstacle;

// The value under the tensor, as its storage has it; for an unwritten storage the layout it would have.
const Layout* base_layout(const c10::TensorImpl& t, const Layout* layout, const Value* value) {
  if (value != nullptr)
    return value->layout;
  if (covers_storage(t, layout))
    return layout;
  auto size = static_cast<int64_t>(c10::elementSize(layout->dtype));
  int64_t n = static_cast<int64_t>(t.unsafe_storage().nbytes()) / size;
  return intern(layout->dtype, {n}, {1});
}

bool set_view(Trace& trace, Operand* o, const c10::TensorImpl& t, const Layout* layout) {
  o->view = layout;
  int64_t offset = t.storage_offset();
  if (o->base == layout && offset == 0)
    return true;
  const Plan* plan = nullptr;
  if (!find_plan(o->base, layout, offset, &plan)) {
    obstacle = {o->base, layout, offset, nullptr};
    return false;
  }
  set_plan(trace, o, *plan);
  return true;
}

} // namespace

void set_plan(Trace& trace, Operand* o, const Plan& plan) {
  if (plan.structure == nullptr)
    return;
  o->structure = plan.structure;
  o->start_count = static_cast<uint16_t>(plan.starts.size());
  // Where a view of a materialized value starts is data: sliding a window over it compiles nothing.
  o->run_time_starts = o->kind == Operand::Kind::kInput && o->start_count > 0;
  auto& pool = o->run_time_starts ? trace.ints : trace.starts;
  o->first_start = static_cast<uint32_t>(pool.size());
  pool.insert(pool.end(), plan.starts.begin(), plan.starts.end());
}

bool find_plan(const Layout* base, const Layout* view, int64_t offset, const Plan** plan) {
  auto it = plans().find({base, view, offset});
  if (it == plans().end())
    return false;
  *plan = &it->second;
  return true;
}

void work_out_plan(const Layout* base, const Layout* view, int64_t offset) {
  py::gil_scoped_acquire gil;
  py::tuple found = bridge().plan(python_layout(base), python_layout(view) + py::make_tuple(offset));
  Plan plan;
  if (!found[0].is_none()) {
    plan.structure = intern_structure(found[0]);
    for (int64_t s : found[1].cast<std::vector<int64_t>>())
      plan.starts.push_back(s);
  }
  StateLock lock;
  if (plans().size() >= kMaxPlans)
    plans().clear();
  plans().emplace(PlanKey{base, view, offset}, std::move(plan));
}

bool refer_to_tensor(Trace& trace, const c10::TensorImpl& t, const Layout* layout, Operand* operand) {
  const auto& cell = cell_of(t);
  if (cell.value && cell.value->failure) {
    obstacle = {nullptr, nullptr, 0, cell.value};
    return false;
  }
  if (cell.value) {
    *operand = trace.refer(cell.value);
  } else {
    *operand = Operand{};
    operand->base = base_layout(t, layout, nullptr);
  }
  return set_view(trace, operand, t, layout);
}

void remove_obstacle() {
  if (ValuePtr failed = std::move(obstacle.failed))
    throw_failure(failed->failure);
  work_out_plan(obstacle.base, obstacle.view, obstacle.offset);
}

} // namespace torch_pjrt
