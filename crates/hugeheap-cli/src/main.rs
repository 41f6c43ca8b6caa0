//! The command `hugeheap`. All of it is in the library `hugeheap_cli`, which the Python package calls too.

use std::process::ExitCode;
use std::thread;

/// What the command gets where the limit of its own stack (`ulimit -s`) is below [`LEAST`]: reading the command
/// line alone takes more than 64 KiB.
const STACK: usize = 8 << 20;
const LEAST: libc::rlim_t = 1 << 20;

/// Called before the standard library begins: that opens /dev/null for a standard output that is closed
/// (`>&-`), and all that is printed would be lost without a word.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE: extern "C" fn() = closed_output_refuses;

/// Lets a closed standard output be one that cannot be written to. What is started finds it closed, as it was.
extern "C" fn closed_output_refuses() {
    // SAFETY: system calls on numbers and on a constant text; there is no other thread yet.
    unsafe {
        if libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) < 0 {
            // The lowest free number is taken: that of standard input first, where it is closed, too.
            while libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) == libc::STDIN_FILENO {}
        }
    }
}

fn main() -> ExitCode {
    let command = || hugeheap_cli::main(std::env::args_os(), None);
    ExitCode::from(if is_stack_small() { on_larger_stack(command) } else { command() })
}

fn is_stack_small() -> bool {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structure is ours to be filled.
    unsafe { libc::getrlimit(libc::RLIMIT_STACK, &mut limit) == 0 && limit.rlim_cur < LEAST }
}

/// Runs `command` on a thread with a stack of its own size. This one takes no signals meanwhile: `run` blocks
/// and waits for them on the thread that it runs on, and here they would end the process.
fn on_larger_stack(command: impl FnOnce() -> u8 + Send + 'static) -> u8 {
    // SAFETY: all zero is a valid value of this plain struct.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { core::mem::zeroed() };
    // SAFETY: both sets are ours, and stay until the calls have ended.
    unsafe {
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
    }
    let started = thread::Builder::new().stack_size(STACK).spawn(move || {
        // SAFETY: the set is this closure's own.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, core::ptr::null_mut()) };
        command()
    });
    match started.map(thread::JoinHandle::join) {
        Ok(Ok(code)) => code,
        // What went wrong was printed by the panic.
        Ok(Err(_)) => 101,
        Err(error) => {
            eprintln!(
                "hugeheap: error: the stack is too small (ulimit -s), and there is no room for another: {error}"
            );
            hugeheap_cli::exit::UNSUPPORTED
        }
    }
}
