//! What happened: the summary of a command that ran on hugeheap, as text and as JSON.
//!
//! An operator asks, in this order: did it work and if not why; is the heap really huge; what did it cost and give
//! back; what went wrong and what can I do. Each question has one line, and lines without news are left out.

use super::records::Found;
use crate::output::{bytes, counted, grouped, seconds, shown};
use hugeheap::arena::Policy;
use hugeheap::telemetry::{Fallback, HookState, Level, Snapshot};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Name of the JSON schema.
pub(crate) const SCHEMA: &str = "hugeheap.run.summary/1";

/// What a summary is made of.
#[derive(Debug)]
pub(crate) struct Summary<'a> {
    /// The command as typed.
    pub(crate) command: &'a [String],
    pub(crate) pid: u32,
    pub(crate) status: ExitStatus,
    /// Seconds from start to end.
    pub(crate) elapsed: f64,
    pub(crate) found: &'a Found,
    /// The level that was asked for.
    pub(crate) asked: Level,
    /// Whether nobody did, and it is the one for a Ruby.
    pub(crate) is_for_ruby: bool,
    /// Why the library cannot be in the main process, found before the start.
    pub(crate) hindrance: Option<Hindered>,
}

/// A hindrance, for people and for JSON.
#[derive(Clone, Debug)]
pub(crate) struct Hindered {
    pub(crate) name: &'static str,
    pub(crate) text: String,
}

/// Several processes added up. Peaks are sums of peaks, which need not have been at the same time.
#[derive(Debug, Default, PartialEq)]
struct Total {
    processes: u64,
    hooked: u64,
    arenas_peak: u64,
    live_peak: u64,
    given_back: u64,
    arenas_given_back: u64,
    breaks: u64,
    peak_resident: u64,
    peak_huge: u64,
    fallbacks: [u64; Fallback::ROOM],
    /// How many processes were not hooked, by state.
    unhooked: Vec<(Option<HookState>, u64)>,
}

impl Total {
    fn of<'a>(snapshots: impl Iterator<Item = &'a Snapshot>) -> Self {
        let mut total = Self::default();
        for snapshot in snapshots {
            total.processes += 1;
            let state = snapshot.hook_state();
            if state == Some(HookState::Hooked) {
                total.hooked += 1;
            } else {
                match total.unhooked.iter_mut().find(|(known, _)| *known == state) {
                    Some((_, count)) => *count += 1,
                    None => total.unhooked.push((state, 1)),
                }
            }
            total.arenas_peak += snapshot.arenas_peak;
            total.live_peak += snapshot.live_peak;
            total.given_back += snapshot.given_back;
            total.arenas_given_back += snapshot.arenas_given_back;
            total.breaks += snapshot.breaks;
            total.peak_resident += snapshot.peak_resident;
            total.peak_huge += snapshot.peak_huge;
            for (sum, count) in total.fallbacks.iter_mut().zip(snapshot.fallbacks) {
                *sum += count;
            }
        }
        total
    }
}

impl Summary<'_> {
    fn main(&self) -> Option<&Snapshot> {
        self.found.snapshots.iter().find(|snapshot| snapshot.pid == self.pid)
    }

    fn children(&self) -> Total {
        Total::of(self.found.snapshots.iter().filter(|snapshot| snapshot.pid != self.pid))
    }

    /// Why there is no record of the main process.
    fn absence(&self) -> String {
        match &self.hindrance {
            Some(hindrance) => format!("nothing was hooked: the program {}", hindrance.text),
            None => {
                "no record: the library was not loaded (the program cleared its environment or raised its \
                     privileges), or could not write to the temporary directory"
                    .to_owned()
            }
        }
    }

    /// The summary as text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(text, "  {name:<11}{value}");
        };
        match self.main() {
            Some(main) => {
                let why = if self.is_for_ruby { Some(RUBY) } else { reason(main, self.asked) };
                process(main, why, &mut line);
            }
            None => line("state", &self.absence()),
        }
        let children = self.children();
        if children.processes > 0 {
            line("children", &family(&children));
            for (reason, count) in fallbacks(&children.fallbacks) {
                line("  fallback", &format!("{} × {}: {}", grouped(count), reason.name(), reason.hint()));
            }
        }
        for file in &self.found.unreadable {
            line("unreadable", file);
        }
        format!("hugeheap: {} (pid {}) {}\n{text}", short(self.command), self.pid, self.ending())
    }

    fn ending(&self) -> String {
        let elapsed = seconds(self.elapsed);
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("ended with status {code} after {elapsed}"),
            (None, Some(signal)) => format!("was killed by signal {signal} after {elapsed}"),
            (None, None) => format!("ended after {elapsed}"),
        }
    }

    /// The summary as JSON.
    pub(crate) fn json(&self) -> Value {
        let children = self.children();
        json!({
            "schema": SCHEMA,
            "command": self.command,
            "pid": self.pid,
            "exit_status": self.status.code(),
            "signal": self.status.signal(),
            "seconds": self.elapsed,
            "asked_level": self.asked.name(),
            "hindrance": self.hindrance.as_ref().map(|hindrance| json!({
                "name": hindrance.name, "explanation": hindrance.text,
            })),
            "main": self.main().map(snapshot_json),
            "absence": self.main().is_none().then(|| self.absence()),
            "children": {
                "processes": children.processes,
                "hooked": children.hooked,
                "arenas_peak": children.arenas_peak,
                "live_peak": children.live_peak,
                "given_back": children.given_back,
                "arenas_given_back": children.arenas_given_back,
                "breaks": children.breaks,
                "coverage": ratio(children.peak_huge, children.peak_resident),
                "fallbacks": fallbacks_json(&children.fallbacks),
            },
            "processes": self.found.snapshots.iter().map(snapshot_json).collect::<Vec<_>>(),
            "unreadable": self.found.unreadable,
        })
    }
}

