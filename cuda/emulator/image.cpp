#include "image.hpp"
#include "driver.hpp"
#include "emulator.h"

#include <atomic>
#include <elf.h>
#include <string.h>

using namespace emulator;

namespace {

std::atomic<bool> accepts_cubins{true};

// The kernels of PTX that ends with a zero.
void of_text(const char* text, std::set<std::string>& kernels) {
    const char mark[] = ".entry ";
    for (const char* at = text; (at = strstr(at, mark));) {
        at += strlen(mark);
        kernels.insert(std::string(at, strcspn(at, "( \n")));
    }
}

// The kernels of machine code: each has a section of its own.
void of_elf(const unsigned char* image, const Elf64_Ehdr& head, std::set<std::string>& kernels) {
    auto section = [&](unsigned index) {
        Elf64_Shdr found;
        memcpy(&found, image + head.e_shoff + size_t(index) * head.e_shentsize, sizeof found);
        return found;
    };
    auto* names = reinterpret_cast<const char*>(image) + section(head.e_shstrndx).sh_offset;
    const char mark[] = ".text.";
    for (unsigned index = 0; index < head.e_shnum; index++) {
        const char* name = names + section(index).sh_name;
        if (strncmp(name, mark, strlen(mark)) == 0) {
            kernels.insert(name + strlen(mark));
        }
    }
}

} // namespace

bool emulator::is_cubin(const void* image) { return memcmp(image, ELFMAG, SELFMAG) == 0; }

int emulator::find_kernels(const void* image, std::set<std::string>& kernels) {
    if (!is_cubin(image)) {
        of_text(static_cast<const char*>(image), kernels);
    } else {
        Elf64_Ehdr head;
        memcpy(&head, image, sizeof head);
        // The low byte of the flags is the architecture: 80 for capability 8.0. A GPU runs code of its
        // own major number, up to its minor number.
        const unsigned EM_CUDA_MACHINE = 190, architecture = head.e_flags & 0xff;
        const unsigned capability = unsigned(settings().capability);
        bool runs = architecture / 10 == capability / 10 && architecture <= capability;
        if (!accepts_cubins || head.e_machine != EM_CUDA_MACHINE || !runs) {
            return NO_BINARY_FOR_GPU;
        }
        of_elf(static_cast<const unsigned char*>(image), head, kernels);
    }
    return kernels.empty() ? INVALID_IMAGE : SUCCESS;
}

void unisono_set_accepts_cubins(uint32_t accepts) { accepts_cubins = accepts != 0; }
