/* A small cuDNN: all matrices of one pseudo-layer after the other, then all biases.  It looks into no handle.
 *
 *   -DEXCHANGED      an LSTM's input and forget gate stand the other way around
 *   -DREFUSES        there are no persistent algorithms; =2: nor any other one
 *   -DFAILS_AT=n     the n-th question for a matrix is a bad one
 *   -DCRASHES_AT=n   the n-th question for a matrix is the last
 *   -DTALKS          it says much on both outputs
 *   -DHANGS          it never answers, whatever signal comes
 */
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS, BAD_PARAM = 2000, NOT_SUPPORTED = 3000 };
typedef struct { int type, gates, bias, directions, itemsize, input, hidden, projection, layers; } Network;
typedef struct { int type, rows, columns; } Tensor;

/* Elements before a region; of the whole where there is none, with no rows. */
static int64_t find(const Network *n, int layer, int id, int bias, Tensor *found) {
    int64_t at = 0;
    int layers = n->layers * n->directions, first = n->bias == 3 ? n->gates : 0;
    int last = n->bias == 0 ? 0 : n->bias == 1 ? n->gates : 2 * n->gates;
    for (int k = 0; k < layers; k++)
        for (int i = 0; i <= 8; i++) {
            if (i == 8 ? n->projection == n->hidden : i >= 2 * n->gates) continue;
            int below = k < n->directions ? n->input : n->projection * n->directions;
            found->rows = i == 8 ? n->projection : n->hidden;
            found->columns = i == 8 ? n->hidden : i < n->gates ? below : n->projection;
            if (!bias && k == layer && i == id) return at;
            at += (int64_t)found->rows * found->columns;
        }
    found->rows = n->hidden, found->columns = 1;
    for (int k = 0; k < layers; k++)
        for (int i = first; i < last; i++, at += n->hidden)
            if (bias && k == layer && i == id) return at;
    found->rows = 0;
    return at;
}

size_t cudnnGetVersion(void) {
#ifdef HANGS
    for (;;) signal(SIGTERM, SIG_IGN);
#endif
#ifdef TALKS
    for (int i = 0; i < 20000; i++) fprintf(stderr, "a line of what it says\n");
    printf("{\"version\": \"what it says\"}\n"), fflush(stdout);
#endif
    return 91002;
}
const char *cudnnGetErrorString(int status) {
    return status == NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_BAD_PARAM";
}
void cudnnGetLastErrorString(char *text, size_t room) { snprintf(text, room, "the stub says so"); }
int cudnnCreate(void **handle) { return BAD_PARAM + (handle == NULL); }
int cudnnDestroy(void *handle) { return handle ? SUCCESS : BAD_PARAM; }
int cudnnCreateRNNDescriptor(void **made) { return *made = calloc(1, sizeof(Network)), SUCCESS; }
int cudnnDestroyRNNDescriptor(void *made) { return free(made), SUCCESS; }
int cudnnCreateDropoutDescriptor(void **made) { return *made = calloc(1, 1), SUCCESS; }
int cudnnDestroyDropoutDescriptor(void *made) { return free(made), SUCCESS; }
int cudnnCreateTensorDescriptor(void **made) { return *made = calloc(1, sizeof(Tensor)), SUCCESS; }
int cudnnDestroyTensorDescriptor(void *made) { return free(made), SUCCESS; }
int cudnnSetDropoutDescriptor(void *d, void *handle, float p, void *states, size_t room, unsigned long long seed) {
    return d && handle && p == 0 && !states && !room && !seed ? SUCCESS : BAD_PARAM;
}
int cudnnSetRNNDescriptor_v8(
    Network *n, int algorithm, int mode, int bias, int direction, int inputMode, int type, int precision, int math,
    int32_t input, int32_t hidden, int32_t projection, int32_t layers, void *dropout, uint32_t flags) {
    int itemsize = type == 0 ? 4 : type == 1 ? 8 : 2, gates = mode == 2 ? 4 : mode == 3 ? 3 : 1;
    (void)algorithm;
#ifdef REFUSES
    if (algorithm || REFUSES == 2) return NOT_SUPPORTED;
#endif
    *n = (Network){type, gates, bias, direction + 1, itemsize, input, hidden, projection, layers};
    return inputMode || precision != (type == 1) || math > 3 || !dropout || flags != 1 ? BAD_PARAM : SUCCESS;
}
int cudnnGetRNNWeightSpaceSize(void *handle, const Network *n, size_t *nbytes) {
    Tensor none;
    *nbytes = find(n, -1, -1, 0, &none) * n->itemsize;
    return handle ? SUCCESS : BAD_PARAM;
}
int cudnnGetRNNWeightParams(
    void *handle, const Network *n, int32_t layer, size_t nbytes, const void *space, int32_t id, Tensor *matrix,
    void **matrixAt, Tensor *bias, void **biasAt) {
    static int asked;
    asked++;
#ifdef CRASHES_AT
    if (asked == CRASHES_AT) raise(SIGSEGV);
#endif
#ifdef FAILS_AT
    if (asked == FAILS_AT) return BAD_PARAM;
#endif
#ifdef EXCHANGED
    if (n->gates == 4 && id < 2) id = 1 - id;
#endif
    int64_t first = find(n, layer, id, 0, matrix), second = find(n, layer, id, 1, bias);
    matrix->type = bias->type = n->type;
    *matrixAt = matrix->rows ? (char *)space + first * n->itemsize : NULL;
    *biasAt = bias->rows ? (char *)space + second * n->itemsize : NULL;
    return handle && nbytes ? SUCCESS : BAD_PARAM;
}
int cudnnGetTensorNdDescriptor(const Tensor *t, int room, int *type, int *axes, int *shape, int *strides) {
    int sizes[] = {1, t->rows, t->columns}, steps[] = {t->rows * t->columns, t->columns, 1};
    *type = t->type, *axes = 3;
    memcpy(shape, sizes, sizeof sizes), memcpy(strides, steps, sizeof steps);
    return room < 3 ? BAD_PARAM : SUCCESS;
}
