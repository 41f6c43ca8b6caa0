//! The workloads on hugeheap.

#[global_allocator]
static ALLOCATOR: hugeheap::object::GlobalHeap = hugeheap::object::GlobalHeap;

fn main() -> std::process::ExitCode {
    workloads::program::main("hugeheap")
}
