//! The plain model: a graph of nodes. What it says is compared with the heap by `check`.
//!
//! ```text
//!   kind        number  slots
//!   Pair           8    16, 24
//!   Array         16    24 + 8 n
//!   Bytes         16    none
//!   Weak           8    16 weak
//!   Ephemeron      8    16 key, 24 value
//!   Parts         16    24 + 8 n: named by a function that is asked for parts
//!   Traced         8    16, 24 weak, 32 key, 40 value: named by a function
//!   Table         16    24 + 16 n key, 32 + 16 n value
//!   WeakArray     16    24 + 8 n weak
//!   Record        16    24, and of an item of three words: the second, and the third weak
//!   Finalized      8    16, 24
//! ```

use hugeheap::gc::{Layout, Visitor};
use std::collections::{HashMap, HashSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Pair,
    Array,
    Bytes,
    Weak,
    Ephemeron,
    Traced,
    Parts,
    Table,
    WeakArray,
    Record,
    Finalized,
}

/// What a slot does for what it refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Strong,
    Weak,
    /// Of an ephemeron; the other one is the value.
    Key,
    /// Of an ephemeron, with the offset of its key.
    Value(usize),
}

/// The slots of [`Kind::Traced`].
unsafe extern "C" fn trace(object: *mut u8, visitor: &mut Visitor<'_>) {
    let slot = |offset: usize| object.wrapping_add(offset).cast::<usize>();
    // SAFETY: objects of the type have 48 bytes, and slots there.
    unsafe {
        visitor.slot(slot(16));
        visitor.weak_slot(slot(24));
        visitor.ephemeron(slot(32), slot(40));
    }
}

/// The slots of [`Kind::Parts`].
unsafe extern "C" fn trace_part(object: *mut u8, from: *mut u8, to: *mut u8, visitor: &mut Visitor<'_>) {
    let begin = object as usize + 24;
    // SAFETY: the length is in the second word.
    let end = begin + 8 * unsafe { object.cast::<usize>().add(1).read() };
    for slot in (begin.max(from as usize)..end.min(to as usize)).step_by(8) {
        // SAFETY: all items are slots.
        unsafe { visitor.slot(slot as *mut usize) };
    }
}

impl Kind {
    pub(super) const ALL: [Self; 11] = [
        Self::Pair,
        Self::Array,
        Self::Bytes,
        Self::Weak,
        Self::Ephemeron,
        Self::Traced,
        Self::Parts,
        Self::Table,
        Self::WeakArray,
        Self::Record,
        Self::Finalized,
    ];

    pub(super) fn layout(self) -> Layout {
        match self {
            Self::Pair => Layout::fixed(32).slots(&[16, 24]),
            Self::Array => Layout::variable(24, 8).item_slots(&[0]),
            Self::Bytes => Layout::variable(24, 1),
            Self::Weak => Layout::fixed(24).weak_slots(&[16]),
            Self::Ephemeron => Layout::fixed(32).ephemerons(&[(16, 24)]),
            // SAFETY: the function names the same slots of every object.
            Self::Traced => unsafe { Layout::fixed(48).traced_by(trace) },
            // SAFETY: the function names all slots in the part.
            Self::Parts => unsafe { Layout::variable(24, 8).traced_in_parts_by(trace_part) },
            Self::Table => Layout::variable(24, 16).item_ephemerons(&[(0, 8)]),
            Self::WeakArray => Layout::variable(24, 8).weak_item_slots(&[0]),
            Self::Record => Layout::variable(32, 24).slots(&[24]).item_slots(&[8]).weak_item_slots(&[16]),
            Self::Finalized => Layout::fixed(32).slots(&[16, 24]).finalized(),
        }
    }

    /// Bytes of the fixed part and of an item.
    pub(super) fn part_bytes(self) -> (usize, usize) {
        match self {
            Self::Weak => (24, 0),
            Self::Traced => (48, 0),
            Self::Array | Self::Parts | Self::WeakArray => (24, 8),
            Self::Bytes => (24, 1),
            Self::Table => (24, 16),
            Self::Record => (32, 24),
            Self::Pair | Self::Ephemeron | Self::Finalized => (32, 0),
        }
    }

