#include "nn/lm/device_lm.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <mutex>
#include <string>

#include "runtime/status.h"

namespace kz {

namespace {

constexpr int kFewestKeys = 32;

int power_of_two(int n, int least) {
    return static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::max(n, least))));
}

// Keys [head_dim, capacity, kv_heads] and, transposed as the product with them needs, values
// [capacity, kv_width] of every layer.
struct KvTensors {
    KvTensors(const LmConfig &c, int positions)
        : tensors(std::make_unique<PlacedTensors>(static_cast<size_t>(c.layers) * 2)) {
        const BlockConfig &b = c.block;
        for (int i = 0; i < c.layers; i++) {
            const std::string name = std::to_string(i);
            k.push_back(
                tensors->add(name + ".k", GGML_TYPE_F32, {b.head_dim, positions, b.kv_heads}));
            v.push_back(tensors->add(name + ".v", GGML_TYPE_F32, {positions, b.kv_width()}));
        }
    }
    std::unique_ptr<PlacedTensors> tensors;
    std::vector<ggml_tensor *> k, v;
};

struct StepTensors : LmGraphTensors {
    ggml_tensor *positions, *mask, *key_rows, *value_rows, *last;
};

// The nodes of one step.  keys: how many the attention looks at.
class StepBuilder final : public LmGraphBuilder {
  public:
    StepBuilder(PlacedGraph &graph, const LmConfig &config, const LmGraphWeights &w,
                const KvTensors &kv, int t, int keys)
        : LmGraphBuilder(graph, config, w, t), kv_(kv), keys_(keys) {}

    StepTensors build(int head) {
        s_.positions = g_.input(GGML_TYPE_I32, t_);
        s_.mask = g_.input(GGML_TYPE_F32, keys_, t_);
        s_.key_rows = g_.input(GGML_TYPE_I64, t_);
        s_.value_rows = g_.input(GGML_TYPE_I64, static_cast<int64_t>(t_) * b_.kv_width());
        s_.last = g_.input(GGML_TYPE_I32, 1);
        static_cast<LmGraphTensors &>(s_) = LmGraphBuilder::build(head);
        return s_;
    }

  private:
    ggml_tensor *last(ggml_tensor *x) override { return ggml_get_rows(ctx_, x, s_.last); }
    // x [heads * head_dim, t] -> [head_dim, heads, t], normalised and rotated.
    ggml_tensor *rotated(ggml_tensor *x, ggml_tensor *w, int heads) {
        x = norm(ggml_reshape_3d(ctx_, x, b_.head_dim, heads, t_), w);
        return ggml_rope_ext(ctx_, x, s_.positions, nullptr, b_.head_dim, GGML_ROPE_TYPE_NEOX, 0,
                             b_.rope_theta, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f);
    }
    ggml_tensor *attention(int layer, ggml_tensor *h) override {
        const LmGraphLayer &l = w_.layers[static_cast<size_t>(layer)];
        ggml_tensor *q = rotated(product(l.q, h), l.q_norm, b_.heads);
        ggml_tensor *k = rotated(product(l.k, h), l.k_norm, b_.kv_heads);
        ggml_tensor *v = product(l.v, h);
        // What is read comes from the results of the writes: that orders them.
        ggml_tensor *keys = ggml_set_rows(ctx_, kv_.k[static_cast<size_t>(layer)],
                                          ggml_permute(ctx_, k, 0, 2, 1, 3), s_.key_rows);
        ggml_tensor *values = kv_.v[static_cast<size_t>(layer)];
        const int64_t capacity = values->ne[0];
        values = ggml_set_rows(ctx_, ggml_reshape_2d(ctx_, values, 1, ggml_nelements(values)),
                               ggml_reshape_2d(ctx_, v, 1, ggml_nelements(v)), s_.value_rows);
        keys =
            ggml_view_3d(ctx_, keys, b_.head_dim, keys_, b_.kv_heads, keys->nb[1], keys->nb[2], 0);
        const size_t column = sizeof(float) * static_cast<size_t>(capacity);
        values = ggml_view_3d(ctx_, values, keys_, b_.head_dim, b_.kv_heads, column,
                              column * static_cast<size_t>(b_.head_dim), 0);
        // ggml's Vulkan device rounds what is not contiguous to 16 bits.
        if (keys_ < capacity) values = ggml_cont(ctx_, values);
        q = ggml_cont(ctx_, ggml_permute(ctx_, q, 0, 2, 1, 3));
        ggml_tensor *scores = product(keys, q);  // [keys, t, heads]
        scores = ggml_soft_max_ext(ctx_, scores, s_.mask,
                                   1.0f / std::sqrt(static_cast<float>(b_.head_dim)), 0.0f);
        ggml_tensor *out = product(values, scores);  // [head_dim, t, heads]
        return ggml_cont_2d(ctx_, ggml_permute(ctx_, out, 0, 2, 1, 3), b_.q_width(), t_);
    }

