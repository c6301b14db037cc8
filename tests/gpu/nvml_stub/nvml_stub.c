/* A stand-in for libnvidia-ml.so.1: the part of the NVML API that tokgauge calls.
 *
 * What it shows stands in the file that NVML_STUB_SCENE names, and is read again on every call, so
 * that a test can change it while a program runs. One fact a line, the key up to the first blank:
 *
 *     count 2
 *     driver 9                               return code of every call (here: driver not loaded)
 *     error.nvmlDeviceGetPowerUsage 3        return code of one function
 *     delay.nvmlDeviceGetUtilizationRates 5  seconds that one function takes
 *     gpu0.name NVIDIA RTX A6000             also uuid, total, used, gpu, memory, clock, maxclock,
 *                                            bus, power, reasons, mig, ecc, dram
 *     gpu0.error 15                          return code of every call for this GPU
 *     gpu0.process 4242 1048576 37 VLLM::EngineCore     pid, bytes, SM percent, name
 *
 * Bytes of -1: not available. SM percent of -1: no sample. A missing figure: not supported.
 * Compiled with -DOLD_DRIVER it lacks what driver 470 lacks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7
};

typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_info;
typedef struct {
    unsigned pid;
    unsigned long long stamp;
    unsigned sm, mem, enc, dec;
} process_sample;
typedef struct {
    unsigned id;
    int result;
    double value;
    const char *short_name, *long_name, *unit;
} gpm_metric;
typedef struct { unsigned version, count; void *sample1, *sample2; gpm_metric metrics[1]; } gpm_get;
typedef struct { unsigned version, supported; } gpm_support;
typedef struct { int pid; long long bytes; int sm; char name[128]; } scene_process;

static int initialised;

/* The value of the nth line with this key, or 0. */
static int find(const char *key, int nth, char *value, size_t size) {
    const char *path = getenv("NVML_STUB_SCENE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];
    int found = 0;
    if (!file) return 0;
    while (!found && fgets(line, sizeof line, file)) {
        char *blank = strchr(line, ' ');
        if (!blank) continue;
        *blank = 0;
        if (strcmp(line, key) || nth--) continue;
        blank[1 + strcspn(blank + 1, "\n")] = 0;
        snprintf(value, size, "%s", blank + 1);
        found = 1;
    }
    fclose(file);
    return found;
}

static long long number(const char *key, long long otherwise) {
    char value[256];
    return find(key, 0, value, sizeof value) ? atoll(value) : otherwise;
}

/* What every call does first: wait, fail as told, and insist on being initialised. */
static int enter(const char *function) {
    char key[128], value[256];
    snprintf(key, sizeof key, "delay.%s", function);
    if (find(key, 0, value, sizeof value)) usleep((useconds_t)(atof(value) * 1e6));
    long long failure = number("driver", 0);
    if (!failure) {
        snprintf(key, sizeof key, "error.%s", function);
        failure = number(key, 0);
    }
    if (!failure && !initialised && strcmp(function, "nvmlInitWithFlags")) return UNINITIALIZED;
    return (int)failure;
}

static int enter_gpu(const char *function, long gpu) {
    char key[32];
    int failure = enter(function);
    snprintf(key, sizeof key, "gpu%ld.error", gpu);
    return failure ? failure : (int)number(key, 0);
}

/* A device handle is the index plus one. */
#define ENTER_GPU(device) \
    long index = (long)(device) - 1; \
    int failure = enter_gpu(__func__, index); \
    if (failure) return failure

static int figure(long gpu, const char *name, long long *value) {
    char key[64], text[256];
    snprintf(key, sizeof key, "gpu%ld.%s", gpu, name);
    if (!find(key, 0, text, sizeof text)) return NOT_SUPPORTED;
    *value = atoll(text);
    return SUCCESS;
}

static int unsigned_figure(long gpu, const char *name, unsigned *value) {
    long long found;
    int failure = figure(gpu, name, &found);
    if (!failure) *value = (unsigned)found;
    return failure;
}

static int text_figure(long gpu, const char *name, char *text, unsigned size) {
    char key[64];
    snprintf(key, sizeof key, "gpu%ld.%s", gpu, name);
    return find(key, 0, text, size) ? SUCCESS : NOT_SUPPORTED;
}

static int read_process(long gpu, int nth, scene_process *process) {
    char key[64], text[256];
    snprintf(key, sizeof key, "gpu%ld.process", gpu);
    if (!find(key, nth, text, sizeof text)) return 0;
    return sscanf(text, "%d %lld %d %127[^\n]", &process->pid, &process->bytes, &process->sm,
                  process->name) == 4;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int failure = enter(__func__);
    if (!failure) initialised = 1;
    return failure;
}

int nvmlShutdown(void) {
    int failure = enter(__func__);
    initialised = 0;
    return failure;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    int failure = enter(__func__);
    if (!failure) *count = (unsigned)number("count", 0);
    return failure;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    int failure = enter_gpu(__func__, index);
    if (failure) return failure;
    if (index >= number("count", 0)) return INVALID_ARGUMENT;
    *device = (void *)(long)(index + 1);
    return SUCCESS;
}

int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned size) {
    int failure = enter(__func__);
    if (failure) return failure;
    scene_process process;
    for (long gpu = 0; gpu < number("count", 0); gpu++)
        for (int nth = 0; read_process(gpu, nth, &process); nth++)
            if ((unsigned)process.pid == pid) {
                snprintf(name, size, "%s", process.name);
                return SUCCESS;
            }
    return NOT_FOUND;
}

