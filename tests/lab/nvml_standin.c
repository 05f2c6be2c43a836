/* A stand-in for libnvidia-ml.so.1: in a lab without GPUs, code that asks NVML runs unchanged.

   Written from the public description of the API (docs.nvidia.com/deploy/nvml-api); it contains no
   code of NVIDIA.  Each call reads its answer from the file that SEATRIAL_LAB_NVML names.  So one
   more line injects a fault at once, also into running processes.  A line is `key value`:

       gpus 8                        how many GPUs the node has
       name NVIDIA H100 80GB HBM3    of all GPUs
       3.name NVIDIA A100            of GPU 3 alone: it overrides the line for all
       error 18                      every call returns this code
       3.error 15                    every call on GPU 3 does

       3.ecc unsupported             this query on GPU 3 is not supported
       3.ecc denied                  it needs a permission
       3.ecc failed                  it returns an unknown error

   If two lines have one key, the later counts.  To add a query: a function below, and its keys in
   KEYS of nvml.py. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int Return;
typedef void *Device; /* 1 + the GPU's index; for its MIG instance i also + (1 + i) * MIG */
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, UNKNOWN = 999 };
enum { RECOVERY_ACTION = 230, LINK_RECOVERIES = 215, IDLE = 1, H100_LINKS = 18, H100_WATT = 700, H100_MHZ = 1980, LANES = 16,
       FABRIC_COMPLETED = 3 };
