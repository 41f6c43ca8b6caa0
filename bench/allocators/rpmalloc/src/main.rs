//! The workloads on rpmalloc.

#[global_allocator]
static ALLOCATOR: rpmalloc::RpMalloc = rpmalloc::RpMalloc;

fn main() -> std::process::ExitCode {
    workloads::program::main("rpmalloc")
}
