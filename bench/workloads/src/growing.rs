//! growing: text and lists that are built piece by piece, as a parser, a serializer or an interpreter builds them.
//!
//! Each thread has a number of them and appends a piece to one at random. What has its length, which is drawn
//! at the beginning, is dropped, and another begins in its place. Text is resized for each piece; a list, which
//! is every other one, has room for an eighth more than it needs each time that it is full.

use crate::catalogue::Values;
use crate::memory::{Block, Memory};
use crate::random::{Random, Sizes};
use crate::stage::Stage;

/// Bytes of a piece.
const PIECE: (usize, usize) = (8, 200);
/// As many lengths of each doubling.
const EXPONENT: f64 = -1.0;
/// Part of its length that a list has room for beyond it, as a divisor.
const ROOM: usize = 8;

/// What is being built.
struct Growing {
    block: Block,
    /// Bytes that it has.
    bytes: usize,
    /// Bytes that it will have.
    most: usize,
    is_list: bool,
}

impl Growing {
    fn new<M: Memory>(memory: &mut M, random: &mut Random, lengths: &Sizes, is_list: bool) -> Self {
        let bytes = random.within(PIECE.0, PIECE.1);
        Self { block: memory.take(bytes), bytes, most: lengths.draw(random), is_list }
    }

    fn is_complete(&self) -> bool {
        self.bytes >= self.most
    }

    fn append<M: Memory>(&mut self, memory: &mut M, random: &mut Random) {
        self.bytes += random.within(PIECE.0, PIECE.1);
        if self.bytes > self.block.size() {
            let room = if self.is_list { self.bytes / ROOM } else { 0 };
            memory.grow(&mut self.block, self.bytes + room);
        }
    }
}

pub(crate) fn run<M: Memory>(stage: &Stage, values: &Values) {
    let operations = values.size("operations") / stage.threads();
    let lengths = Sizes::power_law(values.size("least"), values.size("most"), EXPONENT);
    stage.each_thread(|thread| {
        let mut memory = M::default();
        let mut random = Random::new(stage.seed(), thread as u64);
        let begin = |memory: &mut M, random: &mut Random, is_list: bool| {
            Growing::new(memory, random, &lengths, is_list)
        };
        let mut growing: Vec<Growing> = (0..values.size("count"))
            .map(|number| begin(&mut memory, &mut random, number.is_multiple_of(2)))
            .collect();
        for operation in 0..operations {
            if operation == operations / 2 {
                stage.steady();
            }
            let number = random.below(growing.len());
            let one = &mut growing[number];
            if one.is_complete() {
                let next = begin(&mut memory, &mut random, one.is_list);
                memory.give(std::mem::replace(one, next).block);
            } else {
                one.append(&mut memory, &mut random);
            }
        }
        growing.into_iter().for_each(|one| memory.give(one.block));
    });
    stage.idle();
}
