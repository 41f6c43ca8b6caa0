//! Operations without scopes: windows in local variables, frames, slots outside of objects, words that may be
//! addresses, protected pages.

use super::graph::{Kind, Node};
use super::{Machine, ROOTS};
use hugeheap::gc::{Forbid, RootCallback, ScanCallback, Window};
use hugeheap_os::Os;
use std::cell::Cell;
use std::rc::Rc;

/// How many there are of either kind of [`Words`].
const WORDS: usize = 6;

/// What a slot holds that is no reference: a number with a tag.
pub(super) const TAGGED: usize = 0x1001;

/// Words of the program that the collector is told of, and the nodes they stand for.
#[derive(Default)]
pub(super) struct Words {
    words: Rc<[Cell<usize>; WORDS]>,
    nodes: [Option<usize>; WORDS],
}

impl Words {
    /// A callback that names them as slots.
    pub(super) fn roots(&self) -> RootCallback {
        let words = Rc::clone(&self.words);
        Box::new(move |visitor| {
            for word in words.iter() {
                // SAFETY: a word of this process that lives as long as the callback; nobody else has a
                // reference to what is in it.
                unsafe { visitor.slot(word.as_ptr()) };
            }
        })
    }

    /// A callback that says where they are.
    pub(super) fn scan(&self) -> ScanCallback {
        let words = Rc::clone(&self.words);
        Box::new(move || {
            let range = words.as_ptr_range();
            (range.start as usize, range.end as usize)
        })
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = usize> {
        self.nodes.iter().copied().flatten()
    }

    /// Each word that is not empty, and its node.
    pub(super) fn each(&self) -> impl Iterator<Item = (usize, usize)> {
        self.words.iter().zip(&self.nodes).filter_map(|(word, node)| Some((word.get(), (*node)?)))
    }

    fn set(&mut self, which: usize, word: usize, node: Option<usize>) {
        self.words[which].set(word);
        self.nodes[which] = node;
    }

    pub(super) fn clear(&mut self) {
        (0..WORDS).for_each(|which| self.set(which, 0, None));
    }
}

impl<O: Os + Send + Sync + 'static> Machine<O> {
    /// A slot outside of objects holds what a root does, or no reference.
    pub(super) fn set_outside(&mut self, a: u8, b: u8) {
        let which = usize::from(b) % WORDS;
        match (self.root(a).and_then(|place| self.roots[place].as_ref()), b % 5) {
            (Some(root), 1..) => self.outside.set(which, self.heap.address(&root.global), Some(root.node)),
            (_, _) => self.outside.set(which, TAGGED * usize::from(a % 2), None),
        }
    }

    /// A word is an address in an object that a root holds.
    pub(super) fn set_scanned(&mut self, a: u8, b: u8, c: u8) {
        let Some(place) = self.root(a) else { return };
        let (Some(words), Some(root)) = (&mut self.scanned, &self.roots[place]) else { return };
        let inside = usize::from(c) % self.graph.node(root.node).bytes();
        let word = self.heap.address(&root.global) + inside;
        let which = usize::from(b) % WORDS;
        if b % 5 == 0 { words.set(which, 0, None) } else { words.set(which, word, Some(root.node)) }
    }

    /// A list that is made with the window in a local variable and its head in the frame.
    pub(super) fn chain(&mut self, a: u8, b: u8, c: u8) {
        let (ty, bytes) = (self.type_of(Kind::Pair), Node::new(Kind::Pair, 0, 0).bytes());
        let held = self.root(a).and_then(|place| self.roots[place].as_ref());
        let mut frame = [0, held.map_or(TAGGED, |root| self.heap.address(&root.global)), TAGGED];
        let held = held.map(|root| root.node);
        let first = self.graph.len();
        let mut window = self.heap.take_window();
        let mut refused = false;
        for number in 0..usize::from(b) {
            if c > 0 && number % usize::from(c) == usize::from(c) - 1 {
                // SAFETY: the window is this heap's; what is held is in the frame, and all objects are written.
                unsafe { self.heap.collect_minor(&mut window, &mut frame) };
            }
            let made = match window.take(bytes) {
                Some(object) => Some(object),
                // SAFETY: as above.
                None => unsafe { self.heap.allocate_slow(&mut window, ty, 0, &mut frame) }.ok(),
            };
            let Some(made) = made else {
                refused = true;
                break;
            };
            let words = made.as_ptr().cast::<usize>();
            // SAFETY: just allocated with four words.
            unsafe {
                words.write(ty.header().0 as usize);
                words.add(1).write(Self::number_of(first + number) as usize);
                words.add(2).write(frame[0]);
                words.add(3).write(frame[1]);
            }
            frame[0] = words as usize;
            let node = self.graph.add(Node::new(Kind::Pair, Self::number_of(first + number), 0));
            self.graph.write(node, 16, (number > 0).then(|| node - 1));
            self.graph.write(node, 24, held);
        }
        self.heap.return_window(window);
        assert_eq!(frame[2], TAGGED);
        if frame[0] != 0 {
            // SAFETY: the head is alive: nothing was collected since it was in the frame.
            let global = unsafe { self.heap.global(frame[0]) }.expect("memory of the process");
            self.put(usize::from(c) % ROOTS, global, self.graph.len() - 1, false);
        }
        if refused {
            self.refused(bytes, false);
        }
    }

    /// Protects the page of an object, collects, and lifts the protection.
    pub(super) fn protect(&mut self, a: u8, b: u8) {
        let Some(place) = self.root(a) else { return };
        let Some(root) = &self.roots[place] else { return };
        let object = self.heap.address(&root.global);
        // A protection that cannot be lifted ends the process.
        self.mend();
        let forbid = if b % 2 == 0 { Forbid::Write } else { Forbid::Access };
        let Ok((start, bytes)) = self.heap.protect(object, forbid) else { return };
        assert!(object - start < bytes);
        let mut window = Window::EMPTY;
        match b % 3 {
            // SAFETY: there is nothing in the window, and all references are in roots.
            0 => unsafe { self.heap.collect_minor(&mut window, &mut []) },
            // SAFETY: as above.
            1 => unsafe { self.heap.collect(&mut window, &mut []) },
            _ => {}
        }
        self.heap.return_window(window);
        // It may be gone: what was in the page moved.
        self.heap.unprotect(start);
    }
}
