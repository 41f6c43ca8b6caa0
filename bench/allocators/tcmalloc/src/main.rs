//! The workloads on tcmalloc.

#[global_allocator]
static ALLOCATOR: tcmalloc_better::TCMalloc = tcmalloc_better::TCMalloc;

fn main() -> std::process::ExitCode {
    // As its documentation asks programs to do: without this thread it gives nothing back by itself.
    tcmalloc_better::TCMalloc::process_background_actions_thread();
    workloads::program::main("tcmalloc")
}
