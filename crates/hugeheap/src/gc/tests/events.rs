//! Events: what a hook is told agrees with what the heap counts.

use super::*;
use std::cell::RefCell;
use std::rc::Rc;

#[test]
fn a_hook_is_told_what_the_statistics_count() {
    let mut test = Test::checked();
    let told = Rc::new(RefCell::new(Vec::new()));
    let to = Rc::clone(&told);
    test.heap.set_hook(Some(Box::new(move |event| to.borrow_mut().push(*event))));
    let sums = |name| counters().into_iter().find(|(known, _)| *known == name).expect("a counter").1;
    let before = sums("gc_minor");
    test.run(|scope, types| {
        let keep = list(scope, types, 20_000);
        let pin = scope.pin(keep).expect("memory");
        scope.scope(|scope| {
            let large = scope.allocate(types.text, 5 << 20).expect("memory");
            scope.collect_minor();
            assert_eq!(scope.bytes(large).len(), 5 << 20);
        });
        scope.heap.checks.moving = true;
        scope.collect();
        scope.release(pin);
        let statistics = *scope.heap().statistics();
        let told = told.borrow();
        let minor: Vec<_> = told.iter().filter(|event| matches!(event, Event::Minor { .. })).collect();
        assert_eq!(minor.len() as u64, statistics.minor);
        let sum: u64 = minor
            .iter()
            .map(|event| if let Event::Minor { survivors, .. } = event { *survivors } else { 0 })
            .sum();
        assert_eq!(sum, statistics.survivors);
        let majors = told.iter().filter(|event| matches!(event, Event::Major { .. })).count();
        assert_eq!(majors as u64, statistics.major);
        let moved = told.iter().find_map(|event| match event {
            Event::Evacuation { moved, pages, .. } => Some((*moved, *pages)),
            _ => None,
        });
        assert_eq!(moved, Some((statistics.moved, statistics.freed_pages)));
        let arenas: Vec<_> = told
            .iter()
            .filter_map(|event| if let Event::Arenas { held, .. } = event { Some(*held) } else { None })
            .collect();
        assert!(
            arenas.iter().any(|&held| held > 5 << 20) && arenas.last().is_some_and(|&held| held < 2 << 20)
        );
        // Others count, too, at the same time.
        assert!(sums("gc_minor") - before >= statistics.minor);
    });
    test.heap.set_hook(None);
    let count = told.borrow().len();
    test.run(|scope, _| scope.collect());
    assert_eq!(told.borrow().len(), count, "nobody is told any more");
    test.end();
}

#[test]
fn a_heap_gets_a_log_of_its_own_and_keeps_it_when_the_next_is_wrong() {
    let mut test = Test::checked();
    let file = std::env::temp_dir().join(format!("hugeheap-gc-set-log-{}", std::process::id()));
    let name = file.to_str().expect("a plain path");
    test.heap.set_log(Some(&format!("gc-minor:{name}"))).expect("a file that can be written");
    assert_eq!(test.heap.set_log(Some("gc-minr:-")), Err(BadLog::Section("gc-minr".to_owned())));
    assert_eq!(test.heap.set_log(Some("gc-minor")), Err(BadLog::NoFile));
    test.run(|scope, _| {
        scope.collect_minor();
        scope.collect();
    });
    test.heap.set_log(None).expect("none is always right");
    test.run(|scope, _| scope.collect_minor());
    let text = std::fs::read_to_string(&file).expect("the log");
    std::fs::remove_file(&file).expect("the log");
    assert!(text.lines().count() as u64 == test.heap.statistics().minor - 1, "{text}");
    assert!(
        text.lines().all(|line| line.contains(" gc-minor heap=") && line.contains(" survivors=0 ")),
        "{text}"
    );
    test.end();
}

#[test]
fn numbers_are_shown_though_the_clock_went_back() {
    let mut test = Test::checked();
    let world = test.space.source();
    world.kernel.advance(Duration::from_secs(7200));
    test.run(|scope, _| scope.collect());
    assert!(*world.shown.lock() > 0);
    world.kernel.turn_back(Duration::from_secs(3600));
    *world.shown.lock() = 0;
    test.run(|scope, _| scope.collect());
    assert_eq!(*world.shown.lock(), 1, "and not again within a quarter of a second");
    test.end();
}
