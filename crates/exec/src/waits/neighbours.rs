//! Who else had a processor that an event loop waited for: other programs, the server's own threads, the limit of its control
//! group.
//!
//! ```text
//! a turn of 0.3 ms ──suspect()──► stdx::sched: notes the switches ──the turn was a stall──► who() ──► Neighbour…
//! ```
//!
//! - N1: nothing is opened before a long turn is found to wait for a processor, or to have done so, and it is closed [`KEPT_NS`]
//!   after the last: whoever is left alone pays nothing. Of the first stall, and of a short one, names are often told in part.
//! - N2: switches are noted while a turn looks long, from [`SUSPECT_NS`] on: of [`SUSPECTS`] turns a second, and of those of further ones
//!   that are found to wait for a processor.
//!   `watch-neighbours always` notes all of them all the time.
//! - N3: what may not be watched is not told, and once said so in the log.
//!
//! Cost: that of [`stdx::sched`]; a file read each second for the control group.

use std::path::{Path, PathBuf};
use stdx::sched::{Absence, Task, Witness, is_kept_waiting};

/// A turn so long may become a stall.
pub(super) const SUSPECT_NS: u64 = 300_000;
const SUSPECTS: u32 = 200;
const KEPT_NS: u64 = 300_000_000_000;
/// Named of one stall.
const NAMED: usize = 4;
/// Less is not worth a name.
const SHORT_NS: u64 = 50_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Somebody had a processor that a loop waited for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Neighbour {
    pub name: String,
    /// 0: no process that can be seen from here.
    pub pid: u32,
    pub ns: u64,
}

impl Neighbour {
    /// In words: `tar (pid 4711), 3100 us`.
    pub fn sentence(&self) -> String {
        let us = self.ns / 1000;
        match self.pid {
            0 => format!("{}, {us} us", self.name),
            pid => format!("{} (pid {pid}), {us} us", self.name),
        }
    }
}

/// When somebody looks; of `watch-neighbours`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum When {
    Auto,
    Always,
    Never,
}

impl When {
    /// By the option's number.
    pub(super) fn of(number: i64) -> When {
        match number {
            0 => When::Auto,
            1 => When::Always,
            _ => When::Never,
        }
    }
}

enum Eyes {
    Closed,
    Open {
        witness: Witness,
        until_ns: u64,
    },
    /// Not allowed here.
    Blind,
}

/// What is known of the neighbours; the watchdog's.
pub(super) struct Neighbours {
    when: When,
    eyes: Eyes,
    /// By loop: its thread, while it is watched.
    watched: Vec<Option<u32>>,
    /// The second, and how many suspects there were in it.
    suspects: (u64, u32),
    group: Option<Group>,
}

impl Neighbours {
    pub(super) fn new(loops: usize) -> Neighbours {
        let group = Group::find(Path::new("/sys/fs/cgroup"), &read(Path::new("/proc/self/cgroup")));
        Neighbours {
            when: When::Auto,
            eyes: Eyes::Closed,
            watched: vec![None; loops],
            suspects: (0, 0),
            group,
        }
    }

    /// Once a round.
    pub(super) fn look(&mut self, now_ns: u64, when: When) {
        if let Some(group) = &mut self.group {
            group.look(now_ns);
        }
        if let Eyes::Open { witness, .. } = &mut self.eyes {
            witness.watch_all(when == When::Always);
        }
        match (&mut self.eyes, when) {
            (Eyes::Closed, When::Always) => self.eyes = open(now_ns),
            (Eyes::Open { until_ns, .. }, When::Always) => *until_ns = now_ns + KEPT_NS,
            (Eyes::Open { until_ns, .. }, _) if now_ns < *until_ns && when != When::Never => {}
            (Eyes::Open { .. }, _) => {
                self.eyes = Eyes::Closed;
                self.watched.fill(None);
            }
            // Asked for anew, it is tried anew.
            (Eyes::Blind, When::Never) => self.eyes = Eyes::Closed,
            (Eyes::Closed | Eyes::Blind, _) => {}
        }
        self.when = when;
    }

