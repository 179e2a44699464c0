//! Names the takers of a processor that an event loop lost: other programs, the server's own threads, the
//! limit of its control group, the host, or interrupts.
//!
//! ```text
//! turn of 0.3 ms ──suspect()──► machine::sched notes switches ──it was a stall──► who() ──► Neighbour…
//! ```
//!
//! - N1: the kernel's record is opened only when a long turn waits, or has waited, for a processor. It is
//!   closed [`KEPT_NS`] after the last such turn, so a server that runs undisturbed pays nothing. For the
//!   first stall, and for a short one, the names are often incomplete.
//! - N2: switches are noted while a turn lasts longer than [`SUSPECT_NS`]. Above [`SUSPECTS`] such turns a
//!   second, only those that wait for a processor are watched. `watch-neighbours always` notes all switches
//!   at all times.
//! - N3: where watching is not allowed, no names are given, and the log says so once.
//! - N4: this misses most of a short stall. After a turn waited for a processor, or lost one to threads not
//!   all known, all switches are noted for [`FULL_NS`]. Every further stall renews that; more than
//!   [`FULL_RATE`] switches a second end it.
//! - N5: a thread that was not switched off its processor, and yet did not run, lost it to the host or to
//!   interrupts. Where a host has never taken time, it was interrupts. Elsewhere the two are not told apart:
//!   the system counts them in steps of 10 ms only.
//!
//! Cost: that of [`machine::sched`], and a file read each second for the control group.

use machine::sched::{Absence, Task, Witness, is_kept_waiting};
use std::path::{Path, PathBuf};

/// The length from which a turn may become a stall.
pub(super) const SUSPECT_NS: u64 = 300_000;
/// Turns per second that are watched in any case (N2).
const SUSPECTS: u32 = 200;
/// The time for which the kernel's record stays open after the last stall (N1).
const KEPT_NS: u64 = 300_000_000_000;
/// The time for which all switches are noted, and the rate that ends it (N4): 1.5 % of a processor.
const FULL_NS: u64 = 10_000_000_000;
const FULL_RATE: u64 = 20_000;
/// The interval at which switches are counted.
const COUNTED_NS: u64 = 100_000_000;
/// Neighbours named per stall.
const NAMED: usize = 4;
/// The time from which a thread is named.
const SHORT_NS: u64 = 50_000;
/// The time lost on a loop's own processor from which the host or interrupts are named (N5).
const BELOW_NS: u64 = 200_000;
const SECOND_NS: u64 = 1_000_000_000;

/// A program or thread that had a processor a loop waited for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Neighbour {
    pub name: String,
    /// The process id; 0 if no process is visible from here.
    pub pid: u32,
    pub ns: u64,
}

impl Neighbour {
    /// The neighbour in words: `tar (pid 4711), 3100 us`.
    pub fn sentence(&self) -> String {
        let us = self.ns / 1000;
        match self.pid {
            0 => format!("{}, {us} us", self.name),
            pid => format!("{} (pid {pid}), {us} us", self.name),
        }
    }
}

/// The setting `watch-neighbours`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum When {
    Auto,
    Always,
    Never,
}

impl When {
    /// The setting for the option's number.
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
        full: Full,
    },
    /// Watching is not allowed here (N3).
    Blind,
}

/// Whether all switches are noted (N4).
#[derive(Default)]
struct Full {
    until_ns: u64,
    /// There were too many switches: it does not begin before this time.
    rests_ns: u64,
    /// The time of the last count, and the number of switches by then.
    counted: (u64, u64),
}

impl Full {
    /// Notes that the system took a loop's processor. `known`: all that ran instead is known.
    fn stalled(&mut self, known: bool, now_ns: u64) {
        let begins = !known && now_ns >= self.rests_ns;
        if begins && self.until_ns <= now_ns {
            self.counted = (0, 0);
        }
        if begins || now_ns < self.until_ns {
            self.until_ns = now_ns + FULL_NS;
        }
    }

