//! The pools of explicit huge pages: `/sys/kernel/mm/hugepages/hugepages-<size>kB/`, one directory per page size.

use super::read::{self, Root};
use crate::{Error, HugetlbPool, Result};
use std::os::unix::ffi::OsStrExt;

const DIR: &[u8] = b"/sys/kernel/mm/hugepages";
const NAME: &str = "read(hugepages-*kB)";

/// The pool of one page size in bytes. Does not allocate.
pub(super) fn of_size(root: &Root, page_size: usize) -> Result<Option<HugetlbPool>> {
    let number = |file: &[u8]| {
        let mut path = root.path(DIR)?;
        path.push(b"/hugepages-")?;
        path.push_decimal(page_size / 1024)?;
        path.push(b"kB/")?;
        path.push(file)?;
        read::number(&path, NAME)
    };
    let total = match number(b"nr_hugepages") {
        Err(error) if error.code == libc::ENOENT => return Ok(None),
        result => result?,
    };
    Ok(Some(HugetlbPool {
        page_size,
        total,
        free: number(b"free_hugepages")?,
        reserved: number(b"resv_hugepages")?,
        surplus: number(b"surplus_hugepages")?,
        overcommit: number(b"nr_overcommit_hugepages")?,
    }))
}

/// All pools, smallest page first; none on a kernel without them.
pub(super) fn all(root: &Root) -> Result<Vec<HugetlbPool>> {
    let dir = match read::list(root, DIR, NAME) {
        Err(error) if error.code == libc::ENOENT => return Ok(Vec::new()),
        result => result?,
    };
    let mut sizes: Vec<_> = dir.iter().filter_map(|name| page_size(name.as_bytes())).collect();
    sizes.sort_unstable();
    let pool = |size| of_size(root, size)?.ok_or(Error::new(NAME, libc::ENOENT));
    sizes.into_iter().map(pool).collect()
}

/// The page size in a directory's name.
fn page_size(name: &[u8]) -> Option<usize> {
    let kilobytes = name.strip_prefix(b"hugepages-")?.strip_suffix(b"kB")?;
    usize::try_from(read::digits(kilobytes, 10)?).ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::super::testing::FakeRoot;
    use super::*;

    fn add_pool(fake: &FakeRoot, size: &str, numbers: [u64; 5]) {
        let files = [
            "nr_hugepages",
            "free_hugepages",
            "resv_hugepages",
            "surplus_hugepages",
            "nr_overcommit_hugepages",
        ];
        for (file, number) in files.iter().zip(numbers) {
            fake.write(&format!("sys/kernel/mm/hugepages/hugepages-{size}/{file}"), &format!("{number}\n"));
        }
    }

    #[test]
    fn pools_are_sorted_by_size_not_by_name() {
        let fake = FakeRoot::new();
        add_pool(&fake, "1048576kB", [1, 1, 0, 0, 0]);
        add_pool(&fake, "2048kB", [10, 8, 3, 1, 4]);
        add_pool(&fake, "64kB", [0; 5]);
        fake.write("sys/kernel/mm/hugepages/other", "");
        let pools = all(&fake.root()).unwrap();
        let sizes: Vec<_> = pools.iter().map(|pool| pool.page_size).collect();
        assert_eq!(sizes, [64 << 10, 2 << 20, 1 << 30]);
        let expected =
            HugetlbPool { page_size: 2 << 20, total: 10, free: 8, reserved: 3, surplus: 1, overcommit: 4 };
        assert_eq!(pools[1], expected);
        assert_eq!(of_size(&fake.root(), 2 << 20), Ok(Some(expected)));
        assert_eq!(expected.available(), 8);
    }

    #[test]
    fn no_pool_is_no_error_and_half_a_pool_is() {
        let fake = FakeRoot::new();
        assert_eq!(all(&fake.root()), Ok(Vec::new()));
        assert_eq!(of_size(&fake.root(), 2 << 20), Ok(None));
        fake.write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "1\n");
        assert_eq!(of_size(&fake.root(), 2 << 20), Err(Error::new(NAME, libc::ENOENT)));
        fake.write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "-1\n");
        assert_eq!(all(&fake.root()), Err(read::malformed(NAME)));
    }

    #[test]
    fn names_that_are_no_pool() {
        for name in ["hugepages-", "hugepages-kB", "hugepages--1kB", "hugepages-2048MB", "x"] {
            assert_eq!(page_size(name.as_bytes()), None, "{name}");
        }
        assert_eq!(page_size(b"hugepages-18446744073709551615kB"), None);
    }
}
