//! Scripts that have left their loops, as SCRIPT KILL and FUNCTION STATS see them (C7).

use super::{ScriptRun, Scripts};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};

/// A script that left its loop, as SCRIPT KILL and FUNCTION STATS see it. It waits for a thread, runs, or has
/// no decided commit yet (C7).
pub struct Running {
    /// Its client.
    pub client: u64,
    pub name: String,
    /// Whether SCRIPT KILL ends it, and whether FUNCTION KILL does.
    pub is_script: bool,
    pub is_function: bool,
    pub started_ns: u64,
    pub kill: AtomicBool,
    pub command: Vec<Vec<u8>>,
    /// Set when its client goes, and when that was seen first (monotonic milliseconds; 0 if it was not).
    pub(super) gone: Option<Arc<AtomicBool>>,
    pub(super) gone_ms: AtomicU64,
}

/// Its place in [`Scripts::running`]; given up when dropped.
pub(super) struct Listed {
    scripts: Weak<Scripts>,
    pub(super) entry: Arc<Running>,
}

impl Listed {
    pub(super) fn new(scripts: &Arc<Scripts>, run: &ScriptRun) -> Listed {
        let entry = running(run);
        scripts.running.lock().push(entry.clone());
        Listed { scripts: Arc::downgrade(scripts), entry }
    }

    /// The entry of a SCRIPT LOAD.
    pub(super) fn of_text(scripts: &Arc<Scripts>, client: u64) -> Listed {
        let entry = Arc::new(Running {
            client,
            name: String::from("new script"),
            is_script: true,
            is_function: false,
            started_ns: stdx::clock::mono_ns(),
            kill: AtomicBool::new(false),
            command: vec![b"script|load".to_vec()],
            // The compilation checks that itself.
            gone: None,
            gone_ms: AtomicU64::new(0),
        });
        scripts.running.lock().push(entry.clone());
        Listed { scripts: Arc::downgrade(scripts), entry }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        if let Some(scripts) = self.scripts.upgrade() {
            scripts.running.lock().retain(|entry| !Arc::ptr_eq(entry, &self.entry));
        }
    }
}

fn running(run: &ScriptRun) -> Arc<Running> {
    let (is_script, is_function) = run.body.has_scripts();
    let mut command: Vec<Vec<u8>> = vec![run.body.name().into_bytes()];
    command.extend(run.keys().iter().chain(run.args().iter()).take(8).map(|a| a[..a.len().min(64)].to_vec()));
    Arc::new(Running {
        client: run.client,
        name: run.body.name(),
        is_script,
        is_function,
        started_ns: stdx::clock::mono_ns(),
        kill: AtomicBool::new(false),
        command,
        gone: run.gone.clone(),
        gone_ms: AtomicU64::new(0),
    })
}
