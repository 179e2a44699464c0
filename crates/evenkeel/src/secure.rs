//! The certificates of TLS: read at the start, by CONFIG SET, by SIGHUP, and by the clock.
//!
//! ```text
//! start, --check-config ──► directives ──files──► Keeper ──► handshakes of clients
//!                                          └────► Calls ───► connections to other servers (MIGRATE)
//! CONFIG SET ──► Observer::prepare ──files──► settle ──►┘
//! SIGHUP, tls-auto-reload-interval ──► thread `renew` ──►┘
//! ```
//!
//! - SC1: files are read on threads that may block: before the start, the one of a CONFIG SET, and `renew`.
//! - SC2: a file that cannot be used leaves all as it is, and the log or the reply says why.
//! - SC3: `renew` runs from when TLS is first used.

use crate::signals::Renewals;
use config::{Config, Directive};
use exec::outgoing::{self, Outgoing, Wire};
use parking_lot::Mutex;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tls::{Client, Keeper, Loaded, PeerName, Settings};

/// TLS as it is configured.
pub struct Secure {
    /// For clients; None: nothing listens for TLS.
    served: Option<Loaded>,
    /// For connections to other servers; None: they are not encrypted.
    client: Option<Client>,
}

impl Secure {
    /// Sentences for an administrator about what is no error.
    pub fn warnings(&self) -> Vec<String> {
        self.served.as_ref().map_or(Vec::new(), Loaded::warnings)
    }
}

/// Reads what is configured. Errors: a sentence.
pub fn load(config: &Config) -> Result<Secure, String> {
    let live = &config.live;
    read(config, live.tls_port.get() != 0 || live.http_tls_port.get() != 0, &[])
}

/// Reads the files of the settings with these changes. `serves`: clients use TLS.
fn read(config: &Config, serves: bool, changes: &[(&Directive, Vec<u8>)]) -> Result<Secure, String> {
    let value = |name: &str| {
        let changed =
            changes.iter().find(|(directive, _)| directive.name == name).map(|(_, value)| value.clone());
        let value = changed.or_else(|| config.value(name)).unwrap_or_default();
        String::from_utf8_lossy(&value).into_owned()
    };
    let served = if serves { Some(Loaded::read(&Settings::of(value)?)?) } else { None };
    let client = if value("tls-cluster") == "yes" { Some(Client::of(value)?) } else { None };
    Ok(Secure { served, client })
}

/// Keeps certificates in force for as long as the server runs: follows CONFIG SET, SIGHUP and the clock. None: clients
/// do not use TLS. Errors: no thread could be started.
pub fn keep(
    config: &Arc<Config>,
    secure: Secure,
    renewals: Renewals,
) -> std::io::Result<Option<Arc<Keeper>>> {
    warn(&secure);
    let used = secure.served.is_some() || secure.client.is_some();
    let keeper = secure.served.map(|loaded| Arc::new(Keeper::new(loaded)));
    let client = Arc::new(Mutex::new(secure.client));
    outgoing::encrypt_by(Box::new(Calls(client.clone())));
    let renewer = Renewer { config: Arc::downgrade(config), renewals: Mutex::new(Some(renewals)) };
    if used {
        renewer.start()?;
    }
    config.observe(Box::new(Follower { keeper: keeper.clone(), client, renewer, ready: Mutex::default() }));
    Ok(keeper)
}

fn warn(secure: &Secure) {
    secure.warnings().iter().for_each(|warning| log::warn!("{warning}"));
}

/// Starts the thread that reads files again (SC3).
struct Renewer {
    config: Weak<Config>,
    /// Taken by the thread.
    renewals: Mutex<Option<Renewals>>,
}

impl Renewer {
    /// Starts the thread, once. Errors: the system has none to give.
    fn start(&self) -> std::io::Result<()> {
        let Some(mut renewals) = self.renewals.lock().take() else { return Ok(()) };
        let config = self.config.clone();
        let renew = move || {
            while let Some(config) = config.upgrade() {
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
        std::thread::Builder::new().name("renew".into()).spawn(renew).map(drop)
    }
}

/// Reads the files that a CONFIG SET names (SC2).
struct Follower {
    keeper: Option<Arc<Keeper>>,
    client: Arc<Mutex<Option<Client>>>,
    renewer: Renewer,
    ready: Mutex<Option<Secure>>,
}

impl config::Observer for Follower {
    fn prepare(&self, config: &Config, changes: &[(&Directive, Vec<u8>)]) -> Result<(), String> {
        if !changes.is_empty() && !changes.iter().any(|(row, _)| row.name.starts_with("tls-")) {
            return Ok(());
        }
        let secure = read(config, self.keeper.is_some(), changes)?;
        if secure.client.is_some() {
            self.renewer.start().map_err(|e| format!("no thread could be started: {e}"))?;
        }
        *self.ready.lock() = Some(secure);
        Ok(())
    }

    fn settle(&self) {
        let Some(secure) = self.ready.lock().take() else { return };
        warn(&secure);
        *self.client.lock() = secure.client;
        if let (Some(keeper), Some(loaded)) = (&self.keeper, secure.served)
            && keeper.put(loaded)
        {
            log::info!("new connections get the new settings of TLS");
        }
    }
}

/// Encrypts connections to other servers, if there is a client for that.
struct Calls(Arc<Mutex<Option<Client>>>);

impl Outgoing for Calls {
    fn wrap(&self, socket: TcpStream, host: &str, limit: Duration) -> Result<Box<dyn Wire>, String> {
        let client = self.0.lock().clone();
        let Some(client) = client else { return Ok(Box::new(socket)) };
        let wrapped = client.wrap(&PeerName::of(host)?, socket, limit);
        wrapped.map(|stream| Box::new(stream) as Box<dyn Wire>).map_err(|e| match e.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => "TLS: it does not answer in time".to_owned(),
            _ => format!("TLS: {e}"),
        })
    }
}
