//! Refreshes without a screen: text, or JSON on a line each.

use super::arguments::TopArguments;
use super::look::Look;
use super::sampler::Sampler;
use super::state::State;
use crate::columns::{Align, columns};
use crate::descriptors::told;
use crate::output::Output;
use crate::ps;
use crate::{Context, exit};
use core::time::Duration;
use serde_json::{Value, json};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

const SCHEMA: &str = "hugeheap.top/1";

pub(crate) fn run(
    context: &Context,
    arguments: &TopArguments,
    mut sampler: Sampler,
    mut state: State,
    look: Look,
    json: bool,
) -> u8 {
    let out = &context.out;
    let most = arguments.lines.unwrap_or(usize::MAX);
    let mut left = arguments.batch;
    while left != Some(0) {
        let begin = Instant::now();
        if let Err(error) = sampler.cheap() {
            out.error(&format!("there is no list of processes: {error}", error = told(&error)));
            return exit::UNSUPPORTED;
        }
        sampler.deep();
        state.refresh(sampler.sample(true));
        sampler.show(state.rows.iter().take(most).map(|row| row.id).collect());
        let text =
            if json { crate::output::json_line(&data(&state, most)) } else { look.text(text(&state, most)) };
        if !out.data(&text) {
            // The reader has enough.
            return exit::OK;
        }
        left = left.map(|left| left - 1);
        if left != Some(0) {
            wait(out, state.interval.saturating_sub(begin.elapsed()));
        }
    }
    exit::OK
}

fn wait(out: &Output, time: Duration) {
    out.detail(&format!("next in {:.1} s", time.as_secs_f64()));
    std::thread::sleep(time);
}

/// Seconds since 1970.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn text(state: &State, most: usize) -> String {
    let Some(sample) = &state.sample else { return String::new() };
    let day = now().as_secs() % 86_400;
    let mut text = format!("{:02}:{:02}:{:02} UTC", day / 3600, day / 60 % 60, day % 60);
    let write = |count| state.units.write(count);
    for word in sample.host.words(write).into_iter().chain(super::draw::notes(state)) {
        text.push_str(", ");
        text.push_str(&word);
    }
    text.push('\n');
    let mut rows = vec![ps::HEADS.map(str::to_owned).to_vec()];
    rows.extend(state.rows.iter().take(most).map(|row| ps::cells(row, write)));
    let aligns: Vec<Align> = (0..ps::HEADS.len())
        .map(|column| if column < ps::NUMBERS { Align::Right } else { Align::Left })
        .collect();
    text.push_str(&columns(&aligns, &rows));
    text.push('\n');
    text
}

fn data(state: &State, most: usize) -> Value {
    let sample = state.sample.as_ref();
    json!({
        "schema": SCHEMA,
        "time": now().as_secs_f64(),
        "host": sample.map(|sample| sample.host.json()),
        "processes_in_all": sample.map(|sample| sample.rows.len()),
        "processes": state.rows.iter().take(most).map(ps::process).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::state::tests::{state, three};
    use super::*;

    #[test]
    fn a_refresh_is_a_line_for_the_host_and_the_list() {
        let text = text(&state(three()), 2);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains(" UTC, no THP"), "{text}");
        assert!(lines[1].contains("COVERAGE"), "{text}");
        assert_eq!((lines.len(), lines[4]), (5, ""), "{text}");
    }

    #[test]
    fn data_is_one_line() {
        let value = data(&state(three()), 1);
        assert_eq!((&value["schema"], &value["processes_in_all"]), (&json!(SCHEMA), &json!(3)));
        assert_eq!(value["processes"].as_array().unwrap().len(), 1);
        assert!(!value.to_string().contains('\n'));
    }
}
