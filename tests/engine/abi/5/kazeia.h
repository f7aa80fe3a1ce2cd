/* kazeia.h: the public C interface of the Kazeia engine.
 *
 * Streaming text-to-speech for Qwen3-TTS (12 Hz) models.  A model is loaded
 * once and shared; each utterance is a stream:
 *
 *     kz_model  *model;
 *     kz_stream *stream;
 *     kz_chunk   chunk;
 *     kz_result  result = {sizeof(kz_result)};
 *     kz_stream_params params = {sizeof(kz_stream_params)};
 *     kz_stream_params_default(&params);                  // then fill in params.prompt
 *     kz_model_load("talker.gguf", "codec.gguf", NULL, &model);
 *     kz_stream_open(model, &params, &stream);
 *     while (kz_stream_read(stream, -1, &chunk) == KZ_OK)
 *         play(chunk.pcm, chunk.n_samples);              // 24 kHz mono float
 *     kz_stream_result(stream, &result);
 *     kz_stream_free(stream);
 *     kz_model_free(model);
 *
 * Contract
 *   - Every function that can fail returns a kz_status; the text of the last
 *     failure on the calling thread is kz_last_error().  Nothing aborts,
 *     prints, or reads the environment.
 *   - A kz_model may be used from any number of threads at once.  A kz_stream
 *     has one reader; kz_stream_cancel() may be called from any thread.
 *   - Structs that callers fill start with their own size: struct_size = sizeof(the struct).
 *     Programs compiled for another version of this header keep working: VERSIONING.md.
 *   - Language models whose weights only ggml multiplies (K-quants) may be computed on several
 *     OpenMP threads; GOMP_SPINCOUNT=1000, set before the process loads libgomp, keeps them from
 *     spinning long on a busy machine.
 *   - An id of -1 means "no token here".
 *   - On devices other than the processor (kz_load_params), codes and samples equal those of the
 *     engine's own kernels within rounding, not bit by bit.  A device that fails ends the streams
 *     at work on it with KZ_ERR_COMPUTE or KZ_ERR_MEMORY; some faults of drivers make ggml abort.
 */
#ifndef KAZEIA_H
#define KAZEIA_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define KZ_API __declspec(dllexport)
#elif defined(__GNUC__)
#define KZ_API __attribute__((visibility("default")))
#else
#define KZ_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define KZ_ABI_VERSION 5
#define KZ_N_CODEBOOKS_MAX 32

typedef enum kz_status {
    KZ_OK = 0,
    KZ_END = 1,           /* the stream has delivered everything            */
    KZ_TIMEOUT = 2,       /* nothing arrived within timeout_ms              */
    KZ_ERR_ARGUMENT = 10, /* a parameter is out of range; message says which */
    KZ_ERR_FILE = 11,     /* a file cannot be opened or read                */
    KZ_ERR_FORMAT = 12,   /* a file is not a usable model; names key/tensor */
    KZ_ERR_MEMORY = 13,   /* an allocation failed                           */
    KZ_ERR_COMPUTE = 14,  /* the graph failed or produced NaN               */
    KZ_ERR_CLOSED = 15,   /* the model is shutting down                     */
    KZ_ERR_INTERNAL = 16  /* a fault of the engine itself                   */
} kz_status;

typedef enum kz_ended {
    KZ_ENDED_NOT = 0,
    KZ_ENDED_EOS = 1,        /* the talker sampled end-of-speech               */
    KZ_ENDED_MAX_FRAMES = 2, /* cut at max_frames: speech may be incomplete    */
    KZ_ENDED_CANCELLED = 3,
    KZ_ENDED_ERROR = 4,
    KZ_ENDED_RUNAWAY = 5,   /* cut by kz_guard: far longer than its text      */
    KZ_ENDED_SILENCE = 6,   /* cut by kz_guard: silent for too long           */
    KZ_ENDED_REPETITION = 7 /* cut by kz_guard: the same codes over and over  */
} kz_ended;

typedef enum kz_precision {
    KZ_PRECISION_AUTO = 0, /* language models as the file has them           */
    KZ_PRECISION_F32 = 1   /* everything dequantised to f32: the oracle       */
} kz_precision;

typedef enum kz_backend {                      /* of the language models */
                          KZ_BACKEND_AUTO = 0, /* kernels of our own where they know the weight
                                                  types, else ggml graphs */
                          KZ_BACKEND_GGML = 1  /* ggml graphs */
} kz_backend;

