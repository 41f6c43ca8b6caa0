//! Allocators found on this machine, to be measured by preload in place of pymalloc.

use std::fs;
use std::path::{Path, PathBuf};

/// An allocator that may be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// Its library's file name before `.so`, best first.
    stems: &'static [&'static str],
    /// What makes it use huge pages, where it can: peers are measured at their best.
    pub(crate) environment: &'static [(&'static str, &'static str)],
    /// A Python expression for its version, `library` being the process itself.
    pub(crate) version: &'static str,
}

/// The peers that are looked for.
pub(crate) const PEERS: [Peer; 3] = [
    Peer {
        name: "mimalloc",
        stems: &["libmimalloc"],
        // The first is the name since version 2.1, the second the one before.
        environment: &[("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1"), ("MIMALLOC_LARGE_OS_PAGES", "1")],
        version: "'.'.join(str(library.mi_version()))",
    },
    Peer {
        name: "jemalloc",
        stems: &["libjemalloc"],
        environment: &[("MALLOC_CONF", "thp:always")],
        version: "library.mallctl(b'version', ctypes.byref(text), ctypes.byref(ctypes.c_size_t(8)), None, 0) \
                  or text.value.decode().split('-')[0]",
    },
    Peer {
        name: "tcmalloc",
        stems: &["libtcmalloc_minimal", "libtcmalloc"],
        environment: &[],
        version: "version(None, None, None).decode()",
    },
];

impl Peer {
    /// The library's file, if it is installed.
    pub(crate) fn find(&self) -> Option<PathBuf> {
        let directories = directories();
        self.stems.iter().find_map(|stem| newest(&directories, stem))
    }

    /// The program that prints its version when the library is preloaded, and fails when it is not.
    pub(crate) fn question(&self) -> String {
        format!(
            "import ctypes\nlibrary = ctypes.CDLL(None)\ntext = ctypes.c_char_p()\n\
             version = getattr(library, 'tc_version', None)\n\
             if version: version.restype = ctypes.c_char_p\nprint({})",
            self.version
        )
    }
}

/// Where shared libraries are installed.
fn directories() -> Vec<PathBuf> {
    let mut directories: Vec<PathBuf> = std::env::var_os("LD_LIBRARY_PATH")
        .map(|list| std::env::split_paths(&list).collect())
        .unwrap_or_default();
    for directory in ["/usr/local/lib", "/usr/lib64", "/usr/lib", "/lib64", "/lib"] {
        directories.push(directory.into());
        // Debian's directories: /usr/lib/x86_64-linux-gnu.
        directories.push(Path::new(directory).join(format!("{}-linux-gnu", std::env::consts::ARCH)));
    }
    directories.retain(|directory| directory.is_absolute() && directory.is_dir());
    directories
}

/// The library `stem` with the highest number after `.so`, in the first directory that has one.
fn newest(directories: &[PathBuf], stem: &str) -> Option<PathBuf> {
    directories.iter().find_map(|directory| {
        let mut found: Vec<(Vec<u32>, PathBuf)> = fs::read_dir(directory)
            .ok()?
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let numbers = name.strip_prefix(stem)?.strip_prefix(".so")?;
                let numbers = numbers.split('.').skip(1).map(str::parse).collect::<Result<_, _>>().ok()?;
                Some((numbers, entry.path()))
            })
            .collect();
        found.sort();
        found.pop().map(|(_, path)| path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_number_wins_and_other_flavours_are_left() {
        let directory = tempfile::tempdir().unwrap();
        for name in [
            "libmimalloc.so.2",
            "libmimalloc.so.2.10",
            "libmimalloc.so.2.9",
            "libmimalloc-secure.so.3",
            "libmimalloc.so.x",
            "libmimalloc.a",
        ] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        let found = newest(&[directory.path().to_path_buf()], "libmimalloc").unwrap();
        assert!(found.ends_with("libmimalloc.so.2.10"), "{found:?}");
        assert_eq!(newest(&[directory.path().to_path_buf()], "libjemalloc"), None);
    }
}
