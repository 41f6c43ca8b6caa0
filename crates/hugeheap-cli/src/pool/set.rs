//! `hugeheap pool set`, `ensure` and `release`: one pool gets another size.
//!
//! The kernel answers a request that it cannot meet with success and a smaller pool. So the pool is read again
//! after each write, and asked again while it grows: a first attempt makes room (reclaim, compaction) that a
//! second one uses.

use super::arguments::{Growth, How, Which};
use super::facts;
use super::plan::{Memory, Plan, Pool, Wish, plan};
use crate::change::persist::{Edit, Form};
use crate::change::{self, Change, Report, Writes};
use crate::descriptors::told;
use crate::output::{bytes, counted, grouped};
use crate::thp::catalogue::short_size;
use crate::{Context, exit};
use hugeheap_os::linux::Knobs;
use hugeheap_os::{Error, Facts};

const SCHEMA: &str = "hugeheap.pool-set/1";
const SYSCTL: &str = "/etc/sysctl.d/90-hugeheap-pool.conf";
const TMPFILES: &str = "/etc/tmpfiles.d/hugeheap-pool.conf";
const COMPACT: &str = "/proc/sys/vm/compact_memory";
/// How often a pool that still grows is asked again. Each time costs the kernel a round of reclaim; what three
/// rounds did not find is not there.
const ATTEMPTS: usize = 3;

/// What a user asked for.
pub(super) struct Request<'a> {
    pub(super) wish: Asked,
    pub(super) overcommit: Option<u64>,
    pub(super) which: &'a Which,
    /// `None`: the pool cannot grow.
    pub(super) growth: Option<&'a Growth>,
    pub(super) how: &'a How,
}

/// The wish, before the page size is known.
pub(super) enum Asked {
    Size(super::arguments::Amount),
    Free(super::arguments::Amount),
    Nothing,
    /// Only the overcommit.
    Same,
}

/// A message and the exit code for it.
type Refused = (String, u8);

/// What was done.
struct Done {
    report: Report,
    plan: Plan,
    before: Pool,
    after: Pool,
}

pub(super) fn set(context: &Context, request: &Request<'_>, json: bool) -> u8 {
    match carried_out(context, request) {
        Ok(done) => tell(context, &done, json),
        Err((message, code)) => {
            context.out.error(&message);
            code
        }
    }
}

fn carried_out(context: &Context, request: &Request<'_>) -> Result<Done, Refused> {
    let knobs = context.facts.knobs();
    let before = the_pool(&knobs, request.which)?;
    let directory = facts::directory(before.page, before.node);
    let file = format!("{directory}/nr_hugepages");
    let wish = match request.wish {
        Asked::Size(amount) => Wish::Size(amount.pages(before.page)),
        Asked::Free(amount) => Wish::Free(amount.pages(before.page)),
        Asked::Nothing => Wish::Nothing,
        Asked::Same => Wish::Size(before.size()),
    };
    let unreadable = |error: Error| {
        (format!("memory of the host is not known: {error}", error = told(&error)), change::exit_code(error))
    };
    let memory = Memory {
        total: context.facts.total_memory().map_err(unreadable)?,
        available: context.facts.available_memory().map_err(unreadable)?,
        keep: request.growth.and_then(|growth| growth.keep_free),
    };
    let planned = plan(before, wish, memory);
    if planned.wanted.saturating_mul(before.page) > memory.total {
        let message = format!(
            "{} of {} are {}, and this host has {}; ask for less",
            counted(planned.wanted, "page", "pages"),
            short_size(before.page),
            bytes(planned.wanted.saturating_mul(before.page)),
            bytes(memory.total)
        );
        return Err((message, exit::USAGE));
    }
    let extra: Vec<_> = request
        .overcommit
        .map(|pages| Change {
            name: "overcommit".to_owned(),
            file: format!("{directory}/nr_overcommit_hugepages"),
            before: before.overcommit.unwrap_or(0).to_string(),
            after: pages.to_string(),
        })
        .into_iter()
        .collect();
    let edit = persisted(context, &knobs, request, before, planned, &file)?;
    let dry_run = request.how.dry_run;
    let mut after = Pool { total: planned.size + before.surplus, ..before };
    if !dry_run {
        change::apply(&knobs, &extra).map_err(|failure| (failure.to_string(), failure.exit_code()))?;
        let compact = request.growth.is_some_and(|growth| growth.compact) && planned.size > before.size();
        let resized = resize(&knobs, &file, before, planned.size, compact);
        let kept = resized
            .map_err(|error| (format!("changing the pool {}", change::refusal(&file, error)), error))
            .and_then(|()| {
                let written = edit.as_ref().map_or(Ok(()), Edit::write);
                written.map_err(|error| (format!("--persist {}", change::refusal("/etc", error)), error))
            });
        if let Err((what, error)) = kept {
            change::put_back(&knobs, &extra);
            let size = || facts::read(&knobs, before.page, before.node).map(Pool::size);
            if size() != Ok(before.size()) {
                // What it answers does not matter: the size is read once more.
                let _ = knobs.write(&file, &before.size().to_string());
            }
            let is_back = size() == Ok(before.size());
            let then = if is_back { "nothing is changed" } else { "the size is not what it was" };
            return Err((format!("{what}; {then}"), change::exit_code(error)));
        }
        after = facts::read(&knobs, before.page, before.node).map_err(|error| {
            (format!("reading the pool {}", change::refusal(&file, error)), change::exit_code(error))
        })?;
    }
    let mut changes = Vec::new();
    if !matches!(request.wish, Asked::Same) {
        let name = match before.node {
            None => format!("pages of {}", short_size(before.page)),
            Some(node) => format!("pages of {} on node {node}", short_size(before.page)),
        };
        let size = |pool: Pool| pool.size().to_string();
        changes.push(Change { name, file, before: size(before), after: size(after) });
    }
    changes.extend(extra);
    let mut undo = undo_of(&knobs, &changes, before);
    undo.extend(edit.as_ref().and_then(Edit::undo));
    let report = Report { dry_run, changes, persisted: edit, undo };
    Ok(Done { report, plan: planned, before, after })
}

