//! `HUGEHEAP_LOG`: what a process writes.
#![cfg(target_os = "linux")]

use hugeheap::gc::{Heap, Layout, Settings, space};
use std::process::{Command, Output};

/// Says to the child that it is one.
const CHILD: &str = "HUGEHEAP_TEST_GC_LOG";

fn run(log: &str) -> Output {
    Command::new(std::env::current_exe().expect("the test's own path"))
        .args(["--exact", "lines_say_what_happened", "--nocapture"])
        .env(CHILD, "1")
        .env("HUGEHEAP_LOG", log)
        .output()
        .expect("the test can start itself")
}

fn work() {
    let mut heap =
        Heap::new(space(), Settings { nursery: Some(64 << 10), ..Settings::default() }).expect("memory");
    let text = heap.register(Layout::variable(16, 1)).expect("a right layout");
    heap.scope(|scope| {
        let large = scope.allocate(text, 6 << 20).expect("memory");
        let small = scope.allocate(text, 48).expect("memory");
        let pin = scope.pin(small).expect("memory");
        scope.collect_minor();
        scope.release(pin);
        assert_eq!(scope.bytes(large).len(), 6 << 20);
        scope.collect();
        assert!(scope.heap().statistics().major > 0);
    });
}

#[test]
fn lines_say_what_happened() {
    if std::env::var_os(CHILD).is_some() {
        return work();
    }
    let file = std::env::temp_dir().join(format!("hugeheap-gc-log-{}", std::process::id()));
    let name = file.to_str().expect("a plain path").to_owned();
    let output = run(&format!("gc-minor,gc-major,arena:{name}"));
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(&file).expect("the log");
    std::fs::remove_file(&file).expect("the log");
    let mut before = 0.0;
    for line in text.lines() {
        let words: Vec<_> = line.split(' ').collect();
        let time: f64 = words[0].parse().expect("seconds");
        assert!(time >= before, "{line}");
        before = time;
        assert!(["gc-minor", "gc-major", "arena"].contains(&words[1]), "{line}");
        assert!(
            words[2..].iter().all(|word| word.split_once('=').is_some_and(|(_, value)| !value.is_empty()))
        );
    }
    let has = |parts: &[&str]| text.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(has(&["gc-minor heap=0 seconds=", " staying=1 "]), "{text}");
    assert!(has(&["gc-minor ", " survivors=1 survived=64 "]), "{text}");
    assert!(has(&["gc-major ", " to=idle "]) && has(&["gc-major heap=0 number=1 "]), "{text}");
    assert!(has(&["arena heap=0 held=6"]), "{text}");
    // One section only, to stderr.
    let output = run("gc-minor:-");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains(" gc-minor heap=0 ") && !errors.contains("gc-major"), "{errors}");
    // A wrong value is told in one line, and the program runs.
    let output = run("gc-minr:-");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && errors.contains("no section \"gc-minr\""), "{errors}");
}