    pub(super) fn is_variable(self) -> bool {
        self.part_bytes().1 > 0
    }

    /// Whether the layout does not say by offsets which words are slots.
    pub(super) fn is_traced(self) -> bool {
        matches!(self, Self::Traced | Self::Parts)
    }

    /// The offset of a node's number.
    pub(super) fn number_at(self) -> usize {
        if self.is_variable() { 16 } else { 8 }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) number: u64,
    pub(super) length: usize,
    /// By offset of the slot.
    pub(super) references: HashMap<usize, usize>,
    /// Offsets of weak slots, keys and values that may be empty by now: what they refer to was finalized, or
    /// their key is dead.
    pub(super) unsure: HashSet<usize>,
    /// How often it is registered to be finalized.
    pub(super) finalized: u32,
    pub(super) hash: Option<u32>,
}

impl Node {
    pub(super) fn new(kind: Kind, number: u64, length: usize) -> Self {
        Self {
            kind,
            number,
            length,
            references: HashMap::new(),
            unsure: HashSet::new(),
            finalized: u32::from(kind == Kind::Finalized),
            hash: None,
        }
    }

    /// Bytes of the object.
    pub(super) fn bytes(&self) -> usize {
        let (fixed, item) = self.kind.part_bytes();
        (fixed + item * self.length).next_multiple_of(16)
    }

    /// Offset and role of each slot.
    pub(super) fn slots(&self) -> Vec<(usize, Role)> {
        let items = 0..self.length;
        match self.kind {
            Kind::Pair | Kind::Finalized => vec![(16, Role::Strong), (24, Role::Strong)],
            Kind::Array | Kind::Parts => items.map(|item| (24 + 8 * item, Role::Strong)).collect(),
            Kind::Bytes => Vec::new(),
            Kind::Weak => vec![(16, Role::Weak)],
            Kind::Ephemeron => vec![(16, Role::Key), (24, Role::Value(16))],
            Kind::Traced => {
                vec![(16, Role::Strong), (24, Role::Weak), (32, Role::Key), (40, Role::Value(32))]
            }
            Kind::Table => items
                .map(|item| 24 + 16 * item)
                .flat_map(|key| [(key, Role::Key), (key + 8, Role::Value(key))])
                .collect(),
            Kind::WeakArray => items.map(|item| (24 + 8 * item, Role::Weak)).collect(),
            Kind::Record => items
                .map(|item| 32 + 24 * item)
                .flat_map(|item| [(item + 8, Role::Strong), (item + 16, Role::Weak)])
                .chain([(24, Role::Strong)])
                .collect(),
        }
    }

    /// What a slot of the node does.
    pub(super) fn role(&self, slot: usize) -> Role {
        match (self.kind, slot) {
            (Kind::Pair | Kind::Finalized | Kind::Array | Kind::Parts | Kind::Bytes, _) => Role::Strong,
            (Kind::Weak | Kind::WeakArray, _) => Role::Weak,
            (Kind::Ephemeron, _) => {
                if slot == 16 {
                    Role::Key
                } else {
                    Role::Value(16)
                }
            }
            (Kind::Traced, _) => [Role::Strong, Role::Weak, Role::Key, Role::Value(32)][slot / 8 - 2],
            (Kind::Table, _) => {
                if slot % 16 == 8 {
                    Role::Key
                } else {
                    Role::Value(slot - 8)
                }
            }
            (Kind::Record, 24) => Role::Strong,
            (Kind::Record, _) => {
                if (slot - 32) % 24 == 8 {
                    Role::Strong
                } else {
                    Role::Weak
                }
            }
        }
    }

    /// One of the slots that are written by themselves, if the node has any: an ephemeron is written as a
    /// whole, by its key.
    pub(super) fn pick_slot(&self, which: u8) -> Option<usize> {
        let which = usize::from(which);
        let item = which * 37 % self.length.max(1);
        match self.kind {
            Kind::Pair | Kind::Finalized => Some([16, 24][which % 2]),
            Kind::Weak | Kind::Ephemeron => Some(16),
            Kind::Traced => Some([16, 24, 32][which % 3]),
            Kind::Record if self.length == 0 => Some(24),
            _ if self.length == 0 => None,
            Kind::Bytes => None,
            Kind::Array | Kind::Parts | Kind::WeakArray => Some(24 + 8 * item),
            Kind::Table => Some(24 + 16 * item),
            Kind::Record => Some([24, 40 + 24 * item, 48 + 24 * item][which % 3]),
        }
    }
}

