//! Facts about this host for reports: without them a measurement cannot be judged or repeated.

use crate::status::facts::free_page_reporting;
use hugeheap_os::linux::Linux;
use hugeheap_os::{Facts, Result};
use serde_json::{Value, json};
use std::fs;

/// All facts that belong into a report. What cannot be read is there with its reason.
pub fn facts(facts: &impl Facts) -> Value {
    let pages = facts.page_sizes();
    let capabilities = facts.capabilities();
    json!({
        "kernel": kernel(),
        "machine": std::env::consts::ARCH,
        "cpu": cpu(),
        "cpus": std::thread::available_parallelism().map(usize::from).ok(),
        "virtualised": virtualised(),
        "free_page_reporting": free_page_reporting(&Linux::new().knobs()),
        "memory": said(facts.total_memory(), |bytes| bytes.into()),
        "memory_available": said(facts.available_memory(), |bytes| bytes.into()),
        "os_page": pages.os,
        "huge_page": pages.huge,
        "thp": said(facts.thp(), |thp| json!({
            "mode": format!("{:?}", thp.mode).to_lowercase(),
            "defrag": format!("{:?}", thp.defrag).to_lowercase(),
            "khugepaged": thp.khugepaged.map(|daemon| json!({
                "defrag": daemon.defrag,
                "pages_to_scan": daemon.pages_to_scan,
                "scan_sleep_seconds": daemon.scan_sleep.as_secs_f64(),
                "max_ptes_none": daemon.max_ptes_none,
            })),
        })),
        "thp_disabled": said(facts.thp_disabled(), |disabled| format!("{disabled:?}").to_lowercase().into()),
        "hugetlb_pools": said(facts.hugetlb_pools(), |pools| pools.iter().map(|pool| json!({
            "page_size": pool.page_size,
            "total": pool.total,
            "free": pool.free,
            "reserved": pool.reserved,
            "surplus": pool.surplus,
            "overcommit": pool.overcommit,
        })).collect()),
        "cgroup": said(facts.memory_limits(), |limits| json!({
            "version": format!("{:?}", limits.version).to_lowercase(),
            "max": limits.max,
            "high": limits.high,
        })),
        "caches": said(facts.caches(), |caches| caches.iter().map(|cache| json!({
            "level": cache.level,
            "data": cache.data,
            "size": cache.size,
            "shared_by": cache.shared_by,
        })).collect()),
        "capabilities": {
            "advise_huge": capabilities.advise_huge,
            "collapse": capabilities.collapse,
            "pagemap_scan": capabilities.pagemap_scan,
            "hardware_counters": capabilities.hardware_counters,
        },
    })
}

/// One line of what matters most.
pub fn line(host: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
    let virtualised = match host["virtualised"].as_bool() {
        Some(true) => ", virtual machine",
        _ => "",
    };
    format!(
        "{} ({} CPUs{virtualised}), Linux {}, THP {}",
        text(&host["cpu"]),
        host["cpus"],
        text(&host["kernel"]),
        text(&host["thp"]["mode"]),
    )
}

fn said<T>(fact: Result<T>, show: impl FnOnce(T) -> Value) -> Value {
    match fact {
        Ok(value) => show(value),
        Err(error) => json!({"unreadable": error.to_string()}),
    }
}

fn kernel() -> Option<String> {
    Some(fs::read_to_string("/proc/sys/kernel/osrelease").ok()?.trim().to_owned())
}

/// The value of the first line `name : value` of /proc/cpuinfo.
fn cpuinfo(name: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let (_, value) =
        text.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == name)?;
    Some(value.trim().to_owned())
}

fn cpu() -> Option<String> {
    cpuinfo("model name").or_else(|| cpuinfo("CPU part").map(|part| format!("arm part {part}")))
}

/// Whether a hypervisor is below; `None` where the CPU does not tell.
fn virtualised() -> Option<bool> {
    Some(cpuinfo("flags")?.split_whitespace().any(|flag| flag == "hypervisor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_facts_have_their_reason() {
        let value =
            said::<u64>(Err(hugeheap_os::Error::new("open(/proc/meminfo)", libc::EACCES)), Value::from);
        assert!(value["unreadable"].as_str().unwrap().contains("/proc/meminfo"));
    }

    #[test]
    fn this_host_has_facts() {
        let host = facts(&hugeheap_os::linux::Linux::new());
        assert!(host["kernel"].is_string());
        assert!(host["os_page"].as_u64().unwrap() >= 4096);
        assert!(line(&host).contains("Linux"));
    }
}
