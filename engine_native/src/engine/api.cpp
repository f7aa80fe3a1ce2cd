// The C boundary: arguments checked, exceptions turned into statuses.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "engine/engine.h"
#include "engine/inspect/machine_speed.h"
#include "engine/inspect/pass_times.h"
#include "engine/inspect/placement.h"
#include "engine/inspect/trace.h"
#include "nn/kernels/quant_kernels.h"
#include "runtime/sized.h"
#include "runtime/status.h"

struct kz_model {
    std::shared_ptr<kz::Engine> engine;
};

struct kz_stream {
    std::shared_ptr<kz::Engine> engine;
    std::shared_ptr<kz::Stream> stream;
    kz::PcmChunk chunk;
};

struct kz_decoder {
    explicit kz_decoder(std::shared_ptr<kz::Engine> e)
        : engine(std::move(e)),
          decoder(engine->model().codec.make_decoder(nullptr, 1)),
          state(engine->model().codec.make_state()) {}
    std::shared_ptr<kz::Engine> engine;
    std::unique_ptr<kz::Decoder> decoder;
    std::unique_ptr<kz::DecoderState> state;
};

namespace {

// Bytes of a struct up to the last field it had in the first version: a program gives at least
// them.
#define KZ_SIZE_TO(type, field) (offsetof(type, field) + sizeof(type::field))
constexpr size_t kOldestLoadParams = KZ_SIZE_TO(kz_load_params, max_rows);
constexpr size_t kOldestModelInfo = KZ_SIZE_TO(kz_model_info, decoder_type);
constexpr size_t kOldestStreamParams = KZ_SIZE_TO(kz_stream_params, profile);
constexpr size_t kOldestResult = KZ_SIZE_TO(kz_result, stage_s);
constexpr size_t kOldestMeasureParams = KZ_SIZE_TO(kz_measure_params, working_set);
constexpr size_t kOldestMachine = KZ_SIZE_TO(kz_machine, integer_kernels);
constexpr size_t kOldestPasses = KZ_SIZE_TO(kz_passes, cp_s);
#undef KZ_SIZE_TO

void require(const void *pointer, const char *name) {
    if (!pointer) kz::fail(KZ_ERR_ARGUMENT, "%s is null", name);
}

// json may be null to ask for the size, terminator included.
void write_text(const std::string &text, char *json, size_t size, size_t *needed) {
    require(needed, "needed");
    *needed = text.size() + 1;
    if (!json) return;
    if (size < *needed) kz::fail(KZ_ERR_ARGUMENT, "size is %zu, the text needs %zu", size, *needed);
    std::memcpy(json, text.c_str(), *needed);
}

void set_name(char (&out)[16], const char *name) {
    std::memset(out, 0, sizeof(out));
    std::strncpy(out, name, sizeof(out) - 1);
}

constexpr kz_stream_params kStreamDefaults = [] {
    kz_stream_params p{};
    p.struct_size = sizeof(p);
    p.talker = {0.9f, 50, 1.0f, 1.05f, 0};
    p.cp = {0.9f, 50, 1.0f, 1.0f, 0};
    p.max_frames = 2048;
    p.min_frames = 2;
    p.chunk = -1;
    return p;
}();

// With the defaults of what the caller does not know.
kz_stream_params known(const kz_stream_params *given) {
    require(given, "params");
    kz_stream_params p = kStreamDefaults;
    kz::read_sized(&p, sizeof(p), given, kOldestStreamParams, "kz_stream_params");
    return p;
}

}  // namespace

