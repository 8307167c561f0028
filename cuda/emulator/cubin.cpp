// Cubins: ELF files whose sections of code are named after kernels.
#include "driver.hpp"

#include <elf.h>
#include <string.h>

namespace emulator {

bool is_cubin(const void* image) { return memcmp(image, ELFMAG, SELFMAG) == 0; }

std::set<std::string> cubin_kernels(const void* image) {
    auto* start = static_cast<const char*>(image);
    Elf64_Ehdr header;
    memcpy(&header, start, sizeof header);
    std::set<std::string> kernels;
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr)) {
        return kernels;
    }
    auto section = [&](unsigned index) {
        Elf64_Shdr section;
        memcpy(&section, start + header.e_shoff + index * sizeof section, sizeof section);
        return section;
    };
    const char* names = start + section(header.e_shstrndx).sh_offset;
    const std::string code = ".text.";
    for (unsigned index = 0; index < header.e_shnum; index++) {
        std::string name = names + section(index).sh_name;
        if (name.compare(0, code.size(), code) == 0) {
            kernels.insert(name.substr(code.size()));
        }
    }
    return kernels;
}

} // namespace emulator
