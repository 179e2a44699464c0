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
use exec::outgoing::{self, Outgoing, Stream};
use parking_lot::Mutex;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tls::{Client, Keeper, Loaded, PeerName, Settings};

/// TLS as it is configured.
pub struct Secure {
    /// For clients; None: nothing listens for TLS.
    served: Option<Loaded>,
    /// For connections of MIGRATE, and to a primary; None: they are not encrypted.
    client: Option<Client>,
    to_primary: Option<Client>,
}

impl Secure {
    /// Sentences for an administrator about what is no error.
    pub fn warnings(&self) -> Vec<String> {
        self.served.as_ref().map_or(Vec::new(), Loaded::warnings)
    }
}

/// Reads what is configured. Errors: a sentence.
pub fn load(config: &Config) -> Result<Secure, String> {
    read(config, &[])
}

/// Reads the files of the settings with these changes.
fn read(config: &Config, changes: &[(&Directive, Vec<u8>)]) -> Result<Secure, String> {
    let value = |name: &str| config.value_after(changes, name);
    let serves = ["tls-port", "http-tls-port"].iter().any(|name| value(name) != "0");
    let served = if serves { Some(Loaded::read(&Settings::of(value)?)?) } else { None };
    let client = |name: &str| if value(name) == "yes" { Client::of(value).map(Some) } else { Ok(None) };
    Ok(Secure { served, client: client("tls-cluster")?, to_primary: client("tls-replication")? })
}

/// How connections to others are encrypted by the configuration, whether any are or not. Errors: a sentence.
pub fn client(config: &Config) -> Result<Client, String> {
    Client::of(|name| config.value_after(&[], name))
}

/// The certificates for clients, from when TLS is first served.
pub type Served = Arc<OnceLock<Arc<Keeper>>>;

/// Keeps certificates in force for as long as the server runs: follows CONFIG SET, SIGHUP and the clock.
/// Errors: no
/// thread could be started.
pub fn keep(config: &Arc<Config>, secure: Secure, renewals: Renewals) -> std::io::Result<Served> {
    warn(&secure);
    let used = secure.served.is_some() || secure.client.is_some() || secure.to_primary.is_some();
    *TO_PRIMARY.lock() = secure.to_primary;
    let keeper = Served::default();
    if let Some(loaded) = secure.served {
        keeper.get_or_init(|| Arc::new(Keeper::new(loaded)));
    }
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
    keeper: Served,
    client: Arc<Mutex<Option<Client>>>,
    renewer: Renewer,
    ready: Mutex<Option<Secure>>,
}

impl config::Observer for Follower {
    fn prepare(&self, config: &Config, changes: &[(&Directive, Vec<u8>)]) -> Result<(), String> {
        let concerns = |name: &str| name.starts_with("tls-") || name == "http-tls-port";
        if !changes.is_empty() && !changes.iter().any(|(row, _)| concerns(row.name)) {
            return Ok(());
        }
        let mut secure = read(config, changes)?;
        if secure.client.is_some() || secure.to_primary.is_some() || secure.served.is_some() {
            self.renewer.start().map_err(|e| format!("no thread could be started: {e}"))?;
        }
        // The first socket for TLS needs them; until it opens nobody uses them.
        if let Some(loaded) = secure.served.take_if(|_| self.keeper.get().is_none()) {
            self.keeper.get_or_init(|| Arc::new(Keeper::new(loaded)));
        }
        *self.ready.lock() = Some(secure);
        Ok(())
    }

    fn settle(&self) {
        let Some(secure) = self.ready.lock().take() else { return };
        warn(&secure);
        *self.client.lock() = secure.client;
        *TO_PRIMARY.lock() = secure.to_primary;
        if let (Some(keeper), Some(loaded)) = (self.keeper.get(), secure.served)
            && keeper.put(loaded)
        {
            log::info!("new connections get the new settings of TLS");
        }
    }
}

/// Encrypts the connection to a primary; None: nothing does.
static TO_PRIMARY: Mutex<Option<Client>> = Mutex::new(None);

/// Encrypts a fresh connection to a primary within `limit`, as configured now (`tls-replication`). None: it is
/// not encrypted. Blocks. Errors: a sentence.
pub fn to_primary(
    socket: &TcpStream,
    host: &str,
    limit: Duration,
) -> Result<Option<Box<dyn Stream>>, String> {
    let Some(client) = TO_PRIMARY.lock().clone() else { return Ok(None) };
    let socket = socket.try_clone().map_err(|e| e.to_string())?;
    wrap(&client, socket, host, limit).map(Some)
}

fn wrap(client: &Client, socket: TcpStream, host: &str, limit: Duration) -> Result<Box<dyn Stream>, String> {
    let wrapped = client.wrap(&PeerName::of(host)?, socket, limit);
    wrapped.map(|stream| Box::new(stream) as Box<dyn Stream>).map_err(|e| match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "TLS: it does not answer in time".to_owned(),
        _ => format!("TLS: {e}"),
    })
}

/// Encrypts connections to other servers, if there is a client for that.
struct Calls(Arc<Mutex<Option<Client>>>);

impl Outgoing for Calls {
    fn wrap(&self, socket: TcpStream, host: &str, limit: Duration) -> Result<Box<dyn Stream>, String> {
        let client = self.0.lock().clone();
        let Some(client) = client else { return Ok(Box::new(socket)) };
        wrap(&client, socket, host, limit)
    }
}
