//! Operations on a heap, and a plain model of what must come of them.
//!
//! The model is a graph of nodes with a number, references and a length. The program's roots are global handles, one per node that the model has
//! as a root; every step goes through scopes. What is compared: from each root, the whole graph, node by node, and that what the model
//! cannot reach is freed. A weak slot may become empty once the model cannot reach its object, and must not before; what is handed out to be
//! finalized must not be reachable, nor be led to by another object that waits for it, unless they lie on a cycle.

use hugeheap::arena::{Arenas, Settings as ArenaSettings};
use hugeheap::gc::{Checks, Exhausted, Global, Heap, Layout, Local, Scope, Settings, TypeId};
use hugeheap::lock::Lock;
use hugeheap::object::{Source, Space};
use hugeheap_os::Os;
use hugeheap_os::linux::Linux;
use hugeheap_os::simulated::{Call, Config, Kernel};
use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::time::Duration;

pub(crate) type Code = [u8; 4];
pub(crate) type Start = [u8; 3];

/// Roots of the program.
const ROOTS: usize = 24;

/// Arenas over an operating system, behind a lock.
pub(crate) struct World<O> {
    arenas: Lock<Arenas<O>>,
    os: O,
}

impl<O: Os + Send + Sync + 'static> Source for World<O> {
    type Os = O;
    fn with<R>(&'static self, work: impl FnOnce(&mut Arenas<O>) -> R) -> R {
        work(&mut self.arenas.lock())
    }
    fn os(&self) -> &O {
        &self.os
    }
}

#[derive(Clone, Debug)]
struct Node {
    /// 0: a pair, 1: an array of references, 2: bytes, 3: a weak slot at 16, 4: an ephemeron with its key at 16 and its value at 24.
    kind: u8,
    number: u64,
    length: usize,
    /// By offset of the slot.
    references: HashMap<usize, usize>,
    /// What the weak slots refer to may be gone: it was finalized, or its key is dead.
    unsure: bool,
    /// How often it is registered to be finalized.
    finalized: u32,
    hash: Option<u32>,
}

pub(crate) struct Machine<O: Os + Send + Sync + 'static> {
    heap: Heap<World<O>>,
    kernel: Option<Kernel>,
    types: [TypeId; 5],
    nodes: HashMap<usize, Node>,
    next: usize,
    roots: Vec<Option<(Global, usize)>>,
}

fn space<O: Os + Clone + Send + Sync + 'static>(os: O) -> &'static Space<World<O>> {
    let settings = ArenaSettings { region: Some(64 << 20), ..ArenaSettings::DEFAULT };
    let arenas = Lock::new(Arenas::new(os.clone(), settings));
    Box::leak(Box::new(Space::new(Box::leak(Box::new(World { arenas, os })))))
}

impl Machine<Kernel> {
    pub(crate) fn simulated(start: Start, faulty: bool) -> Self {
        let kernel = Kernel::new(Config::default());
        Self::new(space(kernel.clone()), faulty.then_some(kernel), start)
    }
}

impl Machine<Linux> {
    pub(crate) fn real(start: Start) -> Self {
        Self::new(space(Linux::new()), None, start)
    }
}