typedef enum kz_part { /* indices of kz_result.stage_s                   */
                       KZ_STAGE_PREFILL = 0,
                       KZ_STAGE_TALKER,
                       KZ_STAGE_CP,
                       KZ_STAGE_SAMPLE,
                       KZ_STAGE_QUANT,
                       KZ_STAGE_PRECONV,
                       KZ_STAGE_PRETR,
                       KZ_STAGE_UPSAMPLE,
                       KZ_STAGE_BIGVGAN,
                       KZ_STAGE_DECODER, /* whole decoder, filled whether profiled or not  */
                       KZ_N_STAGES
} kz_part;

typedef struct kz_model kz_model;
typedef struct kz_stream kz_stream;
typedef struct kz_decoder kz_decoder;

typedef struct kz_load_params {
    uint32_t struct_size;
    int32_t precision;     /* kz_precision                                   */
    int32_t n_threads;     /* 0: as many as the process may use              */
    int32_t keep_ggml_log; /* 0: ggml's log lines are dropped; 1: its sink stays */
    int32_t backend;       /* kz_backend                                     */
    /* Where a part is computed: NULL or "cpu" is the engine's own kernels; "auto" the first GPU,
     * else "cpu"; any name of kz_devices, whatever its case.  What a device does not support falls
     * back to ggml's processor device; "cpu-graph" computes all there, to compare with. */
    const char *talker_device, *cp_device, *decoder_device;
    int32_t
        max_rows; /* a device's products in the decoder have at most so many rows: 0 any, 64.. */
} kz_load_params;

typedef struct kz_model_info {
    uint32_t struct_size;
    int32_t sample_rate;       /* Hz, 24000                                  */
    int32_t samples_per_frame; /* 1920                                       */
    int32_t n_codebooks;       /* 16                                         */
    int32_t codebook_size;     /* 2048                                       */
    int32_t text_vocab;        /* rows of the folded text table              */
    int32_t codec_vocab;       /* rows of codec_embedding and codec_head     */
    int32_t codec_eos;         /* codec id of end-of-speech                  */
    int32_t talker_hidden, talker_layers;
    int32_t cp_hidden, cp_layers;
    int32_t max_positions; /* prompt + frames a stream may reach         */
    int64_t weight_bytes;  /* resident weights                           */
    int32_t generator_threads, decoder_threads;
    char talker_type[16], cp_type[16], decoder_type[16]; /* "q8_0", ... */
} kz_model_info;

/* Candidates are filtered in the order of the reference implementation:
 * repetition penalty, suppression, temperature, top-k, top-p, draw. */
typedef struct kz_sampling {
    float temperature;        /* 0: greedy                                  */
    int32_t top_k;            /* 0: off                                     */
    float top_p;              /* 1: off                                     */
    float repetition_penalty; /* 1: off; ignored for the code predictor     */
    int32_t rep_window;       /* codes looked back on; 0: whole utterance   */
} kz_sampling;

/* The prompt is a list of positions; the input of position i is
 * text_table[text_ids[i]] + codec_table[codec_ids[i]] (-1: that side is absent).
 * trailing_ids are fed one a frame beside the generated codes; after them
 * pad_text_id for ever.  End-of-speech is masked until every trailing id has
 * been fed and text_open is false. */
typedef struct kz_prompt {
    const int32_t *text_ids;
    const int32_t *codec_ids;
    int32_t n_positions;
    const int32_t *trailing_ids;
    int32_t n_trailing;
    int32_t pad_text_id;
    int32_t text_open;     /* more text will come by kz_stream_push_text */
    int32_t n_text_tokens; /* of the text, among the positions; for kz_guard */
    int32_t n_prefix;      /* leading positions that other utterances share (instruction, role,
                              language, speaker): computed once and kept; 0: none */
} kz_prompt;

/* What ends speech that does not end by itself (it happens to a few sentences in a thousand).  A
 * part that is 0 is off.  With T text tokens the limit is max(min_frames, T * frames_per_token)
 * frames; speech takes about 3 a token.  From half the limit on, eos_boost is added to the logit
 * of end-of-speech once more each frame. */
typedef struct kz_guard {
    float frames_per_token;
    int32_t min_frames;
    float eos_boost;
    int32_t repeat_frames;  /* so many frames of codebook 0 that repeat every 1..8 frames */
    int32_t silence_frames; /* so many frames in a row below -50 dB of full scale         */
} kz_guard;

