#include "tests/emulation/fiber_switch.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
// System V ABI, AMD64 supplement, 3.2.1: rbx, rbp and r12 to r15 are saved, as is the stack pointer.
asm(R"(.text
.globl mezzo_fiber_switch
.type mezzo_fiber_switch,@function
mezzo_fiber_switch:
 pushq %rbp
 pushq %rbx
 pushq %r12
 pushq %r13
 pushq %r14
 pushq %r15
 movq %rsp,(%rdi)
 movq %rsi,%rsp
 popq %r15
 popq %r14
 popq %r13
 popq %r12
 popq %rbx
 popq %rbp
 ret
.size mezzo_fiber_switch,.-mezzo_fiber_switch
)");

void* mezzo::emulation::first_frame(char* stack_end, void (*entry)()) {
    // Six registers, where the switch returns to, and the end of the chain of calls.
    const std::uintptr_t frame[8] = {0, 0, 0, 0, 0, 0, reinterpret_cast<std::uintptr_t>(entry), 0};
    return std::memcpy(stack_end - sizeof frame, frame, sizeof frame);
}
#elif defined(__aarch64__)
// Procedure Call Standard for AArch64, 6.1: x19 to x30, the lower halves of v8 to v15 and the stack pointer
// are saved. A new fiber finds its function in x19, and 0 as the address to return to: the end of the
// chain of calls.
asm(R"(.text
.globl mezzo_fiber_switch
.type mezzo_fiber_switch,@function
mezzo_fiber_switch:
 stp x29, x30, [sp, #-160]!
 stp x19, x20, [sp, #16]
 stp x21, x22, [sp, #32]
 stp x23, x24, [sp, #48]
 stp x25, x26, [sp, #64]
 stp x27, x28, [sp, #80]
 stp d8, d9, [sp, #96]
 stp d10, d11, [sp, #112]
 stp d12, d13, [sp, #128]
 stp d14, d15, [sp, #144]
 mov x9, sp
 str x9, [x0]
 mov sp, x1
 ldp x19, x20, [sp, #16]
 ldp x21, x22, [sp, #32]
 ldp x23, x24, [sp, #48]
 ldp x25, x26, [sp, #64]
 ldp x27, x28, [sp, #80]
 ldp d8, d9, [sp, #96]
 ldp d10, d11, [sp, #112]
 ldp d12, d13, [sp, #128]
 ldp d14, d15, [sp, #144]
 ldp x29, x30, [sp], #160
 ret
.size mezzo_fiber_switch,.-mezzo_fiber_switch
.globl mezzo_fiber_start
.type mezzo_fiber_start,@function
mezzo_fiber_start:
 mov x30, xzr
 br x19
.size mezzo_fiber_start,.-mezzo_fiber_start
)");
extern "C" void mezzo_fiber_start();

void* mezzo::emulation::first_frame(char* stack_end, void (*entry)()) {
    std::uintptr_t frame[20] = {};
    frame[1] = reinterpret_cast<std::uintptr_t>(&mezzo_fiber_start);  // x30
    frame[2] = reinterpret_cast<std::uintptr_t>(entry);               // x19
    return std::memcpy(stack_end - sizeof frame, frame, sizeof frame);
}
#else
#error "the fiber switch is written for x86-64 and aarch64"
#endif