extern "C" {

uint32_t kz_abi_version(void) {
    return KZ_ABI_VERSION;
}

const char *kz_last_error(void) {
    return kz::last_error();
}

const char *kz_stage_name(int32_t stage) {
    static const char *const names[KZ_N_STAGES] = {"prefill", "talker",  "cp",    "sample",
                                                   "quant",   "preconv", "pretr", "upsample",
                                                   "bigvgan", "decoder"};
    return stage >= 0 && stage < KZ_N_STAGES ? names[stage] : nullptr;
}

kz_status kz_model_load(const char *talker_path, const char *codec_path,
                        const kz_load_params *params, kz_model **out) {
    return kz::guarded([&] {
        require(talker_path, "talker_path");
        require(codec_path, "codec_path");
        require(out, "out");
        kz_load_params p{};
        if (params) {
            kz::read_sized(&p, sizeof(p), params, kOldestLoadParams, "kz_load_params");
        }
        if (p.precision != KZ_PRECISION_AUTO && p.precision != KZ_PRECISION_F32) {
            kz::fail(KZ_ERR_ARGUMENT, "precision is %d, expected 0 (auto) or 1 (f32)", p.precision);
        }
        if (p.backend != KZ_BACKEND_AUTO && p.backend != KZ_BACKEND_GGML)
            kz::fail(KZ_ERR_ARGUMENT, "backend is %d, expected 0 (auto) or 1 (ggml)", p.backend);
        if (p.n_threads < 0 || p.n_threads > 1024)
            kz::fail(KZ_ERR_ARGUMENT, "n_threads is %d, expected 0..1024", p.n_threads);
        if (p.max_rows != 0 && (p.max_rows < kz::kLeastRows || p.max_rows > kz::kMostRows)) {
            kz::fail(KZ_ERR_ARGUMENT, "max_rows is %d, expected 0 or %d..%d", p.max_rows,
                     kz::kLeastRows, kz::kMostRows);
        }
        const int cores = kz::usable_cores();
        if (!p.keep_ggml_log) kz::capture_ggml_log();
        const kz::ModelOptions options{p.precision == KZ_PRECISION_F32,
                                       p.backend == KZ_BACKEND_GGML,
                                       kz::find_device(p.talker_device, "talker_device"),
                                       kz::find_device(p.cp_device, "cp_device"),
                                       kz::find_device(p.decoder_device, "decoder_device"),
                                       p.max_rows};
        auto model = std::make_unique<kz_model>();
        model->engine = std::make_shared<kz::Engine>(
            kz::load_model(talker_path, codec_path, options), p.n_threads ? p.n_threads : cores);
        *out = model.release();
    });
}

void kz_model_free(kz_model *model) {
    if (!model) return;
    model->engine->close();
    delete model;
}

kz_status kz_model_get_info(const kz_model *model, kz_model_info *out) {
    return kz::guarded([&] {
        require(model, "model");
        require(out, "info");
        kz::check_sized(out, kOldestModelInfo, "kz_model_info");
        kz_model_info full{};
        kz_model_info *info = &full;
        const kz::Model &m = model->engine->model();
        info->sample_rate = m.codec.config.sample_rate;
        info->samples_per_frame = m.codec.config.samples_per_frame;
        info->n_codebooks = m.codec.config.n_codebooks;
        info->codebook_size = m.codec.config.codebook_size;
        info->text_vocab = m.talker.config.text_vocab;
        info->codec_vocab = m.talker.config.codec_vocab;
        info->codec_eos = m.talker.config.codec_eos;
        info->talker_hidden = m.talker.config.block.hidden;
        info->talker_layers = m.talker.config.layers;
        info->cp_hidden = m.cp.config.block.hidden;
        info->cp_layers = m.cp.config.layers;
        info->max_positions = m.talker.config.max_positions;
        info->weight_bytes = m.talker.lm.bytes() + m.talker.embd.bytes() + m.cp.lm.bytes() +
                             m.cp.embd.bytes() + m.codec.bytes();
        info->generator_threads = model->engine->generator_threads();
        info->decoder_threads = model->engine->decoder_threads();
        set_name(info->talker_type, ggml_type_name(m.talker.lm.type));
        set_name(info->cp_type, ggml_type_name(m.cp.lm.type));
        set_name(info->decoder_type, m.codec_type.c_str());
        kz::write_sized(out, &full, sizeof(full));
    });
}

kz_status kz_stream_params_default(kz_stream_params *params) {
    return kz::guarded([&] {
        require(params, "params");
        kz::check_sized(params, kOldestStreamParams, "kz_stream_params");
        kz::write_sized(params, &kStreamDefaults, sizeof(kStreamDefaults));
    });
}

kz_status kz_stream_open(kz_model *model, const kz_stream_params *params, kz_stream **out) {
    return kz::guarded([&] {
        require(model, "model");
        require(out, "out");
        auto stream = std::make_unique<kz_stream>();
        stream->engine = model->engine;
        stream->stream = model->engine->open(known(params));
        *out = stream.release();
    });
}

kz_status kz_stream_push_text(kz_stream *s, const int32_t *ids, int32_t n) {
    return kz::guarded([&] {
        require(s, "stream");
        s->engine->push_text(*s->stream, ids, n, false);
    });
}

kz_status kz_stream_finish_text(kz_stream *s, const int32_t *closing_ids, int32_t n) {
    return kz::guarded([&] {
        require(s, "stream");
        s->engine->push_text(*s->stream, closing_ids, n, true);
    });
}

kz_status kz_stream_read(kz_stream *s, int32_t timeout_ms, kz_chunk *chunk) {
    kz_status result = KZ_OK;
    const kz_status status = kz::guarded([&] {
        require(s, "stream");
        require(chunk, "chunk");
        result = s->engine->read(*s->stream, timeout_ms, s->chunk);
        if (result != KZ_OK) return;
        *chunk = {s->chunk.pcm.data(), static_cast<int32_t>(s->chunk.pcm.size()),
                  s->chunk.index,      s->chunk.first_frame,
                  s->chunk.n_frames,   s->chunk.t_s};
    });
    return status == KZ_OK ? result : status;
}

void kz_stream_cancel(kz_stream *s) {
    if (s) s->engine->cancel(*s->stream);
}

kz_status kz_stream_result(kz_stream *s, kz_result *result) {
    return kz::guarded([&] {
        require(s, "stream");
        require(result, "result");
        kz::check_sized(result, kOldestResult, "kz_result");
        kz_result full{};
        s->engine->result(*s->stream, full);
        kz::write_sized(result, &full, sizeof(full));
    });
}

void kz_stream_free(kz_stream *s) {
    if (!s) return;
    s->engine->release(s->stream);
    delete s;
}

kz_status kz_decoder_open(kz_model *model, kz_decoder **out) {
    return kz::guarded([&] {
        require(model, "model");
        require(out, "out");
        *out = new kz_decoder(model->engine);
    });
}

kz_status kz_decoder_feed(kz_decoder *d, const int32_t *codes, int32_t n_frames, float *pcm) {
    return kz::guarded([&] {
        require(d, "decoder");
        if (n_frames < 0) kz::fail(KZ_ERR_ARGUMENT, "n_frames is %d, expected 0 or more", n_frames);
        if (n_frames == 0) return;
        require(codes, "codes");
        require(pcm, "pcm");
        kz::check_codes(d->engine->model(), codes, n_frames);
        d->decoder->decode(*d->state, codes, n_frames, pcm, nullptr);
    });
}

kz_status kz_decoder_reset(kz_decoder *d) {
    return kz::guarded([&] {
        require(d, "decoder");
        d->state->reset();
    });
}

void kz_decoder_free(kz_decoder *d) {
    delete d;
}

kz_status kz_trace(kz_model *model, const kz_stream_params *params, const int32_t *forced_codes,
                   int32_t n_frames, kz_trace_out *out) {
    return kz::guarded([&] {
        require(model, "model");
        require(out, "out");
        kz::trace(model->engine->model(), known(params), forced_codes, n_frames, *out);
    });
}

kz_status kz_decoder_trace(kz_model *model, const int32_t *codes, int32_t n_frames,
                           const char *stage, int64_t shape[2], float *out) {
    return kz::guarded([&] {
        require(model, "model");
        require(codes, "codes");
        require(stage, "stage");
        require(shape, "shape");
        kz::trace_decoder(model->engine->model(), codes, n_frames, stage, shape, out);
    });
}

kz_status kz_sampler_probs(const kz_sampling *sampling, const float *logits, int32_t n,
                           const uint8_t *suppressed, const int32_t *history, int32_t n_history,
                           float *probs) {
    return kz::guarded([&] {
        require(sampling, "sampling");
        require(logits, "logits");
        require(probs, "probs");
        if (n < 1 || n_history < 0)
            kz::fail(KZ_ERR_ARGUMENT, "n is %d, n_history %d", n, n_history);
        if (n_history > 0) require(history, "history");
        kz::check_sampling(*sampling, "sampler");
        kz::Sampler(*sampling, "sampling")
            .probabilities(logits, n, suppressed, history, n_history, probs);
    });
}

kz_status kz_measure_machine(const kz_measure_params *params, kz_machine *machine) {
    return kz::guarded([&] {
        require(machine, "machine");
        kz_measure_params p{sizeof(kz_measure_params), 0, 0, 0};
        if (params)
            kz::read_sized(&p, sizeof(p), params, kOldestMeasureParams, "kz_measure_params");
        kz::check_sized(machine, kOldestMachine, "kz_machine");
        if (p.n_threads < 0 || p.n_threads > 1024)
            kz::fail(KZ_ERR_ARGUMENT, "n_threads is %d, expected 0..1024", p.n_threads);
        if (!(p.seconds >= 0 && p.seconds <= 60))
            kz::fail(KZ_ERR_ARGUMENT, "seconds is %g, expected 0..60", p.seconds);
        if (p.working_set < 0 || p.working_set > int64_t{1} << 40)
            kz::fail(KZ_ERR_ARGUMENT, "working_set is %lld, expected 0..2^40",
                     static_cast<long long>(p.working_set));
        const kz::MachineSpeed speed =
            kz::measure_machine(kz::kernels(), p.n_threads ? p.n_threads : kz::usable_cores(),
                                p.seconds > 0 ? p.seconds : 2.0, p.working_set);
        kz_machine full{};
        full.n_threads = speed.threads;
        full.working_set = speed.working_set;
        full.read_gbs_1 = speed.read_gbs[0];
        full.read_gbs_n = speed.read_gbs[1];
        full.gemm_gflops_1 = speed.gemm_gflops[0];
        full.gemm_gflops_n = speed.gemm_gflops[1];
        set_name(full.kernels, speed.kernels);
        set_name(full.integer_kernels, kz::quant_kernels().name);
        kz::write_sized(machine, &full, sizeof(full));
    });
}

kz_status kz_measure_passes(kz_model *model, kz_passes *passes) {
    return kz::guarded([&] {
        require(model, "model");
        require(passes, "passes");
        kz_passes full{};
        kz::read_sized(&full, sizeof(full), passes, kOldestPasses, "kz_passes");
        if (full.n_threads < 1 || full.n_threads > 1024) {
            kz::fail(KZ_ERR_ARGUMENT, "n_threads is %d, expected 1..1024", full.n_threads);
        }
        const kz::PassTimes times = kz::measure_passes(model->engine->model(), full.n_threads);
        full.talker_s = times.talker_s;
        full.cp_s = times.cp_s;
        kz::write_sized(passes, &full, sizeof(full));
    });
}

kz_status kz_devices(char *json, size_t size, size_t *needed) {
    return kz::guarded([&] { write_text(kz::devices_json(), json, size, needed); });
}

kz_status kz_model_placement(kz_model *model, char *json, size_t size, size_t *needed) {
    return kz::guarded([&] {
        require(model, "model");
        write_text(kz::placement_json(model->engine->model(), model->engine->generator_threads()),
                   json, size, needed);
    });
}

}  // extern "C"
