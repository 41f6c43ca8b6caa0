//! `hugeheap ps`: one line for each process, or with `--cgroups` for each memory cgroup.
//!
//! ```text
//!   gather   what is cheap of all, what is not while there is time ──▶ row   what is known of one
//!   (here)   the list as text and JSON
//!   groups   the same of memory cgroups
//! ```

pub(crate) mod arguments;
pub(crate) mod gather;
mod groups;
pub(crate) mod row;

use crate::columns::{Align, columns};
use crate::descriptors::told;
use crate::output::{bytes, counted, seconds, shown};
use crate::process::{Doing, HIDDEN, REFUSED, proc_hides, status, words};
use crate::{Context, exit};
use arguments::PsArguments;
use core::time::Duration;
use gather::List;
use row::{Row, Unread};
use serde_json::{Value, json};

const SCHEMA: &str = "hugeheap.ps/1";
/// What stands for what is not known.
pub(crate) const NONE: &str = "–";

pub(crate) fn ps(context: &Context, arguments: &PsArguments, json: bool) -> u8 {
    let out = &context.out;
    if arguments.cgroups {
        return groups::groups(context, arguments, json);
    }
    let budget = Duration::from_secs_f64(arguments.budget);
    let mut list = match gather::gather(context.facts, &arguments.processes, budget, !context.root) {
        Ok(list) => list,
        Err(error) => {
            out.error(&format!("there is no list of processes: {error}", error = told(&error)));
            return exit::UNSUPPORTED;
        }
    };
    row::sort(&mut list.rows, arguments.sort);
    let all = list.rows.len();
    list.rows.truncate(arguments.lines.unwrap_or(all));
    out.data(&if json { crate::output::json(&data(&list, all)) } else { text(&list) });
    for note in notes(&list) {
        out.warning(&note);
    }
    without_a_line(context, &list.missing)
}

/// Says why processes that were named have no line, as commands do that look at one. Answers the exit code:
/// that of the first.
fn without_a_line(context: &Context, missing: &[u32]) -> u8 {
    let codes: Vec<u8> = missing.iter().filter_map(|id| status(context, *id, Doing::Look).err()).collect();
    codes.first().copied().unwrap_or(exit::OK)
}

/// Heads of the columns, in their order.
pub(crate) const HEADS: [&str; 9] =
    ["PID", "USER", "RSS", "HUGE", "COVERAGE", "ELIGIBLE", "STRANDED", "THP", "NAME"];
/// Columns from the left that are numbers.
pub(crate) const NUMBERS: usize = 7;

fn text(list: &List) -> String {
    let aligns = std::array::from_fn::<_, { HEADS.len() }, _>(|column| match column {
        0..NUMBERS => Align::Right,
        _ => Align::Left,
    });
    let mut rows = vec![HEADS.map(str::to_owned).to_vec()];
    rows.extend(list.rows.iter().map(|row| cells(row, bytes)));
    columns(&aligns, &rows)
}

/// A line of the list; `bytes` writes a number of them.
pub(crate) fn cells(row: &Row, bytes: impl Fn(u64) -> String) -> Vec<String> {
    let of = |pick: fn(row::Sums) -> u64| row.sums.map_or(NONE.to_owned(), |sums| bytes(pick(sums)));
    vec![
        row.id.to_string(),
        row.status.user.to_string(),
        bytes(row.resident()),
        of(|sums| sums.huge),
        words::coverage(row.coverage()),
        of(|sums| sums.eligible),
        row.stranded.map_or(NONE.to_owned(), |(count, _)| bytes(count)),
        row.thp.text(),
        shown(&row.status.name).into_owned(),
    ]
}

