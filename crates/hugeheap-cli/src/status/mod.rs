//! `hugeheap status`: this host at a glance.
//!
//! Terms: *stranded* is what the kernel holds for huge pages of which only a part is mapped. The kernel counts
//! such huge pages, not how much of each is mapped, so what is told is the most it can be. The charge that RSS
//! does not show is in it.

pub(crate) mod arguments;
pub(crate) mod facts;

use crate::cgroup::{self, Charge};
use crate::columns::{Align, columns};
use crate::output::{bytes, counted, grouped};
use crate::pool::list::Pools;
use crate::thp::catalogue::short_size;
use crate::{Context, exit};
use arguments::StatusArguments;
use facts::{Free, Size, value_of};
use hugeheap_os::{Facts, MemoryLimits, Pressure, Thp};
use serde_json::{Value, json};

const SCHEMA: &str = "hugeheap.status/1";

/// Everything that is shown.
struct Status {
    kernel: Option<String>,
    cpu: Option<String>,
    virtualised: Option<bool>,
    huge_page: Option<u64>,
    os_page: u64,
    meminfo: String,
    vmstat: String,
    pressure: Option<Pressure>,
    thp: Result<Thp, hugeheap_os::Error>,
    sizes: Vec<Size>,
    free: Option<Free>,
    pools: Option<Pools>,
    limits: Result<MemoryLimits, hugeheap_os::Error>,
    /// Charged to this cgroup, and not mapped by anybody.
    stranded_here: Option<u64>,
}

pub(crate) fn status(context: &Context, arguments: &StatusArguments, json: bool) -> u8 {
    let status = Status::gather(context);
    if status.meminfo.is_empty() {
        context
            .out
            .error("/proc/meminfo cannot be read: there is no /proc here, or --root names another directory");
        return exit::UNSUPPORTED;
    }
    let text = if json || arguments.json { crate::output::json(&status.json()) } else { status.text() };
    context.out.data(&text);
    exit::OK
}

impl Status {
    fn gather(context: &Context) -> Self {
        let (facts, knobs) = (&context.facts, context.facts.knobs());
        let text = |file: &str| knobs.text(file).unwrap_or_default();
        let pages = facts.page_sizes();
        let (os_page, huge_page) = (pages.os as u64, pages.huge.map(|size| size as u64));
        let cpuinfo = text("/proc/cpuinfo");
        let zones = facts::zones(&text("/proc/buddyinfo"));
        let free =
            huge_page.filter(|_| !zones.is_empty()).map(|huge| facts::free(zones.iter(), os_page, huge));
        let limits = facts.memory_limits();
        let directory = facts.memory_group_directory().ok();
        let stranded_here = limits.ok().zip(directory).and_then(|(limits, (_, directory))| {
            Charge::read(limits, &directory, cgroup::slack(pages.os)).stranded
        });
        Self {
            kernel: knobs.text("/proc/sys/kernel/osrelease").ok().map(|text| text.trim().to_owned()),
            cpu: facts::cpuinfo(&cpuinfo, "model name").map(str::to_owned),
            virtualised: facts::virtualised(&cpuinfo),
            huge_page,
            os_page,
            meminfo: text("/proc/meminfo"),
            vmstat: text("/proc/vmstat"),
            pressure: facts.pressure().ok(),
            thp: facts.thp(),
            sizes: facts::sizes(&knobs),
            free,
            pools: Pools::read(&knobs).ok(),
            limits,
            stranded_here,
        }
    }

    /// The most that can be stranded; `None` where the kernel does not count (before 6.12).
    fn stranded(&self) -> Option<(u64, u64)> {
        let partial: Vec<_> =
            self.sizes.iter().filter_map(|size| Some((size.partial?, size.bytes))).collect();
        let pages = partial.iter().map(|(pages, _)| pages).sum();
        (!partial.is_empty()).then(|| (pages, partial.iter().map(|(pages, bytes)| pages * bytes).sum()))
    }

