//! `hugeheap thp`: the knobs of transparent huge pages.
//!
//! ```text
//!   catalogue   which knobs there are, their names and meanings
//!   get         (here) shows them
//!   set         several at once, all or none ──▶ change
//!   process     --for: the switch of one command
//! ```

pub(crate) mod arguments;
pub(crate) mod catalogue;
mod process;
mod set;

use crate::{Context, change, exit};
use arguments::{Action, GetArguments, ThpArguments};
use catalogue::Named;
use hugeheap_os::Error;
use serde_json::{Value, json};
use std::fmt::Write;

const SCHEMA: &str = "hugeheap.thp/1";

pub(crate) fn thp(context: &Context, arguments: &ThpArguments, json: bool) -> u8 {
    match &arguments.action {
        Action::Get(get) => show(context, get, json || get.json),
        Action::Set(set) => match set.switch {
            Some(_) if json => {
                context
                    .out
                    .error("--json and --for: standard output belongs to the command; leave --json out");
                exit::USAGE
            }
            Some(switch) => process::start(context, set, switch),
            None => set::set(context, set, json || set.json),
        },
    }
}

/// Why there are no knobs, and the exit code.
fn no_knobs(error: Error) -> (String, u8) {
    let message = match error.code {
        libc::ENOENT => format!(
            "there are no transparent huge pages here: {} does not exist (a kernel without them, or a container that \
             hides /sys)",
            catalogue::DIRECTORY
        ),
        _ => format!("the knobs cannot be read: reading {}", change::refusal(catalogue::DIRECTORY, error)),
    };
    (message, change::exit_code(error))
}

fn show(context: &Context, arguments: &GetArguments, json: bool) -> u8 {
    let out = &context.out;
    let all = match catalogue::all(&context.facts.knobs()) {
        Ok(all) => all,
        Err(error) => {
            let (message, code) = no_knobs(error);
            out.error(&message);
            return code;
        }
    };
    let mut chosen = Vec::new();
    for name in &arguments.names {
        match catalogue::find(&all, name) {
            Ok(named) => chosen.push(named),
            Err(message) => {
                out.error(&message);
                return if message.starts_with("this kernel") { exit::UNSUPPORTED } else { exit::USAGE };
            }
        }
    }
    if let Some((named, error)) = chosen.iter().find_map(|named| Some((named, named.knob.clone().err()?))) {
        out.error(&format!("{} {}", named.name, change::refusal(&named.file, error)));
        return change::exit_code(error);
    }
    let is_whole = chosen.is_empty();
    if is_whole {
        chosen.extend(&all);
    }
    let text = match (json, is_whole) {
        (true, _) => crate::output::json(&document(&chosen)),
        (false, true) => table(&chosen),
        (false, false) => {
            let values = chosen.iter().filter_map(|named| named.knob.as_ref().ok());
            values.map(|knob| format!("{}\n", knob.value)).collect()
        }
    };
    out.data(&text);
    exit::OK
}

fn document(named: &[&Named]) -> Value {
    json!({"schema": SCHEMA, "knobs": named.iter().map(|named| named.json()).collect::<Vec<_>>()})
}

/// Name, value, meaning.
fn table(named: &[&Named]) -> String {
    let value = |named: &Named| named.knob.as_ref().map_or("?".to_owned(), |knob| knob.value.clone());
    let mode = named.iter().find(|named| named.name == "mode").map(|named| value(named));
    let names = named.iter().map(|named| named.name.len()).max().unwrap_or(0);
    let values = named.iter().map(|named| value(named).len()).max().unwrap_or(0);
    let mut text = String::new();
    for named in named {
        let meaning = match &named.knob {
            Ok(_) => named.meaning(mode.as_deref()),
            Err(error) => error.to_string(),
        };
        let _ = writeln!(text, "{:names$}  {:values$}  {meaning}", named.name, value(named));
    }
    text
}
