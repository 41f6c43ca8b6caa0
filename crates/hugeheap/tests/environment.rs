//! What a program on the crate is told of its environment: one line for each value that is not understood. It
//! runs all the same.
#![cfg(target_os = "linux")]

use hugeheap::object::thread_heap;
use std::process::Command;

/// Says to the child that it is one.
const CHILD: &str = "HUGEHEAP_TEST_ENVIRONMENT";

/// What a program with these variables says on stderr.
fn told(variables: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().expect("the test's own path"))
        .args(["--exact", "what_is_not_understood_is_told_once", "--nocapture"])
        .env(CHILD, "1")
        .envs(variables.iter().copied())
        .output()
        .expect("the test can start itself");
    assert!(output.status.success(), "{output:?}");
    let errors = String::from_utf8_lossy(&output.stderr);
    errors.lines().filter(|line| line.starts_with("hugeheap: ")).map(|line| format!("{line}\n")).collect()
}

fn work() {
    // SAFETY: for this thread alone.
    let mut heap = unsafe { thread_heap() }.expect("memory");
    let block = heap.allocate(100).expect("memory");
    // SAFETY: just taken.
    unsafe { heap.free(block) };
}

#[test]
fn what_is_not_understood_is_told_once() {
    if std::env::var_os(CHILD).is_some() {
        return work();
    }
    let no_record = "hugeheap: HUGEHEAP_TELEMETRY must be an existing directory, with a name of at most 511 bytes; \
                     no record is kept\n";
    for wrong in ["/nowhere/at/all", "/dev/null", &format!("/{}", "x".repeat(511))] {
        assert_eq!(told(&[("HUGEHEAP_TELEMETRY", wrong)]), no_record, "{wrong}");
    }
    for right in ["", "/", "/proc/self"] {
        assert_eq!(told(&[("HUGEHEAP_TELEMETRY", right)]), "", "{right}");
    }
    let both = told(&[("HUGEHEAP_TELEMETRY", "no"), ("HUGEHEAP_DECAY", "soon")]);
    let decay = "hugeheap: HUGEHEAP_DECAY must be seconds between 0.001 and 86400; the default is used\n";
    assert_eq!(both, format!("{decay}{no_record}"));
}
