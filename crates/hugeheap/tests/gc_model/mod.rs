//! A machine that runs operations on a garbage-collected heap, beside a plain model of what must come of them.
//!
//! ```text
//!   4 bytes ──▶ operation ──▶ Heap     objects, refusals, what is handed out to be finalized
//!                         └─▶ Graph    what can be reached, and what was written
//! ```
//!
//! Any bytes are a program: the property tests and the fuzz target make them. The program's roots are global
//! handles, pinned ones too, slots outside of objects that a callback names, and words that may be addresses;
//! local variables are in scopes and in frames.
//!
//! What is compared: from each root, the whole graph, object by object; that what the model cannot reach is
//! freed, and that an allocation is refused only for a reason. A weak slot may become empty once the model
//! cannot reach its object, and must not before; what is handed out to be finalized must not be reachable, nor
//! be led to by another object that waits for it, unless they lie on a cycle.

mod check;
mod graph;
mod raw;
mod world;

use graph::{Graph, Kind, Node};
use hugeheap::gc::{Event, Exhausted, Global, Heap, Local, Scope, TypeId};
use hugeheap::object::Space;
use hugeheap_os::Os;
use hugeheap_os::linux::Linux;
use hugeheap_os::simulated::Kernel;
use raw::Words;
use std::cell::Cell;
use std::collections::HashSet;
use std::rc::Rc;
use world::World;

/// One operation: its number and three parameters.
pub(crate) type Code = [u8; 4];

/// The host and the settings at the start.
pub(crate) type Start = [u8; 8];

/// Global handles of the program.
const ROOTS: usize = 24;

/// A global handle.
struct Root {
    global: Global,
    node: usize,
    /// It is pinned, there.
    stays: Option<usize>,
}

/// What the hook was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Told {
    minor: u64,
    major: u64,
    evacuations: u64,
}

/// See the module's text.
pub(crate) struct Machine<O: Os + Send + Sync + 'static> {
    world: &'static World<O>,
    space: &'static Space<World<O>>,
    heap: Heap<World<O>>,
    /// `None`: on the running kernel.
    kernel: Option<Kernel>,
    /// Calls may be made to fail, and limits set: requests may be refused.
    faulty: bool,
    maximum: Option<usize>,
    types: [TypeId; Kind::ALL.len()],
    graph: Graph,
    roots: Vec<Option<Root>>,
    /// Slots outside of objects.
    outside: Words,
    /// Words that may be addresses. Without them objects move out of the nursery that it would not know.
    scanned: Option<Words>,
    told: Option<Rc<Cell<Told>>>,
}

impl Machine<Kernel> {
    /// A machine on a simulated host. Without `faulty` its kernel refuses nothing.
    pub(crate) fn new(start: Start, faulty: bool) -> Self {
        let kernel = world::host(start);
        Self::on(World::new(kernel.clone()), Some(kernel), start, faulty)
    }
}

impl Machine<Linux> {
    /// A machine on the running kernel.
    #[allow(dead_code, reason = "the fuzz target runs on simulated ones only")]
    pub(crate) fn real(start: Start) -> Self {
        Self::on(World::new(Linux::new()), None, start, false)
    }
}

/// What a scope of the machine can fail with; the process has memory for handles.
type Refused<T> = Result<T, Exhausted>;

