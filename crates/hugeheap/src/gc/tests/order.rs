//! Where survivors lie: in the order in which a program meets them that goes through what the first slot leads
//! to first.

use super::*;
use std::collections::BTreeSet;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Levels of the trees: all of one is young at once.
const LEVELS: u32 = 9;

/// Makes a node; its slots.
type Make<'m> = dyn for<'i> Fn(&mut Scope<'i, World>) -> (Local<'i>, [usize; 2]) + 'm;

/// A tree whose nodes `node` makes.
fn tree<'s>(scope: &mut Scope<'s, World>, node: &Make<'_>, levels: u32) -> Local<'s> {
    scope
        .scope_for(|scope| -> Result<_, Exhausted> {
            let (root, slots) = node(scope);
            for slot in slots.into_iter().take(if levels > 1 { 2 } else { 0 }) {
                let child = tree(scope, node, levels - 1);
                scope.set(root, slot, Some(child));
            }
            Ok(root)
        })
        .expect("memory")
}

/// The addresses of the nodes, the first subtree before the second.
fn walk(scope: &mut Scope<'_, World>, node: Local<'_>, slots: [usize; 2], met: &mut Vec<usize>) {
    met.push(scope.object(node));
    for slot in slots {
        scope.scope(|scope| {
            if let Some(child) = scope.get(node, slot).expect("memory") {
                walk(scope, child, slots, met);
            }
        });
    }
}

/// Of the cache lines in the order in which they are met, how many lie right behind the furthest one before;
/// and how many lines there are.
fn in_order(met: &[usize]) -> (usize, usize) {
    let (mut seen, mut furthest, mut in_order) = (BTreeSet::new(), met[0] / LINE, 0);
    for line in met.iter().map(|address| address / LINE) {
        if seen.insert(line) {
            in_order += usize::from(line > furthest && line - furthest <= 2);
            furthest = furthest.max(line);
        }
    }
    (in_order, seen.len())
}

#[test]
fn a_tree_lies_in_the_order_in_which_it_is_walked() {
    let mut test = Test::checked();
    test.run(|scope, types| {
        let pairs = tree(scope, &|scope| (pair(scope, types, 1), [LEFT, RIGHT]), LEVELS);
        let rows = tree(
            scope,
            &|scope| {
                let row = scope.allocate(types.array, 2).expect("memory");
                (row, [scope.item(row, 0), scope.item(row, 1)])
            },
            LEVELS,
        );
        scope.collect_minor();
        let items = [scope.item(rows, 0), scope.item(rows, 1)];
        for (root, slots) in [(pairs, [LEFT, RIGHT]), (rows, items)] {
            let mut met = Vec::new();
            walk(scope, root, slots, &mut met);
            assert_eq!(met.len(), (1 << LEVELS) - 1);
            // Looked into from the first slot to the last, it was one: the first subtree lay behind the second.
            let (in_order, lines) = in_order(&met);
            assert!(in_order * 10 > lines * 9, "{in_order} of {lines}");
        }
    });
    test.end();
}

/// The list of copies lies in the first word behind the header of what is left of them.
#[test]
fn a_first_slot_right_behind_the_header_is_not_what_the_list_of_copies_wrote_there() {
    let mut test = Test::checked();
    let node = test.heap.register(Layout::fixed(24).slots(&[8, 16])).expect("right");
    test.run(|scope, _| {
        let root = tree(scope, &|scope| (scope.allocate(node, 0).expect("memory"), [8, 16]), LEVELS);
        scope.collect_minor();
        let mut met = BTreeSet::new();
        let mut level = vec![scope.object(root)];
        for _ in 0..LEVELS {
            met.extend(level.iter().copied());
            // SAFETY: live objects, or what is wrong of the collection.
            let slots =
                level.iter().flat_map(|&at| [8, 16].map(|slot| unsafe { *((at + slot) as *const usize) }));
            level = slots.filter(|&child| child != 0).collect();
        }
        assert_eq!((met.len(), level.len()), ((1 << LEVELS) - 1, 0));
    });
    test.end();
}

/// More than wait by themselves: most of them are in the list by then, and found there by what is left of them.
#[test]
fn copies_that_wait_are_looked_into_from_the_last_to_the_first_however_many_there_are() {
    const DEPTH: usize = 200;
    let mut test = Test::checked();
    test.run(|scope, types| {
        // One handle for all of them: what has one is a root, and does not wait.
        let spine = pair(scope, types, 1);
        for _ in 0..DEPTH {
            scope.scope(|scope| {
                let above = pair(scope, types, 1);
                let (right, child) = (pair(scope, types, 1), pair(scope, types, 1));
                scope.set(right, RIGHT, Some(child));
                scope.set(above, LEFT, Some(spine));
                scope.set(above, RIGHT, Some(right));
                scope.assign(spine, above);
            });
        }
        scope.collect_minor();
        let mut children = Vec::new();
        for _ in 0..DEPTH {
            scope.scope(|scope| {
                let right = scope.get(spine, RIGHT).expect("memory").expect("was set");
                let child = scope.get(right, RIGHT).expect("memory").expect("was set");
                children.push(scope.object(child));
                let below = scope.get(spine, LEFT).expect("memory").expect("was set");
                scope.assign(spine, below);
            });
        }
        children.reverse();
        let next = children.windows(2).filter(|pair| pair[1] > pair[0] && pair[1] - pair[0] <= LINE).count();
        // Not where a window or a page ends.
        assert!(next * 10 > DEPTH * 9, "{next} of {DEPTH}");
    });
    test.end();
}
