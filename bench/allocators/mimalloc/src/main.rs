//! The workloads on mimalloc 3.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    workloads::program::main("mimalloc")
}
