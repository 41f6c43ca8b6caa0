//! `hugeheap ps --cgroups`: one line for each memory cgroup that has processes.

use super::NONE;
use super::arguments::{PsArguments, Sort};
use super::gather::{missing, statuses};
use crate::cgroup::{Charge, DERIVATION, slack};
use crate::columns::{Align, columns};
use crate::descriptors::told;
use crate::output::{bytes, counted, shown};
use crate::{Context, exit};
use hugeheap_os::linux::LinuxProcess;
use hugeheap_os::{CgroupVersion, Facts, Result};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::BTreeMap;

const SCHEMA: &str = "hugeheap.cgroups/1";

/// A group that has processes.
#[derive(Debug)]
struct Group {
    path: String,
    /// Its own, without those of groups below.
    processes: u64,
    charge: Charge,
}

/// What was found.
#[derive(Debug, Default)]
struct Groups {
    all: Vec<Group>,
    missing: Vec<u32>,
    /// Processes whose group cannot be seen from here.
    unseen: u64,
}

pub(super) fn groups(context: &Context, arguments: &PsArguments, json: bool) -> u8 {
    let out = &context.out;
    let Some(key) = key(arguments.sort) else {
        out.error("--sort of cgroups is rss (their charge), huge or stranded");
        return exit::USAGE;
    };
    let mut groups = match gather(context, &arguments.processes) {
        Ok(groups) => groups,
        Err(error) => {
            out.error(&format!("there is no list of processes: {error}", error = told(&error)));
            return exit::UNSUPPORTED;
        }
    };
    groups.all.sort_by_key(|group| (Reverse(key(&group.charge)), group.path.clone()));
    let all = groups.all.len();
    groups.all.truncate(arguments.lines.unwrap_or(all));
    out.data(&if json { crate::output::json(&data(&groups, all)) } else { text(&groups) });
    if groups.unseen > 0 {
        let count = counted(groups.unseen, "process", "processes");
        out.warning(&format!(
            "the memory cgroup of {count} cannot be seen from here: mount the host's /sys/fs/cgroup, or run on the host"
        ));
    }
    super::without_a_line(context, &groups.missing)
}

/// What is sorted by, largest first; `None`: not a column of groups.
fn key(sort: Sort) -> Option<fn(&Charge) -> Option<u64>> {
    match sort {
        Sort::Rss => Some(|charge| Some(charge.charge)),
        Sort::Huge => Some(|charge| Some(charge.huge)),
        Sort::Stranded => Some(|charge| charge.stranded),
        _ => None,
    }
}

fn gather(context: &Context, named: &[u32]) -> Result<Groups> {
    let linux = context.facts;
    let statuses = statuses(linux)?;
    let mut groups = Groups { missing: missing(named, &statuses), ..Groups::default() };
    // Each with one of its processes, through which its files are found.
    let mut found: BTreeMap<String, (u32, u64)> = BTreeMap::new();
    for (id, status) in statuses {
        if status.has_memory && (named.is_empty() || named.contains(&id)) {
            match LinuxProcess::memory_group(linux, id) {
                Ok(path) => found.entry(path).or_insert((id, 0)).1 += 1,
                Err(_) => groups.unseen += 1,
            }
        }
    }
    let slack = slack(linux.page_sizes().os);
    for (path, (id, processes)) in found {
        match Charge::of(linux, id, slack) {
            Ok(charge) => groups.all.push(Group { path, processes, charge }),
            Err(_) => groups.unseen += processes,
        }
    }
    Ok(groups)
}

fn text(groups: &Groups) -> String {
    let head = ["PROCESSES", "CHARGE", "LIMIT", "MAPPED", "HUGE", "FILES", "KERNEL", "STRANDED", "CGROUP"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(groups.all.iter().map(|Group { path, processes, charge }| {
        vec![
            processes.to_string(),
            bytes(charge.charge),
            charge.limit.map_or(NONE.to_owned(), bytes),
            bytes(charge.mapped),
            bytes(charge.huge),
            bytes(charge.file),
            bytes(charge.kernel),
            charge.stranded.map_or(NONE.to_owned(), bytes),
            shown(path).into_owned(),
        ]
    }));
    columns(&[Align::Right; 8], &rows)
}

fn data(groups: &Groups, all: usize) -> Value {
    let group = |Group { path, processes, charge }: &Group| {
        json!({
            "path": path,
            "version": match charge.version {
                CgroupVersion::V1 => "v1",
                CgroupVersion::V2 => "v2",
            },
            "processes": processes,
            "charge": charge.charge,
            "limit": charge.limit,
            "mapped": charge.mapped,
            "huge": charge.huge,
            "files": charge.file,
            "kernel": charge.kernel,
            "stranded": charge.stranded,
            "stranded_from": charge.stranded.map(|_| DERIVATION),
        })
    };
    json!({
        "schema": SCHEMA,
        "cgroups_in_all": all,
        "processes_unseen": groups.unseen,
        "cgroups": groups.all.iter().map(group).collect::<Vec<_>>(),
    })
}