int nvmlDeviceGetName(void *device, char *name, unsigned size) {
    ENTER_GPU(device);
    return text_figure(index, "name", name, size);
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size) {
    ENTER_GPU(device);
    return text_figure(index, "uuid", uuid, size);
}

int nvmlDeviceGetMemoryInfo(void *device, memory_v1 *memory) {
    ENTER_GPU(device);
    long long total, used;
    if ((failure = figure(index, "total", &total))) return failure;
    if ((failure = figure(index, "used", &used))) return failure;
    /* Version 1 counts the driver's own reserve as used. */
    memory->total = (unsigned long long)total;
    memory->used = (unsigned long long)used + (300ULL << 20);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, utilization *rates) {
    ENTER_GPU(device);
    if ((failure = unsigned_figure(index, "gpu", &rates->gpu))) return failure;
    return unsigned_figure(index, "memory", &rates->memory);
}

int nvmlDeviceGetClockInfo(void *device, unsigned kind, unsigned *clock) {
    ENTER_GPU(device);
    return kind == 2 ? unsigned_figure(index, "clock", clock) : INVALID_ARGUMENT;
}

int nvmlDeviceGetMaxClockInfo(void *device, unsigned kind, unsigned *clock) {
    ENTER_GPU(device);
    return kind == 2 ? unsigned_figure(index, "maxclock", clock) : INVALID_ARGUMENT;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    ENTER_GPU(device);
    return unsigned_figure(index, "power", milliwatts);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
    ENTER_GPU(device);
    long long found;
    if ((failure = figure(index, "reasons", &found))) return failure;
    *reasons = (unsigned long long)found;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    ENTER_GPU(device);
    if ((failure = unsigned_figure(index, "mig", current))) return failure;
    return unsigned_figure(index, "mig", pending);
}

int nvmlDeviceGetEccMode(void *device, unsigned *current, unsigned *pending) {
    ENTER_GPU(device);
    if ((failure = unsigned_figure(index, "ecc", current))) return failure;
    return unsigned_figure(index, "ecc", pending);
}

static int list(long gpu, unsigned *count, process_info *array) {
    scene_process process;
    unsigned room = *count, found = 0;
    for (; read_process(gpu, (int)found, &process); found++)
        if (array && found < room) {
            array[found].pid = (unsigned)process.pid;
            array[found].used = (unsigned long long)process.bytes;
        }
    *count = found;
    return found && (!array || found > room) ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *count, process_info *array) {
    ENTER_GPU(device);
    return list(index, count, array);
}

int nvmlDeviceGetProcessUtilization(void *device, process_sample *samples, unsigned *count,
                                    unsigned long long since) {
    (void)since;
    ENTER_GPU(device);
    scene_process process;
    unsigned room = *count, found = 0;
    for (int nth = 0; read_process(index, nth, &process); nth++) {
        if (process.sm < 0) continue;
        if (samples && found < room) {
            memset(&samples[found], 0, sizeof samples[found]);
            samples[found].pid = (unsigned)process.pid;
            samples[found].sm = (unsigned)process.sm;
        }
        found++;
    }
    *count = found;
    if (!found) return NOT_FOUND;
    return samples && found <= room ? SUCCESS : INSUFFICIENT_SIZE;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetMemoryBusWidth(void *device, unsigned *bits) {
    ENTER_GPU(device);
    return unsigned_figure(index, "bus", bits);
}

int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *memory) {
    ENTER_GPU(device);
    long long total, used;
    if ((failure = figure(index, "total", &total))) return failure;
    if ((failure = figure(index, "used", &used))) return failure;
    memory->total = (unsigned long long)total;
    memory->reserved = 300ULL << 20;
    memory->used = (unsigned long long)used;
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksThrottleReasons(device, reasons);
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process_info *array) {
    ENTER_GPU(device);
    return list(index, count, array);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, process_info *array) {
    (void)array;
    ENTER_GPU(device);
    *count = 0;
    return SUCCESS;
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, unsigned *count, process_info *array) {
    (void)array;
    ENTER_GPU(device);
    *count = 0;
    return SUCCESS;
}

int nvmlGpmQueryDeviceSupport(void *device, gpm_support *support) {
    ENTER_GPU(device);
    long long percent;
    support->supported = figure(index, "dram", &percent) == SUCCESS;
    return SUCCESS;
}

int nvmlGpmSampleAlloc(void **sample) {
    int failure = enter(__func__);
    if (!failure) *sample = calloc(1, sizeof(long));
    return failure;
}

int nvmlGpmSampleGet(void *device, void *sample) {
    ENTER_GPU(device);
    long long percent;
    if ((failure = figure(index, "dram", &percent))) return failure;
    *(long *)sample = (long)percent;
    return SUCCESS;
}

int nvmlGpmSampleFree(void *sample) {
    free(sample);
    return SUCCESS;
}

int nvmlGpmMetricsGet(gpm_get *request) {
    int failure = enter(__func__);
    if (failure) return failure;
    for (unsigned nth = 0; nth < request->count; nth++) {
        request->metrics[nth].result = request->metrics[nth].id == 10 ? SUCCESS : NOT_SUPPORTED;
        request->metrics[nth].value = (double)*(long *)request->sample2;
    }
    return SUCCESS;
}
#endif
