//! `hugeheap man`: manual pages, one for each command, from the same text as `--help`.
//!
//! What stands after the options in the help becomes sections of its own: a paragraph that begins with
//! `Examples:` (or another title) is one with its lines as they are. The generator would fill them into one
//! paragraph.

use crate::cli::Cli;
use crate::descriptors::told;
use crate::file::{refused, replace};
use crate::{Context, exit};
use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use std::io;
use std::path::PathBuf;

/// Print a manual page, or write all of them.
///
/// Without a name, the page of hugeheap itself. Pages are for man(1); the text is that of --help.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap man | man -l -
  hugeheap man pool set | man -l -
  hugeheap man --out ~/.local/share/man/man1      hugeheap.1, hugeheap-run.1, …")]
pub(crate) struct ManArguments {
    /// The command the page is of.
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
    /// Write the pages of all commands to this directory.
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    out: Option<PathBuf>,
}

pub(crate) fn man(context: &Context, arguments: &ManArguments, json: bool) -> u8 {
    let out = &context.out;
    if json {
        out.error("a manual page is text for man(1), and not data: leave --json out");
        return exit::USAGE;
    }
    let all = pages();
    if let Some(directory) = &arguments.out {
        if let Err(error) = std::fs::create_dir_all(directory) {
            out.error(&format!("{}: {error}", directory.display(), error = told(&error)));
            return refused(&error);
        }
        for page in &all {
            let file = directory.join(format!("{}.1", page.name));
            if let Err(error) = replace(&file, &page.text) {
                out.error(&format!("{}: {error}", file.display(), error = told(&error)));
                return refused(&error);
            }
            out.detail(&format!("{} written", file.display()));
        }
        return exit::OK;
    }
    let words: Vec<&str> =
        std::iter::once("hugeheap").chain(arguments.command.iter().map(String::as_str)).collect();
    let Some(page) = all.iter().find(|page| page.name == words.join("-")) else {
        out.error(&format!(
            "there is no command '{}' (hugeheap --help lists them)",
            arguments.command.join(" ")
        ));
        return exit::USAGE;
    };
    out.data(&page.text);
    exit::OK
}

/// A page.
struct Page {
    /// `hugeheap-pool-set`.
    name: String,
    text: String,
}

/// All of them, each command before its own.
fn pages() -> Vec<Page> {
    // The generated command `help` would have a page for each command again.
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    collect(&command, "hugeheap", &mut pages);
    pages
}

fn collect(command: &Command, name: &str, pages: &mut Vec<Page>) {
    let mut text = Vec::new();
    // Writing to memory does not fail.
    let _ = render(command, name, &mut text);
    pages.push(Page { name: name.to_owned(), text: String::from_utf8_lossy(&text).into_owned() });
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        collect(command, &format!("{name}-{}", command.get_name()), pages);
    }
}

fn render(command: &Command, name: &str, text: &mut Vec<u8>) -> io::Result<()> {
    let page = Man::new(command.clone())
        .title(name.to_uppercase())
        .manual("hugeheap")
        .source(concat!("hugeheap ", env!("CARGO_PKG_VERSION")));
    page.render_title(text)?;
    page.render_name_section(text)?;
    page.render_synopsis_section(text)?;
    page.render_description_section(text)?;
    page.render_options_section(text)?;
    if command.has_subcommands() {
        page.render_subcommands_section(text)?;
    }
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let mut roff = Roff::new();
    for paragraph in after.split("\n\n") {
        match paragraph.split_once(":\n") {
            Some((title, lines)) => {
                roff.control("SH", [title.to_uppercase().as_str()]);
                roff.control("nf", []);
                roff.text([roman(lines)]);
                roff.control("fi", []);
            }
            // A title on the line of its text.
            None => match paragraph.split_once(": ") {
                Some((title, rest)) if !title.contains('\n') => {
                    roff.control("SH", [title.to_uppercase().as_str()]);
                    roff.text([roman(rest)]);
                }
                _ => {
                    roff.control("PP", []);
                    roff.text([roman(paragraph)]);
                }
            },
        }
    }
    let parent = name.rsplit_once('-').map(|(parent, _)| parent);
    let below = command.get_subcommands().map(|command| format!("{name}-{}(1)", command.get_name()));
    let related: Vec<String> = parent.map(|parent| format!("{parent}(1)")).into_iter().chain(below).collect();
    if !related.is_empty() {
        roff.control("SH", ["SEE ALSO"]);
        roff.text([roman(related.join(", "))]);
    }
    roff.to_writer(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_examples_as_they_are() {
        let pages = pages();
        let page = |name: &str| &pages.iter().find(|page| page.name == name).expect(name).text;
        for command in Cli::command().get_subcommands() {
            assert!(page(&format!("hugeheap-{}", command.get_name())).contains(".SH EXAMPLES\n.nf\n"));
        }
        assert!(page("hugeheap-pool-set").contains("hugeheap pool set 256"));
        assert!(page("hugeheap-pool-set").contains("hugeheap\\-pool(1)"));
        assert!(page("hugeheap").contains(".SH \"EXIT STATUS\""), "{}", page("hugeheap"));
        assert!(!pages.iter().any(|page| page.name.ends_with("-help")));
    }
}
