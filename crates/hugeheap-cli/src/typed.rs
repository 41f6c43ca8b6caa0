//! How the words of a command line become arguments: what is read as a value, and what a number that is none is told.
//!
//! ```text
//!   --interval -5     a value, and refused as a number of seconds      (not an option -5, for which there was a tip that led nowhere)
//!   ps -5             a value, and refused as a number of a process
//!   ps --jsn          an option that is not known, with the one that is like it
//! ```
//!
//! The definition in [`cli`](crate::cli) says what there is; nothing here knows a command.

use crate::cli::Cli;
use clap::builder::{StringValueParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, CommandFactory, FromArgMatches};
use core::ops::RangeInclusive;
use std::ffi::OsString;

/// Names of values that are numbers, with a unit or without. Nothing that can be meant by one begins with a
/// hyphen, so what follows such an option is its value whatever it looks like, and its own message says what it
/// should be: `-inf` was an option `-i`, and an option that follows one without its number was told of as one
/// that lacks something.
const NUMBERS: [&str; 11] =
    ["BYTES", "COUNT", "HZ", "MS", "N", "NODE", "PAGES", "PERCENT", "PID", "SECONDS", "SHARE"];

/// Reads a command line, with the program's name first.
///
/// # Errors
/// When it cannot be meant, or asks for help or the version.
pub(crate) fn parse(line: &[OsString]) -> Result<Cli, clap::Error> {
    let mut definition = with_hyphens(Cli::command());
    let mut matches = definition.try_get_matches_from_mut(line).map_err(without_dashes)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut definition))
}

/// An option that is not known is none because two hyphens come before it: `use '-- --fro'` made it the name of
/// a command, or of a process.
fn without_dashes(mut error: clap::Error) -> clap::Error {
    if error.kind() == ErrorKind::UnknownArgument {
        let tips = match error.remove(ContextKind::Suggested) {
            Some(ContextValue::StyledStrs(tips)) => tips,
            _ => Vec::new(),
        };
        let left: Vec<_> =
            tips.into_iter().filter(|tip| !tip.to_string().contains("as a value, use")).collect();
        if !left.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(left));
        }
    }
    error
}

/// The definition, in which a negative number is a value.
fn with_hyphens(command: Command) -> Command {
    command.mut_args(with_hyphen).mut_subcommands(with_hyphens)
}

fn with_hyphen(argument: Arg) -> Arg {
    let named = argument
        .get_value_names()
        .is_some_and(|names| names.iter().any(|name| NUMBERS.contains(&name.as_str())));
    match (named, argument.is_positional()) {
        (false, _) => argument,
        // Behind one of these options may stand, and a mistyped one is told of as that.
        (true, true) => argument.allow_negative_numbers(true),
        (true, false) => argument.allow_hyphen_values(true),
    }
}

/// A whole number. clap's own parsers say what Rust says of a text that is none: "invalid digit found in
/// string", "number too large to fit in target type", "0 is not in 2..=10000".
pub(crate) fn whole<T>(range: RangeInclusive<u64>) -> impl TypedValueParser<Value = T>
where
    T: TryFrom<u64> + Clone + Send + Sync + 'static,
{
    StringValueParser::new().try_map(move |text| {
        let number = text.parse::<u64>().ok().filter(|number| range.contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| match (range.start(), range.end()) {
            (0, &u64::MAX) => "not a whole number".to_owned(),
            (least, &u64::MAX) => format!("not a whole number of {least} or more"),
            (least, most) => format!("not a whole number between {least} and {most}"),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::builder::ValueParser;

    fn refused(words: &[&str]) -> String {
        let line: Vec<OsString> = ["hugeheap"].iter().chain(words).map(OsString::from).collect();
        parse(&line).expect_err("it cannot be meant").to_string()
    }

    /// All options and other arguments of all commands that take a number, with the words that lead to them.
    fn numbers(command: &Command, path: &[String], found: &mut Vec<(Vec<String>, String)>) {
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let names = argument.get_value_names().unwrap_or_default();
            if names.iter().any(|name| NUMBERS.contains(&name.as_str())) {
                let option = argument.get_long().map(|name| format!("--{name}"));
                found.push((path.to_vec(), option.unwrap_or_default()));
            }
        }
        for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
            numbers(inner, &[path, &[inner.get_name().to_owned()]].concat(), found);
        }
    }

    /// There was a tip that led nowhere, `to pass '-5' as a value, use '-- -5'`, or what Rust says of digits.
    #[test]
    fn a_number_that_is_none_is_told_what_it_should_be_for_every_argument_of_every_command() {
        let mut found = Vec::new();
        numbers(&Cli::command(), &[], &mut found);
        assert!(found.len() > 40, "{found:?}");
        let mut wrong = Vec::new();
        for (path, option) in &found {
            for value in [
                "-5",
                "-0.5",
                "-inf",
                "nan",
                "inf",
                "",
                "1e400",
                "99999999999999999999999",
                "five",
                " 5",
                "-NaN",
                "--json",
            ] {
                // An option that is known is one where a number may also be left out.
                if option.is_empty() && ["-inf", "-NaN", "--json"].contains(&value) {
                    continue;
                }
                let words: Vec<&str> = path
                    .iter()
                    .map(String::as_str)
                    .chain((!option.is_empty()).then_some(option.as_str()))
                    .chain([value])
                    .collect();
                let said = refused(&words);
                let first = said.lines().next().unwrap_or_default();
                assert!(
                    first.starts_with(&format!("error: invalid value '{value}' for '")),
                    "{words:?}: {said}"
                );
                let wanted = [": not ", ": unknown suffix; use K, M, G or T", ": too many bytes"];
                if !wanted.iter().any(|wanted| first.contains(wanted)) {
                    wrong.push(first.to_owned());
                }
                assert!(!said.contains("tip:"), "{words:?}: {said}");
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn a_mistyped_option_is_told_of_as_one() {
        assert!(refused(&["ps", "--jsn"]).contains("a similar argument exists: '--json'"));
        assert!(refused(&["top", "--interva", "5"]).contains("'--interval'"));
        for words in [
            &["record", "-o", "x", "--fro", "1"][..],
            &["ps", "--everything"],
            &["ps", "-inf"],
            &["run", "-y"],
        ] {
            let said = refused(words);
            assert!(
                said.contains("unexpected argument") && !said.contains("as a value"),
                "{words:?}: {said}"
            );
        }
    }

    #[test]
    fn whole_numbers_have_their_range() {
        let number = |text: &str, range| {
            let parser: ValueParser = whole::<u32>(range).into();
            let command = Command::new("x").arg(Arg::new("n").value_parser(parser));
            command
                .try_get_matches_from(["x", text])
                .map(|matches| matches.get_one::<u32>("n").copied())
                .map_err(|error| error.to_string())
        };
        assert_eq!(number("2", 2..=5), Ok(Some(2)));
        assert_eq!(number("5", 2..=5), Ok(Some(5)));
        for text in ["1", "6", "2.0"] {
            assert!(
                number(text, 2..=5).is_err_and(|said| said.contains("not a whole number between 2 and 5")),
                "{text}"
            );
        }
        assert!(
            number("0", 1..=u64::MAX).is_err_and(|said| said.contains("not a whole number of 1 or more"))
        );
        // More than the type holds.
        assert!(number("4294967296", 0..=u64::MAX).is_err_and(|said| said.contains("not a whole number\n")));
    }
}
