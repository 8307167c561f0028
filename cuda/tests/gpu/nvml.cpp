// A stand-in for NVML that knows the GPUs of the emulator.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

// Remote ends of the links of each GPU: another GPU by its number, a switch (s), or none, as the
// link is off (-).
static const char* const LINKS[] = {"22221", "33330", "00003", "-11112", "sss", "s-sss", ""};
static const char NAMES[] = "0123456s";

enum { SUCCESS, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

struct PciInfo {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};

static bool ready = false;

// Returns the end of a link of a GPU, whose handle is its text, or '\0' for a missing link.
static char end_of(void* device, unsigned link) {
    auto* links = static_cast<const char*>(device);
    return link < strlen(links) ? links[link] : '\0';
}

static int unless_absent(void* device, unsigned link) {
    return end_of(device, link) ? SUCCESS : end_of(device, 0) ? INVALID_ARGUMENT : NOT_SUPPORTED;
}

extern "C" {

int nvmlInit_v2() { return ready = true, SUCCESS; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
    unsigned domain = 0, bus = 0;
    bool known = ready && sscanf(id, "%x:%x:", &domain, &bus) == 2 && domain == 0xffff && bus >= 0x10 &&
                 bus < 0x10 + sizeof LINKS / sizeof *LINKS;
    return known ? (*device = const_cast<char*>(LINKS[bus - 0x10]), SUCCESS) : NOT_FOUND;
}

int nvmlDeviceGetNvLinkState(void* device, unsigned link, unsigned* active) {
    return *active = end_of(device, link) != '-', unless_absent(device, link);
}

// Version 4.0 to switches, 3.0 elsewhere.
int nvmlDeviceGetNvLinkVersion(void* device, unsigned link, unsigned* version) {
    return *version = end_of(device, link) == 's' ? 6 : 4, unless_absent(device, link);
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* device, unsigned link, PciInfo* info) {
    auto* name = strchr(NAMES, end_of(device, link));
    memset(info, 0xa5, sizeof *info);
    info->domain = 0xffff, info->bus = name ? 0x10 + unsigned(name - NAMES) : 0, info->device = 0;
    return unless_absent(device, link);
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void* device, unsigned link, unsigned* type) {
    return *type = end_of(device, link) == 's' ? 2 : 0, unless_absent(device, link);
}

} // extern "C"
