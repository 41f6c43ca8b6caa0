//! Tests of the search for the memory cgroup, on the layouts that hosts and containers really have.

use super::super::testing::{FakeRoot, unprivileged};
use super::*;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const V1_MOUNT: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
    34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime shared:9 - cgroup cgroup rw,cpuset\n";

fn host(cgroup: &str, mounts: &str) -> FakeRoot {
    let fake = FakeRoot::new();
    fake.write("proc/self/cgroup", cgroup);
    fake.write("proc/self/mountinfo", mounts);
    fake
}

fn v2_group(fake: &FakeRoot, dir: &str, max: &str, high: &str, current: u64) {
    fake.write(&format!("{dir}/memory.max"), max);
    fake.write(&format!("{dir}/memory.high"), high);
    fake.write(&format!("{dir}/memory.current"), &format!("{current}\n"));
    fake.write(&format!("{dir}/memory.stat"), &format!("anon {}\nanon_thp 7\nfile 3\n", current / 2));
}

#[test]
fn v2_takes_the_least_limit_of_all_parents() {
    let fake = host(
        "0::/user.slice/app.scope/a:b\n",
        "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
    );
    fake.write("sys/fs/cgroup/cgroup.procs", "");
    v2_group(&fake, "sys/fs/cgroup/user.slice", "1048576000\n", "max\n", 900);
    v2_group(&fake, "sys/fs/cgroup/user.slice/app.scope", "max\n", "524288000\n", 800);
    v2_group(&fake, "sys/fs/cgroup/user.slice/app.scope/a:b", "2097152000\n", "max\n", 700);
    let expected = MemoryLimits {
        version: CgroupVersion::V2,
        max: Some(1_048_576_000),
        high: Some(524_288_000),
        charge: 700,
        anonymous: Some(350),
    };
    assert_eq!(limits(&fake.root()), Ok(expected));
}

