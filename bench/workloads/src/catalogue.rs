//! Every workload: its name, what it shows, its parameters.

use crate::memory::{Checked, Plain, SMALLEST, Timed};
use crate::stage::Stage;
use crate::{
    alloc_test, batches, buffers, cache, glibc, growing, idle_threads, larson, mstress, phase_shift, pool,
    random_drop, rptest, sparse, xmalloc,
};

/// A number that says how much a workload does.
#[derive(Debug)]
pub struct Parameter {
    /// Its name on the command line.
    pub name: &'static str,
    /// Chosen so that the workload takes about a second on a machine of 2024.
    pub default: u64,
    /// The smallest and the largest value that make sense.
    pub range: (u64, u64),
    /// What it means.
    pub about: &'static str,
}

/// The parameters' values for one run.
#[derive(Clone, Debug)]
pub struct Values(Vec<(&'static Parameter, u64)>);

impl Values {
    /// The value of `name`.
    pub(crate) fn size(&self, name: &str) -> usize {
        let found = self.0.iter().find(|(known, _)| known.name == name);
        found.unwrap_or_else(|| panic!("the workload has no parameter '{name}'")).1 as usize
    }

    /// Changes a value as told by `NAME=VALUE`.
    ///
    /// # Errors
    /// One line with what would be understood.
    pub fn set(&mut self, text: &str) -> Result<(), String> {
        let names = || self.0.iter().map(|(known, _)| known.name).collect::<Vec<_>>().join(", ");
        let (name, value) =
            text.split_once('=').ok_or_else(|| format!("'{text}' is not of the form NAME=VALUE"))?;
        let place = self
            .0
            .iter()
            .position(|(known, _)| known.name == name)
            .ok_or_else(|| format!("there is no parameter '{name}'; the parameters are {}", names()))?;
        let (least, most) = self.0[place].0.range;
        match value.parse() {
            Ok(value) if (least..=most).contains(&value) => self.0[place].1 = value,
            _ => return Err(format!("{name}: '{value}' is not a whole number from {least} to {most}")),
        }
        Ok(())
    }
}

/// The three ways to run a workload.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mode {
    Plain,
    Checked,
    Timed,
}

type Run = fn(&Stage, &Values);

/// A workload.
#[derive(Debug)]
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a few words.
    pub about: &'static str,
    /// Whether it can run on several threads.
    pub threaded: bool,
    /// Whether the latency of its allocations is worth measuring: a mix of sizes on a heap that lives.
    pub latency: bool,
    /// Its parameters.
    pub parameters: &'static [Parameter],
    runs: [Run; 3],
}

impl Workload {
    /// The parameters' defaults.
    pub fn values(&self) -> Values {
        Values(self.parameters.iter().map(|parameter| (parameter, parameter.default)).collect())
    }

    pub(crate) fn run(&self, mode: Mode, stage: &Stage, values: &Values) {
        self.runs[mode as usize](stage, values);
    }
}

/// The workload of this name.
pub fn find(name: &str) -> Option<&'static Workload> {
    WORKLOADS.iter().find(|workload| workload.name == name)
}

macro_rules! runs {
    ($run:path) => {{
        use $run as run;
        [run::<Plain>, run::<Checked>, run::<Timed>]
    }};
}

/// How often something is done, or how much there is of it.
const fn count(name: &'static str, default: u64, about: &'static str) -> Parameter {
    // Counts and bytes up to here can be multiplied without overflow.
    Parameter { name, default, range: (1, 1 << 40), about }
}

/// Bytes of a block.
const fn size(name: &'static str, default: u64, about: &'static str) -> Parameter {
    Parameter { name, default, range: (SMALLEST as u64, 1 << 28), about }
}

/// Some of `all`.
const fn share(name: &'static str, default: u64, all: u64, about: &'static str) -> Parameter {
    Parameter { name, default, range: (1, all), about }
}

const MIB: u64 = 1 << 20;