/// What is not in the list, and how to get it.
fn notes(list: &List) -> Vec<String> {
    let unread = |why| list.rows.iter().filter(|row| row.sums == Err(why)).count() as u64;
    let mut notes = Vec::new();
    if list.real && proc_hides() {
        notes.push(HIDDEN.to_owned());
    }
    let processes = |count| counted(count, "process", "processes");
    match unread(Unread::Budget) {
        0 => {}
        count => notes.push(format!(
            "smaps of {} would have taken more than half of what was left of the budget (the list took {}): raise --budget",
            processes(count),
            seconds(list.elapsed.as_secs_f64())
        )),
    }
    match unread(Unread::Permission) {
        0 => {}
        count if list.may_look => {
            notes.push(format!("{} may not be looked at: {REFUSED}", processes(count)));
        }
        count => notes.push(format!(
            "{} may not be looked at: CAP_SYS_PTRACE shows other users' (sudo, or capabilities: {{add: [SYS_PTRACE]}} in the pod)",
            processes(count)
        )),
    }
    match unread(Unread::Failed) {
        0 => {}
        count => notes.push(format!("smaps of {} could not be read", processes(count))),
    }
    if list.not_looked > 0 {
        let count = processes(list.not_looked as u64);
        notes.push(format!("no time to look for what is stranded in {count}: raise --budget"));
    } else if !list.sees_folios && list.rows.iter().any(|row| row.stranded.is_none()) {
        notes.push(if list.real {
            "what is stranded in a process shows with CAP_SYS_ADMIN".to_owned()
        } else {
            "what is stranded in a process does not show with --root".to_owned()
        });
    }
    notes
}

fn data(list: &List, all: usize) -> Value {
    json!({
        "schema": SCHEMA,
        "processes_in_all": all,
        "elapsed_seconds": list.elapsed.as_secs_f64(),
        "processes": list.rows.iter().map(process).collect::<Vec<_>>(),
    })
}

/// A process as JSON.
pub(crate) fn process(row: &Row) -> Value {
    let sums = row.sums.ok();
    json!({
        "id": row.id,
        "name": row.status.name,
        "user": row.status.user,
        "resident": row.resident(),
        "huge": sums.map(|sums| sums.huge),
        "coverage": row.coverage(),
        "eligible": sums.map(|sums| sums.eligible),
        "unread": row.sums.err().map(Unread::name),
        "stranded": row.stranded.map(|(bytes, _)| bytes),
        "stranded_from": row.stranded.map(|(_, source)| source.name()),
        "thp": row.thp.name(),
        "thp_inherited_from": match row.thp {
            row::Thp::OffInherited(parent) => Some(parent),
            _ => None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::row::tests::row;
    use super::*;

    const MIB: u64 = 1 << 20;

    fn list() -> List {
        List {
            rows: vec![row(10, 64 * MIB, Some(16 * MIB), Some(0)), row(7, 2 * MIB, None, None)],
            missing: Vec::new(),
            not_looked: 1,
            sees_folios: true,
            may_look: false,
            real: true,
            elapsed: Duration::from_millis(40),
        }
    }

    #[test]
    fn a_line_for_each_and_dashes_for_what_is_not_known() {
        let text = text(&list());
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0][..4], ["PID", "USER", "RSS", "HUGE"]);
        assert_eq!(lines[1].join(" "), "10 0 64.0 MiB 16.0 MiB 25.0 % 48.0 MiB 0 B on app");
        assert_eq!(lines[2].join(" "), "7 0 2.0 MiB – – – – on app");
    }

    #[test]
    fn what_is_missing_is_said_with_the_way_to_get_it() {
        let mut list = list();
        let said = notes(&list).join("\n");
        assert!(said.contains("smaps of 1 process ") && said.contains("stranded in 1 process"), "{said}");
        list.rows[1].sums = Err(Unread::Permission);
        (list.not_looked, list.sees_folios) = (0, false);
        let said = notes(&list).join("\n");
        assert!(said.contains("CAP_SYS_PTRACE") && said.contains("CAP_SYS_ADMIN"), "{said}");
        // Each was named also where it was there, or does not help.
        (list.may_look, list.real) = (true, false);
        let said = notes(&list).join("\n");
        assert!(!said.contains("CAP_SYS") && said.contains("security module"), "{said}");
        assert!(said.contains("does not show with --root"), "{said}");
        list.rows.truncate(1);
        assert!(notes(&list).is_empty());
    }

    #[test]
    fn data_says_where_it_comes_from() {
        let value = data(&list(), 9);
        assert_eq!((&value["schema"], &value["processes_in_all"]), (&json!(SCHEMA), &json!(9)));
        assert_eq!(value["processes"][0]["stranded_from"], "folios");
        assert_eq!(value["processes"][0]["coverage"], 0.25);
        assert_eq!(value["processes"][1]["unread"], "budget");
        assert_eq!(value["processes"][1]["stranded"], Value::Null);
    }
}
