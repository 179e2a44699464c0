//! FAILOVER: a replica leads in place of this server, and nothing is lost.
//!
//! ```text
//! writes wait ─► replicas are asked ─► one has everything ─► it is told to lead (PSYNC .. FAILOVER)
//!      └─ too late, ABORT: writes go on ◄─┘                       └─► this server follows it; writes are refused
//! ```
//!
//! - FO1: from the first wait on nothing enters the stream, so who has its end has everything.
//! - FO2: this server leads again only if the replica has said that it does not lead.

use super::{Keeper, Position};
use exec::info::Replica;
use replication::replica::HandOver;
use role::{Address, Failing, Failover};
use std::time::{Duration, Instant};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(1);
/// Longest wait for writes under way, where the wish has no time of its own.
const FREEZING: Duration = Duration::from_secs(10);

impl Keeper {
    /// Carries out FAILOVER. It may take as long as the wish allows.
    pub(super) fn fail_over(&mut self, wish: &Failover) {
        log::info!("a replica is to lead: writes wait until it has everything");
        let began = Instant::now();
        match self.hand_over(wish, began) {
            Ok(Address { host, port }) => {
                let ms = began.elapsed().as_millis();
                log::info!("{host}:{port} leads, and this server follows it: writes waited for {ms} ms");
                self.server.tell_moved(Some(&Address { host: host.clone(), port }));
                self.server.config.note("replicaof", format!("{host} {port}").as_bytes());
            }
            Err(why) => log::warn!("the failover was given up: {why}"),
        }
        self.server.role.set_failing(Failing::No);
        self.server.replicas.get().iter().for_each(|replicas| replicas.wakes());
        // For those whose wait has ended and who have heard nothing.
        self.server.tell_moved(None);
        self.server.thaw();
    }

    fn hand_over(&mut self, wish: &Failover, began: Instant) -> Result<Address, String> {
        if self.is_demoted {
            return Err("this server is a replica".to_owned());
        }
        if !self.server.freeze(wish.timeout.unwrap_or(FREEZING)) {
            return Err("what was under way took too long".to_owned());
        }
        let end = self.replicas().map_or(0, |replicas| replicas.rests());
        let target = self.await_replica(wish, began, end)?;
        self.server.role.set_failing(Failing::InProgress);
        self.server.role.hand_over(Some(target.clone()));
        self.follow(target.clone(), true);
        let told = match &self.from {
            Some(Position { offset, .. }) if *offset != end => {
                Err("something was written meanwhile".to_owned())
            }
            _ => self.await_answer(),
        };
        if let Err(why) = told {
            self.unlink();
            self.server.role.hand_over(None);
            self.lead();
            return Err(why);
        }
        Ok(target)
    }

    /// Waits for a replica that has all up to an offset. Errors: none has it in time.
    fn await_replica(&self, wish: &Failover, began: Instant, end: u64) -> Result<Address, String> {
        let is_meant = |replica: &&Replica| {
            let Some(Address { host, port }) = &wish.to else { return replica.port > 0 };
            replica.address == *host && replica.port == *port
        };
        loop {
            let replicas = self.replicas().map(|replicas| replicas.figures().replicas).unwrap_or_default();
            let mut meant = replicas.iter().filter(|replica| replica.state == "online").filter(is_meant);
            if let Some(Replica { address, port, .. }) = meant.find(|replica| replica.offset >= end) {
                return Ok(Address { host: address.clone(), port: *port });
            }
            if self.server.role.gives_up() {
                return Err("FAILOVER ABORT".to_owned());
            }
            if wish.timeout.is_some_and(|timeout| began.elapsed() >= timeout) {
                return match &wish.to {
                    Some(to) if wish.force => {
                        log::warn!("{}:{} leads though it may lack something (FORCE)", to.host, to.port);
                        Ok(to.clone())
                    }
                    _ => Err("no replica had everything in time".to_owned()),
                };
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until the replica has said whether it leads (FO2). Errors: it does not.
    fn await_answer(&self) -> Result<(), String> {
        loop {
            let state = self.current.lock().clone();
            match state.map(|state| state.figures().hand_over) {
                Some(HandOver::Done) => return Ok(()),
                Some(HandOver::Refused(why)) => return Err(why),
                None => return Err("no thread could be started".to_owned()),
                Some(_) if self.server.role.gives_up() => return Err("FAILOVER ABORT".to_owned()),
                Some(_) => std::thread::sleep(LOOK),
            }
        }
    }
}
