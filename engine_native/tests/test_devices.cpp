#include "runtime/devices.h"

#include <thread>

#include "device_runs.h"
#include "engine/inspect/placement.h"

using namespace kz;
using namespace kz::testing;

TEST(devices_are_found_by_name) {
    device();
    CHECK(find_device(nullptr, "x") == nullptr);
    CHECK(find_device("", "x") == nullptr);
    CHECK(find_device("CPU", "x") == nullptr);
    CHECK(find_device("cpu-graph", "x") == cpu_device());
    CHECK(find_device("rOwS0", "x") == device().handle());
    CHECK(find_device("auto", "x") == other_devices()[0]);
    CHECK_ERROR(find_device("Rows1", "talker_device"), KZ_ERR_ARGUMENT,
                "talker_device is 'Rows1', expected one of cpu, cpu-graph, auto, ");
    CHECK_ERROR(find_device("Rows1", "x"), KZ_ERR_ARGUMENT, "Rows0");
    CHECK(devices_json().find("\"a test's \\\"device\\\"\"") != std::string::npos);
}

TEST(a_device_is_started_by_one_thread) {
    RowLimitedDevice &d = device();
    d.started = false;
    std::thread other([&] { start_device(d.handle()); });
    start_device(d.handle());
    other.join();
    CHECK_EQ(d.starts.load(), 1);
    start_device(nullptr);
}

TEST(tensors_come_in_buffers_that_a_device_gives) {
    RowLimitedDevice &d = device();
    constexpr int kTensors = 5, kFloats = 1000;  // two fit, but for what aligns them
    d.largest_buffer = 2 * 4032 + 63;
    PlacedTensors placed(kTensors);
    std::vector<ggml_tensor *> tensors;
    for (int i = 0; i < kTensors; i++) {
        tensors.push_back(
            placed.add(std::to_string(i), GGML_TYPE_F32, {kFloats}, [i](ggml_tensor *t) {
                const std::vector<float> values(kFloats, float(i));
                upload(t, values.data());
            }));
    }
    placed.place(d.handle(), {}, true);
    CHECK_EQ(d.allocations.load(), kTensors);
    for (int i = 0; i < kTensors; i++) {
        std::vector<float> values(kFloats);
        download(tensors[static_cast<size_t>(i)], values.data());
        CHECK(values == std::vector<float>(kFloats, float(i)));
    }
    d.largest_buffer = 4000;
    PlacedTensors more(1);
    more.add("too large", GGML_TYPE_F32, {kFloats});
    CHECK_ERROR(more.place(d.handle(), {}, true), KZ_ERR_MEMORY, "device Rows0 has no");
}

TEST(a_device_that_refuses_to_write_where_it_must_is_an_error) {
    RowLimitedDevice &d = device();
    PlacedTensors placed(1);
    ggml_tensor *t = placed.add("a state", GGML_TYPE_F32, {8});
    placed.place(d.handle(), {}, false);
    d.refused_op = GGML_OP_CPY;
    const DeviceBackends backends(d.handle(), 1);
    PlacedGraph graph(4);
    graph.expand(ggml_cpy(graph.ctx(), graph.input(GGML_TYPE_F32, 8), t));
    CHECK_ERROR(graph.allocate(backends), KZ_ERR_COMPUTE,
                "device Rows0 refuses CPY into its own tensor a state");
}

TEST(a_graph_on_the_processor_stops_between_its_nodes) {
    DeviceBackends backends(cpu_device(), 1);
    PlacedGraph graph(4);
    ggml_tensor *x = graph.input(GGML_TYPE_F32, 8);
    graph.output(ggml_sqr(graph.ctx(), x));
    graph.allocate(backends);
    const std::vector<float> values(8, 2.0f);
    upload(x, values.data());
    const std::atomic<bool> stop{true}, go{false};
    backends.set_stop(&stop);
    CHECK(!graph.compute());
    for (const std::atomic<bool> *flag : {&go, static_cast<const std::atomic<bool> *>(nullptr)}) {
        backends.set_stop(flag);
        CHECK(graph.compute());
    }
}
