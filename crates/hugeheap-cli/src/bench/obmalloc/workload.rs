//! The workloads, and what the reference measured with them.
//!
//! The reference is the proposal to build CPython's arenas from 2 MiB pages of a hugetlb pool: i9-14900KS,
//! Linux 6.18.3, a build of the main branch. Its figures are changes against the same build without huge pages,
//! as fractions.

/// One workload. Its program is in `workloads.py`.
#[derive(Debug, PartialEq)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    /// Published change of the wall time, for the seven of the reference's time table.
    pub(crate) time: Option<f64>,
    /// Published change of the page faults, for the six of its second table.
    pub(crate) faults: Option<f64>,
    /// Published changes of the dTLB's load and store misses.
    pub(crate) dtlb: Option<(f64, f64)>,
}

const fn plain(name: &'static str, description: &'static str) -> Workload {
    Workload { name, description, time: None, faults: None, dtlb: None }
}

/// All workloads in the order of the reports: as the reference's tables have them, then those without figures.
pub(crate) const WORKLOADS: [Workload; 10] = [
    Workload {
        time: Some(-0.295),
        faults: Some(-0.941),
        dtlb: Some((-0.880, -0.937)),
        ..plain("list_of_tuples", "a million tuples of three numbers")
    },
    Workload {
        time: Some(-0.265),
        faults: Some(-0.945),
        dtlb: Some((-0.959, -0.947)),
        ..plain("fragmentation", "half a million objects, every other one freed and made again")
    },
    Workload {
        time: Some(-0.251),
        faults: Some(-0.782),
        dtlb: Some((-0.808, -0.765)),
        ..plain("mixed_sizes", "half a million objects of twelve sizes")
    },
    Workload {
        time: Some(-0.221),
        faults: Some(-0.935),
        dtlb: Some((-0.914, -0.945)),
        ..plain("bulk_small_alloc", "a million objects, each written to once")
    },
    Workload {
        time: Some(-0.200),
        faults: Some(-0.921),
        dtlb: Some((-0.843, -0.918)),
        ..plain("class_instances", "half a million instances with __slots__")
    },
    Workload { time: Some(-0.121), ..plain("arena_pressure", "two million objects in ten layers, 670 MB") },
    Workload {
        time: Some(-0.076),
        faults: Some(-0.916),
        dtlb: Some((-0.931, -0.989)),
        ..plain("random_walk", "a million objects written to in random order")
    },
    plain("small_object_churn", "a queue of 200,000 objects, as many in as out"),
    plain("dict_churn", "half a million dictionaries, one after the other"),
    plain(STARTUP, "the interpreter alone: the price of being there"),
];

/// The workload that does nothing: its process is what counts.
pub(crate) const STARTUP: &str = "startup";

/// The program of all workloads.
pub(crate) const PROGRAM: &str = include_str!("workloads.py");

/// The workload called `name`.
pub(crate) fn find(name: &str) -> Option<&'static Workload> {
    WORKLOADS.iter().find(|workload| workload.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_has_its_function() {
        for workload in &WORKLOADS {
            assert!(PROGRAM.contains(&format!("def {}(peak):", workload.name)), "{}", workload.name);
            assert_eq!(find(workload.name), Some(workload));
        }
    }

    #[test]
    fn the_reference_has_seven_times_and_six_faults() {
        assert_eq!(WORKLOADS.iter().filter(|workload| workload.time.is_some()).count(), 7);
        assert_eq!(WORKLOADS.iter().filter(|workload| workload.faults.is_some()).count(), 6);
    }
}
