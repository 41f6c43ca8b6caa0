//! Ruby on allocators: which there are, one run of the program on one of them, and what each makes of requests
//! for heap pages.

use crate::bench::peers::PEERS;
use crate::bench::process;
use crate::bench::sample;
use crate::descriptors::told;
use crate::file;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const DOCUMENT: &str = include_str!("document.rb");
const PROBE: &str = include_str!("probe.rb");
/// Blocks of a probe: more than fit what an allocator has at hand.
pub(super) const PROBED: u32 = 500;
/// CRuby's alignment of heap pages before version 3.1's large ones, and of the reference.
pub(super) const ALIGN: u32 = 16_384;
/// What is requested: the reference's size after its change, and before.
pub(crate) const REQUESTS: [u32; 2] = [16_384, 16_384 - 40];

/// An allocator: its name, and the library that is preloaded; none for the C library's own.
#[derive(Clone, Debug)]
pub(crate) struct Allocator {
    pub(crate) name: String,
    pub(crate) library: Option<PathBuf>,
}

/// What can be installed where an allocator is missing: packages of Debian and Ubuntu.
const PACKAGES: [(&str, &str); 3] =
    [("jemalloc", "libjemalloc2"), ("mimalloc", "libmimalloc2.0"), ("tcmalloc", "libtcmalloc-minimal4")];

/// The allocators found here, the C library's first; and a line for each that was not.
pub(crate) fn allocators() -> (Vec<Allocator>, Vec<String>) {
    let mut found = vec![Allocator { name: "glibc".to_owned(), library: None }];
    let mut missing = Vec::new();
    for (name, package) in PACKAGES {
        match PEERS.iter().find(|peer| peer.name == name).and_then(|peer| peer.find()) {
            Some(library) => found.push(Allocator { name: name.to_owned(), library: Some(library) }),
            None => missing.push(format!("{name} was not found: apt install {package}")),
        }
    }
    (found, missing)
}

/// What the program says about itself.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Said {
    pub(crate) version: String,
    pub(crate) rdoc: String,
    pub(crate) heap_page: Option<u64>,
    /// Whether the process had transparent huge pages; CRuby switches them off.
    pub(crate) thp_enabled: Option<bool>,
    pub(crate) pages: Option<u64>,
}

/// A run of the program.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) wall: f64,
    /// The most it ever had, as the kernel keeps it. Bytes.
    pub(crate) maximum: u64,
    /// Seconds since the start, and RSS.
    pub(crate) samples: Vec<(f64, u64)>,
    pub(crate) said: Said,
}

/// What an allocator makes of a request. Bytes.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Probe {
    pub(crate) size: u64,
    pub(crate) usable: u64,
    /// From one block to the next.
    pub(crate) distance: u64,
}

/// A Ruby and its programs in files.
pub(crate) struct Ruby {
    pub(crate) path: PathBuf,
    document: tempfile::NamedTempFile,
    probe: tempfile::NamedTempFile,
}

impl Ruby {
    /// # Errors
    /// One line that says what to install.
    pub(crate) fn find(named: Option<&Path>) -> Result<Self, String> {
        let path = named.map_or_else(|| PathBuf::from("ruby"), Path::to_path_buf);
        let tried = Command::new(&path)
            .args(["-rrdoc", "-rjson", "-rfiddle", "-e", "print RUBY_ENGINE"])
            .output()
            .map_err(|error| {
                format!("{}: {error}; install Ruby: apt install ruby", path.display(), error = told(&error))
            })?;
        if !tried.status.success() {
            let said = String::from_utf8_lossy(&tried.stderr);
            let line = said.lines().next().unwrap_or("it failed").to_owned();
            return Err(format!("{} has no RDoc: {line}; apt install ruby", path.display()));
        }
        let file = |text: &str| {
            let mut file = file::new_in(&std::env::temp_dir())?;
            file.write_all(text.as_bytes())?;
            Ok(file)
        };
        let refused = |error: std::io::Error| format!("no temporary file: {error}", error = told(&error));
        Ok(Self { path, document: file(DOCUMENT).map_err(refused)?, probe: file(PROBE).map_err(refused)? })
    }

    fn command(&self, allocator: &Allocator) -> Command {
        let mut command = Command::new(&self.path);
        match &allocator.library {
            Some(library) => command.env("LD_PRELOAD", library),
            None => command.env_remove("LD_PRELOAD"),
        };
        // Its own settings would not be the program's.
        command.env_remove("RUBYOPT").env_remove("MALLOC_CONF").env_remove("MALLOC_ARENA_MAX");
        command
    }

    /// Runs the program once.
    ///
    /// # Errors
    /// One line that says how it failed.
    pub(crate) fn run(&self, allocator: &Allocator, part: &str) -> Result<Run, String> {
        let mut command = self.command(allocator);
        command.arg(self.document.path()).arg(part);
        let (measured, samples) =
            process::watched(&mut command, None, |pid, ended| sample::watch(pid, None, ended))?;
        let zero = samples.first().map_or(0.0, |sample| sample.at);
        Ok(Run {
            wall: measured.wall,
            maximum: samples.iter().map(|sample| sample.highest).max().unwrap_or(0),
            samples: samples.iter().map(|sample| (sample.at - zero, sample.rss)).collect(),
            said: measured.told()?,
        })
    }

    /// Asks an allocator what it makes of each of [`REQUESTS`].
    ///
    /// # Errors
    /// One line that says how it failed.
    pub(crate) fn probe(&self, allocator: &Allocator) -> Result<Vec<Probe>, String> {
        let mut command = self.command(allocator);
        command.arg(self.probe.path()).args([PROBED, ALIGN].map(|number| number.to_string()));
        command.args(REQUESTS.map(|size| size.to_string()));
        process::measure(&mut command, None)?.told()
    }
}
