// Parts of core that the components use besides the public headers.
#pragma once

// Exports a declaration, or all members of a class, from libmezzo.so for the components of the same version:
// src/exports.map.in names it. Everything else without a public header stays hidden.
#define MEZZO_INTERNAL [[gnu::visibility("default")]]