/* Whatever the chunks, the decoder works in turns of at most 8 frames and serves first whose audio
 * runs dry first: a large chunk is collected, and nobody else waits for it.  With chunk 0 decoding
 * begins after the last frame, the most efficient order of work; only a guard against silence has
 * it begin at once, behind those who listen already.  Audio is the same in any case. */
typedef struct kz_stream_params {
    uint32_t struct_size;
    kz_prompt prompt;
    kz_sampling talker;
    kz_sampling cp;
    kz_guard guard;
    uint64_t seed;
    int32_t max_frames;   /* 1..                                        */
    int32_t min_frames;   /* EOS masked before this many frames (2)     */
    int32_t chunk;        /* frames a chunk; 0: all at the end; -1: auto */
    int32_t skip_frames;  /* leading frames whose audio is dropped      */
    int32_t cp_recompute; /* 1: the oracle without CP KV cache          */
    int32_t ignore_eos;   /* 1: always run to max_frames (benchmarks)   */
    int32_t profile;      /* 1: fill the per-stage decoder times        */
} kz_stream_params;

typedef struct kz_chunk {
    const float *pcm; /* [n_samples], valid until the next read/free */
    int32_t n_samples;
    int32_t index; /* 0, 1, ...                                  */
    int32_t first_frame, n_frames;
    double t_s; /* seconds from kz_stream_open to ready       */
} kz_chunk;

typedef struct kz_result {
    uint32_t struct_size;
    int32_t ended; /* kz_ended                                   */
    int32_t n_frames;
    int32_t n_chunks;
    const int32_t *codes; /* [n_frames][n_codebooks], owned by the stream */
    double ttfb_s;        /* open to first chunk; -1: none              */
    double work_s;        /* open to last chunk, waiting for text excluded */
    double wait_s;        /* spent waiting for text                     */
    double stage_s[KZ_N_STAGES];
} kz_result;

KZ_API uint32_t kz_abi_version(void);
KZ_API const char *kz_last_error(void);
KZ_API const char *kz_stage_name(int32_t stage);

/* The pair of files of one model.  params may be NULL. */
KZ_API kz_status kz_model_load(const char *talker_path, const char *codec_path,
                               const kz_load_params *params, kz_model **out);
/* Cancels and joins everything that still runs.  No other call may use this handle any more.
 * Streams stay readable (they report KZ_ERR_CLOSED) and decoders usable; both hold the weights
 * until their own free. */
KZ_API void kz_model_free(kz_model *model);
KZ_API kz_status kz_model_get_info(const kz_model *model, kz_model_info *info);

/* Fills everything but struct_size, which the caller has set. */
KZ_API kz_status kz_stream_params_default(kz_stream_params *params);
KZ_API kz_status kz_stream_open(kz_model *model, const kz_stream_params *params, kz_stream **out);
/* Only for prompts opened with text_open.  finish: closing_ids are the last (tts_eos). */
KZ_API kz_status kz_stream_push_text(kz_stream *stream, const int32_t *ids, int32_t n);
KZ_API kz_status kz_stream_finish_text(kz_stream *stream, const int32_t *closing_ids, int32_t n);
/* timeout_ms < 0 waits for ever.  KZ_OK, KZ_END, KZ_TIMEOUT or an error. */
KZ_API kz_status kz_stream_read(kz_stream *stream, int32_t timeout_ms, kz_chunk *chunk);
KZ_API void kz_stream_cancel(kz_stream *stream);
/* Valid after kz_stream_read has returned KZ_END or an error. */
KZ_API kz_status kz_stream_result(kz_stream *stream, kz_result *result);
KZ_API void kz_stream_free(kz_stream *stream);

/* Codec decoder alone: codes [n_frames][n_codebooks] -> pcm [n_frames * samples_per_frame].
 * The state carries over, so any split of the frames gives the same audio.  After an error that
 * is not KZ_ERR_ARGUMENT it is lost: kz_decoder_reset begins anew. */
KZ_API kz_status kz_decoder_open(kz_model *model, kz_decoder **out);
KZ_API kz_status kz_decoder_feed(kz_decoder *decoder, const int32_t *codes, int32_t n_frames,
                                 float *pcm);
KZ_API kz_status kz_decoder_reset(kz_decoder *decoder);
KZ_API void kz_decoder_free(kz_decoder *decoder);

/* Checks against the reference implementation. */

