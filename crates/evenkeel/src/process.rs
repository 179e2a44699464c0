//! The server as a process: its limit of open files, its pid file, its user, and its service manager.

use config::Config;
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;

/// Files the server needs besides clients: listeners, event queues, logs, and some spare ones.
const OWN_FILES: u64 = 32;

/// Raises the limit of open files for `wanted` clients as far as the system allows. Returns how many clients
/// there is room for.
pub fn allow_clients(wanted: u64) -> u64 {
    let needed = wanted.saturating_add(OWN_FILES);
    let now = getrlimit(Resource::Nofile);
    let current = now.current.unwrap_or(u64::MAX);
    if current >= needed {
        return wanted;
    }
    let allowed = needed.min(now.maximum.unwrap_or(u64::MAX));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(allowed), maximum: now.maximum }).is_ok();
    let files = if raised { allowed.max(current) } else { current };
    files.saturating_sub(OWN_FILES).clamp(1, wanted)
}

/// Enlarges the system's table of this process's files for that many clients. The table grows by doubling.
/// The thread that opens a file then waits until every processor has been through the scheduler. That can
/// take 15 ms, in which a loop serves no client. Cost: one such wait, and 8 bytes per client. Beyond the
/// limit of open files it does nothing.
pub fn make_room_for(clients: u64) {
    let last = clients.saturating_add(OWN_FILES) - 1;
    let Ok(last) = i32::try_from(last) else { return };
    if let Ok(any) = eventfd(0, EventfdFlags::CLOEXEC) {
        // The file is closed at once; the table keeps its size.
        let _ = rustix::io::fcntl_dupfd_cloexec(&any, last);
    }
}

/// Whether the process runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A file with the process id; it exists as long as this value.
pub struct PidFile(PathBuf);

impl PidFile {
    /// Writes `pidfile`, if one is configured. Errors: the file cannot be written.
    pub fn write(config: &Config) -> io::Result<Option<PidFile>> {
        if config.live.pidfile.is_empty() {
            return Ok(None);
        }
        let path = PathBuf::from(config.live.pidfile.string());
        fs::write(&path, format!("{}\n", std::process::id()))?;
        Ok(Some(PidFile(path)))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // The file may have been removed already.
        let _ = fs::remove_file(&self.0);
    }
}

/// Tells a service manager the state of the server, if one listens (`NOTIFY_SOCKET`).
///
/// Source: sd_notify(3).
pub fn notify_manager(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|to| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &to));
    if let Err(e) = sent {
        log::warn!("cannot tell the service manager '{}': {e}", state.trim());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Sources;

    #[test]
    fn there_is_room_for_a_few_clients() {
        assert_eq!(allow_clients(10), 10);
        let most = allow_clients(u64::from(u32::MAX));
        assert!((10..=u64::from(u32::MAX)).contains(&most));
    }

    /// The table is large before a crowd of clients arrives, so that none of them waits for its doubling.
    #[test]
    fn room_is_made_before_it_is_needed() {
        let clients = allow_clients(3000);
        make_room_for(clients);
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap().trim();
        assert!(size.parse::<u64>().unwrap() >= clients, "{size} places for {clients} clients");
    }

    #[test]
    fn the_pid_file_lasts_as_long_as_its_value() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid");
        let text = format!("pidfile {}", path.display());
        let sources = Sources { stdin: true, ..Sources::default() };
        let file = PidFile::write(&Config::load(&sources, &mut text.as_bytes()).unwrap()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        drop(file);
        assert!(!path.exists());
        assert!(PidFile::write(&Config::default()).unwrap().is_none());
    }
}
