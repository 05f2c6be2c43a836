/* A stand-in for libnvidia-ml.so.1: in a lab without GPUs, code that asks NVML runs unchanged.

   Written from the public description of the API (docs.nvidia.com/deploy/nvml-api); it contains no
   code of NVIDIA.  Each call reads its answer from the file that SEATRIAL_LAB_NVML names.  So one
   more line injects a fault at once, also into running processes.  A line is `key value`:

       gpus 8                        how many GPUs the node has
       name NVIDIA H100 80GB HBM3    of all GPUs
       3.name NVIDIA A100            of GPU 3 alone: it overrides the line for all
       error 18                      every call returns this code
       3.error 15                    every call on GPU 3 does

   If two lines have one key, the later counts.  To add a query: a function below, and its keys in
   KEYS of nvml.py. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Return;
typedef void *Device; /* 1 + the GPU's index; for its MIG instance i also + (1 + i) * MIG */
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9 };
enum { KEY = 64, VALUE = 256, NODE = -1, MIB = 1 << 20, MIG = 1000, MIG_PLACES = 7 };

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };

/* Find `key` in the file: 2 for this GPU alone, 1 for all, 0 not there, -1 without a file. */
static int find(int gpu, const char *key, char value[VALUE])
{
    char own[KEY], line[KEY + VALUE], name[KEY], text[VALUE];
    const char *path = getenv("SEATRIAL_LAB_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    int found = 0;

    if (!file)
        return -1;
    snprintf(own, sizeof own, "%d.%s", gpu, key);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%63s %255[^\n]", name, text) != 2)
            continue;
        int of = !strcmp(name, own) ? 2 : !strcmp(name, key) ? 1 : 0;
        if (of && of >= found) {
            found = of;
            strcpy(value, text);
        }
    }
    fclose(file);
    return found;
}

static long long find_number(int gpu, const char *key, long long otherwise)
{
    char value[VALUE];
    return find(gpu, key, value) > 0 ? atoll(value) : otherwise;
}

/* Return the code of every call, for the node or a GPU, before the call's own answer. */
static Return status(int gpu)
{
    char value[VALUE];
    int found = find(gpu, "error", value);

    if (found < 0)
        return DRIVER_NOT_LOADED;
    if (found)
        return atoi(value);
    return gpu != NODE && (gpu < 0 || gpu >= find_number(NODE, "gpus", 0)) ? INVALID_ARGUMENT : SUCCESS;
}

static int index_of(Device device) { return device ? (int)((long)device - 1) % MIG : -2; }

static Return tell(const char *answer, char *text, unsigned length)
{
    return snprintf(text, length, "%s", answer) < (int)length ? SUCCESS : INSUFFICIENT_SIZE;
}

static Return tell_setting(int gpu, const char *key, char *text, unsigned length)
{
    char value[VALUE] = "";
    Return code = status(gpu);

    find(gpu, key, value);
    return code ? code : tell(value, text, length);
}

Return nvmlInit_v2(void) { return status(NODE); }
Return nvmlInitWithFlags(unsigned flags) { (void)flags; return status(NODE); }
Return nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(Return code)
{
    switch (code) {
    case SUCCESS: return "Success";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

Return nvmlSystemGetDriverVersion(char *text, unsigned length)
{
    return tell_setting(NODE, "driver", text, length);
}

Return nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = (unsigned)find_number(NODE, "gpus", 0);
    return status(NODE);
}

Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device)
{
    *device = (Device)(long)(index + 1);
    return status((int)index);
}

Return nvmlDeviceGetName(Device device, char *text, unsigned length)
{
    return tell_setting(index_of(device), "name", text, length);
}

Return nvmlDeviceGetUUID(Device device, char *text, unsigned length)
{
    char value[VALUE] = "", uuid[VALUE + 16];
    int gpu = index_of(device), own = find(gpu, "uuid", value) == 2;
    Return code = status(gpu);

    /* A line for all GPUs is the beginning of each UUID; `GPU-` becomes `MIG-` for an instance. */
    snprintf(uuid, sizeof uuid, own ? "%s" : "%s%012ld", value, (long)device - 1);
    if ((long)device > MIG)
        memcpy(uuid, "MIG", 3);
    return code ? code : tell(uuid, text, length);
}

Return nvmlDeviceGetHandleByUUID(const char *wanted, Device *device)
{
    char uuid[VALUE];
    long gpus = find_number(NODE, "gpus", 0);

    for (*device = NULL; (long)*device < gpus;) {
        *device = (Device)((long)*device + 1);
        if (!nvmlDeviceGetUUID(*device, uuid, sizeof uuid) && !strcmp(uuid, wanted))
            return SUCCESS;
    }
    return status(NODE) ? status(NODE) : NOT_FOUND;
}

Return nvmlDeviceGetIndex(Device device, unsigned *index)
{
    *index = (unsigned)index_of(device);
    return status(index_of(device));
}

Return nvmlDeviceGetMemoryInfo(Device device, struct memory *memory)
{
    int gpu = index_of(device);

    memory->total = MIB * find_number(gpu, "memory_mib", 0);
    memory->used = MIB * find_number(gpu, "used_mib", 0);
    memory->free = memory->total - memory->used;
    return status(gpu);
}

Return nvmlDeviceGetMemoryInfo_v2(Device device, struct memory_v2 *memory)
{
    struct memory plain;
    Return code = nvmlDeviceGetMemoryInfo(device, &plain);

    memory->total = plain.total, memory->free = plain.free, memory->used = plain.used;
    memory->reserved = 0;
    return code;
}

Return nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, void *processes)
{
    *count = 0; /* as in a container, where NVML lists none */
    return (void)processes, status(index_of(device));
}

Return nvmlDeviceGetMigMode(Device device, unsigned *now, unsigned *pending)
{
    *now = *pending = find_number(index_of(device), "mig", 0) > 0;
    return status(index_of(device));
}

Return nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *count)
{
    *count = find_number(index_of(device), "mig", 0) > 0 ? MIG_PLACES : 0;
    return status(index_of(device));
}

Return nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned place, Device *instance)
{
    *instance = (char *)device + (1 + place) * MIG;
    return place < find_number(index_of(device), "mig", 0) ? status(index_of(device)) : NOT_FOUND;
}
