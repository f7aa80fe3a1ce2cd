/* Speaks four frames through the C interface, with every struct in a guarded place: a library that
 * knows larger structs must not write beyond these. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "kazeia.h"

#define GUARDED(type, name)         \
    struct {                        \
        type s;                     \
        unsigned char guard[64];    \
    } name;                         \
    memset(&name, 0, sizeof(name)); \
    memset(name.guard, 0xa5, sizeof(name.guard))

static int untouched(const unsigned char *guard) {
    for (int i = 0; i < 64; i++)
        if (guard[i] != 0xa5) return 0;
    return 1;
}

#define TRY(call)                                             \
    do {                                                      \
        if ((call) != KZ_OK) {                                \
            fprintf(stderr, #call ": %s\n", kz_last_error()); \
            return 1;                                         \
        }                                                     \
    } while (0)
#define UNTOUCHED(name)                                    \
    do {                                                   \
        if (!untouched(name.guard)) {                      \
            fprintf(stderr, "written beyond " #name "\n"); \
            return 1;                                      \
        }                                                  \
    } while (0)

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    GUARDED(kz_load_params, load);
    load.s.struct_size = sizeof(kz_load_params);
    load.s.n_threads = 1;
    kz_model *model;
    TRY(kz_model_load(argv[1], argv[2], &load.s, &model));

    GUARDED(kz_model_info, info);
    info.s.struct_size = sizeof(kz_model_info);
    TRY(kz_model_get_info(model, &info.s));

    GUARDED(kz_stream_params, params);
    params.s.struct_size = sizeof(kz_stream_params);
    TRY(kz_stream_params_default(&params.s));
    const int32_t text[] = {1, 2, 3}, codec[] = {-1, -1, 0};
    params.s.prompt.text_ids = text;
    params.s.prompt.codec_ids = codec;
    params.s.prompt.n_positions = 3;
    params.s.max_frames = 4;
    params.s.ignore_eos = 1;
    kz_stream *stream;
    TRY(kz_stream_open(model, &params.s, &stream));

    GUARDED(kz_chunk, chunk);
    int samples = 0;
    kz_status status;
    while ((status = kz_stream_read(stream, -1, &chunk.s)) == KZ_OK) samples += chunk.s.n_samples;
    if (status != KZ_END) {
        fprintf(stderr, "read: %s\n", kz_last_error());
        return 1;
    }
    GUARDED(kz_result, result);
    result.s.struct_size = sizeof(kz_result);
    TRY(kz_stream_result(stream, &result.s));
    printf("%d frames of %d samples: %d\n", result.s.n_frames, info.s.samples_per_frame, samples);

    GUARDED(kz_passes, passes);
    passes.s.struct_size = sizeof(kz_passes);
    passes.s.n_threads = 1;
    TRY(kz_measure_passes(model, &passes.s));
    GUARDED(kz_measure_params, measure);
    measure.s.struct_size = sizeof(kz_measure_params);
    measure.s.n_threads = 1;
    measure.s.seconds = 0.05;
    measure.s.working_set = 1 << 20;
    GUARDED(kz_machine, machine);
    machine.s.struct_size = sizeof(kz_machine);
    TRY(kz_measure_machine(&measure.s, &machine.s));

    UNTOUCHED(load);
    UNTOUCHED(info);
    UNTOUCHED(params);
    UNTOUCHED(chunk);
    UNTOUCHED(result);
    UNTOUCHED(passes);
    UNTOUCHED(measure);
    UNTOUCHED(machine);
    kz_stream_free(stream);
    kz_model_free(model);
    return 0;
}
