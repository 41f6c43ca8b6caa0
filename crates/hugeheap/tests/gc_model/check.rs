//! What the machine compares.

use super::graph::Role;
use super::raw::TAGGED;
use super::{Graph, Heap, Kind, Machine, World};
use hugeheap::arena::HEAP_PAGE_BYTES;
use hugeheap::gc::MAX_YOUNG;
use hugeheap_os::simulated::Fault;
use hugeheap_os::{AddressRange, Os};
use std::collections::HashMap;

/// Bytes of the machines' nurseries.
pub(super) const NURSERY: usize = 64 << 10;

/// A slot that is empty although the model has a reference there: node and offset.
type Gone = (usize, usize);

impl<O: Os + Send + Sync + 'static> Machine<O> {
    /// What the program does with its memory. A limit may be reached (the kernel would kill the process, the
    /// model goes on).
    pub(super) fn touch(&self, object: usize, bytes: usize) {
        let Some(kernel) = &self.kernel else { return };
        match kernel.touch(AddressRange::new(object, bytes)) {
            Ok(()) => {}
            Err(Fault::Oom) => assert!(self.faulty, "out of memory on a host without limits"),
            Err(fault) => panic!("{fault} at {object:#x}"),
        }
    }

    /// From each root, the graph is what the model says.
    pub(super) fn check(&mut self) {
        if let Some(kernel) = &self.kernel {
            let violations = kernel.violations();
            assert!(violations.is_empty(), "{violations:?}");
        }
        let Self { heap, graph, roots, outside, scanned, .. } = self;
        heap.verify(&mut []).unwrap_or_else(|mistake| panic!("{mistake}"));
        heap.verify_barriers().unwrap_or_else(|mistake| panic!("{mistake}"));
        let mut seen = HashMap::new();
        let mut gone = Vec::new();
        for root in roots.iter().flatten() {
            let object = heap.address(&root.global);
            assert!(root.stays.is_none_or(|at| at == object), "node {} is pinned and moved", root.node);
            compare(heap, graph, object, root.node, &mut seen, &mut gone);
        }
        for (object, node) in outside.each() {
            compare(heap, graph, object, node, &mut seen, &mut gone);
        }
        for (word, node) in scanned.iter().flat_map(|words| words.each()) {
            // Its beginning is known if something else refers to it.
            if let Some(object) = seen.get(&node) {
                assert!(
                    word.wrapping_sub(*object) < graph.node(node).bytes(),
                    "node {node} was found and moved"
                );
            }
        }
        // Values first: whether they may be gone depends on their key.
        gone.sort_unstable_by_key(|&(node, slot)| (node, std::cmp::Reverse(slot)));
        for (node, slot) in gone {
            self.was_cleared(node, slot);
        }
    }

    /// An allocation was refused: there has to be a reason.
    pub(super) fn refused(&self, bytes: usize, old: bool) {
        if self.faulty {
            return;
        }
        let young = bytes <= MAX_YOUNG && !old;
        // What stays may leave gaps that are too small.
        let staying: Vec<_> =
            self.roots.iter().flatten().filter(|root| root.stays.is_some()).map(|root| root.node).collect();
        let words = self.scanned.iter().flat_map(|words| words.nodes());
        let staying: Vec<_> =
            staying.into_iter().chain(words).map(|node| self.graph.node(node).bytes()).collect();
        let in_the_way = staying.iter().filter(|&&bytes| bytes <= MAX_YOUNG).sum::<usize>();
        if young && in_the_way + (staying.len() + 1) * bytes > NURSERY {
            return;
        }
        // What waits to be finalized is kept alive, with everything it leads to.
        let waiting = self.graph.nodes().filter(|(_, node)| node.finalized > 0).map(|(node, _)| node);
        let live = self.graph.reachable(self.held_nodes().into_iter().chain(waiting).collect(), true);
        // At most a heap page for each.
        let pages = |bytes: usize| bytes.next_multiple_of(HEAP_PAGE_BYTES);
        let held: usize = live.iter().map(|&node| pages(self.graph.node(node).bytes())).sum();
        let Some(maximum) = self.maximum else { panic!("{bytes} bytes were refused without a limit") };
        assert!(held + pages(bytes) > maximum, "{bytes} bytes were refused with {held} of {maximum} in use");
    }

    /// Bytes of the model's nodes that can be reached, each as large as its block can be at most.
    fn reachable_bytes(&self) -> usize {
        let bytes = |node: &usize| {
            let bytes = self.graph.node(*node).bytes();
            // The classes above 512 bytes leave at most a third of a block; above the largest it is whole heap pages.
            if bytes > MAX_YOUNG { bytes + HEAP_PAGE_BYTES } else { bytes / 2 * 3 + 32 }
        };
        self.reachable(true).iter().map(bytes).sum()
    }

    /// What is to be finalized keeps things alive until it is taken; each collection hands out one of a chain.
    fn collect_and_take_all(&mut self) {
        loop {
            self.heap.scope(|scope| scope.collect());
            if self.heap.finalizable() == 0 {
                return;
            }
            self.take_finalizable(0, 1);
        }
    }

    /// The end of a program: what cannot be reached is freed, and in the end everything is.
    pub(crate) fn finish(mut self) {
        self.mend();
        self.check();
        // What a word was the address of in the nursery stays there for one more collection.
        self.scanned.iter_mut().for_each(|words| words.clear());
        self.collect_and_take_all();
        self.check();
        assert!(self.heap.old_bytes() <= self.reachable_bytes(), "{} bytes are left", self.heap.old_bytes());
        for root in self.roots.drain(..).flatten() {
            self.heap.release(root.global);
        }
        self.outside.clear();
        self.collect_and_take_all();
        assert_eq!((self.heap.old_bytes(), self.heap.held_bytes()), (0, 0));
        self.heap.verify(&mut []).unwrap_or_else(|mistake| panic!("{mistake}"));
        let statistics = self.heap.statistics();
        if let Some(told) = self.told.as_ref().map(|told| told.get()) {
            assert_eq!(
                (told.minor, told.major, told.evacuations),
                (statistics.minor, statistics.major, statistics.evacuations)
            );
        }
        let Self { world, space, heap, kernel, .. } = self;
        drop(heap);
        {
            let arenas = world.arenas.lock();
            arenas.verify().unwrap_or_else(|problem| panic!("{problem}"));
            let snapshot = arenas.snapshot();
            assert_eq!((snapshot.live, snapshot.large), (0, 0), "{snapshot:?}");
        }
        // SAFETY: both were leaked when the machine was made; the heap, which is all that referred to them, is gone.
        unsafe {
            drop(Box::from_raw(core::ptr::from_ref(space).cast_mut()));
            drop(Box::from_raw(core::ptr::from_ref(world).cast_mut()));
        }
        if let Some(kernel) = kernel {
            kernel.check().unwrap_or_else(|problem| panic!("the simulated kernel: {problem}"));
        }
    }
}

