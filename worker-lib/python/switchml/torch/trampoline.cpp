// A backend of torch.distributed that calls the methods of a Python object, for versions of torch
// that cannot call backends written in Python. It decides nothing: calls go to Python unchanged.
//
// Functions without `override` do not exist in every torch from 2.4 on.

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;

namespace {

using c10d::Backend;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

// A Python object that threads without the interpreter's lock may release.
class Held {
  public:
    explicit Held(py::object object) : object_(std::move(object)) {}
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

    ~Held() {
        // No object can be released once the interpreter has ended.
        if (!Py_IsInitialized()) {
            object_.release();
            return;
        }
        py::gil_scoped_acquire lock;
        object_ = py::object();
    }

    const py::object& object() const { return object_; }

    template <typename Result, typename... Arguments>
    Result call(const char* name, Arguments&&... arguments) const {
        py::gil_scoped_acquire lock;
        py::object result = object_.attr(name)(std::forward<Arguments>(arguments)...);
        // Otherwise the caller would have an object without the lock.
        static_assert(!std::is_base_of_v<py::handle, Result>);
        if constexpr (!std::is_void_v<Result>) return result.cast<Result>();
    }

  private:
    py::object object_;
};

// A call in flight.
class PythonWork : public c10d::Work {
  public:
    explicit PythonWork(py::object work) : held_(std::move(work)) {}

    bool wait(std::chrono::milliseconds timeout) override {
        return held_.call<bool>("wait", timeout);
    }

    FuturePtr getFuture() override {
        py::gil_scoped_acquire lock;
        py::object future = held_.object().attr("get_future")();
        return future.cast<std::shared_ptr<torch::jit::PythonFutureWrapper>>()->fut;
    }

    bool isCompleted() override { return held_.call<bool>("is_completed"); }
    bool isSuccess() const override { return held_.call<bool>("is_success"); }
    int sourceRank() const override { return held_.call<int>("source_rank"); }
    Tensors result() override { return held_.call<Tensors>("result"); }
    void synchronize() override { held_.call<bool>("wait"); }

  private:
    Held held_;
};

// A call that was over when it returned.
class OverWork : public c10d::Work {
  public:
    bool wait(std::chrono::milliseconds) override { return true; }
    bool isCompleted() override { return true; }
    bool isSuccess() const override { return true; }
    void synchronize() override {}
};

// A process group.
class PythonBackend : public Backend {
  public:
    PythonBackend(py::object group, int rank, int size)
        : Backend(rank, size), held_(std::move(group)) {}

    // Older versions of torch do not shut down groups that they destroy.
    ~PythonBackend() override {
        if (!Py_IsInitialized()) return;
        try {
            held_.call<void>("shutdown");
        } catch (const std::exception& error) {
            TORCH_WARN(error.what());
        }
    }

    const py::object& object() const { return held_.object(); }

    const std::string getBackendName() const override {
        return held_.call<std::string>("getBackendName");
    }

    WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
        return start("broadcast", tensors, options);
    }
    WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
        return start("allreduce", tensors, options);
    }
    WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
        return start("allreduce_sparse", tensors, options);
    }
    WorkPtr allreduce_coalesced(
        Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
        return start("allreduce_coalesced", tensors, options);
    }
    WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
        return start("reduce", tensors, options);
    }
    WorkPtr allgather(
        std::vector<Tensors>& outputs, Tensors& inputs,
        const c10d::AllgatherOptions& options) override {
        return start("allgather", outputs, inputs, options);
    }
    WorkPtr _allgather_base(
        at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
        return start("_allgather_base", output, input, options);
    }
    WorkPtr allgather_coalesced(
        std::vector<Tensors>& outputs, Tensors& inputs,
        const c10d::AllgatherOptions& options) override {
        return start("allgather_coalesced", outputs, inputs, options);
    }
    WorkPtr allgather_into_tensor_coalesced(
        Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
        return start("allgather_into_tensor_coalesced", outputs, inputs, options);
    }
    WorkPtr gather(
        std::vector<Tensors>& outputs, Tensors& inputs,
        const c10d::GatherOptions& options) override {
        return start("gather", outputs, inputs, options);
    }
    WorkPtr scatter(
        Tensors& outputs, std::vector<Tensors>& inputs,
        const c10d::ScatterOptions& options) override {
        return start("scatter", outputs, inputs, options);
    }
    WorkPtr reduce_scatter(
        Tensors& outputs, std::vector<Tensors>& inputs,
        const c10d::ReduceScatterOptions& options) override {
        return start("reduce_scatter", outputs, inputs, options);
    }
    WorkPtr _reduce_scatter_base(
        at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
        return start("_reduce_scatter_base", output, input, options);
    }
    WorkPtr reduce_scatter_tensor_coalesced(
        Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override {
        return start("reduce_scatter_tensor_coalesced", outputs, inputs, options);
    }
    WorkPtr alltoall_base(
        at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
        std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& options) override {
        return start("alltoall_base", output, input, output_sizes, input_sizes, options);
    }
    WorkPtr alltoall(
        Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
        return start("alltoall", outputs, inputs, options);
    }
    WorkPtr send(Tensors& tensors, int rank, int tag) override {
        return start("send", tensors, rank, tag);
    }
    WorkPtr recv(Tensors& tensors, int rank, int tag) override {
        return start("recv", tensors, rank, tag);
    }
    WorkPtr recvAnysource(Tensors& tensors, int tag) override {
        return start("recv_anysource", tensors, tag);
    }
    WorkPtr barrier(const c10d::BarrierOptions& options) override {
        return start("barrier", options);
    }
    void monitoredBarrier(const c10d::BarrierOptions& options, bool all_ranks) override {
        held_.call<void>("monitored_barrier", options, all_ranks);
    }

    // The Python object counts its calls from 0.
    void setSequenceNumberForGroup() override {}
    uint64_t getSequenceNumberForGroup() override {
        return held_.call<uint64_t>("_get_sequence_number_for_group");
    }

    virtual void setTimeout(std::chrono::milliseconds timeout) {
        held_.call<void>("set_timeout", timeout);
    }
    virtual void abort() { held_.call<void>("abort"); }
    virtual void shutdown() { held_.call<void>("shutdown"); }

  private:
    template <typename... Arguments>
    WorkPtr start(const char* name, Arguments&... arguments) {
        py::gil_scoped_acquire lock;
        py::object work = held_.object().attr(name)(arguments...);
        if (work.is_none()) return c10::make_intrusive<OverWork>();
        return c10::make_intrusive<PythonWork>(std::move(work));
    }

    Held held_;
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
    // Declares the base class to Python.
    py::module_::import("torch._C._distributed_c10d");
    py::class_<PythonBackend, c10::intrusive_ptr<PythonBackend>, Backend>(module, "PythonBackend")
        .def(py::init<py::object, int, int>())
        .def_property_readonly("python", &PythonBackend::object);
    // Methods of torch's own backends that torch does not offer in Python.
    using Unlocked = py::call_guard<py::gil_scoped_release>;
    module.def(
        "allreduce_sparse",
        [](Backend& backend, Tensors tensors, const c10d::AllreduceOptions& options) {
            return backend.allreduce_sparse(tensors, options);
        },
        Unlocked());
    module.def(
        "allgather_into_tensor_coalesced",
        [](Backend& backend, Tensors outputs, Tensors inputs,
           const c10d::AllgatherOptions& options) {
            return backend.allgather_into_tensor_coalesced(outputs, inputs, options);
        },
        Unlocked());
    module.def(
        "reduce_scatter_tensor_coalesced",
        [](Backend& backend, Tensors outputs, Tensors inputs,
           const c10d::ReduceScatterOptions& options) {
            return backend.reduce_scatter_tensor_coalesced(outputs, inputs, options);
        },
        Unlocked());
}
