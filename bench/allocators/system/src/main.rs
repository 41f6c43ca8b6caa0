//! The workloads on the system's allocator.

#[global_allocator]
static ALLOCATOR: std::alloc::System = std::alloc::System;

fn main() -> std::process::ExitCode {
    workloads::program::main("system")
}