    /// A loop's turn may become a stall (N2).
    pub(super) fn suspect(&mut self, id: usize, thread: i32, now_ns: u64) {
        let second = now_ns / SECOND_NS;
        if self.suspects.0 != second {
            self.suspects = (second, 0);
        }
        let Ok(thread) = u32::try_from(thread) else { return };
        if self.watched[id].is_some() {
            return;
        }
        if matches!((&self.eyes, self.when), (Eyes::Closed, When::Auto)) && is_kept_waiting(thread) {
            self.eyes = open(now_ns);
        }
        let Eyes::Open { witness, .. } = &mut self.eyes else { return };
        if self.suspects.1 >= SUSPECTS && !is_kept_waiting(thread) {
            return;
        }
        self.suspects.1 += 1;
        witness.watch(thread);
        self.watched[id] = Some(thread);
    }

    /// It has not, or it was judged.
    pub(super) fn leave(&mut self, id: usize) {
        if let (Some(thread), Eyes::Open { witness, .. }) = (self.watched[id].take(), &mut self.eyes) {
            witness.leave(thread);
        }
    }

    /// The system took a loop's processor: who had it, longest first, as far as that is known. `lost_ns`: for how long altogether.
    pub(super) fn who(
        &mut self,
        thread: i32,
        (from_ns, to_ns): (u64, u64),
        lost_ns: u64,
        now_ns: u64,
    ) -> Vec<Neighbour> {
        let absence = match (&mut self.eyes, self.when) {
            (Eyes::Open { witness, until_ns }, _) => {
                *until_ns = now_ns + KEPT_NS;
                u32::try_from(thread).ok().and_then(|thread| witness.absence(thread, from_ns, to_ns))
            }
            (Eyes::Closed, When::Auto | When::Always) => {
                self.eyes = open(now_ns);
                None
            }
            (Eyes::Closed | Eyes::Blind, _) => None,
        };
        let throttled_ns = self.group.as_mut().map_or(0, |group| group.throttled(now_ns)).min(lost_ns);
        named(absence, throttled_ns, lost_ns)
    }
}

fn open(now_ns: u64) -> Eyes {
    match Witness::open() {
        Ok(witness) => Eyes::Open { witness, until_ns: now_ns + KEPT_NS },
        Err(e) => {
            log::info!(
                "which programs take the processors of event loops cannot be told: {e} (it takes CAP_PERFMON, or a \
                 kernel.perf_event_paranoid of 0)"
            );
            Eyes::Blind
        }
    }
}

/// Names for who was seen, or for the limit if nobody was.
fn named(absence: Option<Absence>, throttled_ns: u64, lost_ns: u64) -> Vec<Neighbour> {
    let absence = absence.unwrap_or_default();
    // One process is one neighbour, and so is each thread of this server.
    let mut found: Vec<Neighbour> = Vec::new();
    for (task, ns) in absence.ran.iter().filter(|(_, ns)| *ns >= SHORT_NS) {
        let (name, pid) = (name_of(*task), task.pid);
        match found.iter_mut().find(|one| one.pid == pid && one.name == name) {
            Some(one) => one.ns += ns,
            None => found.push(Neighbour { name, pid, ns: *ns }),
        }
    }
    // A processor that nobody had while somebody wanted it: that is what a limit looks like.
    if throttled_ns * 2 >= lost_ns.max(1) && absence.ran.first().is_none_or(|(_, ns)| ns * 2 < lost_ns) {
        let name = "the CPU limit of this server's control group".to_owned();
        found.insert(0, Neighbour { name, pid: 0, ns: throttled_ns });
    }
    found.sort_by_key(|one| std::cmp::Reverse(one.ns));
    found.truncate(NAMED);
    found
}