impl<O: Os + Send + Sync + 'static> Machine<O> {
    fn new(space: &'static Space<World<O>>, kernel: Option<Kernel>, [a, b, c]: Start) -> Self {
        let checks = Checks {
            verify: true,
            barriers: true,
            poison: a % 2 == 0,
            moving: c % 2 == 0,
            rotate: a % 5 == 0,
            stress: NonZeroU32::new(u32::from(b) % 8),
        };
        let settings = Settings {
            nursery: Some(64 << 10),
            maximum: (c % 3 == 0).then_some((256 << 10) + usize::from(c) * (8 << 10)),
            growth: Some(110 + u32::from(a)),
            evacuate: (b % 3 == 0).then_some(101),
            step: (a % 3 == 0).then_some(Duration::ZERO),
            checks,
        };
        let mut heap = Heap::new(space, settings).expect("nothing fails yet");
        let mut register = |layout| heap.register(layout).expect("a right layout");
        let types = [
            register(Layout::fixed(32).slots(&[16, 24])),
            register(Layout::variable(24, 8).item_slots(&[0])),
            register(Layout::variable(24, 1)),
            register(Layout::fixed(24).weak_slots(&[16])),
            register(Layout::fixed(32).ephemerons(&[(16, 24)])),
        ];
        let roots = (0..ROOTS).map(|_| None).collect();
        Self { heap, kernel, types, nodes: HashMap::new(), next: 0, roots }
    }

    /// The offset of a node's number.
    fn number_at(kind: u8) -> usize {
        if matches!(kind, 0 | 3 | 4) { 8 } else { 16 }
    }

    /// The offset of a slot, if the node has any.
    fn slot(node: &Node, which: u8) -> Option<usize> {
        match node.kind {
            0 => Some([16, 24][which as usize % 2]),
            3 | 4 => Some(16),
            1 if node.length > 0 => Some(24 + 8 * (which as usize * 37 % node.length)),
            _ => None,
        }
    }

    pub(crate) fn step(&mut self, [kind, a, b, c]: Code) {
        match kind % 20 {
            16..=17 => self.finalize(a),
            18 => self.hash(a),
            19 => self.take_finalizable(a, b),
            0..=5 => self.allocate(a, b, c),
            6..=9 => self.link(a, b, c),
            10 => self.drop_root(a),
            11 => self.garbage(a, b),
            12 => self.walk(a, b),
            13 => self.heap.scope(|scope| if a % 8 == 0 { scope.collect() } else { scope.collect_minor() }),
            14 => self.fail(a, b),
            _ => self.check(),
        }
    }

    fn allocate(&mut self, a: u8, b: u8, c: u8) {
        let kind = a % 5;
        let length = match (kind, b % 16) {
            (0 | 3 | 4, _) => 0,
            (1, 15) => 1000 + usize::from(c) * 40,
            (2, 15) => usize::from(c) * 9000,
            _ => usize::from(c),
        };
        let (number, place, ty) =
            (self.next as u64 * 3 + 1, usize::from(b) % ROOTS, self.types[kind as usize]);
        let (old, pinned) = (a / 5 % 8 == 0, a / 40 % 4 == 0);
        let result = self.heap.scope(|scope| -> Result<Global, Exhausted> {
            let local = if old { scope.allocate_old(ty, length)? } else { scope.allocate(ty, length)? };
            scope.write(local, Self::number_at(kind), number);
            if kind == 2 {
                scope.bytes(local).fill(number as u8);
            }
            if pinned { scope.pin(local) } else { scope.global(local) }
        });
        let Ok(global) = result else { return };
        let node = Node {
            kind,
            number,
            length,
            references: HashMap::new(),
            unsure: false,
            finalized: 0,
            hash: None,
        };
        self.nodes.insert(self.next, node);
        if let Some((before, _)) = self.roots[place].replace((global, self.next)) {
            self.heap.release(before);
        }
        self.next += 1;
    }

    fn root(&self, which: u8) -> Option<usize> {
        let live: Vec<_> = (0..ROOTS).filter(|&place| self.roots[place].is_some()).collect();
        (!live.is_empty()).then(|| live[which as usize % live.len()])
    }

    fn link(&mut self, a: u8, b: u8, c: u8) {
        let (Some(from), Some(to)) = (self.root(a), self.root(b)) else { return };
        let (Some((from, from_node)), Some((to, to_node))) = (&self.roots[from], &self.roots[to]) else {
            return;
        };
        let Some(slot) = Self::slot(&self.nodes[from_node], c) else { return };
        let clear = c % 5 == 0;
        // An ephemeron is written as a whole.
        let value = self.root(c).filter(|_| self.nodes[from_node].kind == 4);
        let value = value.and_then(|place| self.roots[place].as_ref());
        self.heap.scope(|scope| {
            let mut set = |slot, to: &Global| {
                let from = scope.local(from).expect("memory of the process");
                let to = scope.local(to).expect("memory of the process");
                scope.set(from, slot, (!clear).then_some(to));
            };
            set(slot, to);
            if let Some((value, _)) = value {
                set(24, value);
            }
        });
        let value = value.map(|&(_, node)| (24, node));
        let written: Vec<_> = [(slot, *to_node)].into_iter().chain(value).collect();
        let node = self.nodes.get_mut(from_node).expect("a node of the model");
        node.unsure = false;
        for (slot, to) in written {
            if clear {
                node.references.remove(&slot);
            } else {
                node.references.insert(slot, to);
            }
        }
    }

    fn finalize(&mut self, a: u8) {
        let Some(place) = self.root(a) else { return };
        let Some((global, node)) = &self.roots[place] else { return };
        let registered = self.heap.scope(|scope| {
            let local = scope.local(global).expect("memory of the process");
            scope.finalize(local)
        });
        if registered.is_ok() {
            self.nodes.get_mut(node).expect("a node of the model").finalized += 1;
        }
    }

    /// An identity hash is made, or is what it was.
    fn hash(&mut self, a: u8) {
        let Some(place) = self.root(a) else { return };
        let Some((global, node)) = &self.roots[place] else { return };
        let hash = self.heap.scope(|scope| {
            let local = scope.local(global).expect("memory of the process");
            scope.identity_hash(local)
        });
        let model = self.nodes.get_mut(node).expect("a node of the model");
        assert_eq!(*model.hash.get_or_insert(hash), hash);
    }

    /// What is ready is taken; some of it becomes a root again.
    fn take_finalizable(&mut self, a: u8, b: u8) {
        while let Some((number, global)) = self.heap.scope(|scope| {
            let local = scope.next_finalizable().expect("memory of the process")?;
            // Types are numbered from 1.
            let at = Self::number_at(scope.type_of(local).number() as u8 - 1);
            Some((scope.read(local, at), scope.global(local).expect("memory of the process")))
        }) {
            let node = (number / 3) as usize;
            let reachable = self.reachable(false);
            assert!(!reachable.contains(&node), "node {node} is not dead");
            let from_it = self.led_to(node, true);
            for (&other, model) in &self.nodes {
                let waits = other != node && model.finalized > 0 && !reachable.contains(&other);
                let early = waits && !from_it.contains(&other) && self.led_to(other, false).contains(&node);
                assert!(!early, "node {other} leads to {node} and waits");
            }
            let model = self.nodes.get_mut(&node).expect("a node of the model");
            assert!(model.finalized > 0, "node {node} was handed out too often");
            model.finalized -= 1;
            for model in self.nodes.values_mut().filter(|model| model.kind >= 3) {
                let gone = |target: &usize| from_it.contains(target) && !reachable.contains(target);
                model.unsure |= model.references.values().any(gone);
            }
            if b % 2 == 0 {
                let place = usize::from(a) % ROOTS;
                if let Some((before, _)) = self.roots[place].replace((global, node)) {
                    self.heap.release(before);
                }
            } else {
                self.heap.release(global);
            }
        }
    }

    fn drop_root(&mut self, a: u8) {
        let Some(place) = self.root(a) else { return };
        if let Some((global, _)) = self.roots[place].take() {
            self.heap.release(global);
        }
    }

    /// Objects that die at once.
    fn garbage(&mut self, a: u8, b: u8) {
        let ty = self.types[2];
        for _ in 0..a / 4 {
            let result = self.heap.scope(|scope| scope.allocate(ty, usize::from(b) * 16).map(|_| ()));
            if result.is_err() {
                return;
            }
        }
    }

    /// Makes a root of something that is reached from one.
    fn walk(&mut self, a: u8, b: u8) {
        let Some(place) = self.root(a) else { return };
        let Some((global, node)) = &self.roots[place] else { return };
        let mut references: Vec<_> = self.nodes[node].references.iter().collect();
        references.sort_unstable();
        if references.is_empty() {
            return;
        }
        let (&slot, &target) = references[b as usize % references.len()];
        let found = self.heap.scope(|scope| {
            let local = scope.local(global).expect("memory of the process");
            let found = scope.get(local, slot).expect("memory of the process")?;
            Some(scope.global(found).expect("memory of the process"))
        });
        let node = *node;
        let Some(found) = found else { return self.gone(node, slot) };
        if let Some((before, _)) = self.roots[place].replace((found, target)) {
            self.heap.release(before);
        }
    }

    fn fail(&mut self, a: u8, b: u8) {
        let Some(kernel) = &self.kernel else { return };
        let calls =
            [Call::Reserve, Call::Map, Call::Unmap, Call::Decommit, Call::Advise, Call::Name, Call::Protect];
        let call = calls[a as usize % calls.len()];
        match b % 4 {
            0 => kernel.fail_no_more(),
            1 => kernel.fail_next(call, libc::ENOMEM, u64::from(a) + 1),
            2 => kernel.fail_every(call, u64::from(b >> 2 & 3) + 1, libc::ENOMEM),
            _ => kernel.fail_randomly(u64::from(a), u32::from(b) * 2),
        }
    }

    /// From each root, the graph is what the model says.
    fn check(&mut self) {
        let Self { heap, nodes, roots, .. } = self;
        heap.verify(&mut []).unwrap_or_else(|mistake| panic!("{mistake}"));
        heap.verify_barriers().unwrap_or_else(|mistake| panic!("{mistake}"));
        let mut gone = Vec::new();
        heap.scope(|scope| {
            let mut seen = HashMap::new();
            for (global, node) in roots.iter().flatten() {
                let local = scope.local(global).expect("memory of the process");
                compare(scope, nodes, local, *node, &mut seen, &mut gone);
            }
        });
        // Values first: whether they may be gone depends on their key.
        gone.sort_unstable_by_key(|&(node, slot)| (node, std::cmp::Reverse(slot)));
        for (node, slot) in gone {
            self.gone(node, slot);
        }
    }

    /// A slot was found empty although the model has a reference there.
    fn gone(&mut self, node: usize, slot: usize) {
        let reachable = self.reachable(false);
        let model = self.nodes.get_mut(&node).expect("a node of the model");
        assert!(model.kind >= 3, "slot {slot} of node {node} is empty");
        let target = model.references.remove(&slot).expect("the model has a reference");
        let key =
            if model.kind == 4 && slot == 24 { model.references.get(&16).copied() } else { Some(target) };
        let dead = key.is_some_and(|key| !reachable.contains(&key));
        assert!(model.unsure || dead, "slot {slot} of node {node} was cleared too early");
        // The other slot of an ephemeron follows.
        model.unsure = true;
    }

    /// Nodes that can be reached. `perhaps`: at most; otherwise at least.
    fn reachable(&self, perhaps: bool) -> HashSet<usize> {
        let mut seen = HashSet::new();
        let mut stack: Vec<_> = self.roots.iter().flatten().map(|&(_, node)| node).collect();
        loop {
            while let Some(node) = stack.pop() {
                if seen.insert(node) && self.nodes[&node].kind < 3 {
                    stack.extend(self.nodes[&node].references.values());
                }
            }
            for model in seen.iter().map(|node| &self.nodes[node]).filter(|model| model.kind == 4) {
                let key = model.references.get(&16);
                let alive = key.is_none_or(|key| seen.contains(key)) && (perhaps || !model.unsure);
                stack.extend(model.references.get(&24).filter(|value| alive && !seen.contains(value)));
            }
            if stack.is_empty() {
                return seen;
            }
        }
    }

    /// What a node leads to, itself included; `weak`: by weak slots too.
    fn led_to(&self, node: usize, weak: bool) -> HashSet<usize> {
        let (mut seen, mut stack) = (HashSet::new(), vec![node]);
        while let Some(node) = stack.pop() {
            if seen.insert(node) && (weak || self.nodes[&node].kind < 3) {
                stack.extend(self.nodes[&node].references.values());
            }
        }
        seen
    }

    /// Bytes of the model's nodes that can be reached, each as large as its block can be at most.
    fn reachable_bytes(&self) -> usize {
        let bytes = |node: &usize| {
            let node = &self.nodes[node];
            let bytes = [32, 24 + 8 * node.length, 24 + node.length, 32, 32][node.kind as usize];
            // The classes above 512 bytes leave at most a third of a block; above 8 KiB it is whole heap pages.
            if bytes > 8 << 10 { bytes + (16 << 10) } else { bytes / 2 * 3 + 32 }
        };
        self.reachable(true).iter().map(bytes).sum()
    }

    /// What cannot be reached is freed, and in the end everything is.
    pub(crate) fn finish(mut self) {
        if let Some(kernel) = &self.kernel {
            kernel.fail_no_more();
        }
        self.check();
        // What is to be finalized keeps things alive until it is taken; each collection hands out one of a chain.
        loop {
            self.heap.scope(|scope| scope.collect());
            if self.heap.finalizable() == 0 {
                break;
            }
            self.take_finalizable(0, 1);
        }
        self.check();
        assert!(self.heap.old_bytes() <= self.reachable_bytes(), "{} bytes are left", self.heap.old_bytes());
        for (global, _) in self.roots.drain(..).flatten() {
            self.heap.release(global);
        }
        loop {
            self.heap.scope(|scope| scope.collect());
            if self.heap.finalizable() == 0 {
                break;
            }
            self.take_finalizable(0, 1);
        }
        assert_eq!((self.heap.old_bytes(), self.heap.held_bytes()), (0, 0));
        self.heap.verify(&mut []).unwrap_or_else(|mistake| panic!("{mistake}"));
    }
}

