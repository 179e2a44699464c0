//! The server binary: configuration, wiring, signals.
//!
//! ```text
//! command line ─▶ Config ─▶ log, limits ─▶ sockets ─▶ banner ─▶ serve ─▶ (SIGTERM, SIGINT, SHUTDOWN) ─▶ end
//! ```
//!
//! Exit codes: 0 after an orderly end, 1 if the server could not start. 130 means that a signal, more than a
//! second after the first, cut the end short. The codes of `load`, `copy` and `ping` are in crate `loader`,
//! those of `bench` in crate `bench`.

#![forbid(unsafe_code)]

mod banner;
mod cluster;
mod demo;
mod described;
mod doctor;
mod logging;
mod memory;
mod otlp;
mod owner;
mod process;
mod relisten;
mod replicas;
mod replication;
mod secure;
#[cfg(debug_assertions)]
mod shadow;
mod signals;
mod sockets;

use config::{Config, Invocation, Sources};
use durable::{Ending, Files, Wish};
use signals::{Signals, Stop};
use sockets::{Closer, Sockets};
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    if args.get(1).is_some_and(loader::is_command) {
        return match loader::run(&args[1..]) {
            Ok(text) => report(say(&format!("{text}\n"))),
            Err(failure) => fail(&failure.reason, ExitCode::from(failure.exit_code)),
        };
    }
    if args.get(1).is_some_and(bench::is_command) {
        return match bench::run(&args[1..]) {
            Ok(text) => report(say(&format!("{text}\n"))),
            Err(failure) => fail(&failure.reason, ExitCode::from(failure.exit_code)),
        };
    }
    if args.get(1).is_some_and(is_tool) {
        return run_tool(&args[1..]);
    }
    if args.get(1).is_some_and(doctor::is_asked) {
        return match doctor::run(&args[2..]) {
            Ok(finding) => {
                // Names of files may hold anything.
                let _ = say(&format!("{}\n", loader::plain_lines(finding.text.trim_end())));
                if finding.is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
            }
            Err(reason) => fail(&loader::plain_lines(&reason), ExitCode::from(2)),
        };
    }
    if args.get(1).is_some_and(described::is_asked) {
        return report(described::run(&args[1..]).and_then(|text| say(&text)));
    }
    let done = match config::parse(args.iter().skip(1).cloned()) {
        Ok(Invocation::Version) => say(&format!("{}\n", config::version())),
        Ok(Invocation::Help) => say(config::HELP),
        Ok(Invocation::Directives) => say(&config::directives()),
        Ok(Invocation::Example) => say(&config::sample()),
        Ok(Invocation::Check(sources)) => check(&sources),
        Ok(Invocation::Serve(sources)) => start(&sources, &args),
        Err(mistake) => Err(mistake),
    };
    report(done)
}

/// Whether it is a command of the terminal tools.
fn is_tool(word: &OsString) -> bool {
    word == "top" || word == "stat"
}

#[cfg(feature = "tools")]
fn run_tool(args: &[OsString]) -> ExitCode {
    report(top::run(args))
}

#[cfg(not(feature = "tools"))]
fn run_tool(_: &[OsString]) -> ExitCode {
    fail(
        "This evenkeel was built without the feature 'tools', so it has no top and no stat.",
        ExitCode::FAILURE,
    )
}

fn report(done: Result<(), String>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            logging::flush();
            fail(&reason, ExitCode::FAILURE)
        }
    }
}

fn fail(reason: &str, code: ExitCode) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{}", reason.trim_end());
    code
}