/// The pool that is meant.
fn the_pool(knobs: &Knobs, which: &Which) -> Result<Pool, Refused> {
    let sizes = facts::sizes(knobs).map_err(super::no_pools)?;
    let page = match which.size {
        Some(size) => size,
        None => facts::default_size(knobs).unwrap_or(sizes[0]),
    };
    if !sizes.contains(&page) {
        let known: Vec<_> = sizes.iter().map(|&size| short_size(size)).collect();
        let message =
            format!("this kernel has no pool of {} pages; it has {}", short_size(page), known.join(", "));
        return Err((message, exit::UNSUPPORTED));
    }
    facts::read(knobs, page, which.node).map_err(|error| match (error.code, which.node) {
        (libc::ENOENT, Some(node)) => {
            let nodes: Vec<_> = facts::nodes(knobs).iter().map(u32::to_string).collect();
            (
                format!("there is no NUMA node {node} with pools here; there is {}", nodes.join(", ")),
                exit::UNSUPPORTED,
            )
        }
        _ => (
            format!("reading the pool {}", change::refusal(&facts::directory(page, which.node), error)),
            change::exit_code(error),
        ),
    })
}

/// Writes a size until it is reached or no longer comes nearer.
fn resize(host: &impl Writes, file: &str, before: Pool, size: u64, compact: bool) -> Result<(), Error> {
    if size == before.size() {
        return Ok(());
    }
    if compact {
        // A kernel without compaction has no such file; the pool is tried all the same.
        let _ = host.write(COMPACT, "1");
    }
    let mut reached = before.total;
    for _ in 0..ATTEMPTS {
        let total = host.write(file, &size.to_string())?.value.parse().unwrap_or(0);
        if size <= before.total || total >= size || total <= reached {
            break;
        }
        reached = total;
    }
    Ok(())
}

/// The line that keeps it over a boot: the size that was wished for, because then there is more memory in one
/// piece than now.
fn persisted(
    context: &Context,
    knobs: &Knobs,
    request: &Request<'_>,
    pool: Pool,
    planned: Plan,
    file: &str,
) -> Result<Option<Edit>, Refused> {
    if !request.how.persist {
        return Ok(None);
    }
    let is_sysctl = pool.node.is_none() && facts::default_size(knobs) == Ok(pool.page);
    let (path, form) = if is_sysctl { (SYSCTL, Form::Sysctl) } else { (TMPFILES, Form::Tmpfiles) };
    if let Some(warning) = form.reader_missing(knobs) {
        context.out.warning(warning);
    }
    let mut settings = Vec::new();
    if !matches!(request.wish, Asked::Same) {
        let knob = if is_sysctl { "vm.nr_hugepages".to_owned() } else { file.to_owned() };
        settings.push((knob, planned.wanted.to_string()));
    }
    if let Some(pages) = request.overcommit {
        let knob = match is_sysctl {
            true => "vm.nr_overcommit_hugepages".to_owned(),
            false => file.replace("nr_hugepages", "nr_overcommit_hugepages"),
        };
        settings.push((knob, pages.to_string()));
    }
    let failed = |error| (format!("--persist {}", change::refusal(path, error)), change::exit_code(error));
    Edit::plan(knobs, path, form, &settings).map(Some).map_err(failed)
}