impl<O: Os + Send + Sync + 'static> Machine<O> {
    fn on(world: World<O>, kernel: Option<Kernel>, start: Start, faulty: bool) -> Self {
        // Taken back in `finish`.
        let world: &'static World<O> = Box::leak(Box::new(world));
        let space: &'static Space<World<O>> = Box::leak(Box::new(Space::new(world)));
        let settings = world::settings(start);
        let mut heap = Heap::new(space, settings).expect("nothing fails yet");
        let types = Kind::ALL.map(|kind| heap.register(kind.layout()).expect("a right layout"));
        let outside = Words::default();
        // SAFETY: what is named is what the machine's slots hold, and they live as long as the callback.
        unsafe { heap.add_roots(outside.roots()) }.expect("memory");
        let scanned = (start[5] % 4 == 0).then(|| {
            let words = Words::default();
            // SAFETY: the words live as long as the callback.
            unsafe { heap.add_scan(words.scan()) }.expect("memory");
            words
        });
        let told = (start[6] % 2 == 0).then(|| {
            let told = Rc::new(Cell::new(Told::default()));
            let hook = Rc::clone(&told);
            heap.set_hook(Some(Box::new(move |event| {
                let mut told = hook.get();
                match event {
                    Event::Minor { .. } => told.minor += 1,
                    Event::Major { .. } => told.major += 1,
                    Event::Evacuation { .. } => told.evacuations += 1,
                    _ => {}
                }
                hook.set(told);
            })));
            told
        });
        Self {
            world,
            space,
            heap,
            kernel,
            faulty,
            maximum: settings.maximum,
            types,
            graph: Graph::default(),
            roots: (0..ROOTS).map(|_| None).collect(),
            outside,
            scanned,
            told,
        }
    }

    /// Runs one operation.
    pub(crate) fn step(&mut self, [operation, a, b, c]: Code) {
        match operation % 32 {
            0..=6 => self.allocate(a, b, c),
            7..=11 => self.link(a, b, c),
            12 => self.drop_root(a),
            13 => self.garbage(a, b),
            14 | 15 => self.walk(a, b),
            16 => self.heap.scope(|scope| if a % 8 == 0 { scope.collect() } else { scope.collect_minor() }),
            17 => self.fail(a, b, c),
            18 | 19 => self.finalize(a),
            20 => self.hash(a),
            21 | 22 => self.take_finalizable(a, b),
            23 => self.scopes(a, b, c),
            24 => self.chain(a, b, c),
            25 => self.set_outside(a, b),
            26 => self.set_scanned(a, b, c),
            27 => self.pin(a, b),
            28 => self.protect(a, b),
            29 if a % 4 == 0 => self.heap.scope(|scope| scope.prepare_fork()),
            29 => self.wait(u64::from(b) * 4),
            _ => self.check(),
        }
    }

    /// The type of a kind's objects.
    fn type_of(&self, kind: Kind) -> TypeId {
        self.types[kind as usize]
    }

    /// The number of the next node; 0 is what nobody wrote.
    fn next_number(&self) -> u64 {
        Self::number_of(self.graph.len())
    }

    fn number_of(node: usize) -> u64 {
        node as u64 * 3 + 1
    }

    /// Puts a handle into a place; the one that was there ends.
    fn put(&mut self, place: usize, global: Global, node: usize, pinned: bool) {
        let stays = pinned.then(|| self.heap.address(&global));
        if let Some(before) = self.roots[place].replace(Root { global, node, stays }) {
            self.heap.release(before.global);
        }
    }

    fn allocate(&mut self, a: u8, b: u8, c: u8) {
        let kind = Kind::ALL[a as usize % Kind::ALL.len()];
        let length = match (kind, b % 16) {
            (kind, _) if !kind.is_variable() => 0,
            (Kind::Bytes, 15) => usize::from(c) * 9000,
            // Few of the longest: each is looked through by every check.
            (_, 15) => 1000 + usize::from(c) * if b == 255 { 40 } else { 4 },
            _ => usize::from(c),
        };
        let (number, place, ty) = (self.next_number(), usize::from(b) % ROOTS, self.type_of(kind));
        let (old, pinned) = (a / 11 % 6 == 0, a / 66 % 3 == 0);
        let result = self.heap.scope(|scope| -> Refused<Global> {
            let local = if old { scope.allocate_old(ty, length)? } else { scope.allocate(ty, length)? };
            write_number(scope, local, kind, number);
            if kind == Kind::Bytes {
                scope.bytes(local).fill(number as u8);
            }
            if pinned { scope.pin(local) } else { scope.global(local) }
        });
        let node = Node::new(kind, number, length);
        let bytes = node.bytes();
        let Ok(global) = result else { return self.refused(bytes, old) };
        self.touch(self.heap.address(&global), bytes);
        let node = self.graph.add(node);
        self.put(place, global, node, pinned);
    }

    /// A place that is not empty.
    fn root(&self, which: u8) -> Option<usize> {
        Self::live(&self.roots, which)
    }

    fn live(roots: &[Option<Root>], which: u8) -> Option<usize> {
        let live: Vec<_> = (0..ROOTS).filter(|&place| roots[place].is_some()).collect();
        (!live.is_empty()).then(|| live[which as usize % live.len()])
    }

    fn link(&mut self, a: u8, b: u8, c: u8) {
        let Self { heap, roots, .. } = self;
        let held = |which| Self::live(roots, which).and_then(|place| roots[place].as_ref());
        let (Some(from), Some(to), Some(value)) = (held(a), held(b), held(c)) else { return };
        let node = self.graph.node(from.node);
        let Some(slot) = node.pick_slot(c) else { return };
        let clear = c % 5 == 0;
        let mut writes = vec![(slot, to)];
        if node.role(slot) == graph::Role::Key {
            writes.push((slot + 8, value));
        }
        let (from_node, kind) = (from.node, node.kind);
        let written: Vec<_> = writes.iter().map(|&(slot, to)| (slot, (!clear).then_some(to.node))).collect();
        if kind.is_traced() {
            // No offset of the type says that these are slots.
            let writes: Vec<_> = writes
                .iter()
                .map(|&(slot, to)| (slot, if clear { 0 } else { heap.address(&to.global) }))
                .collect();
            let object = heap.address(&from.global);
            for (slot, value) in writes {
                // SAFETY: slots of a live object, and live objects.
                unsafe { heap.write(object, (object + slot) as *mut usize, value) };
            }
        } else {
            heap.scope(|scope| {
                for (slot, to) in writes {
                    let from = scope.local(&from.global).expect("memory of the process");
                    let to = scope.local(&to.global).expect("memory of the process");
                    scope.set(from, slot, (!clear).then_some(to));
                }
            });
        }
        for (slot, to) in written {
            self.graph.write(from_node, slot, to);
        }
    }

    fn finalize(&mut self, a: u8) {
        let Some(place) = self.root(a) else { return };
        let Some(root) = &self.roots[place] else { return };
        let registered = self.heap.scope(|scope| {
            let local = scope.local(&root.global).expect("memory of the process");
            scope.finalize(local)
        });
        registered.expect("memory of the process");
        self.graph.node_mut(root.node).finalized += 1;
    }

    /// An identity hash is made, or is what it was.
    fn hash(&mut self, a: u8) {
        let Some(place) = self.root(a) else { return };
        let Some(root) = &self.roots[place] else { return };
        let hash = self.heap.scope(|scope| {
            let local = scope.local(&root.global).expect("memory of the process");
            scope.identity_hash(local)
        });
        assert_eq!(*self.graph.node_mut(root.node).hash.get_or_insert(hash), hash);
    }

    /// What is ready is taken; some of it becomes a root again.
    fn take_finalizable(&mut self, a: u8, b: u8) {
        let types = self.types;
        while let Some((number, global)) = self.heap.scope(|scope| {
            let local = scope.next_finalizable().expect("memory of the process")?;
            let ty = scope.type_of(local);
            let kind = types.iter().position(|&other| other == ty).expect("one of the types");
            let number = read_number(scope, local, Kind::ALL[kind]);
            Some((number, scope.global(local).expect("memory of the process")))
        }) {
            let node = (number / 3) as usize;
            let reachable = self.reachable(false);
            assert!(!reachable.contains(&node), "node {node} is not dead");
            let from_it = self.graph.led_to(node, true);
            for (other, model) in self.graph.nodes() {
                let waits = other != node && model.finalized > 0 && !reachable.contains(&other);
                let early =
                    waits && !from_it.contains(&other) && self.graph.led_to(other, false).contains(&node);
                assert!(!early, "node {other} leads to {node} and waits");
            }
            let model = self.graph.node_mut(node);
            assert!(model.finalized > 0, "node {node} was handed out too often");
            model.finalized -= 1;
            self.graph.unsure_of(|to| from_it.contains(&to) && !reachable.contains(&to));
            if b % 2 == 0 {
                self.put(usize::from(a) % ROOTS, global, node, false);
            } else {
                self.heap.release(global);
            }
        }
    }

    fn drop_root(&mut self, a: u8) {
        let Some(place) = self.root(a) else { return };
        if let Some(root) = self.roots[place].take() {
            self.heap.release(root.global);
        }
    }

    /// Objects that die at once.
    fn garbage(&mut self, a: u8, b: u8) {
        let (ty, length) = (self.type_of(Kind::Bytes), usize::from(b) * 16);
        for _ in 0..a / 8 {
            let result = self.heap.scope(|scope| scope.allocate(ty, length).map(|_| ()));
            if result.is_err() {
                return self.refused(length + 32, false);
            }
        }
    }

    /// Makes a root of something that is reached from one.
    fn walk(&mut self, a: u8, b: u8) {
        let Some(place) = self.root(a) else { return };
        let Some(root) = &self.roots[place] else { return };
        let model = self.graph.node(root.node);
        let mut references: Vec<_> = model.references.iter().map(|(&slot, &to)| (slot, to)).collect();
        references.sort_unstable();
        if references.is_empty() {
            return;
        }
        let (slot, target) = references[b as usize % references.len()];
        let (node, traced) = (root.node, model.kind.is_traced());
        let found = if traced {
            let object = self.heap.address(&root.global);
            // SAFETY: a slot of a live object; what it refers to lives.
            unsafe {
                let found = self.heap.weak((object + slot) as *const usize);
                (found != 0).then(|| self.heap.global(found).expect("memory of the process"))
            }
        } else {
            self.heap.scope(|scope| {
                let local = scope.local(&root.global).expect("memory of the process");
                let found = scope.get(local, slot).expect("memory of the process")?;
                Some(scope.global(found).expect("memory of the process"))
            })
        };
        match found {
            Some(found) => self.put(place, found, target, false),
            None => self.was_cleared(node, slot),
        }
    }

    /// Local variables: scopes in scopes, one with a result.
    fn scopes(&mut self, a: u8, b: u8, c: u8) {
        let (pair, bytes) = (self.type_of(Kind::Pair), self.type_of(Kind::Bytes));
        let number = self.next_number();
        let places: Vec<_> = [a, b, c].into_iter().filter_map(|which| self.root(which)).collect();
        let held: Vec<_> = places.iter().filter_map(|&place| self.roots[place].as_ref()).collect();
        let graph = &self.graph;
        let kind_of = |root: &Root| graph.node(root.node).kind;
        let made = self.heap.scope(|outer| -> Refused<Global> {
            let kept: Vec<_> =
                held.iter().map(|root| outer.local(&root.global).expect("memory of the process")).collect();
            let made = outer.scope_for(|inner| {
                let first = inner.allocate(pair, 0)?;
                inner.write(first, 8, number);
                let last = inner.same_as(first)?;
                for length in 0..usize::from(b) {
                    let between = inner.allocate(bytes, length)?;
                    inner.assign(last, between);
                }
                if let Some(&kept) = kept.first() {
                    inner.set(first, 16, Some(kept));
                }
                assert!(b == 0 || inner.length(last) == usize::from(b) - 1);
                Refused::Ok(first)
            })?;
            match c % 8 {
                0 => outer.collect(),
                1..=4 => outer.collect_minor(),
                _ => {}
            }
            for (&local, root) in kept.iter().zip(&held) {
                assert_eq!(read_number(outer, local, kind_of(root)), Self::number_of(root.node));
            }
            assert_eq!(outer.read(made, 8), number);
            outer.global(made)
        });
        let target = held.first().map(|root| root.node);
        let Ok(global) = made else { return self.refused(512, false) };
        let node = self.graph.add(Node::new(Kind::Pair, number, 0));
        self.graph.write(node, 16, target);
        self.put(usize::from(c) % ROOTS, global, node, false);
    }

    /// Pins what a root holds, or ends the pin.
    fn pin(&mut self, a: u8, b: u8) {
        let Some(place) = self.root(a) else { return };
        let Some(root) = &self.roots[place] else { return };
        let (node, pinned) = (root.node, b % 3 != 0);
        let again = self.heap.scope(|scope| {
            let local = scope.local(&root.global).expect("memory of the process");
            if pinned { scope.pin(local) } else { scope.global(local) }
        });
        self.put(place, again.expect("memory of the process"), node, pinned);
    }

    /// What the program holds.
    fn held_nodes(&self) -> Vec<usize> {
        let handles = self.roots.iter().flatten().map(|root| root.node);
        let words = self.scanned.iter().flat_map(Words::nodes);
        handles.chain(self.outside.nodes()).chain(words).collect()
    }

    /// Nodes that can be reached. `perhaps`: at most; otherwise at least.
    fn reachable(&self, perhaps: bool) -> HashSet<usize> {
        self.graph.reachable(self.held_nodes(), perhaps)
    }

    /// A slot was found empty although the model has a reference there.
    fn was_cleared(&mut self, node: usize, slot: usize) {
        let reachable = self.reachable(false);
        self.graph.was_cleared(node, slot, &reachable);
    }
}

/// Writes a node's number.
fn write_number<O: Os + Send + Sync + 'static>(
    scope: &mut Scope<'_, World<O>>,
    local: Local<'_>,
    kind: Kind,
    number: u64,
) {
    if kind.is_traced() {
        // SAFETY: a word of a live object that no slot is.
        unsafe { ((scope.object(local) + kind.number_at()) as *mut u64).write(number) };
    } else {
        scope.write(local, kind.number_at(), number);
    }
}

/// Reads a node's number.
fn read_number<O: Os + Send + Sync + 'static>(
    scope: &Scope<'_, World<O>>,
    local: Local<'_>,
    kind: Kind,
) -> u64 {
    // SAFETY: a word of a live object.
    unsafe { ((scope.object(local) + kind.number_at()) as *const u64).read() }
}
