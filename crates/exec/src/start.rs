//! How a server begins: its parts are made, wired and told of each other.

use crate::mail::{Mail, Mailbox};
use crate::{Program, Server, actions, eval, fetching, keeping};
use command::registry::{self, Names};
use config::Config;
use durable::Durability;
use keyspace::Keyspace;
use observe::{Holder, Holders, Observe};
use observe::{info, waits};
use pubsub::tracking::Letter;
use scripts::Scripts;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use work::{piece, works};

/// Applies `rename-command`.
fn rename_commands(config: &Config) -> std::io::Result<()> {
    if config.renames().is_empty() {
        return Ok(());
    }
    let mut names = Names::usual();
    for (from, to) in config.renames() {
        names.rename(from, to).map_err(std::io::Error::other)?;
    }
    match registry::rename(names) {
        true => Ok(()),
        false => Err(std::io::Error::other("commands were looked up before rename-command was applied")),
    }
}

/// Lets the keyspace collect only the events that some setting asks for.
struct NotifyObserver(Arc<Keyspace>);

impl config::Observer for NotifyObserver {
    fn changed(&self, directive: &config::Directive, live: &config::Live) {
        if directive.name == "notify-keyspace-events" {
            self.0.set_notify(pubsub::wanted_classes(live.notify.get() as u32));
        }
    }
}

/// The keyspace, with the databases that sources will need. It follows `notify-keyspace-events`.
fn start_keyspace(config: &Config) -> Arc<Keyspace> {
    let hidden = rows::MAX * rows::DATABASES;
    let live = &config.live;
    let databases = if live.cluster_enabled.get() { &live.cluster_databases } else { &live.databases };
    let keyspace = Keyspace::with_hidden(databases.size(), hidden, rows::DATABASES);
    keyspace.set_notify(pubsub::wanted_classes(config.live.notify.get() as u32));
    config.observe(Box::new(NotifyObserver(keyspace.clone())));
    keyspace
}

/// Finds the clients that hold places for long work.
struct PlaceHolders(Weak<Server>);

impl Holders for PlaceHolders {
    fn whose(&self, client: u64) -> Option<Holder> {
        let known = self.0.upgrade()?.work.snapshots.whose(client)?;
        Some(Holder { info: known.info, words: known.words })
    }
}

/// Sends letters of tracking: a client's to its loop, work to each loop in turn.
fn tracking_post(observe: Arc<Observe>, mailboxes: Arc<[Mailbox]>) -> pubsub::tracking::Post {
    let next = AtomicUsize::new(0);
    Box::new(move |letter| {
        let to = match &letter {
            Letter::Inbox(client) => {
                observe.clients.get(*client).map(|info| info.loop_id.load(Ordering::Acquire) as usize)
            }
            Letter::Task(_) => Some(next.fetch_add(1, Ordering::Relaxed) % mailboxes.len()),
        };
        // A client that has gone hears nothing.
        if let Some(to) = to {
            mailboxes[to].send(Mail::Tracking(letter));
        }
    })
}

/// Forty hexadecimal digits that tell this run of the server from others.
fn run_id() -> String {
    let random = |salt| stdx::hash::hash_u64(stdx::clock::wall_ns() ^ salt);
    format!("{:016x}{:016x}{:08x}", random(1), random(2), random(3) as u32)
}

impl Server {
    /// Starts workers and reclaimer. The loops are `net`'s, one per mailbox. Errors: a thread cannot be
    /// started; users are configured wrongly.
    pub fn start(config: Arc<Config>, loops: usize) -> std::io::Result<Arc<Server>> {
        rename_commands(&config)?;
        let acl = config.start_users().map_err(std::io::Error::other)?;
        let keyspace = start_keyspace(&config);
        let mailboxes: Arc<[Mailbox]> = (0..loops).map(|_| Mailbox::new()).collect::<Result<_, _>>()?;
        stdx::reclaim::start();
        stdx::pages::start_keeper();
        let boxes = mailboxes.clone();
        let post = move |loop_id: usize, letter: pubsub::Letter| boxes[loop_id].send(letter.into());
        let pubsub = Arc::new(pubsub::PubSub::new(config.clone(), keyspace.clone(), Box::new(post)));
        let boxes = mailboxes.clone();
        let observe = Arc::new(Observe::new(config.clone(), loops));
        let tracking =
            Arc::new(pubsub::tracking::Tracking::new(tracking_post(observe.clone(), mailboxes.clone())));
        keyspace.set_readers(tracking.clone());
        let post: piece::Post = Arc::new(move |to, letter| boxes[to].send(letter.into()));
        let turns = stdx::turns::Turns::new(std::thread::available_parallelism().map_or(1, |n| n.get()));
        let (memory, http) = (Arc::new(memory::Memory::new(rows::MAX)), Arc::<pages::Pages>::default());
        let work = works::Work::start(keyspace.clone(), turns, observe.clone(), memory.work.clone(), post);
        let any_rows = Arc::<AtomicBool>::default();
        let around = fetching::Around {
            keyspace: keyspace.clone(),
            memory: memory.clone(),
            http: http.clone(),
            loops: mailboxes.clone(),
            any: any_rows.clone(),
        };
        let rows = rows::Rows::new(keyspace.clone(), loops, Box::new(around));
        let started_ms = stdx::clock::wall_ms();
        let server = Arc::new_cyclic(|server| {
            let around = eval::Around { server: server.clone(), loops: mailboxes.clone() };
            let scripts = Scripts::new(work.clone(), pubsub.clone(), any_rows, acl.clone(), Box::new(around));
            let host = Box::new(keeping::Around { server: server.clone(), scripts: scripts.clone() });
            let reports = work::reports::Reports::new(observe.clone(), work.turns.clone());
            let durability = Durability::new(durable::Parts {
                keyspace: keyspace.clone(),
                config: config.clone(),
                observe: observe.clone(),
                work: work.clone(),
                loops,
                started_ms,
                host,
            });
            Server {
                keyspace,
                config,
                acl,
                past: past::Past::new(observe.clone()),
                observe,
                park: Arc::default(),
                memory,
                durability,
                memory_bytes: info::machine_bytes(),
                scripts,
                pubsub,
                tracking,
                work,
                reports,
                actions: actions::table::table(),
                rows,
                started_ms,
                run_id: run_id(),
                role: role::Role::default(),
                loops: mailboxes,
                shutdown: AtomicBool::new(false),
                http,
                replicas: OnceLock::new(),
                cluster: OnceLock::new(),
                program: OnceLock::new(),
                multiplexing: OnceLock::new(),
            }
        });
        server.observe.set_holders(Box::new(PlaceHolders(Arc::downgrade(&server))));
        actions::config::follow(&server);
        crate::changing_role::follow_config(&server);
        waits::watchdog::start(&server.observe)?;
        Ok(server)
    }

    /// Names the program that the server runs in, before the loops start. Its memory counts from its first
    /// command on.
    pub fn run_in(&self, program: Box<dyn Program>) {
        if self.program.set(program).is_ok() {
            let now_ms = stdx::clock::wall_ms();
            crate::shortage::look(self, now_ms);
            self.observe.measured.sample(now_ms, &self.observe.crowd);
        }
    }
}
