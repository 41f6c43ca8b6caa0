//! `hugeheap completions`: what a shell needs to complete the command line.

use crate::cli::Cli;
use crate::{Context, exit};
use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Print the completions of a shell.
///
/// A script for the shell to read: commands, options and their values. It fits this version of hugeheap and
/// needs nothing else.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  source <(hugeheap completions bash)          in this shell
  hugeheap completions bash > ~/.local/share/bash-completion/completions/hugeheap
  hugeheap completions zsh > ~/.zfunc/_hugeheap
  hugeheap completions fish > ~/.config/fish/completions/hugeheap.fish")]
pub(crate) struct CompletionsArguments {
    /// The shell.
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn completions(context: &Context, arguments: &CompletionsArguments, json: bool) -> u8 {
    if json {
        context.out.error("completions are a script for a shell, and not data: leave --json out");
        return exit::USAGE;
    }
    context.out.data(&script(arguments.shell));
    exit::OK
}

fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "hugeheap", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn every_shell_knows_every_command() {
        for shell in Shell::value_variants() {
            let script = script(*shell);
            for command in Cli::command().get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
        }
    }
}
