//! What happens to the servers and to the ways between them.

use super::bank::{COUNTERS as COUNTERS_DB, pipeline};
use super::check::within;
use super::load::words;
use super::node::Info;
use super::stage::NOBODY;
use super::{COUNTERS, Course};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use support::wire::Frame;

/// Time for what a server does at once if it does it at all.
const SOON: Duration = Duration::from_secs(60);

impl Course<'_> {
    /// Does one thing.
    pub fn step(&mut self) -> Result<(), String> {
        let pause = self.rng.between(10, 400);
        std::thread::sleep(Duration::from_millis(pause as u64));
        match self.rng.below(100) {
            0..8 => self.kill_replica(),
            8..16 => self.fail_over(),
            16..21 => self.restart_leader(),
            21..27 => self.stop_one(),
            27..43 => self.calm_cut(),
            43..51 => self.disturb(),
            51..60 => self.follow_another(),
            60..68 => self.exchange_in_order(),
            68..72 => self.exchange_at_once(),
            72..78 => self.waver(),
            78..85 => self.hand_over(),
            85..90 => self.save(),
            90..95 => self.set(),
            95..97 => self.shut_down(),
            _ => self.kill_links(),
        }
    }

    /// Sends a command; whatever comes of it.
    pub fn call(&self, nr: usize, line: &str) -> Frame {
        match self.nodes[nr].conn() {
            Ok(mut conn) => conn.call_bytes(&words(line)),
            Err(_) => Frame::Gone("no connection"),
        }
    }

    /// The port at which a server finds the one that it follows.
    pub fn upstream_port(&self, nr: usize) -> Result<Option<u16>, String> {
        match self.upstream[nr] {
            Some(followed) => Ok(Some(self.pipes.between(nr, followed)?.port)),
            None => Ok(None),
        }
    }

    pub fn start(&mut self, nr: usize) -> Result<(), String> {
        let upstream = self.upstream_port(nr)?;
        self.tell(format!("start {nr}, which follows {:?}", self.upstream[nr]));
        self.nodes[nr].start(upstream)
    }

    /// Has a server follow another one from now on.
    fn follow(&mut self, nr: usize, followed: usize) -> Result<(), String> {
        self.upstream[nr] = Some(followed);
        self.stage.forget_promises();
        if !self.nodes[nr].is_running() || self.nodes[nr].is_stopped {
            return Ok(());
        }
        let port = self.pipes.between(nr, followed)?.port;
        self.turn(nr, &format!("REPLICAOF 127.0.0.1 {port}"))
    }

    /// Sends a REPLICAOF, which is not taken while data are loaded.
    fn turn(&self, nr: usize, line: &str) -> Result<(), String> {
        let mut last = Frame::Null;
        let is_taken = within(SOON, || {
            last = self.call(nr, line);
            !matches!(&last, Frame::Error(text) if text.starts_with(b"LOADING"))
        });
        match last {
            Frame::Simple(_) if is_taken => Ok(()),
            other => Err(format!("{line} on node {nr} was answered {other}")),
        }
    }

    /// Any server that follows.
    fn any_replica(&mut self) -> usize {
        let leader = self.stage.leader();
        let others: Vec<usize> = (0..self.nodes.len()).filter(|nr| *nr != leader).collect();
        *self.rng.pick(&others)
    }

    /// Whether a server gets its data by way of another one.
    fn is_below(&self, mut nr: usize, above: usize) -> bool {
        for _ in 0..self.nodes.len() {
            match self.upstream[nr] {
                Some(followed) if followed == above => return true,
                Some(followed) => nr = followed,
                None => return false,
            }
        }
        true
    }

    fn infos(&self) -> Vec<Option<Info>> {
        self.nodes.iter().map(|node| node.info().filter(|_| node.is_running() && !node.is_stopped)).collect()
    }

    /// All run, and nothing disturbs them. False: a link does not come up soon.
    fn all_up(&mut self, patience: Duration) -> Result<bool, String> {
        self.pipes.heal();
        for nr in 0..self.nodes.len() {
            if self.nodes[nr].is_stopped {
                self.nodes[nr].go_on();
            }
            if !self.nodes[nr].is_running() {
                self.start(nr)?;
            }
        }
        let leader = self.stage.leader();
        Ok(within(patience, || {
            let infos = self.infos();
            let is_up = |(nr, info): (usize, &Option<Info>)| {
                nr == leader || info.as_ref().is_some_and(|info| info.is_up() && !info.is_copying())
            };
            infos.iter().enumerate().all(is_up)
        }))
    }

    fn kill_replica(&mut self) -> Result<(), String> {
        let nr = self.any_replica();
        let (log, back) = (self.rng.percent(40), self.rng.percent(75));
        self.tell(format!("kill -9 {nr}, a replica; log from now on: {log}; back at once: {back}"));
        self.stage.forget_promises();
        self.nodes[nr].kill();
        self.nodes[nr].appendonly = log;
        if back {
            let pause = self.rng.between(0, 300);
            std::thread::sleep(Duration::from_millis(pause as u64));
            self.start(nr)?;
        }
        self.stage.forget_promises();
        Ok(())
    }

    fn shut_down(&mut self) -> Result<(), String> {
        let nr = self.any_replica();
        self.tell(format!("SIGTERM {nr}, a replica, and start"));
        self.stage.forget_promises();
        self.nodes[nr].go_on();
        self.nodes[nr].end()?;
        self.start(nr)?;
        self.stage.forget_promises();
        Ok(())
    }

    fn restart_leader(&mut self) -> Result<(), String> {
        let leader = self.stage.leader();
        let by_order = self.rng.percent(30);
        self.tell(format!(
            "{} {leader}, which leads, and start",
            if by_order { "SIGTERM" } else { "kill -9" }
        ));
        self.stage.forget_promises();
        self.stage.lead(NOBODY);
        self.nodes[leader].go_on();
        if by_order {
            self.nodes[leader].end()?;
        }
        self.nodes[leader].kill();
        let pause = self.rng.between(0, 200);
        std::thread::sleep(Duration::from_millis(pause as u64));
        self.start(leader)?;
        self.nodes[leader].loaded()?;
        self.stage.forget_promises();
        self.stage.lead(leader);
        Ok(())
    }

    fn stop_one(&mut self) -> Result<(), String> {
        let nr = self.rng.below(self.nodes.len());
        let ms = if self.rng.percent(8) { 7500 } else { self.rng.between(20, 1500) };
        self.tell(format!("SIGSTOP {nr} for {ms} ms"));
        self.nodes[nr].stop();
        std::thread::sleep(Duration::from_millis(ms as u64));
        self.nodes[nr].go_on();
        Ok(())
    }

    /// Disturbs a way, until a rest or another step heals it.
    fn disturb(&mut self) -> Result<(), String> {
        let nr = self.any_replica();
        let Some(followed) = self.upstream[nr] else { return Ok(()) };
        let pipe = self.pipes.between(nr, followed)?;
        let n = self.rng.below(1 << 20) as u64;
        match self.rng.below(6) {
            0 => {
                let rate = *self.rng.pick(&[10 << 10, 100 << 10, 1 << 20]);
                self.tell(format!("{nr} gets {rate} bytes a second of {followed}"));
                pipe.slow(rate);
            }
            1 => {
                self.tell(format!("{nr} gets each piece of {followed} {} ms late", n % 40));
                pipe.delay(n % 40);
            }
            2 => {
                self.tell(format!("{nr} gets nothing of {followed}"));
                pipe.hold();
            }
            3 => {
                self.tell(format!("{nr} cannot reach {followed}"));
                pipe.refuse();
            }
            4 => {
                self.tell(format!("{nr} is healed"));
                pipe.heal();
            }
            _ => {
                self.tell(format!("{nr} is cut off {followed} after {n} bytes"));
                pipe.cut_after(n as i64);
            }
        }
        Ok(())
    }

    /// Cuts a link of which nothing else is the matter (H4).
    fn calm_cut(&mut self) -> Result<(), String> {
        let nr = self.any_replica();
        let Some(followed) = self.upstream[nr] else { return Ok(()) };
        if !self.all_up(Duration::from_secs(10))? {
            return Ok(());
        }
        let came = self.leeches.came.load(SeqCst);
        let Some(before) = self.nodes[followed].info() else { return Ok(()) };
        let pipe = self.pipes.between(nr, followed)?;
        let how = self.rng.below(5);
        let n = self.rng.below(300_000);
        self.tell(format!("calm cut of {nr} off {followed}, way {how}, {n}"));
        match how {
            0 => pipe.cut(),
            1 => {
                pipe.cut_after(n as i64);
                std::thread::sleep(Duration::from_millis(300));
                pipe.heal();
            }
            2 => drop(self.call(nr, "CLIENT KILL TYPE master")),
            3 => drop(self.call(followed, "CLIENT KILL TYPE replica")),
            _ => {
                std::thread::scope(|scope| {
                    scope.spawn(|| self.call(nr, "CLIENT KILL TYPE master"));
                    scope.spawn(|| self.call(followed, "CLIENT KILL TYPE replica"));
                });
            }
        }
        std::thread::sleep(Duration::from_millis(50));
        if !self.all_up(SOON)? {
            let infos = self.infos();
            let shown = infos.iter().flatten().map(|info| info.shown(super::REPLICATION));
            return Err(format!(
                "a link that was cut does not come up:\n  {}",
                shown.collect::<Vec<_>>().join("\n  ")
            ));
        }
        let Some(after) = self.nodes[followed].info() else { return Ok(()) };
        let room = before.number("repl_backlog_size") / 2;
        if self.leeches.came.load(SeqCst) != came || after.offset() - before.offset() > room {
            return Ok(());
        }
        if after.number("sync_full") != before.number("sync_full") {
            return Err(format!(
                "a cut of {nr} off {followed} was followed by a full copy: offset {} then {}, backlog {}\n  {}\n  {}",
                before.offset(),
                after.offset(),
                before.number("repl_backlog_size"),
                before.shown(super::REPLICATION),
                after.shown(super::REPLICATION)
            ));
        }
        self.tally.calm_cuts += 1;
        Ok(())
    }

    fn kill_links(&mut self) -> Result<(), String> {
        let nr = self.rng.below(self.nodes.len());
        let kind = *self.rng.pick(&["replica", "master"]);
        self.tell(format!("CLIENT KILL TYPE {kind} on {nr}"));
        self.call(nr, &format!("CLIENT KILL TYPE {kind}"));
        Ok(())
    }

    fn follow_another(&mut self) -> Result<(), String> {
        let nr = self.any_replica();
        let others: Vec<usize> =
            (0..self.nodes.len()).filter(|to| *to != nr && !self.is_below(*to, nr)).collect();
        let to = *self.rng.pick(&others);
        self.tell(format!("{nr} follows {to}"));
        self.follow(nr, to)
    }

    /// A replica changes its mind quickly: leads for a moment, follows this one, then that one.
    fn waver(&mut self) -> Result<(), String> {
        let nr = self.any_replica();
        if self.nodes[nr].is_stopped || !self.nodes[nr].is_running() {
            return Ok(());
        }
        self.stage.forget_promises();
        self.tell(format!("{nr} leads for a moment, and follows again"));
        for _ in 0..self.rng.between(1, 3) {
            self.call(nr, "REPLICAOF NO ONE");
            if self.rng.percent(50) {
                let pause = self.rng.between(0, 150);
                std::thread::sleep(Duration::from_millis(pause as u64));
            }
            if self.rng.percent(40) {
                // What it takes now nobody else has.
                self.call(nr, "SET lost 1");
            }
            let others: Vec<usize> =
                (0..self.nodes.len()).filter(|to| *to != nr && !self.is_below(*to, nr)).collect();
            let to = *self.rng.pick(&others);
            self.follow(nr, to)?;
        }
        Ok(())
    }

    fn save(&mut self) -> Result<(), String> {
        let nr = self.rng.below(self.nodes.len());
        let what = *self.rng.pick(&["BGSAVE", "BGREWRITEAOF"]);
        self.tell(format!("{what} on {nr}"));
        self.call(nr, what);
        Ok(())
    }

    fn set(&mut self) -> Result<(), String> {
        let nr = self.rng.below(self.nodes.len());
        let setting = *self.rng.pick(&[
            "repl-backlog-size 64kb",
            "repl-backlog-size 1mb",
            "repl-backlog-size 64mb",
            "repl-backlog-size 16mb",
            "appendonly yes",
            "appendonly no",
            "appendfsync always",
            "appendfsync everysec",
        ]);
        self.tell(format!("CONFIG SET {setting} on {nr}"));
        self.call(nr, &format!("CONFIG SET {setting}"));
        Ok(())
    }

    /// Promotes a server, and waits until it leads.
    fn promote(&mut self, nr: usize) -> Result<(), String> {
        self.upstream[nr] = None;
        self.turn(nr, "REPLICAOF NO ONE")?;
        match within(SOON, || self.nodes[nr].info().is_some_and(|info| !info.follows())) {
            true => Ok(()),
            false => Err(format!("node {nr} does not come to lead")),
        }
    }

    /// All that followed the old leader, or would follow in a circle, follow the new one.
    fn gather(&mut self, old: usize, new: usize) -> Result<(), String> {
        for nr in 0..self.nodes.len() {
            if nr == new {
                continue;
            }
            let stays = nr != old && self.is_below(nr, new) && self.rng.percent(60);
            if !stays {
                self.follow(nr, new)?;
            }
        }
        Ok(())
    }

    /// kill -9 of the leader; the most advanced replica leads (H2).
    fn fail_over(&mut self) -> Result<(), String> {
        let leader = self.stage.leader();
        let strict = self.rng.percent(75) && self.all_up(Duration::from_secs(15))?;
        self.nodes.iter_mut().filter(|node| node.is_stopped).for_each(|node| node.go_on());
        let cuts = self.rng.percent(30);
        if cuts {
            for nr in 0..self.nodes.len() {
                if let Some(followed) = self.upstream[nr] {
                    self.pipes.between(nr, followed)?.refuse();
                }
            }
        }
        let pause = self.rng.between(0, 250);
        std::thread::sleep(Duration::from_millis(pause as u64));
        let before = self.infos();
        let Some(id) = before[leader].as_ref().map(|info| info.text("master_replid").to_owned()) else {
            return Ok(());
        };
        let holds =
            |info: &Info| info.text("master_replid") == id && !info.is_copying() && (cuts || info.is_up());
        let all_hold =
            before.iter().all(|info| info.as_ref().is_some_and(|info| !info.follows() || holds(info)));
        self.nodes[leader].kill();
        self.stage.lead(NOBODY);
        self.tell(format!(
            "kill -9 {leader}, which leads; strict: {strict}, all hold: {all_hold}, cut off: {cuts}"
        ));
        if !self.stage.quiet(self.options.hang) {
            return Err("a writer of a killed server gets no answer".into());
        }
        let Some((best, offset)) = self.most_advanced(&id) else {
            self.stage.forget_promises();
            self.start(leader)?;
            self.nodes[leader].loaded()?;
            self.stage.lead(leader);
            return Ok(());
        };
        self.tell(format!("{best} leads, at {offset}"));
        self.promote(best)?;
        self.kept(best, strict && all_hold)?;
        self.stage.forget_promises();
        self.pipes.heal();
        self.tally.failovers += 1;
        let early = self.rng.percent(50);
        if early {
            self.stage.lead(best);
        }
        self.gather(leader, best)?;
        self.nodes[leader].appendonly = self.rng.percent(50);
        if self.rng.percent(70) {
            self.start(leader)?;
        }
        self.stage.forget_promises();
        self.stage.lead(best);
        Ok(())
    }

    /// The server with the highest offset of a history, once offsets stand still.
    fn most_advanced(&self, id: &str) -> Option<(usize, i64)> {
        let mut last = Vec::new();
        within(Duration::from_secs(20), || {
            let now: Vec<Option<i64>> = self
                .infos()
                .iter()
                .map(|info| {
                    info.as_ref().filter(|info| info.text("master_replid") == id && !info.is_copying())
                })
                .map(|info| info.map(Info::offset))
                .collect();
            let stands = now == last;
            last = now;
            std::thread::sleep(Duration::from_millis(100));
            stands
        });
        let known = last.iter().enumerate().filter_map(|(nr, offset)| Some((nr, (*offset)?)));
        known.max_by_key(|(_, offset)| *offset)
    }

    /// The counters of a new leader against what was sent, and what was promised.
    fn kept(&mut self, nr: usize, strict: bool) -> Result<(), String> {
        for (counter, value) in self.counters_of(nr)?.into_iter().enumerate() {
            let told = *self.stage.counter(counter);
            if value > told.sent {
                return Err(format!("counter {counter} is {value} on node {nr}, and {told:?}"));
            }
            if strict && value < told.waited {
                return Err(format!(
                    "WAIT promised counter {counter}: it is {value} on node {nr}, and {told:?}"
                ));
            }
            if strict && told.waited > 0 {
                self.tally.promises += 1;
            }
        }
        Ok(())
    }

    fn counters_of(&self, nr: usize) -> Result<Vec<u64>, String> {
        let mut requests = vec![words(&format!("SELECT {COUNTERS_DB}"))];
        requests.extend((0..COUNTERS).map(|counter| words(&format!("GET ctr{counter}"))));
        let replies = pipeline(&mut self.nodes[nr].conn()?, &requests)
            .map_err(|why| format!("counters of node {nr}: {why}"))?;
        let number = |reply: &Frame| std::str::from_utf8(reply.text()?).ok()?.parse().ok();
        Ok(replies[1..].iter().map(|reply| number(reply).unwrap_or(0)).collect())
    }

    /// CLIENT PAUSE, equal offsets, a new leader, and the old one follows it (H3).
    fn exchange_in_order(&mut self) -> Result<(), String> {
        let leader = self.stage.leader();
        if !self.all_up(Duration::from_secs(15))? {
            return Ok(());
        }
        let new = self.any_replica();
        self.tell(format!("exchange in order: {new} leads instead of {leader}"));
        // A PING behind the last look would be a byte that only the old leader has.
        self.call(leader, "CONFIG SET repl-ping-replica-period 3600");
        self.call(leader, "CLIENT PAUSE 60000 WRITE");
        // A WAIT behind the last write asks the replicas, by bytes of the stream.
        std::thread::sleep(Duration::from_millis(500));
        let caught_up = within(Duration::from_secs(20), || {
            let offset = |nr: usize| self.nodes[nr].info().map(|info| info.offset());
            let before = offset(leader);
            before.is_some() && (0..self.nodes.len()).all(|nr| offset(nr) == before)
        });
        if !caught_up {
            self.call(leader, "CONFIG SET repl-ping-replica-period 1");
            self.call(leader, "CLIENT UNPAUSE");
            return Ok(());
        }
        // Clients that wait have no answer yet.
        let told = self.stage.counters();
        let came = self.leeches.came.load(SeqCst);
        let Some(before) = self.nodes[new].info() else { return Ok(()) };
        let rested = self.nodes[leader].info();
        self.promote(new)?;
        if let (Some(rested), Some(now)) = (rested, self.nodes[leader].info())
            && now.offset() != rested.offset()
        {
            return Err(format!("a paused server goes on to tell: {}", self.told_behind(leader, &rested)));
        }
        for (nr, value) in self.counters_of(new)?.into_iter().enumerate() {
            if value < told[nr].acked {
                return Err(format!(
                    "counter {nr} is {value} on node {new}, and before it led {:?}",
                    told[nr]
                ));
            }
        }
        self.gather(leader, new)?;
        self.call(leader, "CONFIG SET repl-ping-replica-period 1");
        self.call(leader, "CLIENT UNPAUSE");
        self.stage.forget_promises();
        self.stage.lead(new);
        let up = self.all_up(SOON)?;
        let Some(after) = self.nodes[new].info() else { return Ok(()) };
        if self.is_copied_in_vain(&before, &after, came) {
            return Err(format!(
                "an exchange in order was followed by a full copy: {}",
                after.shown(super::REPLICATION)
            ));
        }
        if up {
            Ok(())
        } else {
            Err(format!("after an exchange a link does not come up: {}", after.shown(super::REPLICATION)))
        }
    }

    /// Whether a server sent a full copy though the backlog had all that was lacking. A leech has taken none, and
    /// replicas of other makes none either.
    fn is_copied_in_vain(&self, before: &Info, after: &Info, came: u64) -> bool {
        let has_all =
            after.offset().saturating_sub(before.offset()) <= before.number("repl_backlog_size") / 2;
        let is_ours = self.nodes.iter().all(|node| node.is_ours);
        let is_alone = self.leeches.came.load(SeqCst) == came;
        is_ours && is_alone && has_all && after.number("sync_full") != before.number("sync_full")
    }

    /// FAILOVER under writes: what the old leader answered the new one has, and nobody needs a full copy (H6).
    fn hand_over(&mut self) -> Result<(), String> {
        let leader = self.stage.leader();
        let direct: Vec<usize> =
            (0..self.nodes.len()).filter(|nr| self.upstream[*nr] == Some(leader)).collect();
        if direct.is_empty() || !self.all_up(Duration::from_secs(15))? {
            return Ok(());
        }
        let new = *self.rng.pick(&direct);
        self.tell(format!("FAILOVER of {leader} to {new}"));
        let came = self.leeches.came.load(SeqCst);
        let Some(before) = self.nodes[new].info() else { return Ok(()) };
        let port = self.nodes[new].port;
        let answer = self.call(leader, &format!("FAILOVER TO 127.0.0.1 {port} TIMEOUT 20000"));
        if !matches!(answer, Frame::Simple(_)) {
            // A replica that just came back is not online yet.
            return Ok(());
        }
        let is_over = within(SOON, || {
            let info = self.nodes[leader].info();
            info.is_some_and(|info| info.text("master_failover_state") == "no-failover")
        });
        let leads = |nr: usize| self.nodes[nr].info().is_some_and(|info| !info.follows());
        match (is_over, leads(leader), leads(new)) {
            (true, true, false) => return Ok(()),
            (true, false, true) => {}
            (_, old, new) => {
                return Err(format!("FAILOVER: over {is_over}, the old one leads {old}, the new one {new}"));
            }
        }
        let told = self.stage.counters();
        (self.upstream[new], self.upstream[leader]) = (None, Some(new));
        self.stage.lead(NOBODY);
        for (nr, value) in self.counters_of(new)?.into_iter().enumerate() {
            if value < told[nr].acked {
                return Err(format!(
                    "FAILOVER lost: counter {nr} is {value} on node {new}, and {:?}",
                    told[nr]
                ));
            }
        }
        self.gather(leader, new)?;
        self.stage.forget_promises();
        self.stage.lead(new);
        self.tally.handed_over += 1;
        if !self.all_up(SOON)? {
            return Err("after FAILOVER a link does not come up".into());
        }
        let Some(after) = self.nodes[new].info() else { return Ok(()) };
        if self.is_copied_in_vain(&before, &after, came) {
            return Err(format!("FAILOVER was followed by a full copy: {}", after.shown(super::REPLICATION)));
        }
        Ok(())
    }

    /// What a server tells its replicas behind an offset, as far as it comes at once.
    fn told_behind(&self, nr: usize, at: &Info) -> String {
        let Ok(mut conn) = self.nodes[nr].conn() else { return String::new() };
        let psync = format!("PSYNC {} {}\r\n", at.text("master_replid"), at.offset() + 1);
        conn.send(psync.as_bytes());
        let mut told = Vec::new();
        while let Some(frame) = conn.read_within(Duration::from_millis(500)) {
            told.push(frame.to_string());
            if conn.is_gone() || told.len() > 50 {
                break;
            }
        }
        told.join("; ")
    }

    /// A new leader while the old one still writes. What the old one took meanwhile is lost.
    fn exchange_at_once(&mut self) -> Result<(), String> {
        let leader = self.stage.leader();
        let infos = self.infos();
        let ready: Vec<usize> = (0..self.nodes.len())
            .filter(|nr| {
                *nr != leader && infos[*nr].as_ref().is_some_and(|info| info.is_up() && !info.is_copying())
            })
            .collect();
        if ready.is_empty() {
            return Ok(());
        }
        let new = *self.rng.pick(&ready);
        self.tell(format!("exchange at once: {new} leads instead of {leader}"));
        self.stage.forget_promises();
        self.promote(new)?;
        if self.rng.percent(50) {
            let pause = self.rng.between(0, 300);
            std::thread::sleep(Duration::from_millis(pause as u64));
        }
        if self.rng.percent(50) {
            self.stage.lead(new);
        }
        self.nodes[leader].go_on();
        self.gather(leader, new)?;
        self.stage.forget_promises();
        self.stage.lead(new);
        Ok(())
    }
}
