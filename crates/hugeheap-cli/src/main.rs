//! The command `hugeheap`. All of it is in the library `hugeheap_cli`, which the Python package calls too.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(hugeheap_cli::main(std::env::args_os(), None))
}
