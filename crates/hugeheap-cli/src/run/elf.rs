//! What the header of an ELF file says about who loads it: class, machine, dynamic loader.
//!
//! Only the header and the program headers are read, with the few bytes they point to: the file may be large.

use object::elf::{FileHeader32, FileHeader64, PT_DYNAMIC};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadCache, ReadRef};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How an ELF file is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Elf {
    pub(crate) machine: Machine,
    /// The dynamic loader it names (`PT_INTERP`). `None`: static, or a shared library.
    pub(crate) loader: Option<PathBuf>,
    /// Whether it has a dynamic section: shared libraries and static-pie programs do.
    pub(crate) dynamic: bool,
}

/// What a shared library must have in common with the program it is loaded into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) bits: u8,
    pub(crate) big_endian: bool,
    /// `e_machine`.
    pub(crate) number: u16,
}

impl Machine {
    /// A name people know.
    pub(crate) fn name(self) -> String {
        use object::elf::{EM_386, EM_AARCH64, EM_ARM, EM_LOONGARCH, EM_PPC64, EM_RISCV, EM_S390, EM_X86_64};
        let name = match (self.number, self.bits) {
            (EM_X86_64, 64) => "x86-64",
            (EM_X86_64, _) => "x32",
            (EM_386, _) => "32-bit x86",
            (EM_AARCH64, _) => "arm64",
            (EM_ARM, _) => "32-bit arm",
            (EM_RISCV, 64) => "riscv64",
            (EM_PPC64, _) => "ppc64",
            (EM_S390, 64) => "s390x",
            (EM_LOONGARCH, _) => "loongarch",
            (number, bits) => return format!("{bits}-bit machine number {number}"),
        };
        name.to_owned()
    }
}

/// Which C library a dynamic loader belongs to, told from its file name as every distribution has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Libc {
    Gnu,
    Musl,
    Other,
}

/// The C library behind the loader `path`.
pub(crate) fn libc_of(path: &Path) -> Libc {
    let name = path.file_name().map_or(&b""[..], OsStr::as_bytes);
    if name.starts_with(b"ld-musl") {
        Libc::Musl
    } else if name.starts_with(b"ld-linux") || name.starts_with(b"ld64.so") || name == b"ld.so.1" {
        Libc::Gnu
    } else {
        Libc::Other
    }
}

/// Reads the headers of the file `path`; `None` when it is not an ELF file.
pub(crate) fn read(path: &Path) -> io::Result<Option<Elf>> {
    let cache = ReadCache::new(File::open(path)?);
    let elf = match FileKind::parse(&cache) {
        Ok(FileKind::Elf64) => headers::<FileHeader64<Endianness>, _>(&cache, 64),
        Ok(FileKind::Elf32) => headers::<FileHeader32<Endianness>, _>(&cache, 32),
        _ => return Ok(None),
    };
    elf.map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}

fn headers<'data, H, R>(data: R, bits: u8) -> object::Result<Elf>
where
    H: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let header = H::parse(data)?;
    let endian = header.endian()?;
    let machine = Machine { bits, big_endian: header.is_big_endian(), number: header.e_machine(endian) };
    let mut elf = Elf { machine, loader: None, dynamic: false };
    for segment in header.program_headers(endian, data)? {
        elf.dynamic |= segment.p_type(endian) == PT_DYNAMIC;
        if let Some(name) = segment.interpreter(endian, data)? {
            elf.loader = Some(PathBuf::from(OsStr::from_bytes(name)));
        }
    }
    Ok(elf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_program_is_understood() {
        let elf = read(&std::env::current_exe().unwrap()).unwrap().unwrap();
        assert_eq!(u32::from(elf.machine.bits), usize::BITS);
        assert!(elf.dynamic);
        if cfg!(target_env = "gnu") {
            assert_eq!(libc_of(&elf.loader.unwrap()), Libc::Gnu);
        }
    }

    #[test]
    fn other_files_are_not_elf() {
        assert_eq!(read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))).unwrap(), None);
    }

    #[test]
    fn a_truncated_file_is_an_error_not_a_panic() {
        let directory = tempfile::tempdir().unwrap();
        let whole = std::fs::read("/proc/self/exe").unwrap();
        for length in [0, 4, 20, 63, 64, 80, 200] {
            let path = directory.path().join("cut");
            std::fs::write(&path, &whole[..length]).unwrap();
            // Whatever the answer, it is one.
            let _ = read(&path);
        }
    }

    #[test]
    fn loaders_tell_the_c_library() {
        assert_eq!(libc_of(Path::new("/lib64/ld-linux-x86-64.so.2")), Libc::Gnu);
        assert_eq!(libc_of(Path::new("/nix/store/x/lib/ld-linux-aarch64.so.1")), Libc::Gnu);
        assert_eq!(libc_of(Path::new("/lib/ld-musl-x86_64.so.1")), Libc::Musl);
        assert_eq!(libc_of(Path::new("/system/bin/linker64")), Libc::Other);
    }
}