fn explanation(snapshot: &Snapshot) -> Option<&'static str> {
    snapshot.hook_state().map(|state| state.explain_at(Level::from_number(snapshot.level)))
}

/// The lines about one process.
fn process(main: &Snapshot, level: Option<&str>, line: &mut dyn FnMut(&str, &str)) {
    let state = main.hook_state();
    let explanation = explanation(main).unwrap_or("a state this version does not know");
    // The interpreter says more than its number: build date and compiler.
    match main.version_text().split_whitespace().next() {
        None => line("state", explanation),
        Some(version) => line("state", &format!("{explanation} (CPython {version})")),
    }
    if let Some(level) = level {
        line("level", level);
    }
    // Without arenas there is nothing more to say, unless they were wanted and refused.
    if main.arenas_peak == 0 && main.fallbacks.iter().all(|&count| count == 0) {
        if matches!(state, Some(HookState::Hooked)) {
            line("arenas", "none: the program asked for no memory that comes in arenas");
        }
        return;
    }
    line("policy", &policy(main));
    line(
        "arenas",
        &format!(
            "{} at the peak with {} live, {} at the end with {} live",
            grouped(main.arenas_peak),
            bytes(main.live_peak),
            grouped(main.arenas),
            bytes(main.live),
        ),
    );
    line("coverage", &coverage(main.peak_huge, main.peak_resident));
    line("given back", &given_back(main.given_back, main.arenas_given_back, main.breaks, main.retained));
    if main.charge > 0 || main.peak_charge > 0 {
        line(
            "charge",
            &format!(
                "{} at the peak, {} when last measured (the whole memory cgroup)",
                measured(main.peak_charge),
                measured(main.charge)
            ),
        );
    }
    for (reason, count) in fallbacks(&main.fallbacks) {
        line("fallback", &format!("{} × {}: {}", grouped(count), reason.name(), reason.hint()));
    }
}

/// What is to be said of the level, where there is something.
fn reason(main: &Snapshot, asked: Level) -> Option<&'static str> {
    let is_other = main.hook_state() == Some(HookState::NotPython) && asked != Level::Malloc;
    if is_other { Some(PYTHON_ONLY) } else { is_less(main, asked).then_some(LESS) }
}

/// Of a Ruby for which no level was named.
const RUBY: &str = "malloc, because it is a Ruby: at the others only CPython's memory comes from hugeheap";

/// Of a program of which nothing came from hugeheap.
const PYTHON_ONLY: &str = "only CPython's memory comes from hugeheap at this one; that of any program, a Ruby's too: --level malloc";

/// What is to be said where level `objects` was asked for and pymalloc kept its job.
const LESS: &str = "arenas, not objects as asked: the interpreter sets allocators of its own when it starts \
     (PYTHONMALLOC is set, -X dev, a debug build, PyPreConfig.allocator), or the memory for a heap was missing";

/// Whether a process is hooked at level `arenas` though `objects` was asked for.
fn is_less(snapshot: &Snapshot, asked: Level) -> bool {
    let hooked = snapshot.hook_state() == Some(HookState::Hooked);
    hooked && asked == Level::Objects && Level::from_number(snapshot.level) == Some(Level::Arenas)
}

