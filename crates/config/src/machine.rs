//! The memory that this process may use: the limit of its container, or the machine's memory.
//!
//! ```text
//! /proc/self/cgroup ─► the group ─► memory.max of it and of each group above ─┐
//! /proc/meminfo ─► MemTotal ──────────────────────────────────────────────────┴─► the least
//! ```
//!
//! The free bytes are the least of MemAvailable and of each group's limit less its use.
//!
//! - M1: a file that is missing or says something else limits nothing.
//!
//! Cost: some files of /sys and /proc. Sources: the kernel's documentation of cgroup v2, and of v1 for the
//! older `memory.limit_in_bytes`.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of memory that this process may use; None if that is not known.
pub fn memory_bytes() -> Option<u64> {
    memory_below(Path::new("/"))
}

/// Bytes of memory that this process could still take; None if that is not known. Cost: some file reads, tens of
/// microseconds.
pub fn free_bytes() -> Option<u64> {
    free_below(Path::new("/"))
}

fn free_below(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let free = groups.lines().filter_map(|line| free_of(root, line));
    free.chain(of_machine(root, "MemAvailable:")).min()
}

/// The least room of a group and of those above it.
fn free_of(root: &Path, line: &str) -> Option<u64> {
    let Group { base, group, names } = group_of(root, line)?;
    let above = group.ancestors().take_while(|at| at.starts_with(&base));
    let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let room = |at: &Path| {
        let (limit, used) = (number(at.join(names.limit))?, number(at.join(names.used))?);
        // Pages of files that were not used of late are given back when memory is needed.
        let stat = fs::read_to_string(at.join("memory.stat")).unwrap_or_default();
        let files = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.parse().ok());
        Some(limit.saturating_sub(used.saturating_sub(files.unwrap_or(0))))
    };
    above.filter_map(room).min()
}

/// The names of files that say a group's limit, and what it uses.
struct Names {
    limit: &'static str,
    used: &'static str,
}

/// The directory of a group, and of the root of its kind.
struct Group {
    base: PathBuf,
    group: PathBuf,
    names: Names,
}

/// The same for the system whose files are below `root`.
fn memory_below(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().filter_map(|line| limit_of(root, line));
    limits.chain(of_machine(root, "MemTotal:")).min()
}

/// The limit of a group and of those above it. `line`: as in /proc/self/cgroup, `number:controllers:path`.
fn limit_of(root: &Path, line: &str) -> Option<u64> {
    let Group { base, group, names } = group_of(root, line)?;
    let above = group.ancestors().take_while(|at| at.starts_with(&base));
    above.filter_map(|at| fs::read_to_string(at.join(names.limit)).ok()?.trim().parse().ok()).min()
}

fn group_of(root: &Path, line: &str) -> Option<Group> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let (base, names) = match controllers {
        "" => ("sys/fs/cgroup", Names { limit: "memory.max", used: "memory.current" }),
        names if names.split(',').any(|name| name == "memory") => {
            let names = Names { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes" };
            ("sys/fs/cgroup/memory", names)
        }
        _ => return None,
    };
    let base = root.join(base);
    // In a container the path may be that outside; its own group is then the root.
    let group: PathBuf = base.join(path.trim_start_matches('/'));
    let group = if group.is_dir() { group } else { base.clone() };
    Some(Group { base, group, names })
}

/// A figure of the machine.
fn of_machine(root: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_least_limit_of_all_groups_counts() {
        let machine = ("proc/meminfo", "MemTotal:       2048 kB\nMemFree: 1 kB\n");
        let cases: [(&[(&str, &str)], u64); 7] = [
            (&[], 2 << 20),
            (&[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "max\n")], 2 << 20),
            (&[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "1000\n")], 1000),
            (
                &[
                    ("proc/self/cgroup", "0::/a/b\n"),
                    ("sys/fs/cgroup/a/memory.max", "500\n"),
                    ("sys/fs/cgroup/a/b/memory.max", "max\n"),
                ],
                500,
            ),
            (&[("proc/self/cgroup", "0::/outside\n"), ("sys/fs/cgroup/memory.max", "700\n")], 700),
            (
                &[
                    ("proc/self/cgroup", "5:cpu:/x\n4:memory:/x\n0::/\n"),
                    ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "900\n"),
                ],
                900,
            ),
            (&[("proc/self/cgroup", "nonsense\n::\n0:"), ("sys/fs/cgroup/memory.max", "-1")], 2 << 20),
        ];
        for (files, bytes) in cases {
            let files: Vec<_> = files.iter().copied().chain([machine]).collect();
            assert_eq!(memory_below(system(&files).path()), Some(bytes), "{files:?}");
        }
        assert_eq!(memory_below(system(&[]).path()), None);
    }

    #[test]
    fn the_least_room_of_all_groups_is_free() {
        let machine = ("proc/meminfo", "MemTotal: 4096 kB\nMemFree: 1 kB\nMemAvailable:    2 kB\n");
        let group = ("proc/self/cgroup", "0::/a/b\n");
        let cases: [(&[(&str, &str)], u64); 4] = [
            (&[], 2048),
            (
                &[
                    group,
                    ("sys/fs/cgroup/a/b/x", ""),
                    ("sys/fs/cgroup/a/memory.max", "900\n"),
                    ("sys/fs/cgroup/a/memory.current", "400"),
                ],
                500,
            ),
            (
                &[
                    group,
                    ("sys/fs/cgroup/a/b/memory.max", "900"),
                    ("sys/fs/cgroup/a/b/memory.current", "800"),
                    ("sys/fs/cgroup/a/b/memory.stat", "anon 500\ninactive_file 300\nactive_file 1\n"),
                ],
                400,
            ),
            (
                &[
                    group,
                    ("sys/fs/cgroup/a/b/x", ""),
                    ("sys/fs/cgroup/a/memory.max", "max"),
                    ("sys/fs/cgroup/a/memory.current", "4"),
                ],
                2048,
            ),
        ];
        for (files, bytes) in cases {
            let files: Vec<_> = files.iter().copied().chain([machine]).collect();
            assert_eq!(free_below(system(&files).path()), Some(bytes), "{files:?}");
        }
    }

    #[test]
    fn this_machine_has_some_memory() {
        assert!(memory_bytes().is_some_and(|bytes| bytes > 1 << 20));
        assert!(free_bytes().is_some());
    }
}
