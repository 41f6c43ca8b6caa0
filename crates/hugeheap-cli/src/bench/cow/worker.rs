//! A parent with a garbage-collected heap, and children that each do one thing.

use crate::bench::forked;
use crate::bench::gc::machine::{Machine, put};
use clap::Args;
use hugeheap::gc::Settings;
use serde::{Deserialize, Serialize};
use std::fs;
use std::time::Instant;

/// The words after `bench worker cow`, which other languages' programs get too.
#[derive(Debug, Args)]
pub(crate) struct Words {
    size: u64,
}

/// What every program tells.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Told {
    /// Bytes of memory that the parent had, other than files.
    pub(crate) heap: u64,
    pub(crate) children: Vec<Child>,
}

/// What a child did.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Child {
    pub(crate) action: Action,
    /// Bytes that it has for itself and did not have when it began.
    pub(crate) unshared: u64,
    pub(crate) seconds: f64,
}

/// One thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Action {
    /// Looks at its own memory: what every child un-shares.
    Nothing,
    /// Frees every other object.
    Frees,
    /// A whole collection; nothing has changed.
    Collects,
    /// The same after the parent prepared for forking.
    CollectsPrepared,
    /// Drops every other object and compacts.
    Compacts,
}

impl Action {
    pub(crate) const ALL: [Self; 5] =
        [Self::Nothing, Self::Frees, Self::Collects, Self::CollectsPrepared, Self::Compacts];

    /// The name in tables.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Frees => "frees half",
            Self::Collects => "collects",
            Self::CollectsPrepared => "collects, prepared",
            Self::Compacts => "compacts",
        }
    }
}

/// A field of this process's memory, in bytes.
fn field(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Builds the heap and has the children do their things.
///
/// # Errors
/// One line when there is no memory, or a child failed.
pub(crate) fn work(words: &Words) -> Result<Told, String> {
    const NEXT: usize = 8;
    let mut machine = Machine::new(Settings::default())?;
    let kind = machine.fixed(64, &[NEXT])?;
    let lists = [machine.push(0), machine.push(0)];
    // By turns in two lists, so that every other object of a page is dropped with one of them.
    for number in 0..words.size / 64 {
        let list = lists[number as usize % 2];
        // SAFETY: the slot is written before the next allocation; the lists are on the stack.
        unsafe {
            let object = machine.allocate(kind, &mut []);
            put(object, NEXT, machine.at(list));
            machine.replace(list, object);
        }
    }
    let heap = field("Anonymous:");
    let mut children = Vec::new();
    let mut child = |machine: &mut Machine, action: Action| {
        let (unshared, seconds) = forked::run(None, |_| {
            let before = field("Private_Dirty:");
            let begin = Instant::now();
            match action {
                Action::Nothing => {}
                Action::Frees | Action::Compacts => {
                    machine.replace(lists[1], 0);
                    machine.collect();
                }
                Action::Collects | Action::CollectsPrepared => machine.collect(),
            }
            let seconds = begin.elapsed().as_secs_f64();
            Ok((field("Private_Dirty:").saturating_sub(before), seconds))
        })?;
        children.push(Child { action, unshared, seconds });
        Ok::<_, String>(())
    };
    child(&mut machine, Action::Nothing)?;
    child(&mut machine, Action::Collects)?;
    // A whole collection drops what died and moves what lives together: there is no freeing without it.
    child(&mut machine, Action::Compacts)?;
    machine.prepare_fork();
    child(&mut machine, Action::CollectsPrepared)?;
    Ok(Told { heap, children })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_child_has_its_figure() {
        let told = work(&Words { size: 8 << 20 }).unwrap();
        assert!(told.heap > 8 << 20);
        let of =
            |action| told.children.iter().find(|child| child.action == action).map(|child| child.unshared);
        for action in [Action::Nothing, Action::Collects, Action::CollectsPrepared] {
            assert!(of(action).is_some(), "{action:?}");
        }
        // What was copied is the child's own. There is no upper limit here: pages that other tests of this
        // process write to after the fork are the child's alone, too.
        assert!(of(Action::Compacts).unwrap() > 1 << 20, "{told:?}");
        assert!(of(Action::Frees).is_none());
    }
}