/// The line about all children.
fn family(children: &Total) -> String {
    let mut text =
        format!("{}, {} hooked", counted(children.processes, "process", "processes"), children.hooked);
    let reasons: Vec<_> = children
        .unhooked
        .iter()
        .map(|(state, count)| {
            format!("{count} {}", state.map_or("unknown", HookState::name).replace('_', " "))
        })
        .collect();
    if !reasons.is_empty() {
        let _ = write!(text, " ({})", reasons.join(", "));
    }
    if children.arenas_peak > 0 {
        let _ = write!(
            text,
            "; {} in all at their peaks, coverage {}; given back {}",
            counted(children.arenas_peak, "arena", "arenas"),
            coverage(children.peak_huge, children.peak_resident),
            bytes(children.given_back),
        );
    }
    text
}

/// The policy asked for and, where it differs, what it came to; and the level when it is not the usual one.
fn policy(snapshot: &Snapshot) -> String {
    let name = |number| Policy::from_number(number).map_or("unknown", Policy::name);
    let mut text = name(snapshot.policy).to_owned();
    if snapshot.policy != snapshot.effective_policy {
        text += &format!(", in force at the end: {}", name(snapshot.effective_policy));
    }
    if let Some(level) = Level::from_number(snapshot.level).filter(|level| *level != Level::Arenas) {
        text += &format!("; level {}", level.name());
    }
    text
}

fn coverage(huge: u64, resident: u64) -> String {
    match ratio(huge, resident) {
        Some(share) => format!("{:.1} % of {} on huge pages at the peak", share * 100.0, bytes(resident)),
        None => "not measured".to_owned(),
    }
}

fn given_back(total: u64, arenas: u64, breaks: u64, retained: u64) -> String {
    let mut text = if total == 0 {
        "nothing".to_owned()
    } else {
        format!("{} ({}", bytes(total), counted(arenas, "whole arena", "whole arenas"))
    };
    if total > 0 {
        if breaks > 0 {
            let _ = write!(text, ", {} sparse ones broken", grouped(breaks));
        }
        text.push(')');
    }
    if retained > 0 {
        let _ = write!(text, "; {} kept for reuse", bytes(retained));
    }
    text
}