fn name_of(task: Task) -> String {
    if task.pid == 0 {
        return "a program outside this container".into();
    }
    let own = task.pid == std::process::id();
    let path = match own {
        true => format!("/proc/self/task/{}/comm", task.tid),
        false => format!("/proc/{}/comm", task.pid),
    };
    let name = read(Path::new(&path));
    match (name.trim_end(), own) {
        ("", _) => "a program that has ended".into(),
        (name, true) => format!("this server's thread {name}"),
        (name, false) => name.to_owned(),
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The control group this server runs in, which may have a limit.
struct Group {
    /// Its `cpu.stat`.
    path: PathBuf,
    /// When it was last read, and the time it had been stopped by then.
    last: (u64, u64),
}

impl Group {
    /// Finds it from what `/proc/self/cgroup` says: one line for each hierarchy, `number:controllers:path`.
    fn find(root: &Path, lines: &str) -> Option<Group> {
        let hierarchies = lines.lines().filter_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            let has_cpu = controllers.is_empty() || controllers.split(',').any(|name| name == "cpu");
            has_cpu.then(|| (root.join(controllers), path.trim_start_matches('/')))
        });
        // A container sees its own group as the root, or by the path it has outside.
        let mut files =
            hierarchies.flat_map(|(dir, path)| [dir.join(path).join("cpu.stat"), dir.join("cpu.stat")]);
        let path = files.find(|file| throttled_ns(&read(file)).is_some())?;
        let last = (0, throttled_ns(&read(&path))?);
        Some(Group { path, last })
    }

    fn look(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.last.0) >= SECOND_NS {
            self.throttled(now_ns);
        }
    }

    /// How long it was stopped since this was asked last.
    fn throttled(&mut self, now_ns: u64) -> u64 {
        let Some(total) = throttled_ns(&read(&self.path)) else { return 0 };
        let before = std::mem::replace(&mut self.last, (now_ns, total));
        total.saturating_sub(before.1)
    }
}

/// How long a control group was kept from running by its limit, from its `cpu.stat` (of either version).
fn throttled_ns(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| match line.split_once(' ')? {
        ("throttled_usec", us) => us.parse::<u64>().ok()?.checked_mul(1000),
        ("throttled_time", ns) => ns.parse().ok(),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn absence(ran: &[(u32, u32, u64)]) -> Option<Absence> {
        let ran = ran.iter().map(|(pid, tid, ns)| (Task { pid: *pid, tid: *tid }, *ns)).collect();
        Some(Absence { ran, ..Absence::default() })
    }

    #[test]
    fn threads_of_one_program_are_one_neighbour() {
        let own = std::process::id();
        let seen =
            absence(&[(0, 7, 900_000), (4_000_000, 1, 700_000), (4_000_000, 2, 500_000), (own, own, 60_000)]);
        let told: Vec<String> = named(seen, 0, 3_000_000).iter().map(Neighbour::sentence).collect();
        let gone = "a program that has ended (pid 4000000), 1200 us";
        assert_eq!(told[..2], [gone, "a program outside this container, 900 us"]);
        assert!(told[2].starts_with("this server's thread "), "{told:?}");
        assert!(named(absence(&[(9, 9, 10_000)]), 0, 3_000_000).is_empty());
    }

    #[test]
    fn a_limit_is_named_where_nobody_else_ran() {
        let limit = "the CPU limit of this server's control group";
        let [one] = &named(None, 50_000_000, 60_000_000)[..] else { panic!() };
        assert_eq!((one.name.as_str(), one.ns), (limit, 50_000_000));
        assert!(named(None, 10_000_000, 60_000_000).is_empty());
        let told = named(absence(&[(0, 7, 40_000_000)]), 50_000_000, 60_000_000);
        assert!(told.iter().all(|one| one.name != limit));
        assert!(named(None, 0, 0).is_empty());
    }

    #[test]
    fn the_control_group_is_found_in_either_version() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let find = |lines: &str| Group::find(root.path(), lines);
        assert!(find("0::/app\n").is_none());
        write("app/cpu.stat", "usage_usec 5\nnr_throttled 2\nthrottled_usec 31\n");
        let mut group = find("0::/app\n").unwrap();
        assert_eq!((group.last.1, group.throttled(9)), (31_000, 0));
        write("app/cpu.stat", "throttled_usec 34\n");
        assert_eq!(group.throttled(10), 3000);
        write("app/cpu.stat", "nonsense\nthrottled_usec x\n");
        assert_eq!(group.throttled(11), 0);
        // Seen from within, the group is the root, whatever its path outside.
        write("cpu/cpu.stat", "nr_periods 0\nthrottled_time 77\n");
        assert_eq!(find("4:memory:/m\n1:cpu:/docker/5\n0::/\n").unwrap().last.1, 77);
        assert!(find("").is_none() && find("a:b\n:::\n").is_none());
    }
}