    fn json(&self) -> Value {
        let memory = |key| value_of(&self.meminfo, key);
        let event = |key| value_of(&self.vmstat, key);
        json!({
            "schema": SCHEMA,
            "kernel": self.kernel,
            "cpu": self.cpu,
            "virtualised": self.virtualised,
            "os_page": self.os_page,
            "huge_page": self.huge_page,
            "memory": {"total": memory("MemTotal"), "available": memory("MemAvailable"), "page_tables": memory("PageTables")},
            "pressure": self.pressure.map(|pressure| json!({"some_avg10": pressure.some_avg10, "full_avg10": pressure.full_avg10})),
            "thp": match &self.thp {
                Ok(thp) => json!({
                    "mode": word(thp.mode),
                    "defrag": word(thp.defrag),
                    "khugepaged_bytes_per_second": self.khugepaged_rate(),
                    "max_ptes_none": thp.khugepaged.map(|daemon| daemon.max_ptes_none),
                }),
                Err(error) => json!({"unreadable": error.to_string()}),
            },
            "on_huge_pages": {
                "anonymous": memory("AnonHugePages"),
                "anonymous_of": memory("AnonPages"),
                "shared": memory("ShmemHugePages"),
                "files": memory("FileHugePages"),
                "hugetlb": memory("Hugetlb"),
            },
            "sizes": self.sizes.iter().map(|size| json!({
                "size": size.bytes,
                "anonymous": size.anonymous,
                "partially_mapped": size.partial,
                "fault_alloc": size.faults,
                "fault_fallback": size.fallbacks,
                "split": size.splits,
            })).collect::<Vec<_>>(),
            "stranded_at_most": self.stranded().map(|(_, bytes)| bytes),
            "pools": self.pools.as_ref().map(|pools| pools.json()["pools"].clone()),
            "free": self.free.map(|free| json!({"total": free.total, "in_huge_pages": free.huge})),
            "since_boot": {
                "fault_alloc": event("thp_fault_alloc"),
                "fault_fallback": event("thp_fault_fallback"),
                "collapse_alloc": event("thp_collapse_alloc"),
                "split_page": event("thp_split_page"),
                "compact_stall": event("compact_stall"),
            },
            "cgroup": match &self.limits {
                Ok(limits) => json!({
                    "version": word(limits.version),
                    "charge": limits.charge,
                    "max": limits.max,
                    "high": limits.high,
                    "stranded": self.stranded_here,
                    "stranded_from": self.stranded_here.map(|_| cgroup::DERIVATION),
                }),
                Err(error) => json!({"unreadable": error.to_string()}),
            },
        })
    }

    /// Memory that khugepaged looks at per second.
    fn khugepaged_rate(&self) -> Option<u64> {
        let daemon = self.thp.as_ref().ok()?.khugepaged?;
        let pause = daemon.scan_sleep.as_secs_f64();
        (pause > 0.0).then(|| (daemon.pages_to_scan as f64 * self.os_page as f64 / pause) as u64)
    }

    fn text(&self) -> String {
        let mut rows: Vec<Vec<String>> = Vec::new();
        let mut row = |name: &str, text: String| rows.push(vec![name.to_owned(), text]);
        row("host", self.host());
        row("memory", self.memory());
        row("THP", self.thp_line());
        row("on huge pages", self.huge());
        if let Some((pages, most)) = self.stranded() {
            row(
                "stranded",
                match pages {
                    0 => "nothing".to_owned(),
                    _ => format!(
                        "at most {}, in {} mapped only in part",
                        bytes(most),
                        counted(pages, "huge page", "huge pages")
                    ),
                },
            );
        }
        if let Some(pools) = &self.pools {
            row("hugetlb pools", pools_line(pools));
        }
        if let Some(Free { total, huge }) = self.free {
            let share = share(huge, total);
            row(
                "free",
                format!("{}, of it {}{share} in one piece of a huge page or more", bytes(total), bytes(huge)),
            );
        }
        row("since boot", self.events());
        row("this cgroup", self.cgroup());
        columns(&[Align::Left], &rows)
    }

    fn host(&self) -> String {
        let mut parts = vec![format!("Linux {}", self.kernel.as_deref().unwrap_or("of unknown version"))];
        parts.extend(self.cpu.clone());
        if self.virtualised == Some(true) {
            parts.push("virtual machine".to_owned());
        }
        parts.push(match self.huge_page {
            Some(size) => format!("huge page {}", short_size(size)),
            None => "no huge pages".to_owned(),
        });
        parts.join(", ")
    }