/* Greedy or teacher-forced run that keeps intermediate values.  Every output may be NULL.
 * forced_codes [n_frames][n_codebooks]: fed back in place of the run's own choices.
 *   prompt_embeds [n_positions][talker_hidden]
 *   talker_hidden [n_frames][talker_hidden]     after the final norm
 *   talker_logits [n_frames][codec_vocab]       raw
 *   cp_logits     [n_frames][n_codebooks-1][codebook_size]
 *   codes         [n_frames][n_codebooks]
 * *n_done: frames produced (fewer when end-of-speech came). */
typedef struct kz_trace_out {
    float *prompt_embeds, *talker_hidden, *talker_logits, *cp_logits;
    int32_t *codes;
    int32_t n_done;
} kz_trace_out;
KZ_API kz_status kz_trace(kz_model *model, const kz_stream_params *params,
                          const int32_t *forced_codes, int32_t n_frames, kz_trace_out *out);

/* One stage of the decoder for codes decoded at once: "quant", "preconv", "pretr", "upsample",
 * "dac.entry", "dac.0" .. "dac.3", "pcm".  Call with out = NULL for the shape.  Layout
 * [time][channels]. */
KZ_API kz_status kz_decoder_trace(kz_model *model, const int32_t *codes, int32_t n_frames,
                                  const char *stage, int64_t shape[2], float *out);

/* The devices that a part can be placed on, as JSON: [{"name", "description", "type",
 * "memory_free", "memory_total"}, ...], memory in bytes.  Needs no model.
 * json [size] gets the text with its terminator, needed its size; json may be NULL to ask for it.
 * KZ_ERR_ARGUMENT when size is too small. */
KZ_API kz_status kz_devices(char *json, size_t size, size_t *needed);

/* Which node of a part's graphs runs on which device and what is copied between devices in one run,
 * as JSON: {"max_rows", "parts": [{"part", "device", "weights": {"device_bytes", "host_bytes"},
 * "graphs": [{"graph", "splits", "copies", "copied_bytes", "nodes": [{"device", "op",
 * "count"}]}]}]}. A part on the engine's own kernels has no graphs.  Builds graphs of its own on
 * the devices, so that running streams may use the model meanwhile. */
KZ_API kz_status kz_model_placement(kz_model *model, char *json, size_t size, size_t *needed);

/* The sampler's candidate distribution: probs [n] sums to 1, excluded ids are 0.
 * suppressed [n] (may be NULL): non-zero ids are excluded.  history: codes so far. */
KZ_API kz_status kz_sampler_probs(const kz_sampling *sampling, const float *logits, int32_t n,
                                  const uint8_t *suppressed, const int32_t *history,
                                  int32_t n_history, float *probs);

/* What this machine can do at most, measured with the engine's own loops: reading memory, and f32
 * products.  Beside it stands what a model reaches.  Each figure is the best of short passes.
 * params may be NULL.  Nothing else should run meanwhile. */
typedef struct kz_measure_params {
    uint32_t struct_size;
    int32_t n_threads;   /* 0: as many as the process may use               */
    double seconds;      /* in all, about; 0: 2; at most 60                 */
    int64_t working_set; /* bytes read in a pass; 0: far beyond the caches */
} kz_measure_params;

typedef struct kz_machine {
    uint32_t struct_size;
    int32_t n_threads;
    int64_t working_set;                 /* bytes of a reading pass, beyond the caches  */
    double read_gbs_1, read_gbs_n;       /* 10^9 bytes a second, 1 and n_threads threads */
    double gemm_gflops_1, gemm_gflops_n; /* 10^9 f32 operations a second                 */
    char kernels[16];                    /* the chosen loops: "avx2", "vec128", ...      */
    char integer_kernels[16];            /* of integer weights: "avxvnni", "dotprod", ... */
} kz_machine;
KZ_API kz_status kz_measure_machine(const kz_measure_params *params, kz_machine *machine);

/* Seconds of the matrix products alone that a frame needs, on n_threads threads: what the
 * generator's stages cost beyond them is overhead.  0 where ggml multiplies. */
typedef struct kz_passes {
    uint32_t struct_size;
    int32_t n_threads; /* in: 1..1024                      */
    double talker_s;   /* one step                         */
    double cp_s;       /* all passes of the code predictor */
} kz_passes;
KZ_API kz_status kz_measure_passes(kz_model *model, kz_passes *passes);

#ifdef __cplusplus
}
#endif
#endif /* KAZEIA_H */