/// Compares what can be reached from an object with the model. `seen`: addresses of nodes that were compared; `gone`: slots that are empty.
fn compare<O: Os + Send + Sync + 'static>(
    scope: &mut Scope<'_, World<O>>,
    nodes: &HashMap<usize, Node>,
    local: Local<'_>,
    node: usize,
    seen: &mut HashMap<usize, usize>,
    gone: &mut Vec<(usize, usize)>,
) {
    let mut stack = vec![(scope.same_as(local).expect("memory of the process"), node)];
    while let Some((local, node)) = stack.pop() {
        let address = scope.object(local);
        if let Some(&before) = seen.get(&node) {
            assert_eq!(before, address, "one object for one node");
            continue;
        }
        seen.insert(node, address);
        let model = &nodes[&node];
        assert_eq!(scope.read(local, Machine::<O>::number_at(model.kind)), model.number);
        assert_eq!(scope.length(local), model.length);
        let slots = match model.kind {
            0 | 4 => vec![16, 24],
            3 => vec![16],
            1 => (0..model.length).map(|item| 24 + 8 * item).collect(),
            _ => {
                assert!(scope.bytes(local).iter().all(|&byte| byte == model.number as u8));
                continue;
            }
        };
        for slot in slots {
            let found = scope.get(local, slot).expect("memory of the process");
            match (found, model.references.get(&slot)) {
                (Some(found), Some(&target)) => stack.push((found, target)),
                (None, None) => {}
                (None, Some(_)) => gone.push((node, slot)),
                (found, expected) => panic!("slot {slot} of node {node}: {found:?} instead of {expected:?}"),
            }
        }
    }
}