#[test]
fn v2_charges_the_nearest_parent_that_has_the_controller() {
    let fake = host("0::/a/b\n", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 none rw\n");
    v2_group(&fake, "sys/fs/cgroup/a", "max\n", "max\n", 900);
    fake.write("sys/fs/cgroup/a/b/cgroup.procs", "");
    let found = limits(&fake.root()).unwrap();
    assert_eq!((found.max, found.high, found.charge), (None, None, 900));
}

#[test]
fn v2_root_group_has_no_files_and_is_missing() {
    let fake = host("0::/\n", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 none rw\n");
    fake.write("sys/fs/cgroup/cgroup.procs", "");
    assert_eq!(limits(&fake.root()), Err(Error::new(CHARGE, libc::ENOENT)));
}

#[test]
fn containers_with_their_own_namespace_look_like_a_root_with_limits() {
    let fake = host("0::/\n", "30 23 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    v2_group(&fake, "sys/fs/cgroup", "536870912\n", "max\n", 5);
    assert_eq!(limits(&fake.root()).unwrap().max, Some(512 * MIB));
}

#[test]
fn containers_in_the_hosts_namespace_strip_the_mount_root() {
    for (version, cgroup, line) in [
        (
            CgroupVersion::V1,
            "9:name=systemd:/docker/4f\n4:cpu,memory:/docker/4f/sub\n",
            "cgroup cgroup rw,cpu,memory",
        ),
        (CgroupVersion::V2, "0::/docker/4f/sub\n", "cgroup2 cgroup rw"),
    ] {
        let mounts = format!("40 31 0:32 /docker/4f /sys/fs/cgroup/memory ro master:15 - {line}\n");
        let fake = host(cgroup, &mounts);
        let dir = "sys/fs/cgroup/memory/sub";
        v2_group(&fake, dir, "max", "max", 11);
        fake.write(&format!("{dir}/memory.usage_in_bytes"), "11\n");
        let found = limits(&fake.root()).unwrap();
        assert_eq!((found.version, found.charge), (version, 11));
    }
}

#[test]
fn v1_knows_the_limits_above_the_mount() {
    let cgroup = "9:name=systemd:/\n4:memory:/x/y\n0::/\n";
    let mounts = format!(
        "{V1_MOUNT}35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
         41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    );
    let fake = host(cgroup, &mounts);
    let dir = "sys/fs/cgroup/memory/x/y";
    fake.write(&format!("{dir}/memory.usage_in_bytes"), "724168704\n");
    fake.write(&format!("{dir}/memory.limit_in_bytes"), "9223372036854771712\n");
    let none = MemoryLimits {
        version: CgroupVersion::V1,
        max: None,
        high: None,
        charge: 724_168_704,
        anonymous: None,
    };
    assert_eq!(limits(&fake.root()), Ok(none));
    // Without the statistics the parents are looked at.
    fake.write("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "4096000\n");
    assert_eq!(limits(&fake.root()).unwrap().max, Some(4_096_000));
    let stat = "rss 1\nhierarchical_memory_limit 1048576\nhierarchical_memsw_limit 5\ntotal_rss 2506752\n";
    fake.write(&format!("{dir}/memory.stat"), stat);
    let expected = MemoryLimits { max: Some(MIB), anonymous: Some(2_506_752), ..none };
    assert_eq!(limits(&fake.root()), Ok(expected));
}

#[test]
fn the_largest_page_counter_is_no_limit() {
    for page in [4 << 10, 16 << 10, 64 << 10] {
        assert!(!is_limit_v1(i64::MAX as u64 / page * page));
    }
    assert!(is_limit_v1(1 << 62));
}

#[test]
fn groups_outside_the_mount_are_missing_not_guessed() {
    for (group, mount_root) in
        [("/../other", "/"), ("/a", "/b"), ("/ab", "/a"), ("/", "/../.."), ("/a/../b", "/")]
    {
        let mounts = format!("30 23 0:26 {mount_root} /sys/fs/cgroup rw - cgroup2 cgroup rw\n");
        let fake = host(&format!("0::{group}\n"), &mounts);
        v2_group(&fake, "sys/fs/cgroup", "1", "1", 1);
        assert_eq!(limits(&fake.root()), Err(Error::new(MOUNTS, libc::ENOENT)), "{group} {mount_root}");
    }
}

#[test]
fn escapes_and_very_long_lines_of_other_mounts_do_no_harm() {
    let overlay = "x".repeat(3 * WINDOW);
    let mounts = format!(
        "50 1 0:50 / / rw - overlay overlay lowerdir={overlay} - cgroup2\n\
         30 23 0:26 / /mnt/my\\040groups\\134 rw - cgroup2 cgroup rw\n"
    );
    let fake = host("0::/a\n", &mounts);
    v2_group(&fake, "mnt/my groups\\/a", "77\n", "max\n", 5);
    assert_eq!(limits(&fake.root()).unwrap().max, Some(77));
    for damaged in ["\\", "\\04", "\\999", "\\777", "\\000"] {
        let mounts = format!("30 23 0:26 / /mnt{damaged} rw - cgroup2 cgroup rw\n");
        assert!(limits(&host("0::/a\n", &mounts).root()).is_err(), "{damaged}");
    }
}

#[test]
fn missing_and_damaged_files_are_errors() {
    let fake = FakeRoot::new();
    assert_eq!(limits(&fake.root()), Err(Error::new(GROUP, libc::ENOENT)));
    fake.write("proc/self/cgroup", "");
    assert_eq!(limits(&fake.root()), Err(Error::new(GROUP, libc::ENOENT)));
    fake.write("proc/self/cgroup", "garbage\n");
    assert_eq!(limits(&fake.root()), Err(read::malformed(GROUP)));
    fake.write("proc/self/cgroup", &format!("0::/{}\n", "x".repeat(5000)));
    assert_eq!(limits(&fake.root()).unwrap_err().code, libc::ENAMETOOLONG);
    fake.write("proc/self/cgroup", "0::/a\n");
    assert_eq!(limits(&fake.root()), Err(Error::new(MOUNTS, libc::ENOENT)));
    fake.write("proc/self/mountinfo", "30 23\n\n- - -\n30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw");
    v2_group(&fake, "sys/fs/cgroup/a", "lots\n", "max\n", 5);
    assert_eq!(limits(&fake.root()), Err(read::malformed(LIMIT)));
    v2_group(&fake, "sys/fs/cgroup/a", "max\n", "max\n", 5);
    fake.write("sys/fs/cgroup/a/memory.stat", "an");
    assert_eq!(limits(&fake.root()).unwrap().anonymous, None);
}

#[test]
fn unreadable_limits_are_an_error_not_no_limit() {
    use std::os::unix::fs::PermissionsExt;
    let fake = host("0::/a\n", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n");
    v2_group(&fake, "sys/fs/cgroup/a", "5\n", "max\n", 5);
    let file = fake.path().join("sys/fs/cgroup/a/memory.max");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o000)).unwrap();
    // The directory made for the test is closed to others; only the file shall be.
    std::fs::set_permissions(fake.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let denied = unprivileged(|| limits(&fake.root()));
    assert_eq!(denied, Err(Error::new(LIMIT, libc::EACCES)));
}

proptest! {
    #[test]
    fn below_is_what_joins_to_the_group(parts in proptest::collection::vec("[a-z.]{1,3}", 0..5), cut in 0_usize..6) {
        prop_assume!(!parts.iter().any(|part| part == ".."));
        let cut = cut.min(parts.len());
        let join = |parts: &[String]| parts.iter().map(|part| format!("/{part}")).collect::<String>();
        let slash = |path: String| if path.is_empty() { "/".into() } else { path };
        let (group, root) = (slash(join(&parts)), slash(join(&parts[..cut])));
        let expected = join(&parts[cut..]);
        prop_assert_eq!(below(group.as_bytes(), root.as_bytes()), Some(expected.as_bytes()));
    }

    #[test]
    fn no_line_makes_the_parser_panic(bytes: Vec<u8>, v1: bool) {
        let version = if v1 { CgroupVersion::V1 } else { CgroupVersion::V2 };
        let _ = mount_of(&Line { bytes: &bytes, cut: false }, version);
        let _ = push_unescaped(&mut PathBuffer::new(), &bytes);
    }
}

#[test]
fn another_process_has_a_group_of_its_own() {
    let fake = host("0::/one\n", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 none rw\n");
    fake.write("proc/77/cgroup", "0::/two\n");
    v2_group(&fake, "sys/fs/cgroup/one", "max\n", "max\n", 100);
    v2_group(&fake, "sys/fs/cgroup/two", "500\n", "max\n", 200);
    let found = limits_of(&fake.root(), b"77").unwrap();
    assert_eq!((found.version, found.max, found.charge), (CgroupVersion::V2, Some(500), 200));
    assert_eq!(limits(&fake.root()).unwrap().charge, 100);
    // Version 1, where the memory controller has a mount of its own.
    let fake = host("4:memory:/one\n", "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
    fake.write("proc/77/cgroup", "4:memory:/two\n");
    for (group, charge) in [("one", 100), ("two", 200)] {
        let directory = format!("sys/fs/cgroup/memory/{group}");
        fake.write(&format!("{directory}/memory.usage_in_bytes"), &format!("{charge}\n"));
        fake.write(&format!("{directory}/memory.limit_in_bytes"), "9223372036854771712\n");
    }
    let found = limits_of(&fake.root(), b"77").unwrap();
    assert_eq!((found.version, found.max, found.charge), (CgroupVersion::V1, None, 200));
    // It is gone.
    assert_eq!(limits_of(&fake.root(), b"78").unwrap_err().code, libc::ENOENT);
}

fn v1_group(fake: &FakeRoot, dir: &str, limit: u64, usage: u64, stat: &str) {
    fake.write(&format!("{dir}/memory.limit_in_bytes"), &format!("{limit}\n"));
    fake.write(&format!("{dir}/memory.usage_in_bytes"), &format!("{usage}\n"));
    fake.write(&format!("{dir}/memory.stat"), stat);
}

#[test]
fn v2_each_limit_stands_beside_the_charge_of_its_level() {
    let fake = host("0::/pod/app/sub\n", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 none rw\n");
    // The pod is nearly full with what the group beside has; the group itself has much room.
    v2_group(&fake, "sys/fs/cgroup/pod", "1000\n", "max\n", 950);
    fake.write("sys/fs/cgroup/pod/memory.stat", "anon 600\nfile 300\nshmem 250\n");
    v2_group(&fake, "sys/fs/cgroup/pod/app", "900\n", "800\n", 100);
    fake.write("sys/fs/cgroup/pod/app/sub/cgroup.procs", "");
    let levels = levels_of(&fake.root(), b"self").unwrap();
    assert_eq!(
        levels,
        [
            MemoryLevel { limit: 800, charge: 100, kept: Some(50) },
            MemoryLevel { limit: 1000, charge: 950, kept: Some(850) },
        ]
    );
    assert_eq!(levels.iter().map(MemoryLevel::room).min(), Some(50));
    assert_eq!(levels.iter().map(MemoryLevel::room_at_most).min(), Some(150));
    assert_eq!(room(&fake.root()), Ok(Some(150)));
}

#[test]
fn the_room_is_what_is_left_below_what_kills_and_not_below_what_slows_down() {
    let fake = host("0::/pod/app\n", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    v2_group(&fake, "sys/fs/cgroup/pod", "5000\n", "max\n", 4000);
    v2_group(&fake, "sys/fs/cgroup/pod/app", "max\n", "100\n", 800);
    assert_eq!(room(&fake.root()), Ok(Some(3000)), "half of what is charged can be dropped");
    v2_group(&fake, "sys/fs/cgroup/pod/app", "500\n", "max\n", 1400);
    assert_eq!(room(&fake.root()), Ok(Some(0)), "above its limit, for a moment");
    v2_group(&fake, "sys/fs/cgroup/pod", "max\n", "1\n", 4000);
    v2_group(&fake, "sys/fs/cgroup/pod/app", "max\n", "1\n", 800);
    assert_eq!(room(&fake.root()), Ok(None));
    assert!(room(&host("0::/gone\n", V1_MOUNT).root()).is_err());
}

#[test]
fn v1_each_limit_stands_beside_the_charge_of_its_level() {
    let mounts = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    let fake = host("4:memory:/pod/app\n", mounts);
    let (root, pod, app) =
        ("sys/fs/cgroup/memory", "sys/fs/cgroup/memory/pod", "sys/fs/cgroup/memory/pod/app");
    v1_group(&fake, root, i64::MAX as u64 / 4096 * 4096, 5000, "total_rss 5000\n");
    v1_group(&fake, pod, 1000, 950, "rss 1\ntotal_rss 600\ntotal_shmem 250\n");
    v1_group(&fake, app, 900, 100, "rss 1\nhierarchical_memory_limit 900\ntotal_rss 50\n");
    let own = MemoryLevel { limit: 900, charge: 100, kept: Some(50) };
    let above = MemoryLevel { limit: 1000, charge: 950, kept: Some(850) };
    assert_eq!(levels_of(&fake.root(), b"self"), Ok(vec![own, above]));
    // Without a hierarchy the parent's lesser limit is none of the group's.
    v1_group(&fake, pod, 700, 650, "total_rss 600\n");
    assert_eq!(levels_of(&fake.root(), b"self"), Ok(vec![own]));
    // In a container the level above cannot be seen, but its limit is known.
    let fake = host("4:memory:/pod/app\n", &mounts.replace("0:32 /", "0:32 /pod/app"));
    v1_group(&fake, root, 900, 100, "hierarchical_memory_limit 400\ntotal_rss 50\n");
    let hidden = MemoryLevel { limit: 400, ..own };
    assert_eq!(levels_of(&fake.root(), b"self"), Ok(vec![own, hidden]));
    assert_eq!(room(&fake.root()), Ok(Some(350)));
    assert_eq!(levels_of(&host("4:memory:/\n", mounts).root(), b"self"), Ok(Vec::new()));
}