/// All nodes, dead ones too.
#[derive(Debug, Default)]
pub(super) struct Graph(Vec<Node>);

impl Graph {
    pub(super) fn add(&mut self, node: Node) -> usize {
        self.0.push(node);
        self.0.len() - 1
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn node(&self, node: usize) -> &Node {
        &self.0[node]
    }

    pub(super) fn node_mut(&mut self, node: usize) -> &mut Node {
        &mut self.0[node]
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = (usize, &Node)> {
        self.0.iter().enumerate()
    }

    /// What a program does: writes a slot.
    pub(super) fn write(&mut self, node: usize, slot: usize, to: Option<usize>) {
        let node = &mut self.0[node];
        node.unsure.remove(&slot);
        match to {
            Some(to) => node.references.insert(slot, to),
            None => node.references.remove(&slot),
        };
    }

    fn strong(&self, node: usize) -> impl Iterator<Item = usize> {
        let node = &self.0[node];
        node.references.iter().filter(|(slot, _)| node.role(**slot) == Role::Strong).map(|(_, &to)| to)
    }

    /// Nodes that can be reached from some. `perhaps`: at most; otherwise at least.
    pub(super) fn reachable(&self, from: Vec<usize>, perhaps: bool) -> HashSet<usize> {
        let (mut seen, mut stack) = (HashSet::new(), from);
        loop {
            while let Some(node) = stack.pop() {
                if seen.insert(node) {
                    stack.extend(self.strong(node));
                }
            }
            for node in seen.iter().map(|&node| &self.0[node]) {
                for (slot, value) in &node.references {
                    let Role::Value(key) = node.role(*slot) else { continue };
                    let known = node.references.get(&key).is_none_or(|key| seen.contains(key));
                    let alive = known && (perhaps || !node.unsure.contains(slot));
                    if alive && !seen.contains(value) {
                        stack.push(*value);
                    }
                }
            }
            if stack.is_empty() {
                return seen;
            }
        }
    }

    /// What a node leads to, itself included; `weak`: by weak slots too.
    pub(super) fn led_to(&self, node: usize, weak: bool) -> HashSet<usize> {
        let (mut seen, mut stack) = (HashSet::new(), vec![node]);
        while let Some(node) = stack.pop() {
            if !seen.insert(node) {
                continue;
            }
            if weak {
                stack.extend(self.0[node].references.values());
            } else {
                stack.extend(self.strong(node));
            }
        }
        seen
    }

    /// What was found dead: slots to it may be empty from now on, and values whose key it is.
    pub(super) fn unsure_of(&mut self, gone: impl Fn(usize) -> bool) {
        for node in &mut self.0 {
            let slots: Vec<_> =
                node.references.iter().filter(|(_, to)| gone(**to)).map(|(&slot, _)| slot).collect();
            for slot in slots {
                match node.role(slot) {
                    Role::Strong => {}
                    Role::Weak | Role::Value(_) => {
                        node.unsure.insert(slot);
                    }
                    Role::Key => node.unsure.extend([slot, slot + 8]),
                }
            }
        }
    }

    /// A slot was found empty although the model has a reference there. `reachable`: at least.
    pub(super) fn was_cleared(&mut self, node: usize, slot: usize, reachable: &HashSet<usize>) {
        let role = self.0[node].role(slot);
        let model = &mut self.0[node];
        let Some(target) = model.references.remove(&slot) else {
            panic!("slot {slot} of node {node} is in the model")
        };
        let dead = match role {
            Role::Strong => panic!("slot {slot} of node {node} is empty"),
            Role::Weak | Role::Key => !reachable.contains(&target),
            Role::Value(key) => model.references.get(&key).is_some_and(|key| !reachable.contains(key)),
        };
        assert!(dead || model.unsure.contains(&slot), "slot {slot} of node {node} was cleared too early");
        model.unsure.remove(&slot);
        if role == Role::Key {
            // The value follows, if it has not yet.
            model.unsure.insert(slot + 8);
        }
    }
}
