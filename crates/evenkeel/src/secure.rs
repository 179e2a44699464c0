//! The certificates of TLS: read at the start, by CONFIG SET, by SIGHUP, and by the clock.
//!
//! ```text
//! start, --check-config ──► Settings ──files──► Keeper ──► handshakes
//! CONFIG SET ──► Observer::prepare ──files──► settle ──►┘
//! SIGHUP, tls-auto-reload-interval ──► thread `renew` ──►┘
//! ```
//!
//! - SC1: files are read on threads that may block: before the start, the one of a CONFIG SET, and `renew`.
//! - SC2: a file that cannot be used leaves all as it is, and the log or the reply says why.

use crate::signals::Renewals;
use config::{Config, Directive};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tls::{Keeper, Loaded, Settings};

/// Reads what is configured. None: nothing listens for TLS. Errors: a sentence.
pub fn load(config: &Config) -> Result<Option<Loaded>, String> {
    let live = &config.live;
    if live.tls_port.get() == 0 && live.http_tls_port.get() == 0 {
        return Ok(None);
    }
    read(config, &[]).map(Some)
}

/// Reads the files of the settings with these changes.
fn read(config: &Config, changes: &[(&Directive, Vec<u8>)]) -> Result<Loaded, String> {
    let value = |name: &str| {
        let changed =
            changes.iter().find(|(directive, _)| directive.name == name).map(|(_, value)| value.clone());
        let value = changed.or_else(|| config.value(name)).unwrap_or_default();
        String::from_utf8_lossy(&value).into_owned()
    };
    Loaded::read(&Settings::of(value)?)
}

/// Keeps certificates in force for as long as the server runs: follows CONFIG SET, SIGHUP and the clock. Errors: no
/// thread could be started.
pub fn keep(config: &Arc<Config>, loaded: Loaded, mut renewals: Renewals) -> std::io::Result<Arc<Keeper>> {
    warn(&loaded);
    let keeper = Arc::new(Keeper::new(loaded));
    config.observe(Box::new(Follower { keeper: keeper.clone(), ready: Mutex::default() }));
    let config = config.clone();
    let renew = move || {
        loop {
            let interval_s = config.live.tls_reload_s.size() as u64;
            // CONFIG SET may set an interval meanwhile.
            let limit = if interval_s == 0 { 5 } else { interval_s };
            let by_signal = renewals.wait(Duration::from_secs(limit));
            if !by_signal && interval_s == 0 {
                continue;
            }
            match config.read_files_again() {
                Ok(()) if by_signal => log::info!("SIGHUP received, the files of TLS were read again"),
                Ok(()) => {}
                Err(why) => log::error!("the files of TLS stay as they were: {why}"),
            }
        }
    };
    std::thread::Builder::new().name("renew".into()).spawn(renew)?;
    Ok(keeper)
}

fn warn(loaded: &Loaded) {
    loaded.warnings().iter().for_each(|warning| log::warn!("{warning}"));
}

/// Reads the files that a CONFIG SET names (SC2).
struct Follower {
    keeper: Arc<Keeper>,
    ready: Mutex<Option<Loaded>>,
}

impl config::Observer for Follower {
    fn prepare(&self, config: &Config, changes: &[(&Directive, Vec<u8>)]) -> Result<(), String> {
        *self.ready.lock() = Some(read(config, changes)?);
        Ok(())
    }

    fn settle(&self) {
        let Some(loaded) = self.ready.lock().take() else { return };
        warn(&loaded);
        if self.keeper.put(loaded) {
            log::info!("new connections get the new settings of TLS");
        }
    }
}