fn measured(count: u64) -> String {
    if count == 0 { "not measured".to_owned() } else { bytes(count) }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// The reasons that occurred, most frequent first.
fn fallbacks(counts: &[u64; Fallback::ROOM]) -> Vec<(Fallback, u64)> {
    let mut occurred: Vec<_> = Fallback::ALL
        .into_iter()
        .map(|reason| (reason, counts[reason as usize]))
        .filter(|&(_, count)| count > 0)
        .collect();
    occurred.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    occurred
}

fn fallbacks_json(counts: &[u64; Fallback::ROOM]) -> Value {
    fallbacks(counts)
        .into_iter()
        .map(|(reason, count)| json!({"reason": reason.name(), "count": count, "hint": reason.hint()}))
        .collect()
}

/// All that a process told, by the names of the telemetry schema.
pub(crate) fn snapshot_json(snapshot: &Snapshot) -> Value {
    let name = |number| Policy::from_number(number).map(Policy::name);
    let mut object = Map::new();
    object.insert("pid".into(), snapshot.pid.into());
    object.insert("parent_pid".into(), snapshot.parent_pid.into());
    object.insert("state".into(), snapshot.hook_state().map(HookState::name).into());
    object.insert("explanation".into(), explanation(snapshot).into());
    object.insert("version".into(), snapshot.version_text().into());
    object.insert("level".into(), Level::from_number(snapshot.level).map(Level::name).into());
    object.insert("policy".into(), name(snapshot.policy).into());
    object.insert("effective_policy".into(), name(snapshot.effective_policy).into());
    for (counter, value) in snapshot.counters() {
        object.insert(counter.into(), value.into());
    }
    object.insert("peak_coverage".into(), snapshot.peak_coverage().into());
    object.insert("fallbacks".into(), fallbacks_json(&snapshot.fallbacks));
    object.into()
}

/// The command on one line, cut where it gets long.
fn short(command: &[String]) -> String {
    const LIMIT: usize = 60;
    let text = command.join(" ").replace('\n', " ");
    let text = shown(&text).into_owned();
    if text.chars().count() <= LIMIT {
        return text;
    }
    let cut: String = text.chars().take(LIMIT - 1).collect();
    format!("{cut}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOOKED: Snapshot = Snapshot {
        pid: 10,
        state: HookState::Hooked as u32,
        policy: Policy::Hugetlb as u32,
        effective_policy: Policy::Thp as u32,
        arenas: 3,
        arenas_peak: 62,
        live: 1 << 20,
        live_peak: 118 << 20,
        given_back: 118 << 20,
        arenas_given_back: 59,
        breaks: 2,
        peak_resident: 100 << 20,
        peak_huge: 98 << 20,
        ..Snapshot::EMPTY
    };

    fn summary<'a>(found: &'a Found, command: &'a [String]) -> Summary<'a> {
        let status = ExitStatus::from_raw(0);
        Summary {
            command,
            pid: 10,
            status,
            elapsed: 1.5,
            found,
            asked: Level::Arenas,
            is_for_ruby: false,
            hindrance: None,
        }
    }

    #[test]
    fn the_main_process_has_a_line_per_question() {
        let mut main = HOOKED;
        main.fallbacks[Fallback::PoolEmpty as usize] = 12;
        let found = Found { snapshots: vec![main], unreadable: vec![] };
        let command = ["python3".to_owned(), "app.py".to_owned()];
        let text = summary(&found, &command).text();
        for expected in [
            "python3 app.py (pid 10) ended with status 0 after 1.5 s",
            "hugetlb, in force at the end: thp",
            "62 at the peak with 118 MiB live, 3 at the end with 1.0 MiB live",
            "98.0 % of 100 MiB",
            "118 MiB (59 whole arenas, 2 sparse ones broken)",
            "12 × pool_empty: the hugetlb pool had no free page",
        ] {
            assert!(text.contains(expected), "{expected:?} not in\n{text}");
        }
        assert!(text.lines().count() <= 10, "{text}");
    }

    #[test]
    fn a_level_other_than_the_usual_is_told() {
        assert!(!policy(&HOOKED).contains("level"));
        let objects = Snapshot { level: Level::Objects as u32, ..HOOKED };
        assert_eq!(policy(&objects), "hugetlb, in force at the end: thp; level objects");
        assert_eq!(snapshot_json(&objects)["level"], "objects");
    }

    #[test]
    fn a_level_that_was_asked_for_and_is_not_in_force_has_a_reason() {
        let command = ["python3-dbg".to_owned()];
        let text = |asked, snapshot| {
            let found = Found { snapshots: vec![snapshot], unreadable: vec![] };
            let summary = Summary { asked, ..summary(&found, &command) };
            (summary.text(), summary.json()["asked_level"].clone())
        };
        let (less, json) = text(Level::Objects, HOOKED);
        assert!(less.contains("  level      arenas, not objects as asked: the interpreter sets"), "{less}");
        assert_eq!(json, "objects");
        let objects = Snapshot { level: Level::Objects as u32, ..HOOKED };
        let none = Snapshot { state: HookState::NotPython as u32, ..HOOKED };
        for (asked, snapshot) in [(Level::Objects, objects), (Level::Arenas, HOOKED), (Level::Objects, none)]
        {
            let (text, _) = text(asked, snapshot);
            assert!(!text.contains("as asked"), "{text}");
        }
    }

    #[test]
    fn children_are_added_up() {
        let child = |pid| Snapshot { pid, parent_pid: 10, ..HOOKED };
        let shell = Snapshot { pid: 10, state: HookState::NotPython as u32, ..Snapshot::EMPTY };
        let other = Snapshot { pid: 13, ..shell };
        let found = Found { snapshots: vec![shell, child(11), child(12), other], unreadable: vec![] };
        let command = ["sh".to_owned()];
        let text = summary(&found, &command).text();
        assert!(text.contains("not CPython"), "{text}");
        assert!(text.contains("3 processes, 2 hooked (1 not python); 124 arenas in all"), "{text}");
        let json = summary(&found, &command).json();
        assert_eq!(json["schema"], SCHEMA);
        assert_eq!(json["children"]["hooked"], 2);
        assert_eq!(json["children"]["coverage"], 0.98);
        assert_eq!(json["processes"].as_array().unwrap().len(), 4);
        assert_eq!(json["main"]["state"], "not_python");
    }

    #[test]
    fn a_process_without_a_record_has_a_reason() {
        let found = Found::default();
        let command = ["tool".to_owned()];
        let mut summary = summary(&found, &command);
        assert!(summary.text().contains("the library was not loaded"));
        summary.hindrance = Some(Hindered { name: "static", text: "is statically linked".into() });
        assert!(summary.text().contains("nothing was hooked: the program is statically linked"));
        assert_eq!(summary.json()["hindrance"]["name"], "static");
    }

    #[test]
    fn long_commands_are_cut() {
        let command = ["python".to_owned(), "-c".to_owned(), "x = 1\n".repeat(50)];
        assert!(short(&command).chars().count() <= 60);
        assert!(!short(&command).contains('\n'));
        assert_eq!(short(&["a\x1b[2J".to_owned()]), "a?[2J");
    }
}