    /// Whether all switches are to be noted. Called once a round; `noted` is the number of switches noted so
    /// far.
    fn is_on(&mut self, noted: u64, now_ns: u64) -> bool {
        let (at_ns, before) = self.counted;
        if at_ns == 0 {
            self.counted = (now_ns, noted);
        } else if now_ns - at_ns >= COUNTED_NS {
            self.counted = (now_ns, noted);
            let most = FULL_RATE * (now_ns - at_ns) / SECOND_NS;
            if now_ns < self.until_ns && noted.saturating_sub(before) > most {
                (self.until_ns, self.rests_ns) = (0, now_ns + FULL_NS);
            }
        }
        now_ns < self.until_ns
    }
}

/// The watchdog's view of the neighbours.
pub(super) struct Neighbours {
    when: When,
    eyes: Eyes,
    /// Each loop's thread, while it is watched.
    watched: Vec<Option<u32>>,
    /// The current second, and the suspects in it.
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

    /// Opens and closes the kernel's record as the setting and the last stalls ask (N1, N4). Called once a
    /// round.
    pub(super) fn look(&mut self, now_ns: u64, when: When) {
        if let Some(group) = &mut self.group {
            group.look(now_ns);
        }
        if let Eyes::Open { witness, full, .. } = &mut self.eyes
            && witness.watch_all(full.is_on(witness.noted(), now_ns) || when == When::Always)
        {
            self.watched.fill(None);
        }
        match (&mut self.eyes, when) {
            (Eyes::Closed, When::Always) => self.eyes = open(now_ns),
            (Eyes::Open { until_ns, .. }, When::Always) => *until_ns = now_ns + KEPT_NS,
            (Eyes::Open { until_ns, .. }, _) if now_ns < *until_ns && when != When::Never => {}
            (Eyes::Open { .. }, _) => {
                self.eyes = Eyes::Closed;
                self.watched.fill(None);
            }
            // `no` lets a later `auto` or `always` try again.
            (Eyes::Blind, When::Never) => self.eyes = Eyes::Closed,
            (Eyes::Closed | Eyes::Blind, _) => {}
        }
        self.when = when;
    }

    /// Watches a loop whose turn may become a stall (N2).
    pub(super) fn suspect(&mut self, id: usize, thread: i32, now_ns: u64) {
        let second = now_ns / SECOND_NS;
        if self.suspects.0 != second {
            self.suspects = (second, 0);
        }
        let Ok(thread) = u32::try_from(thread) else { return };
        if self.watched[id].is_some() || self.when == When::Never || matches!(self.eyes, Eyes::Blind) {
            return;
        }
        let kept = is_kept_waiting(thread);
        if kept && matches!((&self.eyes, self.when), (Eyes::Closed, When::Auto)) {
            self.eyes = open(now_ns);
        }
        let Eyes::Open { witness, full, .. } = &mut self.eyes else { return };
        if self.suspects.1 >= SUSPECTS && !kept {
            return;
        }
        self.suspects.1 += 1;
        witness.watch(thread);
        self.watched[id] = Some(thread);
        if kept {
            full.stalled(false, now_ns);
        }
    }

    /// Ends the watch of a loop: its turn did not become a stall, or the stall was judged.
    pub(super) fn leave(&mut self, id: usize) {
        if let (Some(thread), Eyes::Open { witness, .. }) = (self.watched[id].take(), &mut self.eyes) {
            witness.leave(thread);
        }
    }

    /// Names what had a loop's processor during a stall, longest first, as far as that is known. `lost_ns` is
    /// the time for which the loop did not run.
    pub(super) fn who(
        &mut self,
        thread: i32,
        (from_ns, to_ns): (u64, u64),
        lost_ns: u64,
        now_ns: u64,
    ) -> Vec<Neighbour> {
        let absence = match (&mut self.eyes, self.when) {
            (Eyes::Open { witness, .. }, _) => {
                u32::try_from(thread).ok().and_then(|thread| witness.absence(thread, from_ns, to_ns))
            }
            (Eyes::Closed, When::Auto | When::Always) => {
                self.eyes = open(now_ns);
                None
            }
            (Eyes::Closed | Eyes::Blind, _) => None,
        };
        if let Eyes::Open { until_ns, full, .. } = &mut self.eyes {
            *until_ns = now_ns + KEPT_NS;
            let seen_ns = absence.as_ref().map_or(0, |absence| absence.seen_ns);
            full.stalled(seen_ns + SHORT_NS >= to_ns.saturating_sub(from_ns), now_ns);
        }
        let throttled_ns = self.group.as_mut().map_or(0, |group| group.throttled(now_ns)).min(lost_ns);
        named(absence, throttled_ns, (lost_ns, to_ns.saturating_sub(from_ns)))
    }
}

