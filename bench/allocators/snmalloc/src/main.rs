//! The workloads on snmalloc.

#[global_allocator]
static ALLOCATOR: snmalloc_rs::SnMalloc = snmalloc_rs::SnMalloc;

fn main() -> std::process::ExitCode {
    workloads::program::main("snmalloc")
}
