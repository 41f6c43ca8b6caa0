//! Metrics as data: what each is, and what was found. The catalogue says everything that can come out, so that
//! a dashboard, a rule and the reference can be compared with it. No behaviour beyond collecting.

use std::fmt;

/// What a metric counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// May go up and down.
    Gauge,
    /// Only goes up, while what it speaks of lives.
    Counter,
    /// How many there were of which size.
    Histogram,
}

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Metric {
    /// Without its unit, and without the `_total` of counters.
    pub(crate) name: &'static str,
    /// What its name ends in; empty for a plain count.
    pub(crate) unit: &'static str,
    pub(crate) kind: Kind,
    pub(crate) help: &'static str,
}

/// Labels in their order.
pub(crate) type Labels = Vec<(&'static str, String)>;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Count(u64),
    Share(f64),
    /// The sum of all, and how many were at most so much and more than the one before; the last has no end.
    Sizes(f64, Vec<(f64, u64)>),
}

impl From<u64> for Value {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Count(value.into())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Share(value)
    }
}

/// What was found, in the order of the catalogue.
pub(crate) struct Found {
    samples: Vec<Vec<(Labels, Value)>>,
}

impl Found {
    pub(crate) fn new() -> Self {
        Self { samples: vec![Vec::new(); ALL.len()] }
    }

    /// Adds a value.
    pub(crate) fn add(&mut self, metric: &Metric, labels: &[(&'static str, &str)], value: impl Into<Value>) {
        if let Some(index) = ALL.iter().position(|known| known.name == metric.name) {
            let labels = labels.iter().map(|(name, text)| (*name, (*text).to_owned())).collect();
            self.samples[index].push((labels, value.into()));
        }
    }

    /// Adds a value if there is one.
    pub(crate) fn maybe(
        &mut self,
        metric: &Metric,
        labels: &[(&'static str, &str)],
        value: Option<impl Into<Value>>,
    ) {
        if let Some(value) = value {
            self.add(metric, labels, value);
        }
    }

    /// Every metric of the catalogue with what was found of it, which may be nothing.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static Metric, &[(Labels, Value)])> {
        ALL.iter().zip(self.samples.iter().map(Vec::as_slice))
    }
}

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all().filter(|(_, samples)| !samples.is_empty())).finish()
    }
}

macro_rules! catalogue {
    ($($constant:ident = $kind:ident $name:literal $unit:literal $help:literal;)*) => {
        $(pub(crate) const $constant: Metric =
            Metric { name: $name, unit: $unit, kind: Kind::$kind, help: $help };)*

        /// Every metric there is.
        pub(crate) const ALL: &[Metric] = &[$($constant),*];
    };
}

