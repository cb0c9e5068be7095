#include "core/system/build_id.h"

// For systems with ELF files and dl_iterate_phdr().
#if defined(__ELF__) && __has_include(<link.h>)
#include <elf.h>
#include <link.h>

#include <cstdint>
#include <cstring>

namespace mezzo {
namespace {

struct Search {
    std::uintptr_t address;
    std::string found = {};
};

std::string hexadecimal(const unsigned char* bytes, std::size_t count) {
    constexpr char digits[] = "0123456789abcdef";
    std::string text;
    for (std::size_t i = 0; i < count; ++i) {
        text += digits[bytes[i] >> 4];
        text += digits[bytes[i] & 15];
    }
    return text;
}

std::string id_in(const unsigned char* notes, std::size_t bytes) {
    const auto padded = [](std::size_t size) { return (size + 3) / 4 * 4; };
    while (bytes >= sizeof(ElfW(Nhdr))) {
        ElfW(Nhdr) head;
        std::memcpy(&head, notes, sizeof head);
        const std::size_t name = sizeof head, value = name + padded(head.n_namesz),
                          end = value + padded(head.n_descsz);
        if (end > bytes) return "";
        if (head.n_type == NT_GNU_BUILD_ID && head.n_namesz == 4 && std::memcmp(notes + name, "GNU", 4) == 0)
            return hexadecimal(notes + value, head.n_descsz);
        notes += end, bytes -= end;
    }
    return "";
}

int look_into(dl_phdr_info* object, std::size_t, void* data) {
    auto& search = *static_cast<Search*>(data);
    bool holds = false;
    for (int i = 0; i < object->dlpi_phnum; ++i) {
        const auto& part = object->dlpi_phdr[i];
        const std::uintptr_t first = object->dlpi_addr + part.p_vaddr;
        holds |= part.p_type == PT_LOAD && search.address >= first && search.address < first + part.p_memsz;
    }
    if (!holds) return 0;
    for (int i = 0; i < object->dlpi_phnum && search.found.empty(); ++i) {
        const auto& part = object->dlpi_phdr[i];
        if (part.p_type == PT_NOTE)
            search.found =
                id_in(reinterpret_cast<const unsigned char*>(object->dlpi_addr + part.p_vaddr), part.p_memsz);
    }
    return 1;
}

}  // namespace

std::string build_id() {
    Search search{reinterpret_cast<std::uintptr_t>(&look_into)};
    dl_iterate_phdr(look_into, &search);
    return search.found;
}

}  // namespace mezzo
#else
std::string mezzo::build_id() { return ""; }
#endif
