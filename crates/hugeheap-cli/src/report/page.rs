//! The page: one file with its style, script and pictures in it. Everything that comes from measurements is
//! escaped by the template.

use super::section::Section;
use crate::figure::{self, Content, Figure, Table, svg};
use crate::host;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;
use std::collections::HashMap;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Letters of a name, without the number that tells it from another.
const LONGEST: usize = 120;

/// Names for the places of a page and for files, each once.
#[derive(Default)]
pub(super) struct Names(HashMap<String, u32>);

impl Names {
    /// A name of letters, digits and hyphens made of `title`.
    pub(super) fn of(&mut self, title: &str) -> String {
        let plain: String = title
            .chars()
            .map(|it| if it.is_ascii_alphanumeric() { it.to_ascii_lowercase() } else { '-' })
            .collect();
        let words: Vec<&str> = plain.split('-').filter(|word| !word.is_empty()).collect();
        let mut name = if words.is_empty() { "figure".to_owned() } else { words.join("-") };
        // All of it is ASCII. A file has no longer name.
        name.truncate(LONGEST);
        let count = self.0.entry(name.clone()).or_insert(0);
        *count += 1;
        if *count == 1 { name } else { format!("{name}-{count}") }
    }
}

pub(super) fn page(title: &str, sections: &[Section], reproduce: &str) -> String {
    let mut names = Names::default();
    let places: Vec<String> =
        sections.iter().map(|section| format!("part-{}", names.of(&section.title))).collect();
    let style =
        format!("{STYLE}@media screen and (prefers-color-scheme: dark) {{\n{}}}\n", figure::restyled());
    // The same host for all is told once, at the top.
    let hosts: Vec<&Value> =
        sections.iter().map(|section| &section.host).filter(|host| host.is_object()).collect();
    let common = hosts.first().filter(|first| hosts.iter().all(|host| is_same(host, first)));
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="generator" content=(format!("hugeheap {}", env!("CARGO_PKG_VERSION")));
                title { (title) }
                style { (PreEscaped(style)) }
            }
            body {
                h1 { (title) }
                @if let Some(host) = common { p.faint { (about(host)) } (facts(host)) }
                @if sections.len() > 1 {
                    nav { ul {
                        @for (section, place) in sections.iter().zip(&places) {
                            li { a href=(format!("#{place}")) { (section.title) } }
                        }
                    } }
                }
                @for (part, place) in sections.iter().zip(&places) {
                    section { (section(part, place, common.is_none(), &mut names)) }
                }
                section {
                    h2 { "This page" }
                    pre { (reproduce) }
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

/// Whether measurements are of the same host in the same state. Free memory is never the same twice.
fn is_same(one: &Value, other: &Value) -> bool {
    ["kernel", "cpu", "cpus", "memory", "thp", "huge_page"].iter().all(|fact| one[*fact] == other[*fact])
}

/// One line about a host. A map knows only the part of it that matters to it.
fn about(host: &Value) -> String {
    if host["kernel"].is_string() {
        return host::line(host);
    }
    let mode = host["mode"].as_str().unwrap_or("unknown");
    format!("the host's mode of transparent huge pages is {mode}")
}

fn section(section: &Section, place: &str, with_host: bool, names: &mut Names) -> Markup {
    html! {
        h2 id=(place) { (section.title) }
        p.faint {
            @if let Some(started) = section.started { (date(started)) " · " }
            "from " (files(&section.files))
        }
        (commands(&section.reproduce))
        @if !section.remarks.is_empty() {
            ul.remarks { @for remark in &section.remarks { li { (remark) } } }
        }
        @for figure in &section.figures { (drawn(figure, names)) }
        @if with_host && section.host.is_object() {
            p.faint { (about(&section.host)) }
            (facts(&section.host))
        }
    }
}

/// Commands to repeat; many are folded away.
fn commands(commands: &[String]) -> Markup {
    let all = html! { @for command in commands { pre { (command) } } };
    if commands.len() <= 3 {
        return all;
    }
    html! { details { summary { (format!("The {} commands to repeat it", commands.len())) } (all) } }
}

/// Names of files; of many the first and their number.
fn files(files: &[String]) -> String {
    match files {
        [first, .., last] if files.len() > 6 => format!("{} files, {first} to {last}", files.len()),
        _ => files.join(", "),
    }
}

fn drawn(figure: &Figure, names: &mut Names) -> Markup {
    let Content::Table(it) = &figure.content else {
        let picture = svg::picture(figure).unwrap_or_default();
        return html! {
            figure id=(names.of(&figure.title)) {
                (PreEscaped(picture))
                figcaption {
                    span { (figure.note) }
                    button type="button" data-kind="svg" { "SVG" }
                    button type="button" data-kind="png" { "PNG" }
                }
            }
        };
    };
    html! {
        h3 { (figure.title) }
        @if !figure.note.is_empty() { p.faint { (figure.note) } }
        (table(it))
    }
}

fn table(table: &Table) -> Markup {
    html! {
        div.wide { table {
            thead { tr { @for cell in &table.head { th { (cell) } } } }
            tbody { @for row in &table.rows { tr {
                @for cell in row { td { (cell) } }
                // A row that ends early has its line below it all the same.
                @for _ in row.len()..table.head.len() { td {} }
            } } }
        } }
    }
}

/// All facts about a host, folded away.
fn facts(host: &Value) -> Markup {
    let mut rows = Vec::new();
    flat("", host, &mut rows);
    html! {
        details {
            summary { "All facts about the host" }
            table { tbody { @for (name, value) in &rows { tr { td { (name) } td { (value) } } } } }
        }
    }
}

/// Facts within facts as `thp.khugepaged.defrag`.
fn flat(prefix: &str, value: &Value, rows: &mut Vec<(String, String)>) {
    let below = |name: &str| if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| flat(&below(name), value, rows)),
        Value::Array(all) if all.iter().any(Value::is_object) => {
            all.iter().enumerate().for_each(|(place, value)| flat(&below(&place.to_string()), value, rows));
        }
        Value::Null => rows.push((prefix.to_owned(), "–".to_owned())),
        Value::String(text) => rows.push((prefix.to_owned(), text.clone())),
        other => rows.push((prefix.to_owned(), other.to_string())),
    }
}

