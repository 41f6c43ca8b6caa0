//! The command line that made a report, to be typed again.

use std::ffi::OsStr;

/// The command line of this process, quoted for a shell. The program by its name alone: where it lies is this
/// host's affair.
pub(crate) fn command() -> String {
    let mut words = std::env::args_os();
    words.next();
    std::iter::once("hugeheap".to_owned())
        .chain(words.map(|word| quoted(&word)))
        .collect::<Vec<_>>()
        .join(" ")
}

/// A word as a shell reads it.
pub(crate) fn quoted(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    // Refused is only a zero byte, which no argument can contain.
    shlex::try_quote(&text).map_or_else(|_| text.to_string(), |quoted| quoted.into_owned())
}

/// A command and its arguments as a shell reads them.
pub(crate) fn line<S: AsRef<OsStr>>(words: &[S]) -> String {
    words.iter().map(|word| quoted(word.as_ref())).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_take_them_apart() {
        assert_eq!(line(&["python3", "-c", "print(1)", "a b"]), "python3 -c 'print(1)' 'a b'");
    }
}