    const KvTensors &kv_;
    const int keys_;
    StepTensors s_{};
};

size_t nodes_of(const LmConfig &c) {
    return static_cast<size_t>(c.layers) * 48 + 64;
}

}  // namespace

void DeviceLm::place(const LmConfig &config, const LmGraphWeights &w) {
    PlacedGraph one(nodes_of(config)), most(nodes_of(config));
    const KvTensors kv(config, kMaxGraphPositions);
    for (auto [graph, t] : {std::pair{&one, 1}, std::pair{&most, kMaxGraphPositions}})
        StepBuilder(*graph, config, w, kv, t, kMaxGraphPositions).build(0);
    // The other heads are used as the first one is.
    for (size_t i = 1; i < w.heads.size(); i++) {
        one.expand(
            ggml_mul_mat(one.ctx(), w.heads[i],
                         ggml_new_tensor_2d(one.ctx(), GGML_TYPE_F32, config.block.hidden, 1)));
    }
    w.tensors->place(w.device, {one.graph(), most.graph()}, true);
}

struct DeviceLm::Step {
    explicit Step(size_t nodes) : graph(nodes) {}
    PlacedGraph graph;
    StepTensors tensors{};
};

// What a stream has on the device, and the graphs that use it.
struct DeviceLm::Slot {
    int capacity = 0;  // positions
    std::unique_ptr<KvTensors> kv;
    // Whether what it holds is known to be finite.  Attention multiplies what it masks by zero, so
    // that a NaN left by a device that failed would be in every result from then on.
    bool finite = true;
    std::map<std::tuple<int, int, int>, std::unique_ptr<Step>> steps;  // positions, keys, head
};

struct DeviceLm::Pool {
    Pool(ggml_backend_dev_t device, int n_threads) : backends(device, n_threads) {}
    // Gives back the memory that no stream uses now; false: there was none.
    bool drop_free() {
        std::vector<std::unique_ptr<Slot>> dropped;
        {
            const std::lock_guard lock(mutex);
            dropped.swap(free);
        }
        return !dropped.empty();
    }
    DeviceBackends backends;
    std::mutex mutex;
    std::vector<std::unique_ptr<Slot>> free;  // of streams that have ended
};

struct DeviceLm::Lease final : KvElsewhere {
    Lease(std::shared_ptr<Pool> p, std::unique_ptr<Slot> s)
        : pool(std::move(p)), slot(std::move(s)) {}
    ~Lease() override {
        const std::lock_guard lock(pool->mutex);
        pool->free.push_back(std::move(slot));
    }
    std::shared_ptr<Pool> pool;
    std::unique_ptr<Slot> slot;
};

DeviceLm::DeviceLm(const LmConfig &config, const LmGraphWeights &weights, int n_threads)
    : config_(config), w_(weights), pool_(std::make_shared<Pool>(weights.device, n_threads)) {}

DeviceLm::Slot &DeviceLm::slot(KvCache &cache) {
    if (!cache.elsewhere) {
        std::unique_ptr<Slot> slot;
        {
            const std::lock_guard lock(pool_->mutex);
            if (!pool_->free.empty()) {
                slot = std::move(pool_->free.back());
                pool_->free.pop_back();
            }
        }
        if (!slot) slot = std::make_unique<Slot>();
        cache.elsewhere = std::make_shared<Lease>(pool_, std::move(slot));
    }
    auto *lease = dynamic_cast<Lease *>(cache.elsewhere.get());
    if (!lease || lease->pool != pool_)
        fail(KZ_ERR_INTERNAL, "a stream's keys and values belong to another language model");
    return *lease->slot;
}

// Where memory runs out, f is tried again without that of streams which have ended.
template <typename F>
void DeviceLm::with_room(F f) {
    try {
        return f();
    } catch (const Error &e) {
        if (e.status() != KZ_ERR_MEMORY || !pool_->drop_free()) throw;
    }
    f();
}

void DeviceLm::reserve(KvCache &cache, int positions) {
    Slot &slot = this->slot(cache);
    // The last piece is padded.
    const int wanted = power_of_two(positions + kMaxGraphPositions, kFewestKeys);
    if (slot.capacity < wanted) with_room([&] { grow(slot, wanted, cache.n_past == 0); });
    if (cache.n_past > 0 || slot.finite) return;
    slot.kv->tensors->clear();
    slot.finite = true;
}