/// Days since 1970 as a date of the Gregorian calendar, and the time of day, both in UTC.
fn date(seconds: u64) -> String {
    // Years begin in March, so that the leap day is the last of a year; 146,097 days are four hundred years.
    let days = (seconds / 86_400) as i64 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, year) = (if month < 10 { month + 3 } else { month - 9 }, year + era * 400);
    let year = if month <= 2 { year + 1 } else { year };
    let (hour, minute) = (seconds / 3_600 % 24, seconds / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::tests::samples;
    use serde_json::json;

    fn section() -> Section {
        Section {
            title: "A <b>part</b>".into(),
            files: vec!["a.json".into()],
            reproduce: vec!["hugeheap stat -- 'a & b'".into()],
            remarks: vec!["<script>".into()],
            figures: samples(),
            host: json!({"kernel": "6.1", "cpu": "x", "cpus": 2, "caches": [{"level": 1}]}),
            started: Some(1_700_000_000),
        }
    }

    #[test]
    fn the_page_needs_nothing_else() {
        let page = page("T", &[section(), section()], "hugeheap report");
        // The name of a language is no address to be read from; nothing else may look like one.
        let addresses = page.replace("http://www.w3.org/2000/svg", "");
        assert!(
            !addresses.contains("http:") && !addresses.contains("https:") && !addresses.contains("src=\"")
        );
        assert_eq!(page.matches("<svg").count(), 8);
        assert_eq!(page.matches("<button").count(), 16);
        assert!(page.contains("2023-11-14 22:13 UTC") && page.contains("caches.0.level"));
        assert!(page.contains("prefers-color-scheme: dark") && page.contains("@media print"));
    }

    /// What another host measured is no comparison; with one line for both it passed for one.
    #[test]
    fn a_host_is_told_once_for_all_or_with_each_measurement() {
        let told = |kernel: &str| {
            let mut other = section();
            other.host["kernel"] = kernel.into();
            let page = page("T", &[section(), other], "x");
            (page.matches("Linux 6.1,").count(), page.matches("Linux 6.2,").count())
        };
        assert_eq!((told("6.1"), told("6.2")), ((1, 0), (1, 1)));
    }

    #[test]
    fn nothing_that_was_measured_is_read_as_markup() {
        let page = page("<T>", &[section()], "x");
        assert!(
            !page.contains("<b>") && !page.contains("<script>\u{201d}") && page.contains("&lt;script&gt;")
        );
        assert_eq!(page.matches("<script").count(), 1);
    }

    #[test]
    fn places_have_names_of_their_own() {
        let mut names = Names::default();
        assert_eq!(
            (names.of("RSS over time"), names.of("RSS, over time"), names.of("±")),
            ("rss-over-time".to_owned(), "rss-over-time-2".to_owned(), "figure".to_owned())
        );
        assert_eq!(
            (date(0), date(951_782_400)),
            ("1970-01-01 00:00 UTC".to_owned(), "2000-02-29 00:00 UTC".to_owned())
        );
    }
}