/// All workloads, those for several threads first.
pub static WORKLOADS: [Workload; 17] = [
    Workload {
        name: "alloc-test",
        about: "slots replaced at random, mostly small blocks",
        threaded: true,
        latency: false,
        parameters: &[
            count("slots", 100_000, "places for a block, per thread"),
            count("operations", 30_000_000, "blocks taken or freed, by all threads"),
            share(
                "powers",
                8,
                20,
                "doublings of the size from 8 bytes on, each half as likely as the one before",
            ),
        ],
        runs: runs!(alloc_test::run),
    },
    Workload {
        name: "larson",
        about: "threads end and leave their blocks to their successors",
        threaded: true,
        latency: false,
        parameters: &[
            count("blocks", 5_000, "live blocks per chain of threads"),
            count("generations", 100, "threads of a chain, one after the other"),
            count("replacements", 30_000_000, "blocks replaced, by all threads"),
            size("least", 8, "smallest block in bytes"),
            size("most", 500, "largest block in bytes"),
        ],
        runs: runs!(larson::run),
    },
    Workload {
        name: "xmalloc",
        about: "some threads only take blocks, others only free them",
        threaded: true,
        latency: false,
        parameters: &[
            count("blocks", 30_000_000, "blocks taken, by all threads"),
            size("least", 16, "smallest block in bytes"),
            size("most", 400, "largest block in bytes"),
        ],
        runs: runs!(xmalloc::run),
    },
    Workload {
        name: "batches",
        about: "objects of all sizes, all of which are dropped before the next ones",
        threaded: true,
        latency: false,
        parameters: &[
            count("blocks", 20_000_000, "blocks taken, by all threads"),
            size("least", 16, "smallest block in bytes"),
            size("most", 400, "largest block in bytes"),
            count("batch", 300, "live blocks per thread"),
            Parameter {
                name: "order",
                default: 0,
                range: (0, 2),
                about: "freed in their order, backwards, at random",
            },
        ],
        runs: runs!(batches::run),
    },
    Workload {
        name: "mstress",
        about: "threads come and go, blocks of all sizes and lifetimes",
        threaded: true,
        latency: true,
        parameters: &[
            count("rounds", 20, "generations of threads"),
            count("blocks", 12_000_000, "blocks taken, by all threads"),
            size("most", 65_536, "largest block in bytes"),
        ],
        runs: runs!(mstress::run),
    },
    Workload {
        name: "rptest",
        about: "blocks up to 16 KiB replaced at random, a part handed to other threads",
        threaded: true,
        latency: true,
        parameters: &[
            count("blocks", 20_000, "live blocks per thread"),
            count("operations", 12_000_000, "blocks replaced, by all threads"),
            size("most", 16_000, "largest block in bytes"),
        ],
        runs: runs!(rptest::run),
    },
    Workload {
        name: "buffers",
        about: "stacks of buffers of 8 to 128 KiB, some freed by the next thread",
        threaded: true,
        latency: true,
        parameters: &[
            count("depth", 100, "live buffers per thread, at most"),
            count("operations", 10_000_000, "buffers taken or freed, by all threads"),
            size("least", 8_192, "smallest buffer in bytes"),
            size("most", 131_072, "largest buffer in bytes"),
        ],
        runs: runs!(buffers::run),
    },
    Workload {
        name: "growing",
        about: "text and lists built piece by piece, by resizing",
        threaded: true,
        latency: true,
        parameters: &[
            count("count", 200, "growing at once, per thread"),
            // Half of them, by two threads, are a MiB for each that grows: what began at once is complete, and
            // what there is has no common beginning any more. With 4 million the longest were half as long as
            // they would be when the memory of two threads was looked at.
            count("operations", 8_000_000, "pieces appended, by all threads"),
            size("least", 64, "shortest length in bytes"),
            size("most", 1 << 20, "longest length in bytes"),
        ],
        runs: runs!(growing::run),
    },
    Workload {
        name: "cache-scratch",
        about: "blocks next to each other, freed by two threads: passive false sharing",
        threaded: true,
        latency: false,
        parameters: &[
            count("blocks", 5_000_000, "blocks taken, by all threads"),
            size("size", 8, "bytes of a block"),
            count("writes", 25, "times each byte is written"),
        ],
        runs: runs!(cache::scratch),
    },
    Workload {
        name: "cache-thrash",
        about: "small blocks written by each thread: active false sharing",
        threaded: true,
        latency: false,
        parameters: &[
            count("blocks", 5_000_000, "blocks taken, by all threads"),
            size("size", 8, "bytes of a block"),
            count("writes", 25, "times each byte is written"),
        ],
        runs: runs!(cache::thrash),
    },
    Workload {
        name: "glibc-thread",
        about: "slots replaced at random, sizes up to 32 KiB by a power law",
        threaded: true,
        latency: false,
        parameters: &[
            count("slots", 4_096, "places for a block, per thread"),
            count("operations", 25_000_000, "blocks replaced, by all threads"),
            size("most", 32_768, "largest block in bytes"),
        ],
        runs: runs!(glibc::thread),
    },
    Workload {
        name: "glibc-simple",
        about: "blocks of one size taken and freed in order",
        threaded: false,
        latency: false,
        parameters: &[count("blocks", 40_000_000, "blocks taken")],
        runs: runs!(glibc::simple),
    },
    Workload {
        name: "phase-shift",
        about: "other sizes in every phase, a few blocks of each are kept",
        threaded: false,
        latency: true,
        parameters: &[
            count("bytes", 192 * MIB, "bytes live at the end of a phase"),
            share("keep", 10, 1000, "of a thousand blocks, how many are kept"),
            count("rounds", 1, "times through the six phases"),
        ],
        runs: runs!(phase_shift::run),
    },
    Workload {
        name: "one-per-huge-page",
        about: "of many small blocks one is left in every huge page",
        threaded: false,
        latency: false,
        parameters: &[
            count("bytes", 256 * MIB, "bytes live at once"),
            size("size", 64, "bytes of a block"),
            count("rounds", 6, "times the heap is filled and emptied"),
        ],
        runs: runs!(sparse::run),
    },
    Workload {
        name: "random-drop",
        about: "a heap that shrinks to a tenth, at random, and grows again",
        threaded: false,
        latency: false,
        parameters: &[
            count("bytes", 256 * MIB, "bytes live at once"),
            size("least", 16, "smallest block in bytes"),
            size("most", 512, "largest block in bytes"),
            share("drop", 90, 100, "of a hundred blocks, how many are freed"),
            count("rounds", 6, "times the heap is filled and emptied"),
        ],
        runs: runs!(random_drop::run),
    },
    Workload {
        name: "thread-pool",
        about: "workers build lists that another thread drops, and wait",
        threaded: false,
        latency: false,
        parameters: &[
            count("bytes", 256 * MIB, "bytes live at once, in the lists of all workers"),
            share("workers", 4, 64, "threads of the pool"),
            size("least", 16, "smallest block in bytes"),
            size("most", 512, "largest block in bytes"),
            share("keep", 10, 1000, "of a thousand blocks, how many are kept"),
            count("rounds", 6, "lists that each worker builds"),
        ],
        runs: runs!(pool::run),
    },
    Workload {
        name: "idle-threads",
        about: "many threads with a few blocks of many sizes, which wait",
        threaded: false,
        latency: false,
        parameters: &[
            share("connections", 256, 1000, "threads"),
            count("blocks", 64, "live blocks per thread"),
            count("operations", 15_000_000, "blocks replaced, by all threads"),
            size("least", 16, "smallest block in bytes"),
            size("most", 512, "largest block in bytes"),
        ],
        runs: runs!(idle_threads::run),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Every parameter that says how much is done, small.
    fn small(workload: &Workload) -> Values {
        let mut values = workload.values();
        for (parameter, value) in &mut values.0 {
            *value = match parameter.name {
                "bytes" => MIB,
                "operations" | "replacements" => 20_000,
                "slots" => 500,
                "blocks" if *value < 100_000 => 400,
                "blocks" => 20_000,
                "generations" | "rounds" => (*value).min(3),
                _ => *value,
            };
        }
        values
    }

    #[test]
    fn every_workload_keeps_its_memory_intact_on_any_number_of_threads() {
        for workload in &WORKLOADS {
            for threads in [1, 2, 3] {
                if threads == 1 || workload.threaded {
                    workload.run(Mode::Checked, &Stage::new(threads, 7, None), &small(workload));
                }
            }
        }
    }

    #[test]
    fn every_workload_is_looked_at_while_it_is_steady_and_when_it_is_idle() {
        use crate::stage::Observe;
        for workload in &WORKLOADS {
            let threads = if workload.threaded { 2 } else { 1 };
            let observe = Observe { idle: std::time::Duration::ZERO, charge: None };
            let stage = Stage::new(threads, 7, Some(observe));
            workload.run(Mode::Plain, &stage, &small(workload));
            let looks = stage.looks().unwrap();
            assert!(looks.steady.rss > 0 && looks.idle.rss > 0, "{}", workload.name);
        }
    }

    #[test]
    fn every_size_and_share_has_extremes_that_work() {
        for workload in &WORKLOADS {
            for parameter in workload.parameters {
                let (least, most) = parameter.range;
                // Large counts take long and large blocks much memory: of sizes and counts only the smallest.
                let values_to_try = if most <= 1000 { vec![least, most] } else { vec![least] };
                for value in values_to_try {
                    let mut values = small(workload);
                    values.set(&format!("{}={value}", parameter.name)).unwrap();
                    workload.run(Mode::Plain, &Stage::new(1, 7, None), &values);
                }
            }
        }
    }

    #[test]
    fn names_are_unique() {
        for workload in &WORKLOADS {
            assert!(std::ptr::eq(find(workload.name).unwrap(), workload));
        }
        assert!(find("sort").is_none());
    }

    #[test]
    fn values_are_set_by_name() {
        let mut values = find("larson").unwrap().values();
        values.set("blocks=12").unwrap();
        assert_eq!(values.size("blocks"), 12);
        assert!(values.set("blocks").unwrap_err().contains("NAME=VALUE"));
        assert!(values.set("block=1").unwrap_err().contains("the parameters are blocks, generations"));
        for wrong in ["0", "-1", "many", "99999999999999999999", "2000000000000"] {
            assert!(values.set(&format!("blocks={wrong}")).unwrap_err().contains("whole number"), "{wrong}");
        }
    }
}