/// Prints an answer; a reader that has gone away is no error.
fn say(text: &str) -> Result<(), String> {
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

fn load(sources: &Sources) -> Result<Config, String> {
    Config::load(sources, &mut std::io::stdin()).map_err(|e| e.to_string())
}

fn check(sources: &Sources) -> Result<(), String> {
    let config = load(sources)?;
    let warnings = secure::load(&config)?.warnings();
    warnings.iter().try_for_each(|warning| say(&format!("{warning}\n")))?;
    for config::Idle { place, text, reason } in config.idle_lines() {
        say(&format!("{}: '{text}' has no effect: {reason}\n", place.short()))?;
    }
    config.start_users()?;
    say("The configuration is correct.\n")
}

/// Starts the server from a command line, and runs it to its end.
fn start(sources: &Sources, args: &[OsString]) -> Result<(), String> {
    let config = Arc::new(load(sources)?);
    let secure = secure::load(&config)?;
    // Before anything on the disk is looked at or changed.
    let files = Files::open(&config)?;
    let signals = Signals::install().map_err(|e| format!("Cannot handle signals: {e}"))?;
    logging::start(&config)
        .map_err(|e| format!("Cannot open the log file {}: {e}", config.live.logfile.string()))?;
    config.observe(Box::new(logging::LevelObserver));
    files.tidy();
    limit_clients(&config);
    let sockets = sockets::listen(&config, args).map_err(|e| e.0)?;
    // As in Redis, a missing pidfile is no error.
    let _pid_file = process::PidFile::write(&config)
        .inspect_err(|e| log::warn!("cannot write the pidfile {}: {e}", config.live.pidfile.string()));
    let backend = choose_backend(&config);
    let users = config.start_users().map_err(|e| format!("Cannot start the server: {e}"))?;
    announce(&config, users.is_open(), &sockets, backend);
    let stop = serve(&config, files, sockets, secure, &signals, backend)?;
    match stop {
        Stop::Interrupt => log::info!("SIGINT received, shutting down"),
        Stop::Terminate => log::info!("SIGTERM received, shutting down"),
        Stop::Command => log::info!("SHUTDOWN received, shutting down"),
    }
    log::info!("bye");
    logging::flush();
    Ok(())
}

/// Serves clients until a stop is requested, then ends in order.
fn serve(
    config: &Arc<Config>,
    files: Files,
    sockets: Sockets,
    secure: secure::Secure,
    signals: &Signals,
    backend: net::Backend,
) -> Result<Stop, String> {
    memory::purge_aside();
    let server = exec::Server::start(config.clone(), config.event_loops())
        .map_err(|e| format!("Cannot start the server: {e}"))?;
    let stopper = signals.stopper().map_err(|e| format!("Cannot handle signals: {e}"))?;
    server.run_in(Box::new(Program { stopper }));
    server.durability.store_in(files);
    replicas::start(&server).map_err(|e| format!("Cannot start the server: {e}"))?;
    for spec in config.sources() {
        let name = &spec.name;
        server.rows.add(spec.clone()).map_err(|e| format!("Cannot serve source '{name}': {e}"))?;
    }
    let demo = config.live.demo.get().then(|| {
        signals.remove_in_hurry(demo::Demo::folder());
        demo::Demo::start(&server)
    });
    let _demo = demo.transpose().map_err(|e| format!("Cannot make the demonstration database: {e}"))?;
    join_others(&server)?;
    #[cfg(debug_assertions)]
    let followed = shadow::follow(&server);
    let (closer, listeners) = listen(config, &server, sockets, secure, signals)?;
    let loops =
        net::start(&server, listeners, backend).map_err(|e| format!("Cannot start the event loops: {e}"))?;
    otlp::start(&server).map_err(|e| format!("Cannot send figures: {e}"))?;
    let loading = load_data(&server, signals)?;
    let stop = loop {
        let stop = signals.wait();
        if let Some(Err(why)) = loading.get() {
            return Err(why.clone());
        }
        process::notify_manager("STOPPING=1\n");
        leave_others(&server);
        match server.durability.end_in_order(wish(config, stop)) {
            Ok(()) => break stop,
            Err(why) => {
                log::error!("the server goes on, since its data could not be saved: {why}");
                server.durability.give_up_end();
                server.role.rests(false);
            }
        }
    };
    closer.close();
    server.shut_down();
    for event_loop in loops {
        let _ = event_loop.join(); // A loop that panicked has been logged; the others still end in order.
    }
    #[cfg(debug_assertions)]
    followed.into_iter().for_each(shadow::Following::end);
    server.past.end();
    // Its values go with the process; freeing them one by one would take long.
    std::mem::forget(server);
    Ok(stop)
}

/// Ends what ties the server to others, before its data are written for the last time.
fn leave_others(server: &exec::Server) {
    server.cluster.get().into_iter().for_each(|member| member.leave());
    server.role.rests(true);
}

/// Makes the server a replica, or a node of a cluster, if it is to be one, once its data are loaded. Errors: a sentence.
fn join_others(server: &Arc<exec::Server>) -> Result<(), String> {
    server.durability.expect_load()?;
    replication::start(server).map_err(|e| format!("Cannot follow another server: {e}"))?;
    cluster::start(server).map_err(|e| format!("Cannot be a node of a cluster: {e}"))
}

/// Makes the listeners of the event loops, and lets CONFIG SET change them. Errors: a sentence.
fn listen(
    config: &Arc<Config>,
    server: &Arc<exec::Server>,
    sockets: Sockets,
    secure: secure::Secure,
    signals: &Signals,
) -> Result<(Arc<Closer>, net::Listeners), String> {
    let (closer, mut listeners) = Closer::of(sockets).map_err(|e| format!("Cannot listen: {e}"))?;
    let kept = signals.renewals().and_then(|renewals| secure::keep(config, secure, renewals));
    let kept = kept.map_err(|e| format!("Cannot serve TLS: {e}"))?;
    let handshakes = kept.get().map(|keeper| net::Handshakes::start(server, keeper).map(Arc::new));
    listeners.handshakes = handshakes.transpose().map_err(|e| format!("Cannot serve TLS: {e}"))?;
    let closer = Arc::new(closer);
    // Behind the certificates, which it needs.
    config.observe(Box::new(relisten::Follower::new(&closer, server, kept, listeners.handshakes.clone())));
    Ok((closer, listeners))
}

/// How the load at the start ended.
type Loaded = Arc<OnceLock<Result<(), String>>>;

/// Loads the data on a thread, while clients are told of the progress. If that fails, the server is asked to
/// stop.
fn load_data(server: &Arc<exec::Server>, signals: &Signals) -> Result<Loaded, String> {
    let stopper = signals.stopper().map_err(|e| format!("Cannot handle signals: {e}"))?;
    let (loaded, server) = (Loaded::default(), server.clone());
    let result = loaded.clone();
    let load = move || {
        let done = server.durability.load_at_start();
        let failed = done.is_err();
        let _ = result.set(done);
        if failed {
            stopper.stop();
        } else {
            process::notify_manager("READY=1\n");
        }
    };
    let spawned = std::thread::Builder::new().name("load".into()).spawn(load);
    spawned.map_err(|e| format!("Cannot load the data: {e}"))?;
    Ok(loaded)
}

/// The wish of a signal (`shutdown-on-sigint`, `shutdown-on-sigterm`). None: SHUTDOWN has its own.
fn wish(config: &Config, stop: Stop) -> Option<Ending> {
    // The choices are default, save, nosave, now, force.
    let flags = match stop {
        Stop::Interrupt => config.live.shutdown_on_sigint.get(),
        Stop::Terminate => config.live.shutdown_on_sigterm.get(),
        Stop::Command => return None,
    };
    let wish = match flags {
        flags if flags & 4 != 0 => Wish::NoSave,
        flags if flags & 2 != 0 => Wish::Save,
        _ => Wish::Usual,
    };
    Some(Ending { wish, force: flags & 16 != 0, now: flags & 8 != 0 })
}

/// Chooses the event loops' interface to the kernel. Logs it if it is not the configured one.
fn choose_backend(config: &Config) -> net::Backend {
    let (backend, refused) = net::Backend::choose(config);
    if let Some(e) = refused {
        let level = if config.live.io_backend.get() == 0 { log::Level::Info } else { log::Level::Warn };
        log::log!(level, "no io_uring here ({e}): the event loops use epoll");
    }
    backend
}

/// The parts of this program that commands use.
struct Program {
    stopper: signals::Stopper,
}

impl exec::Program for Program {
    fn allocator(&self) -> exec::info::Allocator {
        memory::allocator()
    }

    fn allocator_report(&self) -> String {
        memory::allocator_report()
    }

    fn stop(&self) {
        self.stopper.stop();
    }
}

/// Raises the limit of open files for `maxclients`, or lowers `maxclients` to what the system allows.
fn limit_clients(config: &Config) {
    let wanted = config.live.maxclients.get() as u64;
    let allowed = process::allow_clients(wanted);
    if allowed < wanted {
        log::warn!(
            "maxclients is {allowed} instead of {wanted}: this process may not open more files (see ulimit -n)"
        );
        if let Err(e) = config.set(&[b"maxclients", allowed.to_string().as_bytes()], true) {
            log::warn!("{e}");
        }
    }
    process::make_room_for(allowed);
    config.observe(Box::new(ClientLimit));
}

/// Follows CONFIG SET maxclients with the number of files the process may open.
struct ClientLimit;

impl config::Observer for ClientLimit {
    fn check(&self, directive: &config::Directive, value: &config::Parsed) -> Result<(), String> {
        if directive.name != "maxclients" {
            return Ok(());
        }
        let wanted = value.int() as u64;
        match process::allow_clients(wanted) {
            allowed if allowed < wanted => Err(format!(
                "The operating system is not able to handle the specified number of clients, try with {allowed}"
            )),
            _ => {
                // On a thread of its own, since it takes a while; only clients that need a new place wait for
                // it.
                let _ = std::thread::Builder::new().spawn(move || process::make_room_for(wanted));
                Ok(())
            }
        }
    }
}

/// Announces the server to a person at a terminal, or in a log. `is_open`: clients need not log in.
fn announce(config: &Config, is_open: bool, sockets: &Sockets, backend: net::Backend) {
    let terminal = std::io::stdout().is_terminal() && config.live.logfile.is_empty();
    if terminal {
        let _ = say(&banner::banner(config, is_open, sockets, backend));
    } else {
        log_start(config, sockets, backend);
    }
    for (name, reason) in config.without_effect() {
        log::info!("'{name}' has no effect: {reason}");
    }
    if process::is_root() {
        log::warn!("running as root, which is not needed; a user of its own is safer");
    }
    let reachable = sockets.inet().filter_map(|s| s.local_addr().ok()).any(|a| !a.ip().is_loopback());
    if reachable && let Some(warning) = warning(is_open, config.live.protected_mode.get()) {
        log::warn!("{warning}");
    }
}

/// The warning of a server that other machines may reach. None: everybody has to log in.
fn warning(is_open: bool, is_protected: bool) -> Option<&'static str> {
    match (is_open, is_protected) {
        (false, _) => None,
        (true, true) => Some(
            "the user 'default' needs no password: only clients on this machine are answered (see protected-mode)",
        ),
        (true, false) => Some(
            "the user 'default' needs no password, and protected-mode is off: everybody who reaches this server is \
             answered as that user",
        ),
    }
}

fn log_start(config: &Config, sockets: &Sockets, backend: net::Backend) {
    let loops = config.event_loops();
    log::info!(
        "Evenkeel {} started, process {}, {loops} event loops with {}",
        env!("CARGO_PKG_VERSION"),
        std::process::id(),
        backend.name()
    );
    for place in banner::places(sockets) {
        log::info!("listening on {place}");
    }
    log::info!("{}", banner::keeping(config));
}
