//! The way in which a full copy of the primary is loaded (`repl-diskless-load`).
//!
//! ```text
//! connection ─┬─► second keyspace ─► take-over            swapdb, and auto where memory allows
//!             ├─► emptied tables                          flush-before-load, and auto elsewhere
//!             └─► a file without a name ─► emptied tables  disabled, and on-empty-db if there are data
//! ```
//!
//! - BE1: `auto` looks at the memory that the primary says it uses, before anything is emptied or loaded. While
//!   the copy comes, a tenth of the machine has to stay free: else it is given up, and the next one is loaded
//!   in place of the data.

use exec::Server;
use persist::Facts;
use replication::replica::FullCopy;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A copy was given up for want of memory (BE1). A program has one server.
static IN_PLACE_NEXT: AtomicBool = AtomicBool::new(false);

/// Time between two looks at the machine's memory, and between two signs of life.
const LOOK: Duration = Duration::from_millis(100);
const SIGN: Duration = Duration::from_millis(500);
/// Bytes that are written to a file at once.
const PART: usize = 256 * 1024;
/// The number in the name that the file of a copy has for a moment.
const NUMBER: u64 = u64::MAX - 1;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Beside,
    InPlace,
    ByFile,
}

/// The facts on which the way depends.
struct Room {
    /// Bytes that the copy takes here, about.
    needs: u64,
    /// Bytes of the machine, and the free ones. None: not known.
    machine: Option<(u64, u64)>,
    /// Bytes in use here, and `maxmemory`; 0: none.
    used: u64,
    limit: u64,
}

impl Room {
    /// Whether a copy fits beside the present data, and leaves a tenth of the machine free.
    fn is_enough(&self) -> bool {
        let needs = self.needs.saturating_add(self.needs / 10);
        let fits = self.machine.is_none_or(|(all, free)| needs <= free.saturating_sub(all / 10));
        fits && (self.limit == 0 || self.used.saturating_add(needs) <= self.limit)
    }
}

/// Loads a copy in the way that is configured. Gives the database in which the stream goes on. Blocks.
///
/// Errors: a sentence.
pub(super) fn load(server: &Arc<Server>, copy: FullCopy<'_>) -> Result<usize, String> {
    let FullCopy { file, bytes, id, offset, goes } = copy;
    let (facts, mut file) = persist::facts(file);
    let way = choose(server, facts);
    let db = std::cell::Cell::new(0);
    let replicas = || server.replicas.get();
    let goes = || {
        replicas().into_iter().for_each(|replicas| replicas.data_go());
        goes();
    };
    let came = |stream_db| {
        db.set(stream_db);
        replicas().into_iter().for_each(|replicas| replicas.goes_on(id, offset, stream_db));
    };
    let copying =
        |file| durable::Copying { file, bytes, used_bytes: facts.used_bytes, goes: &goes, came: &came };
    log::info!("the copy is loaded {}", how(way));
    let durability = &server.durability;
    let keys = match way {
        Way::InPlace => durability.load_copy(copying(&mut file)),
        Way::Beside if server.config.live.repl_diskless_load.get() == SWAPDB => {
            durability.load_beside(copying(&mut file))
        }
        Way::Beside => {
            let mut watched = Watched { file: &mut file, looked: None, is_full: false, look: is_nearly_full };
            let loaded = durability.load_beside(copying(&mut watched));
            if watched.is_full {
                IN_PLACE_NEXT.store(true, Ordering::Release);
            }
            loaded
        }
        Way::ByFile => {
            let stored = store(&mut file, Path::new(&server.config.live.dir.string()))?;
            durability.load_copy(copying(&mut Stored { stored, alive: &mut file, signed: Instant::now() }))
        }
    }?;
    IN_PLACE_NEXT.store(false, Ordering::Release);
    // Bytes in use are those of other data now.
    server.memory.stir();
    log::info!("loaded {keys} keys of the primary");
    Ok(db.get())
}

fn how(way: Way) -> &'static str {
    match way {
        Way::Beside => "beside the present data",
        Way::InPlace => "in place of the present data",
        Way::ByFile => "by way of a file",
    }
}

/// Numbers of the words of `repl-diskless-load`.
const SWAPDB: i64 = 1;
const FLUSH_BEFORE_LOAD: i64 = 2;
const DISABLED: i64 = 3;
const ON_EMPTY_DB: i64 = 4;

