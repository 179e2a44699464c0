//! The shadow of the keyspace ([`apply::shadow`]), in debug builds with `EVENKEEL_SHADOW` in the environment.
//!
//! A difference ends the process at once with code [`DIFFERS`], so that no test passes over it.

use apply::shadow::Shadow;
use exec::Server;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The process's exit code after a difference.
const DIFFERS: i32 = 99;
/// How often what was told is executed.
const STEP: Duration = Duration::from_millis(1);
/// How often the keyspaces are compared.
const COMPARE: Duration = Duration::from_millis(400);

/// A thread that follows the server's keyspace.
pub struct Following {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// Begins to follow, if the environment says so. No data has been loaded yet.
pub fn follow(server: &Arc<Server>) -> Option<Following> {
    std::env::var_os("EVENKEEL_SHADOW")?;
    let ends = Arc::new(AtomicBool::new(false));
    let mut shadow = Shadow::follow(&server.keyspace);
    let (server, asked) = (server.clone(), ends.clone());
    let run = move || {
        let mut compared = Instant::now();
        loop {
            let last = asked.load(Ordering::Acquire);
            if !server.durability.is_loading() {
                let compares = last || compared.elapsed() >= COMPARE;
                let done = if compares { shadow.compare() } else { shadow.step() };
                if let Err(error) = done {
                    eprintln!("the shadow differs: {error}");
                    std::process::exit(DIFFERS);
                }
                if compares {
                    compared = Instant::now();
                }
            }
            if last {
                return;
            }
            std::thread::sleep(STEP);
        }
    };
    let thread = std::thread::Builder::new().name("shadow".into()).spawn(run).ok()?;
    Some(Following { ends, thread })
}

impl Following {
    /// Compares a last time, and ends.
    pub fn end(self) {
        self.ends.store(true, Ordering::Release);
        let _ = self.thread.join();
    }
}