enum { KEY = 64, VALUE = 256, NODE = -1, MIB = 1 << 20, MIG = 1000, MIG_PLACES = 7 };

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct pci { char legacy_id[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
struct field { unsigned id, scope; long long time, latency; int type; Return code;
               union { unsigned number; unsigned long long large; } value; };
struct sram { unsigned version; unsigned long long counts[11]; unsigned exceeded; };
struct fabric { unsigned version; unsigned char cluster[16]; Return status; unsigned clique;
                unsigned char state; unsigned health; };

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

/* Answer a query of a GPU by its key: a number, `unsupported`, `denied` or `failed`. */
static Return ask(Device device, const char *key, long long otherwise, long long *answer)
{
    char value[VALUE] = "";
    int gpu = index_of(device), found = find(gpu, key, value);
    Return code = status(gpu);

    *answer = found > 0 ? atoll(value) : otherwise;
    if (!code && found > 0 && !strcmp(value, "unsupported"))
        return NOT_SUPPORTED;
    if (!code && found > 0 && !strcmp(value, "denied"))
        return NO_PERMISSION;
    return !code && found > 0 && !strcmp(value, "failed") ? UNKNOWN : code;
}

static Return ask_unsigned(Device device, const char *key, long long otherwise, unsigned *answer)
{
    long long number;
    Return code = ask(device, key, otherwise, &number);

    *answer = (unsigned)number;
    return code;
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

Return nvmlDeviceGetVbiosVersion(Device device, char *text, unsigned length)
{
    return tell_setting(index_of(device), "vbios", text, length);
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

/* The health of a GPU.  What no line says is as on a healthy H100 of an NVSwitch board. */

Return nvmlDeviceGetPciInfo_v3(Device device, struct pci *pci)
{
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", 16 + index_of(device));
    return status(index_of(device));
}

/* A board that counts recoveries of NVLinks in a field is a Blackwell: it has no other counter. */
static long long recoveries_of(Device device)
{
    return find_number(index_of(device), "nvlink_recoveries", -1);
}

Return nvmlDeviceGetFieldValues(Device device, int count, struct field *fields)
{
    for (int i = 0; i < count; i++) {
        fields[i].code = INVALID_ARGUMENT;
        if (fields[i].id == RECOVERY_ACTION)
            fields[i].code = ask_unsigned(device, "recovery", 0, &fields[i].value.number);
        if (fields[i].id == LINK_RECOVERIES && recoveries_of(device) >= 0) {
            fields[i].code = status(index_of(device));
            fields[i].value.large = fields[i].scope ? 0 : (unsigned long long)recoveries_of(device);
        }
    }
    return status(index_of(device));
}

Return nvmlDeviceGetEccMode(Device device, unsigned *now, unsigned *pending)
{
    Return code = ask_unsigned(device, "ecc", 1, now);

    *pending = *now;
    return code;
}

Return nvmlDeviceGetDefaultEccMode(Device device, unsigned *mode)
{
    return ask_unsigned(device, "ecc_default", 1, mode);
}

Return nvmlDeviceGetTotalEccErrors(Device device, int type, int counter, unsigned long long *count)
{
    long long number;
    Return code = ask(device, counter ? "lifetime_errors" : "ecc_errors", 0, &number);

    *count = type == 1 ? (unsigned long long)number : 0; /* 1: uncorrected */
    return code;
}

Return nvmlDeviceGetSramEccErrorStatus(Device device, struct sram *sram)
{
    return ask_unsigned(device, "sram", 0, &sram->exceeded);
}

Return nvmlDeviceGetRemappedRows(Device device, unsigned *correctable, unsigned *uncorrectable,
                                 unsigned *pending, unsigned *failed)
{
    ask_unsigned(device, "remap_failed", 0, failed);
    ask_unsigned(device, "remap_pending", 0, pending);
    *correctable = 0;
    return ask_unsigned(device, "remapped", 0, uncorrectable);
}

Return nvmlDeviceGetRetiredPagesPendingStatus(Device device, unsigned *pending)
{
    long long number;
    Return code = ask(device, "retired_pending", -1, &number);

    *pending = number > 0;
    return !code && number < 0 ? NOT_SUPPORTED : code; /* an H100 remaps rows instead */
}

Return nvmlDeviceGetCurrentClocksEventReasons(Device device, unsigned long long *reasons)
{
    long long number;
    Return code = ask(device, "slowdown", IDLE, &number);

    *reasons = (unsigned long long)number;
    return code;
}

static Return ask_power(Device device, const char *key, unsigned *milliwatt)
{
    Return code = ask_unsigned(device, key, H100_WATT, milliwatt);

    *milliwatt *= 1000;
    return code;
}

Return nvmlDeviceGetEnforcedPowerLimit(Device device, unsigned *milliwatt)
{
    return ask_power(device, "power_limit", milliwatt);
}

Return nvmlDeviceGetPowerManagementDefaultLimit(Device device, unsigned *milliwatt)
{
    return ask_power(device, "power_default", milliwatt);
}

Return nvmlDeviceGetCurrPcieLinkWidth(Device device, unsigned *lanes)
{
    return ask_unsigned(device, "pcie_width", LANES, lanes);
}

Return nvmlDeviceGetMaxPcieLinkWidth(Device device, unsigned *lanes)
{
    return ask_unsigned(device, "pcie_max_width", LANES, lanes);
}

Return nvmlDeviceGetPcieReplayCounter(Device device, unsigned *packets)
{
    return ask_unsigned(device, "pcie_replays", 0, packets);
}

struct violation { unsigned long long reference, time; };

Return nvmlDeviceGetViolationStatus(Device device, int policy, struct violation *violation)
{
    long long seconds;
    Return code = ask(device, "heat", 0, &seconds);

    violation->time = policy == 1 ? 1000000000ULL * seconds : 0; /* 1: thermal */
    violation->reference = 0;
    return code;
}

Return nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned *active)
{
    long long down, links;
    Return code = ask(device, "nvlinks", H100_LINKS, &links);

    ask(device, "nvlinks_down", 0, &down);
    *active = link >= down;
    return !code && link >= links ? INVALID_ARGUMENT : code;
}

/* All errors are replays of the first link. */
Return nvmlDeviceGetNvLinkErrorCounter(Device device, unsigned link, int kind, unsigned long long *errors)
{
    long long number;
    Return code = ask(device, "nvlink_errors", 0, &number);

    *errors = link || kind ? 0 : (unsigned long long)number;
    return !code && recoveries_of(device) >= 0 ? NOT_SUPPORTED : code;
}

Return nvmlDeviceGetGpuFabricInfoV(Device device, struct fabric *fabric)
{
    unsigned state, status;
    Return code = ask_unsigned(device, "fabric_state", FABRIC_COMPLETED, &state);

    memset(fabric->cluster, 0, sizeof fabric->cluster);
    ask_unsigned(device, "fabric_status", SUCCESS, &status);
    ask_unsigned(device, "fabric_health", 0, &fabric->health);
    fabric->status = (Return)status, fabric->state = (unsigned char)state, fabric->clique = 0;
    return code;
}

Return nvmlDeviceGetComputeMode(Device device, unsigned *mode)
{
    return ask_unsigned(device, "compute_mode", 0, mode);
}

/* Events: one set, which reports each new line `3.xid 79` of a registered GPU once. */

enum { MAX_GPUS = 64, TIMEOUT = 10, STEP_MS = 100, XID_EVENT = 8 };
struct event { Device device; unsigned long long type, data; unsigned gpu_instance, compute; };
static long long reported[MAX_GPUS];
static char registered[MAX_GPUS];

Return nvmlEventSetCreate(void **set)
{
    *set = registered;
    return status(NODE);
}

Return nvmlEventSetFree(void *set) { return (void)set, SUCCESS; }

Return nvmlDeviceRegisterEvents(Device device, unsigned long long types, void *set)
{
    int gpu = index_of(device);
    unsigned unused;
    Return code = ask_unsigned(device, "events", 1, &unused);

    (void)set, (void)types;
    if (code || gpu < 0 || gpu >= MAX_GPUS)
        return code;
    registered[gpu] = 1;
    reported[gpu] = find_number(gpu, "xid", 0);
    return SUCCESS;
}

Return nvmlEventSetWait_v2(void *set, struct event *event, unsigned milliseconds)
{
    (void)set;
    for (unsigned waited = 0; waited <= milliseconds; waited += STEP_MS) {
        for (int gpu = 0; gpu < MAX_GPUS; gpu++) {
            long long xid = registered[gpu] ? find_number(gpu, "xid", 0) : 0;
            if (xid && xid != reported[gpu]) {
                memset(event, 0, sizeof *event);
                event->device = (Device)(long)(gpu + 1);
                event->type = XID_EVENT;
                event->data = reported[gpu] = xid;
                return SUCCESS;
            }
        }
        usleep(STEP_MS * 1000);
    }
    return TIMEOUT;
}

Return nvmlDeviceGetApplicationsClock(Device device, int kind, unsigned *mhz)
{
    (void)kind;
    return ask_unsigned(device, "clock", H100_MHZ, mhz);
}

Return nvmlDeviceGetPersistenceMode(Device device, unsigned *mode)
{
    return ask_unsigned(device, "persistence", 1, mode);
}