// empty: nothing of what it holds is wanted.
void DeviceLm::grow(Slot &slot, int positions, bool empty) {
    if (empty) slot = Slot();
    auto larger = std::make_unique<KvTensors>(config_, positions);
    PlacedGraph one(nodes_of(config_)), most(nodes_of(config_));
    for (auto [graph, t] : {std::pair{&one, 1}, std::pair{&most, kMaxGraphPositions}})
        StepBuilder(*graph, config_, w_, *larger, t, positions).build(0);
    larger->tensors->place(w_.device, {one.graph(), most.graph()}, false);
    if (slot.kv) {
        // Heads of the keys and rows of the values lie further apart now: through main memory, as
        // seldom as this is.
        const BlockConfig &block = config_.block;
        const auto old = static_cast<size_t>(slot.capacity) * sizeof(float);
        const auto heads = static_cast<size_t>(block.kv_heads);
        const auto width = static_cast<size_t>(block.kv_width());
        FloatBuffer values(static_cast<size_t>(slot.capacity) * width);
        const auto move = [&](ggml_tensor *from, ggml_tensor *to, size_t piece, size_t n,
                              size_t distance) {
            download(from, values.data());
            upload(to, values.data(), piece, n, distance);
        };
        for (size_t i = 0; i < larger->k.size(); i++) {
            ggml_tensor *k = larger->k[i], *v = larger->v[i];
            move(slot.kv->k[i], k, old * static_cast<size_t>(block.head_dim), heads, k->nb[2]);
            move(slot.kv->v[i], v, old, width, v->nb[1]);
        }
    }
    slot.steps.clear();
    slot.kv = std::move(larger);
    slot.capacity = positions;
}

DeviceLm::Step &DeviceLm::step(Slot &slot, int n_past, int t, int head) {
    const int keys = std::min(slot.capacity, power_of_two(n_past + t, kFewestKeys));
    std::unique_ptr<Step> &kept = slot.steps[{t, keys, head}];
    if (!kept) {
        with_room([&] {
            auto made = std::make_unique<Step>(nodes_of(config_));
            made->tensors = StepBuilder(made->graph, config_, w_, *slot.kv, t, keys).build(head);
            made->graph.allocate(pool_->backends);
            kept = std::move(made);
        });
    }
    return *kept;
}

void DeviceLm::set_inputs(const Slot &slot, Step &step, const float *x, int n_past, int n) {
    const StepTensors &s = step.tensors;
    const auto width = static_cast<size_t>(config_.input_width);
    const auto t = static_cast<size_t>(s.input->ne[1]), keys = static_cast<size_t>(s.mask->ne[0]);
    const auto kv = static_cast<size_t>(config_.block.kv_width());
    padded_.assign(t * width, 0.0f);
    std::copy_n(x, static_cast<size_t>(n) * width, padded_.data());
    mask_.assign(t * keys, -INFINITY);
    positions_.resize(t);
    rows_.resize(t * kv + t);
    for (size_t i = 0; i < t; i++) {
        const size_t at = static_cast<size_t>(n_past) + i;
        std::fill_n(mask_.data() + i * keys, at + 1, 0.0f);
        positions_[i] = static_cast<int32_t>(at);
        rows_[t * kv + i] = static_cast<int64_t>(at);
        for (size_t j = 0; j < kv; j++)
            rows_[i * kv + j] = static_cast<int64_t>(j * static_cast<size_t>(slot.capacity) + at);
    }
    const int32_t last = n - 1;
    upload(s.input, padded_.data());
    upload(s.mask, mask_.data());
    upload(s.positions, positions_.data());
    upload(s.value_rows, rows_.data());
    upload(s.key_rows, rows_.data() + t * kv);
    upload(s.last, &last);
}

void DeviceLm::read(const Step &step, const LmSequence &to) const {
    for (auto [from, values] :
         {std::pair{step.tensors.hidden, to.hidden}, std::pair{step.tensors.logits, to.logits}}) {
        if (!values) continue;
        download(from, values);
        if (!std::all_of(values, values + ggml_nelements(from),
                         [](float x) { return std::isfinite(x); }))
            fail(KZ_ERR_COMPUTE, "device %s computed a value that is not finite",
                 pool_->backends.name());
    }
}

bool DeviceLm::forward(std::span<const LmSequence> sequences, int head) {
    const auto width = static_cast<size_t>(config_.input_width);
    pool_->backends.set_stop(stop_);
    for (const LmSequence &s : sequences) {
        reserve(*s.cache, s.cache->n_past + s.n);
        Slot &slot = this->slot(*s.cache);
        for (int done = 0; done < s.n;) {
            if (stopped()) return false;
            const int n = std::min(s.n - done, kMaxGraphPositions);
            Step &step = this->step(slot, s.cache->n_past, power_of_two(n, 1), head);
            slot.finite = false;
            set_inputs(slot, step, s.inputs + static_cast<size_t>(done) * width, s.cache->n_past,
                       n);
            if (!step.graph.compute()) return false;
            s.cache->n_past += n;
            done += n;
            if (done < s.n || !s.hidden) continue;
            read(step, s);
            slot.finite = true;
        }
    }
    return true;
}

Placement DeviceLm::placement(int n_past, int t, int head) {
    KvCache cache(config_.layers, config_.block.kv_width());
    reserve(cache, n_past + t);
    return step(slot(cache), n_past, power_of_two(t, 1), head).graph.placement();
}

}  // namespace kz