fn undo_of(knobs: &Knobs, changes: &[Change], pool: Pool) -> Vec<String> {
    let mut words = Vec::new();
    for change in changes.iter().filter(|change| change.is_needed()) {
        match change.name.as_str() {
            "overcommit" => words.push(format!("--overcommit {}", change.before)),
            _ => words.push(change.before.clone()),
        }
    }
    if words.is_empty() {
        return Vec::new();
    }
    let mut line = format!("{} pool set", change::program(knobs));
    if facts::default_size(knobs) != Ok(pool.page) {
        line.push_str(&format!(" --size {}", short_size(pool.page)));
    }
    if let Some(node) = pool.node {
        line.push_str(&format!(" --node {node}"));
    }
    // What was there fits, whatever is kept free now.
    let is_smaller = |change: &Change| change.after.parse::<u64>().ok() < change.before.parse().ok();
    let keep = if changes.iter().any(is_smaller) { " --keep-free 0" } else { "" };
    vec![format!("{line} {}{keep}", words.join(" "))]
}

/// Says what came of it. Status 1 when it is less than was wished for.
fn tell(context: &Context, done: &Done, json: bool) -> u8 {
    let Done { report, plan, before, after } = done;
    let got = after.size();
    let is_short = got < plan.wanted;
    if json {
        let mut value = report.json(SCHEMA);
        value["page_size"] = before.page.into();
        value["node"] = before.node.into();
        value["wanted"] = plan.wanted.into();
        value["got"] = got.into();
        value["met"] = (!is_short).into();
        context.out.data(&crate::output::json(&value));
    } else {
        let mut text = report.text();
        if got > before.size() && !report.dry_run {
            text = format!("{text}taken from the host: {}\n", bytes((got - before.size()) * before.page));
        }
        context.out.data(&text);
    }
    if after.surplus > before.surplus {
        context.out.warning(&format!(
            "{} in use stay until their programs end",
            counted(after.surplus, "page", "pages")
        ));
    }
    if !is_short {
        return exit::OK;
    }
    let (would, why) = match plan.kept {
        Some(kept) if got >= plan.size => (
            if report.dry_run { "would get" } else { "got" },
            format!("more would leave less than {} available (--keep-free)", bytes(kept)),
        ),
        _ => (
            "got",
            "the host has no more free memory in one piece; stop something, or try --compact".to_owned(),
        ),
    };
    context.out.error(&format!(
        "{would} {} of {} pages of {} ({} of {}): {why}",
        grouped(got),
        grouped(plan.wanted),
        short_size(before.page),
        bytes(got * before.page),
        bytes(plan.wanted * before.page),
    ));
    exit::FINDINGS
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugeheap_os::Result;
    use hugeheap_os::linux::Knob;
    use std::cell::RefCell;

    /// A kernel that finds so many more pages at each write.
    struct Kernel {
        finds: Vec<u64>,
        writes: RefCell<Vec<String>>,
    }

    impl Writes for Kernel {
        fn write(&self, file: &str, value: &str) -> Result<Knob> {
            let mut writes = self.writes.borrow_mut();
            let pages = writes.iter().filter(|write| write.starts_with("nr")).count();
            writes.push(format!("{file}={value}"));
            let total: u64 = self.finds.iter().take(pages + 1).sum();
            Ok(Knob { value: total.min(value.parse().unwrap()).to_string(), choices: Vec::new() })
        }
    }

    const EMPTY: Pool = Pool {
        page: 2 << 20,
        node: None,
        total: 0,
        unused: 0,
        reserved: Some(0),
        surplus: 0,
        overcommit: None,
    };

    fn writes(finds: &[u64], size: u64, compact: bool) -> Vec<String> {
        let kernel = Kernel { finds: finds.to_vec(), writes: RefCell::default() };
        resize(&kernel, "nr", EMPTY, size, compact).unwrap();
        kernel.writes.into_inner()
    }

    #[test]
    fn a_pool_is_asked_again_only_while_it_grows() {
        assert_eq!(writes(&[10], 10, false), ["nr=10"]);
        assert_eq!(writes(&[4, 6, 9], 10, false), ["nr=10", "nr=10"]);
        assert_eq!(writes(&[4, 0, 9], 10, false).len(), 2, "no page more: given up");
        assert_eq!(writes(&[0, 9], 10, false).len(), 1);
        assert_eq!(writes(&[1, 1, 1, 1, 1], 10, false).len(), ATTEMPTS);
    }

    #[test]
    fn memory_is_compacted_first_when_asked() {
        assert_eq!(writes(&[10], 10, true)[0], format!("{COMPACT}=1"));
        assert!(writes(&[10], 0, true).is_empty(), "nothing to be done");
    }
}
