//! Figures of the machine and this process for INFO. Reads `/proc`; costs tens of microseconds.

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};

/// The prefix of the thread names of event loops.
const LOOP_NAME: &str = "loop-";

/// Facts that stay the same while the process runs.
#[derive(Clone, Debug)]
pub struct Host {
    /// Forty hex digits, different for every start.
    pub run_id: String,
    /// System, release and machine.
    pub os: String,
    pub executable: String,
    pub pid: u32,
    pub memory_bytes: u64,
}

impl Host {
    pub fn this() -> Host {
        let system = rustix::system::uname();
        let word = |s: &std::ffi::CStr| s.to_string_lossy().into_owned();
        let os = [word(system.sysname()), word(system.release()), word(system.machine())].join(" ");
        let exe = std::env::current_exe().unwrap_or_default();
        Host {
            run_id: random_id(),
            os,
            executable: exe.display().to_string(),
            pid: std::process::id(),
            memory_bytes: machine_bytes(),
        }
    }
}

/// Memory of the machine, in bytes.
pub fn machine_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit))
}

/// Forty random hex digits, from the random keys of fresh hashers. Not for secrets.
pub fn random_id() -> String {
    let mut id: String =
        (0..3).map(|_| format!("{:016x}", RandomState::new().build_hasher().finish())).collect();
    id.truncate(40);
    id
}

/// Memory of this process that is in RAM, in bytes. 0 if the system does not say.
pub fn resident_bytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

/// CPU time in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cpu {
    pub system_s: f64,
    pub user_s: f64,
    pub loops_system_s: f64,
    pub loops_user_s: f64,
}

/// CPU time of this process so far, and of its event loops (which INFO shows as the main thread's). Cost:
/// O(threads), a file read for each.
pub fn cpu() -> Cpu {
    let (user_s, system_s) = ticks("/proc/self/stat");
    // The split is known in ticks, the sum exactly.
    let exact = process_cpu_s();
    let user_share = if user_s + system_s > 0.0 { user_s / (user_s + system_s) } else { 0.5 };
    let mut cpu = Cpu { system_s: exact * (1.0 - user_share), user_s: exact * user_share, ..Cpu::default() };
    for thread in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let path = thread.path();
        // A thread that ends meanwhile reads as zero.
        if fs::read_to_string(path.join("comm")).is_ok_and(|name| name.starts_with(LOOP_NAME)) {
            let (user_s, system_s) = ticks(path.join("stat"));
            cpu.loops_user_s += user_s;
            cpu.loops_system_s += system_s;
        }
    }
    cpu
}

/// CPU time of this process so far, in seconds. Cost: a microsecond.
pub fn process_cpu_s() -> f64 {
    let exact = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    exact.tv_sec as f64 + exact.tv_nsec as f64 / 1e9
}

/// User and system seconds from a `stat` file. Source: proc_pid_stat(5), fields 14 and 15.
fn ticks(path: impl AsRef<std::path::Path>) -> (f64, f64) {
    let text = fs::read_to_string(path).unwrap_or_default();
    // The second field is the name in parentheses, which may hold any character.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let second = rustix::param::clock_ticks_per_second().max(1) as f64;
    let field = |at: usize| fields.get(at).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0) as f64 / second;
    (field(11), field(12))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_described() {
        let host = Host::this();
        assert!(host.os.starts_with("Linux "), "{}", host.os);
        assert!(host.memory_bytes > 1 << 26);
        assert_eq!(host.run_id.len(), 40);
        assert_ne!(host.run_id, random_id());
        assert!(host.run_id.bytes().all(|b| b.is_ascii_hexdigit()));
        assert!(resident_bytes() > 100_000);
    }

    #[test]
    fn cpu_time_grows_with_work() {
        let before = cpu();
        let work = (0..20_000_000u64).fold(0, |a, b| std::hint::black_box(a ^ b));
        std::hint::black_box(work);
        let after = cpu();
        assert!(after.user_s + after.system_s > before.user_s + before.system_s);
    }
}
