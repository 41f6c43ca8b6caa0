//! What can be typed after `hugeheap export`.

use clap::{ArgGroup, Args, ValueEnum};
use std::path::PathBuf;

/// Give metrics to Prometheus: the host, cgroups, chosen processes, and the heaps of processes on hugeheap.
///
/// Heaps are found by themselves and read without stopping their processes. What there was no time or no permission for
/// is counted in hugeheap_scrape_skipped.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("way").required(true).args(["listen", "textfile", "once"])))]
#[command(after_help = "\
Examples:
  hugeheap export --once                                   look at it
  hugeheap export --listen 127.0.0.1:9837                  http://127.0.0.1:9837/metrics
  hugeheap export --listen :9837 --process 'gunicorn*'     memory of these processes, too
  hugeheap export --textfile /var/lib/node_exporter/textfile --every 15
  hugeheap export --once --process cgroup:/system.slice/app.service

Processes of other users need CAP_SYS_PTRACE. What is stranded in them needs CAP_SYS_ADMIN.")]
pub(crate) struct ExportArguments {
    /// Serve HTTP at this address until ended: HOST:PORT, or :PORT for all addresses.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(crate) listen: Option<String>,
    /// Write DIR/hugeheap.prom, for node_exporter's textfile collector. The file is whole at any time.
    #[arg(long, value_name = "DIR")]
    pub(crate) textfile: Option<PathBuf>,
    /// Print the metrics.
    #[arg(long)]
    pub(crate) once: bool,
    /// Memory of these processes, too: a number, a name (pid:N, name:NAME), or the path of a cgroup and what is
    /// below it (cgroup:/PATH). A name may end in *.
    #[arg(long = "process", value_name = "WHICH", value_parser = Choice::parse)]
    pub(crate) processes: Vec<Choice>,
    /// Only cgroups at this path and below. Default: all that have processes.
    #[arg(long = "cgroup", value_name = "PATH", value_parser = cgroup)]
    pub(crate) cgroups: Vec<String>,
    /// Seconds for one look at everything.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = crate::cli::seconds)]
    pub(crate) budget: f64,
    /// Write the file again and again, this many seconds apart, until ended.
    #[arg(long, value_name = "SECONDS", value_parser = crate::cli::seconds, conflicts_with_all = ["listen", "once"])]
    pub(crate) every: Option<f64>,
    /// What --once prints. HTTP gives what the client asks for.
    #[arg(long, value_enum, default_value = "prometheus", value_name = "FORMAT", conflicts_with_all = ["listen", "textfile"])]
    pub(crate) format: Format,
}

/// How metrics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Prometheus's text format, version 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    Openmetrics,
}

/// Which processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Id(u32),
    Name(String),
    /// Of names that begin so.
    Prefix(String),
    Cgroup(String),
}

impl Choice {
    fn parse(text: &str) -> Result<Self, String> {
        let name = |name: &str| match name.strip_suffix('*') {
            _ if name.is_empty() => Err("name a process".to_owned()),
            Some(prefix) => Ok(Self::Prefix(prefix.to_owned())),
            None => Ok(Self::Name(name.to_owned())),
        };
        if let Some(number) = text.strip_prefix("pid:") {
            return crate::process::id(number).map(Self::Id);
        }
        if let Some(rest) = text.strip_prefix("name:") {
            return name(rest);
        }
        if let Some(path) = text.strip_prefix("cgroup:") {
            return cgroup(path).map(Self::Cgroup);
        }
        match text.bytes().all(|byte| byte.is_ascii_digit()) {
            true if !text.is_empty() => crate::process::id(text).map(Self::Id),
            _ if text.starts_with('/') => cgroup(text).map(Self::Cgroup),
            _ => name(text),
        }
    }

    /// As it was given.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Id(id) => id.to_string(),
            Self::Name(name) => name.clone(),
            Self::Prefix(prefix) => format!("{prefix}*"),
            Self::Cgroup(path) => format!("cgroup:{path}"),
        }
    }

    /// Whether a process is meant. The kernel cuts names to 15 bytes, and so they are compared.
    pub(crate) fn takes(&self, id: u32, name: &str, group: Option<&str>) -> bool {
        match self {
            Self::Id(chosen) => *chosen == id,
            Self::Name(chosen) => cut(chosen) == name.as_bytes(),
            Self::Prefix(prefix) => name.as_bytes().starts_with(cut(prefix)),
            Self::Cgroup(path) => group.is_some_and(|group| is_below(group, path)),
        }
    }
}

/// Longest name of a process in the kernel, in bytes.
const NAME: usize = 15;

fn cut(name: &str) -> &[u8] {
    &name.as_bytes()[..name.len().min(NAME)]
}

/// Whether a cgroup is `path` or lies below it.
pub(crate) fn is_below(group: &str, path: &str) -> bool {
    group
        .strip_prefix(path.trim_end_matches('/'))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn cgroup(text: &str) -> Result<String, String> {
    if text.starts_with('/') {
        Ok(text.to_owned())
    } else {
        Err("the path of a cgroup begins with / (see /proc/PID/cgroup)".to_owned())
    }
}

fn address(text: &str) -> Result<String, String> {
    let whole = if text.starts_with(':') { format!("[::]{text}") } else { text.to_owned() };
    let port = whole.rsplit_once(':').and_then(|(host, port)| (!host.is_empty()).then_some(port));
    match port.map(str::parse::<u16>) {
        Some(Ok(_)) => Ok(whole),
        _ => Err("not an address such as 127.0.0.1:9837 or :9837".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_chosen_by_number_name_and_cgroup() {
        let takes = |text: &str| Choice::parse(text).unwrap().takes(12, "gunicorn", Some("/app/web"));
        for text in [
            "12",
            "pid:12",
            "gunicorn",
            "name:gunicorn",
            "guni*",
            "*",
            "/app",
            "cgroup:/app/web",
            "/app/web/",
            "/",
        ] {
            assert!(takes(text), "{text}");
        }
        for text in ["13", "pid:1", "name:12", "gunicor", "unicorn*", "/ap", "/app/web/x"] {
            assert!(!takes(text), "{text}");
        }
        for text in ["", "pid:", "pid:x", "name:", "cgroup:app", "pid:99999999999"] {
            assert!(Choice::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn long_names_are_those_the_kernel_has_cut() {
        let choice = Choice::parse("a-very-long-name-indeed").unwrap();
        assert!(choice.takes(1, "a-very-long-nam", None));
    }

    #[test]
    fn addresses_have_a_port() {
        assert_eq!(address(":9837").as_deref(), Ok("[::]:9837"));
        assert_eq!(address("localhost:1").as_deref(), Ok("localhost:1"));
        for text in ["9837", "localhost", "localhost:", "localhost:99999", ""] {
            assert!(address(text).is_err(), "{text}");
        }
    }
}