fn open(now_ns: u64) -> Eyes {
    match Witness::open() {
        Ok(witness) => Eyes::Open { witness, until_ns: now_ns + KEPT_NS, full: Full::default() },
        Err(e) => {
            log::info!(
                "the programs that take processors from event loops cannot be named: {e} (this needs CAP_PERFMON, \
                 or kernel.perf_event_paranoid of 0 or less)"
            );
            Eyes::Blind
        }
    }
}

/// Names the threads that were seen, the limit of the control group, and the host or interrupts. The loop did
/// not run for `lost_ns` of `turn_ns`.
fn named(absence: Option<Absence>, throttled_ns: u64, (lost_ns, turn_ns): (u64, u64)) -> Vec<Neighbour> {
    let absence = absence.unwrap_or_default();
    // The host or interrupts (N5), if the whole turn was seen.
    let off_ns = absence.preempted_ns + absence.blocked_ns;
    let below_ns = match absence.seen_ns + SHORT_NS >= turn_ns {
        true => lost_ns.saturating_sub(off_ns),
        false => 0,
    };
    // One process is one neighbour, and so is each thread of this server.
    let mut found: Vec<Neighbour> = Vec::new();
    for (task, ns) in absence.ran.iter().filter(|(_, ns)| *ns >= SHORT_NS) {
        let (name, pid) = (name_of(*task), task.pid);
        match found.iter_mut().find(|one| one.pid == pid && one.name == name) {
            Some(one) => one.ns += ns,
            None => found.push(Neighbour { name, pid, ns: *ns }),
        }
    }
    // The loop could not run, and no other thread had its processor for long: the limit stopped it.
    if throttled_ns * 2 >= lost_ns.max(1) && absence.ran.first().is_none_or(|(_, ns)| ns * 2 < lost_ns) {
        let name = "the CPU limit of this server's control group".to_owned();
        found.insert(0, Neighbour { name, pid: 0, ns: throttled_ns });
    }
    if below_ns >= BELOW_NS {
        let takes = stolen(&read(Path::new("/proc/stat"))) > 0;
        let name = if takes { "the host of this virtual machine or interrupts" } else { "interrupts" };
        found.push(Neighbour { name: name.to_owned(), pid: 0, ns: below_ns });
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

/// The control group of this server, which may have a CPU limit.
struct Group {
    /// The group's `cpu.stat`.
    path: PathBuf,
    /// The time of the last reading, and for how long the group had been stopped by then.
    last: (u64, u64),
}

impl Group {
    /// Finds the group from the lines of `/proc/self/cgroup`, one per hierarchy: `number:controllers:path`.
    fn find(root: &Path, lines: &str) -> Option<Group> {
        let hierarchies = lines.lines().filter_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            let has_cpu = controllers.is_empty() || controllers.split(',').any(|name| name == "cpu");
            has_cpu.then(|| (root.join(controllers), path.trim_start_matches('/')))
        });
        // A container sees its own group as the root, or under the path it has outside.
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

    /// How long the group was stopped since the last reading.
    fn throttled(&mut self, now_ns: u64) -> u64 {
        let Some(total) = throttled_ns(&read(&self.path)) else { return 0 };
        let before = std::mem::replace(&mut self.last, (now_ns, total));
        total.saturating_sub(before.1)
    }
}

/// Ticks for which a host kept this machine's processors from running, ever: the eighth figure of
/// `/proc/stat`.
fn stolen(stat: &str) -> u64 {
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu "));
    all.and_then(|figures| figures.split_ascii_whitespace().nth(7)?.parse().ok()).unwrap_or(0)
}

/// How long the limit of a control group stopped it, from its `cpu.stat` (of either version).
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
    fn all_is_noted_after_a_stall_of_which_too_little_was_seen() {
        let mut full = Full::default();
        let (mut now, mut noted) = (SECOND_NS, 0);
        let mut lasts = |full: &mut Full, now: &mut u64, rate: u64, at_most: u64| {
            let began = *now;
            while full.is_on(noted, *now) && *now - began < at_most {
                *now += SECOND_NS / 1000;
                noted += rate / 1000;
            }
            *now - began
        };
        full.stalled(true, now);
        assert_eq!(lasts(&mut full, &mut now, 5000, u64::MAX), 0);
        full.stalled(false, now);
        assert_eq!(lasts(&mut full, &mut now, 20_000, u64::MAX), FULL_NS);
        // While it is on, stalls that are fully known renew it, too.
        full.stalled(false, now);
        assert_eq!(lasts(&mut full, &mut now, 0, FULL_NS / 2), FULL_NS / 2);
        full.stalled(true, now);
        assert_eq!(lasts(&mut full, &mut now, 0, u64::MAX), FULL_NS);
        // Too many switches end it, and for a while it does not begin again.
        full.stalled(false, now);
        assert_eq!(lasts(&mut full, &mut now, 30_000, u64::MAX), COUNTED_NS);
        full.stalled(false, now);
        assert_eq!(lasts(&mut full, &mut now, 0, u64::MAX), 0);
        now += FULL_NS;
        full.stalled(false, now);
        assert_eq!(lasts(&mut full, &mut now, 0, u64::MAX), FULL_NS);
    }

    #[test]
    fn threads_of_one_program_are_one_neighbour() {
        let own = std::process::id();
        let seen =
            absence(&[(0, 7, 900_000), (4_000_000, 1, 700_000), (4_000_000, 2, 500_000), (own, own, 60_000)]);
        let told: Vec<String> =
            named(seen, 0, (3_000_000, 3_100_000)).iter().map(Neighbour::sentence).collect();
        let gone = "a program that has ended (pid 4000000), 1200 us";
        assert_eq!(told[..2], [gone, "a program outside this container, 900 us"]);
        assert!(told[2].starts_with("this server's thread "), "{told:?}");
        assert!(named(absence(&[(9, 9, 10_000)]), 0, (3_000_000, 3_100_000)).is_empty());
    }

    /// A turn of 31 ms in which the loop ran for one, and was off its processor for 22 us only.
    #[test]
    fn what_nobody_here_had_was_taken_from_below() {
        let seen = |preempted_ns, blocked_ns, seen_ns| {
            Some(Absence {
                seen_ns,
                preempted_ns,
                blocked_ns,
                ran: vec![(Task { pid: 9, tid: 9 }, 22_000)],
                idle_ns: 0,
            })
        };
        let told = |absence| named(absence, 0, (30_693_000, 31_574_000));
        let [one] = &told(seen(22_000, 0, 31_574_000))[..] else { panic!() };
        assert!(one.name.ends_with("interrupts"), "{one:?}");
        assert_eq!((one.pid, one.ns), (0, 30_671_000));
        // The loop was off its processor, or not all was seen.
        assert!(told(seen(22_000, 30_600_000, 31_574_000)).is_empty());
        assert!(told(seen(22_000, 0, 20_000_000)).is_empty() && told(None).is_empty());
        assert_eq!(
            (stolen("cpu  1 2 3 4 5 6 7 89 0 0\ncpu0 1 1"), stolen("cpu  1 2"), stolen("")),
            (89, 0, 0)
        );
    }

    #[test]
    fn a_limit_is_named_where_nobody_else_ran() {
        let limit = "the CPU limit of this server's control group";
        let [one] = &named(None, 50_000_000, (60_000_000, 60_000_000))[..] else { panic!() };
        assert_eq!((one.name.as_str(), one.ns), (limit, 50_000_000));
        assert!(named(None, 10_000_000, (60_000_000, 60_000_000)).is_empty());
        let told = named(absence(&[(0, 7, 40_000_000)]), 50_000_000, (60_000_000, 60_000_000));
        assert!(told.iter().all(|one| one.name != limit));
        assert!(named(None, 0, (0, 0)).is_empty());
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
        // Seen from within a container, the group is the root, whatever its path outside.
        write("cpu/cpu.stat", "nr_periods 0\nthrottled_time 77\n");
        assert_eq!(find("4:memory:/m\n1:cpu:/docker/5\n0::/\n").unwrap().last.1, 77);
        assert!(find("").is_none() && find("a:b\n:::\n").is_none());
    }
}
