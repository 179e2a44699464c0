//! Finds the process that listens on a TCP port, as far as this user may know.
//!
//! ```text
//! /proc/net/tcp, tcp6: port ──▶ inode, uid     /proc/<pid>/fd/*: socket:[inode] ──▶ pid ──▶ /proc/<pid>/comm
//! ```
//!
//! Cost: a look at every open file of every process; only for an error message.

use std::fmt;
use std::fs;

/// The process behind a listening socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    Process {
        pid: u32,
        name: String,
    },
    /// The process is another user's, whose files cannot be read.
    User {
        uid: u32,
    },
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Process { pid, name } => write!(f, "{name} (process {pid})"),
            Owner::User { uid: 0 } => write!(f, "a process of root"),
            Owner::User { uid } => write!(f, "a process of user id {uid}"),
        }
    }
}

/// The process that listens on `port`. `None`: there is none, or the system does not tell.
pub fn of_port(port: u16) -> Option<Owner> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let sockets = tables.iter().filter_map(|path| fs::read_to_string(path).ok());
    let listeners: Vec<Listener> = sockets.flat_map(|text| listeners(&text, port)).collect();
    let process = listeners.iter().find_map(|listener| process_with(listener.inode));
    process.or_else(|| listeners.first().map(|listener| Owner::User { uid: listener.uid }))
}

#[derive(Debug, PartialEq)]
struct Listener {
    inode: u64,
    uid: u32,
}

/// The sockets in a table of `/proc/net` that listen on `port`.
///
/// A row is `sl local_address:port remote:port state tx:rx tr:when retrnsmt uid timeout inode ...`. Its
/// values are hexadecimal except for the last three; state 0A is listening. Source: proc_net_tcp.txt of the
/// Linux kernel.
fn listeners(table: &str, port: u16) -> Vec<Listener> {
    let row = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let local = columns.get(1)?.rsplit(':').next()?;
        let here = u16::from_str_radix(local, 16).ok()? == port && *columns.get(3)? == "0A";
        here.then_some(Listener { uid: columns.get(7)?.parse().ok()?, inode: columns.get(9)?.parse().ok()? })
    };
    table.lines().skip(1).filter_map(row).collect()
}

fn process_with(inode: u64) -> Option<Owner> {
    let link = format!("socket:[{inode}]");
    let pids =
        fs::read_dir("/proc").ok()?.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let holds = |pid: &u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|to| to.as_os_str() == link.as_str())
    };
    let pid = pids.into_iter().find(holds)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(Owner::Process { pid, name: name.trim().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_rows_of_the_port_are_found() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:18EB 00000000:0000 0A 00000000:00000000 00:00000000 00000000   117        0 4242 1 0 100 0 0 10 0\n\
            1: 0100007F:18EB 0100007F:9999 01 00000000:00000000 00:00000000 00000000   117        0 4243 1 0 100 0 0 10 0\n\
            2: 0100007F:18EC 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4244 1 0 100 0 0 10 0\n\
            nonsense\n";
        assert_eq!(listeners(table, 6379), [Listener { inode: 4242, uid: 117 }]);
        assert_eq!(listeners(table, 1), []);
    }

    #[test]
    fn this_process_is_found_behind_its_own_socket() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let Some(Owner::Process { pid, .. }) = of_port(port) else { panic!("no owner") };
        assert_eq!(pid, std::process::id());
        drop(socket);
        assert_eq!(of_port(port), None);
    }

    #[test]
    fn owners_are_named_in_words() {
        assert_eq!(
            Owner::Process { pid: 7, name: "redis-server".into() }.to_string(),
            "redis-server (process 7)"
        );
        assert_eq!(Owner::User { uid: 0 }.to_string(), "a process of root");
    }
}