    fn memory(&self) -> String {
        let value = |key| value_of(&self.meminfo, key).map_or("unknown".to_owned(), bytes);
        let mut text = format!(
            "{}, {} available, {} of page tables",
            value("MemTotal"),
            value("MemAvailable"),
            value("PageTables")
        );
        if let Some(pressure) = self.pressure {
            text.push_str(&format!("; {:.1} % of the time somebody waits for memory", pressure.some_avg10));
        }
        text
    }

    fn thp_line(&self) -> String {
        match &self.thp {
            Ok(thp) => {
                let mut text = format!("mode {}, defrag {}", word(thp.mode), word(thp.defrag));
                if let (Some(daemon), Some(rate)) = (thp.khugepaged, self.khugepaged_rate()) {
                    text.push_str(&format!(
                        "; khugepaged looks at {}/s and fills up to {} absent OS pages",
                        bytes(rate),
                        daemon.max_ptes_none
                    ));
                }
                text
            }
            Err(error) => format!("not readable: {error}"),
        }
    }

    fn huge(&self) -> String {
        let value = |key| value_of(&self.meminfo, key).unwrap_or(0);
        let (huge, all) = (value("AnonHugePages"), value("AnonPages"));
        let mut text = format!("{} of {} anonymous memory{}", bytes(huge), bytes(all), share(huge, all));
        for (key, name) in
            [("ShmemHugePages", "shared"), ("FileHugePages", "of files"), ("Hugetlb", "in pools")]
        {
            if value(key) > 0 {
                text.push_str(&format!(", {} {name}", bytes(value(key))));
            }
        }
        // AnonHugePages counts the huge page only; smaller sizes have counters of their own.
        for size in self.sizes.iter().filter(|size| Some(size.bytes) != self.huge_page) {
            if let Some(pages) = size.anonymous.filter(|&pages| pages > 0) {
                text.push_str(&format!("; {} pages of {}", grouped(pages), short_size(size.bytes)));
            }
        }
        text
    }

    fn events(&self) -> String {
        let event = |key| value_of(&self.vmstat, key);
        let (Some(made), Some(missed)) = (event("thp_fault_alloc"), event("thp_fault_fallback")) else {
            return "not counted by this kernel".to_owned();
        };
        format!(
            "{} at a fault ({} faults found none{}), {} collapsed, {} split",
            counted(made, "huge page", "huge pages"),
            grouped(missed),
            if missed == 0 {
                String::new()
            } else {
                format!(", {:.1} %", 100.0 * missed as f64 / (made + missed) as f64)
            },
            grouped(event("thp_collapse_alloc").unwrap_or(0)),
            grouped(event("thp_split_page").unwrap_or(0)),
        )
    }

    fn cgroup(&self) -> String {
        match &self.limits {
            Ok(limits) => {
                let limit = match (limits.max, limits.high) {
                    (None, None) => "no limit".to_owned(),
                    (Some(max), _) => format!("limit {}", bytes(max)),
                    (None, Some(high)) => format!("throttled above {}", bytes(high)),
                };
                let stranded = match self.stranded_here {
                    None | Some(0) => String::new(),
                    Some(stranded) => format!(", {} of it stranded", bytes(stranded)),
                };
                format!("charge {}{stranded}, {limit} ({})", bytes(limits.charge), word(limits.version))
            }
            Err(error) => format!("not known: {error}"),
        }
    }
}

fn pools_line(pools: &Pools) -> String {
    let used: Vec<_> = pools
        .all
        .iter()
        .filter(|pool| pool.total > 0 || pool.overcommit.is_some_and(|pages| pages > 0))
        .map(|pool| {
            format!(
                "{} pages of {} ({}), {} free",
                grouped(pool.total),
                short_size(pool.page),
                bytes(pool.total * pool.page),
                grouped(pool.free())
            )
        })
        .collect();
    if used.is_empty() { "none".to_owned() } else { used.join("; ") }
}

/// ` (12 %)`, when there is something to have a share of.
fn share(part: u64, all: u64) -> String {
    if all == 0 { String::new() } else { format!(" ({:.0} %)", 100.0 * part as f64 / all as f64) }
}

/// The kernel's word for a value of a fact.
pub(crate) fn word(value: impl std::fmt::Debug) -> String {
    match format!("{value:?}").as_str() {
        "DeferMadvise" => "defer+madvise".to_owned(),
        name => name.to_lowercase(),
    }
}