/// Compares what can be reached from an object with the model. `seen`: addresses of nodes that were compared.
/// Nothing is allocated meanwhile, so addresses stay right.
fn compare<O: Os + Send + Sync + 'static>(
    heap: &Heap<World<O>>,
    graph: &Graph,
    object: usize,
    node: usize,
    seen: &mut HashMap<usize, usize>,
    gone: &mut Vec<Gone>,
) {
    // SAFETY: words of live objects.
    let word = |at: usize| unsafe { (at as *const usize).read() };
    let mut stack = vec![(object, node)];
    while let Some((object, node)) = stack.pop() {
        if let Some(&before) = seen.get(&node) {
            assert_eq!(before, object, "one object for one node");
            continue;
        }
        seen.insert(node, object);
        let model = graph.node(node);
        assert_eq!(word(object + model.kind.number_at()) as u64, model.number);
        if model.kind.is_variable() {
            assert_eq!(word(object + 8), model.length);
        }
        if model.kind == Kind::Bytes {
            // SAFETY: the bytes of a live object.
            let bytes = unsafe { core::slice::from_raw_parts((object + 24) as *const u8, model.length) };
            // Of a large object one byte per cache line: it is moved, freed and zeroed by pages.
            let grain = if model.bytes() > MAX_YOUNG { 64 } else { 1 };
            assert!(bytes.iter().step_by(grain).all(|&byte| byte == model.number as u8));
        }
        for (slot, role) in model.slots() {
            // SAFETY: a slot of a live object.
            let found = unsafe { heap.weak((object + slot) as *const usize) };
            match (found, model.references.get(&slot)) {
                (0 | TAGGED, None) => {}
                (0, Some(_)) => {
                    assert_ne!(role, Role::Strong, "slot {slot} of node {node} is empty");
                    gone.push((node, slot));
                }
                (found, Some(&target)) => stack.push((found, target)),
                (found, None) => panic!("slot {slot} of node {node}: {found:#x} instead of none"),
            }
        }
    }
}
