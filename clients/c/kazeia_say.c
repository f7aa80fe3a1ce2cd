/* kazeia_say: a text file in, a WAV file out, written while the speech is made.
 *
 * Kazeia in a C program: kazeia.h speaks, llama.h turns text into tokens (it loads the model's
 * vocabulary alone), gguf.h tells the model's speakers and languages.  README.md: how to build it.
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <gguf.h>
#include <kazeia.h>
#include <llama.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define ROLE "assistant\n"                          // before every text; two tokens
enum { FAILED = 1, USAGE = 2, INTERRUPTED = 130 };  // exit codes
enum { ROLE_TOKENS = 2, MAX_TEXT_BYTES = 200000, MAX_TOKENS = 8192, MORE_POSITIONS = 16 };
enum { POLL_MS = 100 };

typedef struct {
    int32_t text_ids[MAX_TOKENS + MORE_POSITIONS], codec_ids[MAX_TOKENS + MORE_POSITIONS];
    int32_t n, n_prefix, n_text_tokens, pad_text_id;
} prompt_t;

typedef struct {
    FILE *file;
    const char *path;
    uint32_t sample_rate, bytes;  // bytes of samples so far
} wav_t;

static volatile sig_atomic_t interrupted;  // all that a signal handler may touch

static void on_signal(int number) {
    (void)number;
    interrupted = 1;
}

static void be_quiet(enum ggml_log_level level, const char *line, void *user) {
    (void)level, (void)line, (void)user;
}

static bool fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("kazeia_say: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return false;
}

// ---- text ---------------------------------------------------------------------------------------

// How many of n bytes are UTF-8 without NUL: n, or where the first is that is not.
static size_t valid_utf8(const unsigned char *s, size_t n) {
    for (size_t i = 0, more; i < n; i += 1 + more) {
        const unsigned c = s[i];
        more = c < 0x80 ? 0 : c < 0xE0 ? 1 : c < 0xF0 ? 2 : 3;
        if (c == 0 || (c >= 0x80 && c < 0xC2) || c > 0xF4 || more >= n - i) return i;
        for (size_t k = 1; k <= more; k++)
            if ((s[i + k] & 0xC0) != 0x80) return i;
        const unsigned two = c << 8 | (more ? s[i + 1] : 0);  // overlong, surrogate, above 10FFFF
        if ((two >= 0xE000 && two < 0xE0A0) || (two >= 0xEDA0 && two < 0xEE00)) return i;
        if ((two >= 0xF000 && two < 0xF090) || two >= 0xF490) return i;
    }
    return n;
}

// Fills text (MAX_TEXT_BYTES + 2 long) from a file, without a byte order mark and space at its end.
static bool read_text(const char *path, char *text) {
    FILE *const file = fopen(path, "rb");
    if (!file) return fail("cannot read %s: %s", path, strerror(errno));
    size_t n = fread(text, 1, MAX_TEXT_BYTES + 1, file);
    const int error = ferror(file) ? errno : 0;
    fclose(file);
    const size_t valid = valid_utf8((const unsigned char *)text, n);
    if (error) return fail("cannot read %s: %s", path, strerror(error));
    if (n > MAX_TEXT_BYTES) return fail("%s has more than %d bytes", path, MAX_TEXT_BYTES);
    if (valid < n) return fail("%s is not UTF-8 text: see byte %zu", path, valid);
    if (n >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) memmove(text, text + 3, n -= 3);
    while (n > 0 && strchr(" \t\r\n", text[n - 1])) n--;
    text[n] = '\0';
    return n > 0 || fail("%s is empty: expected something to say", path);
}

// ---- prompt: the layout is that of python/kazeia_engine/prompt.py
// ---------------------------------

// Where a key of the talker file is; `element`: an array of that type is wanted.  -1: not there.
static int64_t find(const struct gguf_context *keys, const char *key, enum gguf_type type,
                    enum gguf_type element) {
    const int64_t at = gguf_find_key(keys, key);
    if (at < 0 || gguf_get_kv_type(keys, at) != type) return -1;
    return type != GGUF_TYPE_ARRAY || gguf_get_arr_type(keys, at) == element ? at : -1;
}

// Codec id of a speaker or language, and its place in the list; a failure says what the list has.
static bool named(const struct gguf_context *keys, const char *kind, const char *name, int32_t *id,
                  size_t *place) {
    char key[64];
    snprintf(key, sizeof key, "kazeia.%s.names", kind);
    const int64_t names = find(keys, key, GGUF_TYPE_ARRAY, GGUF_TYPE_STRING);
    snprintf(key, sizeof key, "kazeia.%s.ids", kind);
    const int64_t ids = find(keys, key, GGUF_TYPE_ARRAY, GGUF_TYPE_INT32);
    const size_t n = names < 0 || ids < 0 ? 0 : gguf_get_arr_n(keys, names);
    for (size_t i = 0; i < n && i < gguf_get_arr_n(keys, ids); i++) {
        if (strcasecmp(gguf_get_arr_str(keys, names, i), name) != 0) continue;
        *id = ((const int32_t *)gguf_get_arr_data(keys, ids))[i];
        *place = i;
        return true;
    }
    fprintf(stderr, "kazeia_say: unknown %s %s: the model has", kind, name);
    for (size_t i = 0; i < n; i++) fprintf(stderr, " %s", gguf_get_arr_str(keys, names, i));
    fputs(n ? "\n" : " none\n", stderr);
    return false;
}

static void add(prompt_t *p, int32_t text_id, int32_t codec_id) {
    p->text_ids[p->n] = text_id;
    p->codec_ids[p->n++] = codec_id;
}

// role_and_text begins with ROLE.
static bool build_prompt(const struct gguf_context *keys, const struct llama_vocab *vocab,
                         const char *role_and_text, const char *speaker, const char *language,
                         prompt_t *p) {
    enum { PAD, BOS, THINK, NOTHINK, THINK_BOS, THINK_EOS, TTS_PAD, TTS_BOS, TTS_EOS, N_IDS };
    static const char *const names[N_IDS] = {"codec.pad",     "codec.bos",       "codec.think",
                                             "codec.nothink", "codec.think_bos", "codec.think_eos",
                                             "tts.pad",       "tts.bos",         "tts.eos"};
    int32_t id[N_IDS], start, tokens[MAX_TOKENS + ROLE_TOKENS], speaker_id = -1, language_id = -1;
    for (int i = 0; i < N_IDS; i++) {
        char key[64];
        snprintf(key, sizeof key, "kazeia.%s_id", names[i]);
        const int64_t at = find(keys, key, GGUF_TYPE_UINT32, GGUF_TYPE_UINT32);
        if (at < 0) return fail("the talker file lacks %s: make one with `kazeia convert`", key);
        id[i] = (int32_t)gguf_get_val_u32(keys, at);
    }
    size_t place = 0;
    if (speaker && !named(keys, "speaker", speaker, &speaker_id, &place)) return false;
    const int64_t dialects =
        find(keys, "kazeia.speaker.dialects", GGUF_TYPE_ARRAY, GGUF_TYPE_STRING);
    if (speaker && dialects >= 0 && place < gguf_get_arr_n(keys, dialects) &&
        (strcasecmp(language, "auto") == 0 || strcasecmp(language, "chinese") == 0)) {
        const char *const dialect = gguf_get_arr_str(keys, dialects, place);
        if (*dialect) language = dialect;  // some speakers speak one
    }
    if (strcasecmp(language, "auto") != 0 &&
        !named(keys, "language", language, &language_id, &place))
        return false;

    const int32_t length = (int32_t)strlen(role_and_text), room = MAX_TOKENS + ROLE_TOKENS;
    const int32_t n = llama_tokenize(vocab, role_and_text, length, tokens, room, false, false);
    if (n <= ROLE_TOKENS)  // negative: there is no room for so many
        return fail("the text has %d tokens, expected 1 to %d", abs(n) - ROLE_TOKENS, MAX_TOKENS);
    for (int32_t i = 0; i < n; i++)  // <think> and such would not be spoken but obeyed
        if (llama_vocab_get_attr(vocab, tokens[i]) &
            (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_USER_DEFINED))
            return fail("the text holds a control sequence of the model");
    if (llama_tokenize(vocab, "<|im_start|>", 12, &start, 1, false, true) != 1)
        return fail("the vocabulary has no token <|im_start|>");

    p->n = 0;
    p->pad_text_id = id[TTS_PAD];
    add(p, start, -1);
    for (int i = 0; i < ROLE_TOKENS; i++) add(p, tokens[i], -1);
    add(p, id[TTS_PAD], language_id < 0 ? id[NOTHINK] : id[THINK]);
    add(p, id[TTS_PAD], id[THINK_BOS]);
    if (language_id >= 0) add(p, id[TTS_PAD], language_id);
    add(p, id[TTS_PAD], id[THINK_EOS]);
    if (speaker_id >= 0) add(p, id[TTS_PAD], speaker_id);
    add(p, id[TTS_BOS], id[PAD]);
    p->n_prefix = p->n;  // up to here the same for every text
    p->n_text_tokens = n - ROLE_TOKENS;
    for (int32_t i = ROLE_TOKENS; i < n; i++) add(p, tokens[i], id[PAD]);
    add(p, id[TTS_EOS], id[PAD]);
    add(p, id[TTS_PAD], id[BOS]);
    return true;
}

// ---- WAV ----------------------------------------------------------------------------------------

static bool wav_fail(const wav_t *w) {
    return fail("cannot write %s: %s", w->path, strerror(errno));
}

static void put(unsigned char *at, uint32_t value, int n) {
    for (int i = 0; i < n; i++) at[i] = (unsigned char)(value >> (8 * i));
}

// 16 bits, mono.  Sizes that are not known yet are the largest: players then read to the end.
static bool wav_header(wav_t *w, bool known) {
    unsigned char h[44] = "RIFF....WAVEfmt \x10\0\0\0\1\0\1\0........\2\0\x10\0data";
    put(h + 4, known ? w->bytes + 36 : UINT32_MAX, 4);
    put(h + 24, w->sample_rate, 4);
    put(h + 28, w->sample_rate * 2, 4);
    put(h + 40, known ? w->bytes : UINT32_MAX, 4);
    return fwrite(h, sizeof h, 1, w->file) == 1 && fflush(w->file) == 0;
}

static bool wav_write(wav_t *w, const float *pcm, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        const float x = isfinite(pcm[i]) ? fminf(fmaxf(pcm[i], -1.0f), 1.0f) : 0.0f;
        unsigned char sample[2];
        put(sample, (uint32_t)(int32_t)rintf(x * 32767.0f), 2);
        if (fwrite(sample, sizeof sample, 1, w->file) != 1) return wav_fail(w);
        w->bytes += sizeof sample;
    }
    return fflush(w->file) == 0 || wav_fail(w);  // what has been made can be heard
}

// `good`: nothing has gone wrong before, and been told.
static bool wav_close(wav_t *w, bool good) {
    const bool sized =
        fseek(w->file, 0, SEEK_SET) != 0 || wav_header(w, true);  // no pipe has sizes
    const bool closed = fclose(w->file) == 0;
    return good && ((sized && closed) || wav_fail(w));
}

// ---- speech -------------------------------------------------------------------------------------

static bool kz_fail(void) {
    return fail("%s", kz_last_error());
}

// A stream, to its end or to a signal, into the file.
static bool write_speech(kz_stream *stream, wav_t *w) {
    kz_chunk chunk;
    kz_status status;
    while ((status = kz_stream_read(stream, POLL_MS, &chunk)) == KZ_OK || status == KZ_TIMEOUT) {
        if (interrupted) kz_stream_cancel(stream);  // its end then comes within a frame
        if (status == KZ_TIMEOUT) continue;
        if (!wav_write(w, chunk.pcm, chunk.n_samples)) return false;
        if (chunk.index == 0) fprintf(stderr, "first audio after %.0f ms\n", chunk.t_s * 1e3);
        if (isatty(2)) fprintf(stderr, "\r%.1f s", w->bytes / 2.0 / w->sample_rate);
    }
    kz_result result = {.struct_size = sizeof result};
    if (status != KZ_END || kz_stream_result(stream, &result) != KZ_OK) return kz_fail();
    const char *how = "cut: it did not end by itself";
    if (result.ended == KZ_ENDED_EOS) how = "complete";
    if (result.ended == KZ_ENDED_CANCELLED) how = "cancelled";
    fprintf(stderr, "\r%s: %.2f s of speech made in %.2f s, %s\n", w->path,
            w->bytes / 2.0 / w->sample_rate, result.work_s, how);
    return true;
}

static bool speak(kz_model *model, const prompt_t *p, uint64_t seed, const char *path) {
    kz_model_info info = {.struct_size = sizeof info};
    if (kz_model_get_info(model, &info) != KZ_OK) return kz_fail();
    kz_stream_params params = {.struct_size = sizeof params};
    if (kz_stream_params_default(&params) != KZ_OK) return kz_fail();
    params.prompt = (kz_prompt){.text_ids = p->text_ids,
                                .codec_ids = p->codec_ids,
                                .n_positions = p->n,
                                .pad_text_id = p->pad_text_id,
                                .n_text_tokens = p->n_text_tokens,
                                .n_prefix = p->n_prefix};
    params.seed = seed;
    params.guard = (kz_guard){15.0f, 64, 0.1f, 48, 50};  // as `kazeia say` has it
    const int32_t longest = info.max_positions - p->n;
    if (params.max_frames > longest) params.max_frames = longest;
    kz_stream *stream;
    if (kz_stream_open(model, &params, &stream) != KZ_OK) return kz_fail();
    wav_t wav = {fopen(path, "wb"), path, (uint32_t)info.sample_rate, 0};
    bool good = wav.file || wav_fail(&wav);
    if (good) {
        good = wav_header(&wav, false) || wav_fail(&wav);
        good = wav_close(&wav, good && write_speech(stream, &wav));
    }
    kz_stream_free(stream);
    return good;
}

int main(int argc, char **argv) {
    const char *speaker = NULL, *language = "auto", *number = "0";
    for (int option; (option = getopt(argc, argv, "s:l:r:")) != -1;) {
        if (option == 's') speaker = optarg;
        if (option == 'l') language = optarg;
        if (option == 'r') number = optarg;
        if (option == '?') return USAGE;  // getopt has said why
    }
    char *end;
    errno = 0;
    const uint64_t seed = strtoull(number, &end, 10);
    if (argc - optind != 4 || errno || *end || !strchr("0123456789", *number) || !*number) {
        fputs("usage: kazeia_say [-s SPEAKER] [-l LANGUAGE] [-r SEED] TALKER CODEC TEXT WAV\n",
              stderr);
        return USAGE;
    }
    char **const path = argv + optind;
    // SA_RESETHAND: a second Ctrl-C ends the program at once.
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    llama_log_set(be_quiet, NULL);

    char *const text = malloc(sizeof ROLE + MAX_TEXT_BYTES + 2);
    prompt_t *const prompt = malloc(sizeof *prompt);
    kz_model *model = NULL;
    struct gguf_context *keys = NULL;
    struct llama_model *vocabulary = NULL;
    bool good = (text && prompt) || fail("out of memory");
    good = good && read_text(path[2], strcpy(text, ROLE) + strlen(ROLE));
    good = good && (kz_model_load(path[0], path[1], NULL, &model) == KZ_OK || kz_fail());
    if (good) {
        struct llama_model_params params = llama_model_default_params();
        params.vocab_only = true;
        vocabulary = llama_model_load_from_file(path[0], params);
        keys = gguf_init_from_file(path[0], (struct gguf_init_params){.no_alloc = true});
        good = (vocabulary && keys) || fail("%s has no usable vocabulary", path[0]);
    }
    good = good &&
           build_prompt(keys, llama_model_get_vocab(vocabulary), text, speaker, language, prompt);
    good = good && !interrupted && speak(model, prompt, seed, path[3]);
    gguf_free(keys);
    llama_model_free(vocabulary);
    kz_model_free(model);
    free(prompt);
    free(text);
    return interrupted ? INTERRUPTED : good ? EXIT_SUCCESS : FAILED;
}