catalogue! {
    BUILD = Gauge "hugeheap_build_info" "" "The exporter's version";
    SCRAPE_TIME = Gauge "hugeheap_scrape" "seconds" "Time this look took";
    SCRAPE_BUDGET = Gauge "hugeheap_scrape_budget" "seconds" "Time a look may take";
    SCRAPE_SKIPPED = Gauge "hugeheap_scrape_skipped" ""
        "What this look left out, by what and why (budget, permission, failed)";

    HOST_MEMORY = Gauge "hugeheap_host_memory" "bytes" "Memory of the host";
    HOST_AVAILABLE = Gauge "hugeheap_host_memory_available" "bytes" "Memory that could be had without swapping";
    HOST_ANONYMOUS = Gauge "hugeheap_host_anonymous" "bytes" "Memory of processes without a file";
    HOST_PAGE_TABLES = Gauge "hugeheap_host_page_tables" "bytes" "Size of all page tables";
    HOST_HUGE = Gauge "hugeheap_host_huge" "bytes" "Memory on huge pages, by kind";
    HOST_FREE = Gauge "hugeheap_host_free" "bytes" "Free memory, by whether it is in blocks that hold a huge page";
    HOST_PRESSURE = Gauge "hugeheap_host_memory_pressure" "ratio"
        "Share of the last 10 seconds in which some or all tasks waited for memory";
    HOST_THP_MODE = Gauge "hugeheap_host_thp_mode" "" "Mode of transparent huge pages: 1 for the one in force";
    HOST_PARTIAL = Gauge "hugeheap_host_partially_mapped_huge_pages" ""
        "Huge pages of which only a part is mapped, by size: what is not mapped of them is stranded";
    HOST_FAULTS = Counter "hugeheap_host_huge_page_faults" ""
        "Faults that asked for a huge page, by size and by whether they got one";
    HOST_SPLITS = Counter "hugeheap_host_huge_page_splits" "" "Huge pages split, by size";
    HOST_COLLAPSES = Counter "hugeheap_host_collapses" "" "Huge pages made by collapsing, by whether that worked";
    HOST_COMPACT_STALLS = Counter "hugeheap_host_compact_stalls" ""
        "Times a task waited until memory was compacted for it";

    POOL_PAGES = Gauge "hugeheap_pool_pages" "" "Pages of a hugetlb pool, by page size and state";

    CGROUP_CHARGE = Gauge "hugeheap_cgroup_charge" "bytes" "What a memory cgroup is charged";
    CGROUP_LIMIT = Gauge "hugeheap_cgroup_limit" "bytes"
        "Limit of a memory cgroup and its parents, where there is one: max or high";
    CGROUP_ANONYMOUS = Gauge "hugeheap_cgroup_anonymous" "bytes" "Of the charge, memory without a file";
    CGROUP_HUGE = Gauge "hugeheap_cgroup_huge" "bytes" "Of the charge, memory on transparent huge pages, by kind";
    CGROUP_STRANDED = Gauge "hugeheap_cgroup_stranded" "bytes"
        "Of the charge, what the kernel holds for huge pages of which a part is mapped only";
    CGROUP_PROCESSES = Gauge "hugeheap_cgroup_processes" "" "Processes with memory in a cgroup";

    PROCESS_RESIDENT = Gauge "hugeheap_process_resident" "bytes" "Resident memory of a process, hugetlb pages too";
    PROCESS_HUGE = Gauge "hugeheap_process_huge" "bytes" "Of it, on huge pages";
    PROCESS_ELIGIBLE = Gauge "hugeheap_process_eligible" "bytes" "Of it, what may be on huge pages and is not";
    PROCESS_STRANDED = Gauge "hugeheap_process_stranded" "bytes"
        "What the kernel holds for huge pages of which the process maps a part only";
    PROCESS_COVERAGE = Gauge "hugeheap_process_coverage" "ratio" "Share of resident memory on huge pages";
    PROCESS_PAGE_TABLES = Gauge "hugeheap_process_page_tables" "bytes" "Size of its page tables";
    PROCESS_THP = Gauge "hugeheap_process_thp" "" "Whether the process may have transparent huge pages";

    HEAP_INFO = Gauge "hugeheap_heap_info" "" "What a heap of hugeheap is: state, level, policy, policy in force, interpreter";
    HEAP_AGE = Gauge "hugeheap_heap_published_age" "seconds" "Time since the process wrote its numbers";
    HEAP_ALLOCATED = Gauge "hugeheap_heap_allocated" "bytes" "Page runs and large blocks handed out";
    HEAP_ALLOCATED_PEAK = Gauge "hugeheap_heap_allocated_peak" "bytes" "The most that was handed out at once";
    HEAP_LARGE = Gauge "hugeheap_heap_large" "bytes" "Of what is handed out, large blocks";
    HEAP_ACTIVE = Gauge "hugeheap_heap_active" "bytes" "Arenas of which something is handed out";
    HEAP_MAPPED = Gauge "hugeheap_heap_mapped" "bytes" "All arenas that have memory, and metadata";
    HEAP_METADATA = Gauge "hugeheap_heap_metadata" "bytes" "Metadata of arenas and blocks";
    HEAP_RETAINED = Gauge "hugeheap_heap_retained" "bytes" "Memory kept for reuse: not handed out and not given back";
    HEAP_RETENTION_TARGET = Gauge "hugeheap_heap_retention_target" "bytes" "What the retention rule would keep";
    HEAP_RESIDENT = Gauge "hugeheap_heap_resident" "bytes" "Resident memory of all arenas, from the kernel at this look";
    HEAP_HUGE = Gauge "hugeheap_heap_huge" "bytes" "Of it, mapped by huge pages";
    HEAP_COVERAGE = Gauge "hugeheap_heap_coverage" "ratio" "Share of the resident heap that is mapped by huge pages";
    HEAP_ARENAS = Gauge "hugeheap_heap_arenas" "" "Arenas, by state: full, partial, empty";
    HEAP_BACKING = Gauge "hugeheap_heap_arenas_backing" "" "Arenas, by what they are made of: thp, hugetlb, base, broken";
    HEAP_ALLOCATIONS = Counter "hugeheap_heap_allocations" "" "Page runs and large blocks handed out since the start";
    HEAP_FREES = Counter "hugeheap_heap_frees" "" "Page runs and large blocks taken back since the start";
    HEAP_GIVEN_BACK = Counter "hugeheap_heap_given_back" "bytes" "Memory given back to the system since the start";
    HEAP_ARENAS_GIVEN_BACK = Counter "hugeheap_heap_arenas_given_back" "" "Whole arenas given back since the start";
    HEAP_ARENAS_AHEAD = Counter "hugeheap_heap_arenas_ahead" "" "Arenas made ahead while the heap grew quickly";
    HEAP_BREAKS = Counter "hugeheap_heap_breaks" "" "Sparse arenas broken since the start";
    HEAP_VACATED = Counter "hugeheap_heap_vacated" "bytes" "Of what was given back, OS pages without a live block in heap pages in use";
    HEAP_ALIKE = Counter "hugeheap_heap_alike" "bytes" "OS pages made equal to others, for the kernel to merge them";
    HEAP_MERGED = Gauge "hugeheap_heap_merged" "bytes" "OS pages that the kernel had merged with equal ones, at the last measurement";
    HEAP_REGRETTED = Counter "hugeheap_heap_regretted" "bytes" "Memory needed again soon after it was given back";
    HEAP_COLLAPSES = Counter "hugeheap_heap_collapses" "" "Arenas collapsed since the start";
    HEAP_FALLBACKS = Counter "hugeheap_heap_fallbacks" ""
        "Times memory did not get the backing its policy wanted, by reason";
    HEAP_FORKS = Counter "hugeheap_heap_forks" "" "Forks since the start";
    HEAP_PASSES = Counter "hugeheap_heap_passes" "" "Passes of maintenance since the start";
    HEAP_LONGEST_PASS = Gauge "hugeheap_heap_longest_pass" "seconds" "The longest of them";
    HEAP_GC_HEAPS = Counter "hugeheap_heap_gc_heaps" "" "Garbage-collected heaps made since the start";
    HEAP_GC_NURSERY = Gauge "hugeheap_heap_gc_nursery" "bytes" "Nurseries of those that live";
    HEAP_GC_OLD = Gauge "hugeheap_heap_gc_old" "bytes" "Objects in their old generations that are not known to be dead";
    HEAP_GC_HELD = Gauge "hugeheap_heap_gc_held" "bytes" "Heap pages and large blocks that the old generations have";
    HEAP_GC_MINOR = Counter "hugeheap_heap_gc_minor" "" "Minor collections";
    HEAP_GC_MAJOR = Counter "hugeheap_heap_gc_major" "" "Major collections that ended";
    HEAP_GC_PAUSES = Counter "hugeheap_heap_gc_pauses" "" "Times that the program waited for a collection";
    HEAP_GC_LONG_PAUSES = Counter "hugeheap_heap_gc_long_pauses" "" "Of these, those of about a millisecond or more";
    HEAP_GC_PAUSE = Counter "hugeheap_heap_gc_pause" "seconds" "Their sum";
    HEAP_GC_LONGEST_PAUSE = Gauge "hugeheap_heap_gc_longest_pause" "seconds" "The longest of them";
    HEAP_GC_PAUSE_LENGTH = Histogram "hugeheap_heap_gc_pause_length" "seconds"
        "Times that the program waited for a collection, by their length";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_well_formed() {
        let mut names: Vec<&str> = ALL.iter().map(|metric| metric.name).collect();
        for metric in ALL {
            assert!(metric.name.starts_with("hugeheap_"), "{}", metric.name);
            assert!(
                metric.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'),
                "{}",
                metric.name
            );
            assert!(matches!(metric.unit, "" | "bytes" | "seconds" | "ratio"), "{}", metric.name);
            assert!(
                !metric.name.ends_with("_total") && !metric.help.contains(['\\', '\n', '"']),
                "{}",
                metric.name
            );
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
