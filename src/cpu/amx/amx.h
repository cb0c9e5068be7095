// Whether this process may use AMX tile registers.
#pragma once

namespace mezzo::cpu {

// Whether the processor multiplies tiles of bfloat16 and the operating system saves them. Requests no
// permission.
bool has_tiles();

// has_tiles(), and the operating system has granted them to this process, its later threads and its children.
// The first call requests them: from then on a thread that calls sigaltstack() needs a stack that holds the
// tiles, too (AT_MINSIGSTKSZ). False where the request is refused, as in some sandboxes.
bool request_tiles();

}  // namespace mezzo::cpu