fn choose(server: &Server, facts: Facts) -> Way {
    let keyspace = &server.keyspace;
    let is_empty = (0..keyspace.databases()).all(|db| keyspace.len(db) == 0);
    match server.config.live.repl_diskless_load.get() {
        SWAPDB => Way::Beside,
        FLUSH_BEFORE_LOAD => Way::InPlace,
        ON_EMPTY_DB if is_empty => Way::InPlace,
        DISABLED | ON_EMPTY_DB => Way::ByFile,
        // Nothing is there to be read meanwhile.
        _ if is_empty || IN_PLACE_NEXT.load(Ordering::Acquire) => Way::InPlace,
        _ if room(server, facts).is_enough() => Way::Beside,
        _ => Way::InPlace,
    }
}

fn room(server: &Server, facts: Facts) -> Room {
    Room {
        needs: server.durability.copy_bytes(facts.used_bytes.unwrap_or(0)),
        machine: config::memory_bytes().zip(config::free_memory_bytes()),
        used: server.memory.handed_out(&server.keyspace, 0),
        limit: server.config.live.maxmemory_bytes.size() as u64,
    }
}

/// Whether less than a tenth of the machine is free.
fn is_nearly_full() -> bool {
    config::memory_bytes().zip(config::free_memory_bytes()).is_some_and(|(all, free)| free < all / 10)
}

/// A file on its way, given up when the machine is nearly full (BE1).
struct Watched<'f> {
    file: &'f mut (dyn Read + Send),
    looked: Option<Instant>,
    is_full: bool,
    look: fn() -> bool,
}

impl Read for Watched<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.looked.is_none_or(|at| at.elapsed() >= LOOK) {
            self.looked = Some(Instant::now());
            self.is_full |= (self.look)();
        }
        if self.is_full {
            let why = "less than a tenth of the memory is free: the next copy is loaded in place of the data";
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, why));
        }
        self.file.read(out)
    }
}

/// Stores the copy in a file without a name, to the end of its transfer. O(bytes)
///
/// Errors: the connection's or the disk's, as a sentence.
fn store(file: &mut (dyn Read + Send), dir: &Path) -> Result<File, String> {
    let of_disk = |error: io::Error| format!("the copy cannot be stored in {}: {error}", dir.display());
    let mut stored = replication::nameless(dir, NUMBER).map_err(of_disk)?;
    let mut part = vec![0; PART];
    loop {
        match file.read(&mut part) {
            Ok(0) => break,
            Ok(n) => stored.write_all(&part[..n]).map_err(of_disk)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    stored.rewind().map_err(of_disk)?;
    Ok(stored)
}

/// A copy in a file. The primary hears meanwhile that this server lives.
struct Stored<'f> {
    stored: File,
    /// The connection, of which all was read: a further read sends a sign of life if one is due.
    alive: &'f mut (dyn Read + Send),
    signed: Instant,
}

impl Read for Stored<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.signed.elapsed() >= SIGN {
            self.signed = Instant::now();
            self.alive.read(&mut [0])?;
        }
        self.stored.read(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_given_up_when_the_machine_is_nearly_full() {
        for (look, read) in [((|| false) as fn() -> bool, Ok(3)), (|| true, Err(io::ErrorKind::OutOfMemory))]
        {
            let mut file: &[u8] = b"abc";
            let mut watched = Watched { file: &mut file, looked: None, is_full: false, look };
            assert_eq!(watched.read(&mut [0; 8]).map_err(|error| error.kind()), read);
            assert_eq!(watched.is_full, read.is_err());
        }
    }

    #[test]
    fn a_copy_has_to_leave_a_tenth_of_the_machine_and_to_fit_below_maxmemory() {
        let room =
            |needs, free, used, limit| Room { needs, machine: Some((1000, free)), used, limit }.is_enough();
        assert!(room(100, 210, 500, 0) && !room(100, 209, 500, 0));
        assert!(room(100, 1000, 390, 500) && !room(100, 1000, 391, 500));
        assert!(!room(u64::MAX, 1000, 0, 0) && !room(u64::MAX, u64::MAX, u64::MAX, u64::MAX - 1));
        let unknown = Room { needs: 1 << 40, machine: None, used: 0, limit: 0 };
        assert!(unknown.is_enough());
    }
}
