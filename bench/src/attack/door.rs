//! The door: handshakes of TLS, files of users, failed logins. The bystander is let in already, and speaks
//! plain RESP.
//!
//! What is asked so many times a second has a fixed timetable, which all attackers share. A strike is a piece
//! of it: [`BEAT`]. A connection that is under way at the end of a piece goes on in the next. When too many
//! are under way, those that would begin are left out; the server is slower than the timetable then.

use super::{Attack, PLAIN, Stage, Strike, nothing};
use crate::random::hex16;
use crate::secure::{self, Tickets};
use crate::server::{Door, EVERYBODY, USERS};
use crate::sys::{self, Epoll, Interest};
use dial::FrameCount;
use rustls::{ClientConfig, ClientConnection, HandshakeKind};
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Connections a second.
const VISITS: u64 = 1_000;
/// Connections that send their greeting byte by byte.
const DRIPS: u64 = 1_000;
/// Users of the file.
const MANY_USERS: u64 = 10_000;
/// Failed logins a second.
const LOGINS: u64 = 10_000;

/// The part of the timetable of one strike.
const BEAT: Duration = Duration::from_millis(100);
/// Visits under way, of all attackers, above which none begins.
const UNDER_WAY: usize = 500;
/// Tickets that an attacker has at least when it begins, one of each visit before.
const STOCK: usize = 64;
/// Time between two bytes of a greeting: some seven seconds for all of it.
const DRIP: Duration = Duration::from_millis(30);
/// Time between two moments at which bytes of greetings, or logins, are sent.
const TICK: Duration = Duration::from_millis(1);
/// Silence after which a server is given up.
const SILENCE: Duration = Duration::from_secs(60);

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "tls-full",
        what: "{} full handshakes a second, each with a PING",
        strike: |stage, _| visits(stage, None),
        ..VISITED
    },
    Attack {
        name: "tls-resumed",
        what: "{} resumed handshakes a second, each with a PING",
        strike: |stage, _| visits(stage, Some(Arc::default())),
        ..VISITED
    },
    Attack {
        name: "tls-bytewise",
        what: "{} connections send their ClientHello byte by byte",
        size: DRIPS,
        door: Door::Tls,
        strike: |stage, _| {
            let n = (stage.scaled(DRIPS) as usize / stage.attackers).max(1);
            let mut gutter = Gutter::new(stage.server.tls_port, n)?;
            Ok(Box::new(move |_| gutter.beat()))
        },
        ..PLAIN
    },
    Attack {
        name: "acl-load",
        what: "ACL LOAD of {} users",
        size: MANY_USERS,
        door: Door::Users,
        setup: |stage| {
            std::fs::write(stage.server.folder().join(USERS), users(stage.scaled(MANY_USERS)))?;
            nothing()
        },
        strike: |_, _| super::repeat_words("ACL LOAD"),
        ..PLAIN
    },
    Attack {
        name: "failed-logins",
        what: "{} failed AUTH a second",
        size: LOGINS,
        setup: |stage| {
            stage.server.client()?.words("ACL SETUSER guarded on >secret ~* +@all")?;
            nothing()
        },
        strike: |stage, _| {
            // All attackers together send as many in a tick as the rate asks for.
            let (rate, attackers) = (stage.scaled(LOGINS), stage.attackers as u64);
            let each = per_tick(rate, attackers);
            let request = crate::wire::line("AUTH guarded wrong").repeat(each as usize);
            let mut timetable = Timetable::every(pace(each * attackers, rate));
            Ok(Box::new(move |attacker| {
                timetable.wait();
                attacker.refused(&request, each, "WRONGPASS")
            }))
        },
        ..PLAIN
    },
];

/// Visitors by TLS.
const VISITED: Attack = Attack { size: VISITS, door: Door::Tls, ..PLAIN };

/// Requests that one of `attackers` sends at once, about each [`TICK`]; at least one.
fn per_tick(a_second: u64, attackers: u64) -> u64 {
    (a_second / 1000 / attackers).max(1)
}

/// The distance of moments at each of which `n` of `a_second` begin.
fn pace(n: u64, a_second: u64) -> Duration {
    Duration::from_secs_f64(n as f64 / a_second as f64)
}

/// A file of so many users, all with a password and rights to commands, keys and channels.
fn users(n: u64) -> String {
    let mut text = EVERYBODY.to_string();
    for i in 0..n {
        let hash: String = (0..4).map(|part| text_of(&hex16(4 * i + part))).collect();
        let _ = writeln!(
            text,
            "user u{i} on #{hash} ~app:{i}:* %R~shared:* &app.{i}.* +@all -@dangerous -@scripting +info"
        );
    }
    text
}

fn text_of(digits: &[u8]) -> String {
    String::from_utf8_lossy(digits).into_owned()
}

/// Moments at equal distances. After a long delay the missed ones are left out.
struct Timetable {
    next: Instant,
    pace: Duration,
}

impl Timetable {
    fn every(pace: Duration) -> Timetable {
        Timetable { next: Instant::now(), pace }
    }

    /// The moment that has come, if it has. The one behind it is the next.
    fn due(&mut self, now: Instant) -> Option<Instant> {
        if now.saturating_duration_since(self.next) > BEAT {
            self.next = now;
        }
        let due = (self.next <= now).then_some(self.next)?;
        self.next += self.pace;
        Some(due)
    }

    /// Sleeps until the next moment.
    fn wait(&mut self) {
        while self.due(Instant::now()).is_none() {
            sleep(self.next.saturating_duration_since(Instant::now()));
        }
    }
}

/// The strike of visitors by the timetable. With `tickets` each resumes a session of an earlier one.
fn visits(stage: &Stage, tickets: Option<Arc<Tickets>>) -> io::Result<Strike> {
    let pace = pace(stage.attackers as u64, stage.scaled(VISITS));
    let mut hall = Hall::new(stage.server.tls_port, tickets.as_ref(), UNDER_WAY / stage.attackers)?;
    if let Some(tickets) = &tickets {
        for _ in 0..STOCK {
            hall.begin(Instant::now())?;
            hall.finish()?;
        }
        if tickets.len() < STOCK {
            return Err(io::Error::other("the server gives no tickets"));
        }
        tickets.release();
    }
    hall.counted = Counted::default();
    let resumes = tickets.is_some();
    let mut timetable = Timetable::every(pace);
    Ok(Box::new(move |_| {
        let took = hall.beat(&mut timetable)?;
        let Counted { full, resumed } = hall.counted;
        match resumes {
            true if full > resumed => {
                Err(io::Error::other(format!("{full} handshakes were full ones, {resumed} resumed")))
            }
            false if resumed > 0 => Err(io::Error::other(format!("{resumed} handshakes were resumed"))),
            _ => Ok(took),
        }
    }))
}

/// Visits that were completed, by their handshakes.
#[derive(Clone, Copy, Default)]
struct Counted {
    full: u64,
    resumed: u64,
}

/// A connection: handshake, PING, PONG, the end.
struct Visit {
    stream: TcpStream,
    session: ClientConnection,
    intended: Instant,
    asked: bool,
    scanner: FrameCount,
}

impl Visit {
    /// Goes on as far as the socket lets it. True: the answer is there.
    fn go_on(&mut self, ping: &[u8], buffer: &mut [u8]) -> io::Result<bool> {
        let mut answers = 0;
        loop {
            if !self.session.is_handshaking() && !std::mem::replace(&mut self.asked, true) {
                self.session.writer().write_all(ping)?;
            }
            secure::flush(&mut self.session, &mut self.stream)?;
            let scanner = &mut self.scanner;
            let more = secure::receive(&mut self.session, &mut self.stream, buffer, |plain| {
                answers += scanner.feed(plain);
            })?;
            if answers > 0 || !more {
                return Ok(answers > 0);
            }
        }
    }
}

/// Visits under way.
struct Hall {
    port: u16,
    config: Arc<ClientConfig>,
    most: usize,
    epoll: Epoll,
    visits: Vec<Option<Visit>>,
    free: Vec<usize>,
    ready: Vec<(usize, bool)>,
    ping: Vec<u8>,
    buffer: Vec<u8>,
    heard: Instant,
    counted: Counted,
    /// Times of the visits that were completed since they were last asked for.
    times: Vec<Duration>,
}

impl Hall {
    fn new(port: u16, tickets: Option<&Arc<Tickets>>, most: usize) -> io::Result<Hall> {
        Ok(Hall {
            port,
            config: secure::config(tickets)?,
            most: most.max(1),
            epoll: Epoll::new()?,
            visits: Vec::new(),
            free: Vec::new(),
            ready: Vec::new(),
            ping: crate::wire::line("PING"),
            buffer: vec![0; 16 << 10],
            heard: Instant::now(),
            counted: Counted::default(),
            times: Vec::new(),
        })
    }

    fn under_way(&self) -> usize {
        self.visits.len() - self.free.len()
    }

    fn begin(&mut self, intended: Instant) -> io::Result<()> {
        let stream = sys::begin_connect(self.port)?;
        stream.set_nodelay(true)?;
        let session = secure::session(&self.config)?;
        let token = self.free.pop().unwrap_or_else(|| {
            self.visits.push(None);
            self.visits.len() - 1
        });
        self.epoll.add(&stream, token, Interest::ReadWrite)?;
        self.visits[token] =
            Some(Visit { stream, session, intended, asked: false, scanner: FrameCount::default() });
        Ok(())
    }

    /// Waits for events, at most `timeout`, and lets their visits go on.
    fn serve(&mut self, timeout: Duration) -> io::Result<()> {
        self.epoll.wait(timeout, &mut self.ready)?;
        let now = Instant::now();
        if !self.ready.is_empty() || self.under_way() == 0 {
            self.heard = now;
        } else if now - self.heard > SILENCE {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no handshake went on"));
        }
        for (token, writable) in std::mem::take(&mut self.ready) {
            let Some(visit) = &mut self.visits[token] else { continue };
            if writable {
                // It is connected. All that it has to say fits the socket.
                self.epoll.modify(&visit.stream, token, Interest::Read)?;
            }
            if !visit.go_on(&self.ping, &mut self.buffer)? {
                continue;
            }
            self.times.push(visit.intended.elapsed());
            match visit.session.handshake_kind() {
                Some(HandshakeKind::Resumed) => self.counted.resumed += 1,
                _ => self.counted.full += 1,
            }
            self.visits[token] = None;
            self.free.push(token);
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        while self.under_way() > 0 {
            self.serve(Duration::from_secs(1))?;
        }
        Ok(())
    }

    /// A piece of the timetable. Returns the mean time of the visits that were completed, from their moments
    /// to their answers; zero: there were none.
    fn beat(&mut self, timetable: &mut Timetable) -> io::Result<Duration> {
        let end = Instant::now() + BEAT;
        self.times.clear();
        loop {
            let now = Instant::now();
            if now >= end {
                return Ok(mean(&self.times));
            }
            while let Some(intended) = timetable.due(now) {
                if self.under_way() < self.most {
                    self.begin(intended)?;
                }
            }
            self.serve(timetable.next.min(end).saturating_duration_since(Instant::now()))?;
        }
    }
}

fn mean(times: &[Duration]) -> Duration {
    times.iter().sum::<Duration>().checked_div(times.len() as u32).unwrap_or_default()
}

/// A connection that sends its greeting byte by byte.
struct Drip {
    stream: TcpStream,
    hello: Vec<u8>,
    sent: usize,
    /// The moment of the last byte.
    said: Option<Instant>,
}

impl Drip {
    fn begin(port: u16, config: &Arc<ClientConfig>) -> io::Result<Drip> {
        let mut hello = Vec::new();
        secure::session(config)?.write_tls(&mut hello)?;
        let stream = sys::begin_connect(port)?;
        stream.set_nodelay(true)?;
        Ok(Drip { stream, hello, sent: 0, said: None })
    }

    /// Sends the next `n` bytes. False: the server has closed the connection.
    fn drip(&mut self, n: usize) -> io::Result<bool> {
        let rest = &self.hello[self.sent..];
        if rest.is_empty() {
            return Ok(true);
        }
        match self.stream.write(&rest[..n.min(rest.len())]) {
            Ok(taken) => {
                self.sent += taken;
                self.said = (self.sent == self.hello.len()).then(Instant::now);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(error) if is_closed(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The time of the first byte of the answer; `Some(None)`: the server has closed the connection.
    fn answer(&mut self) -> io::Result<Option<Option<Duration>>> {
        match self.stream.read(&mut [0; 4096]) {
            Ok(0) => Ok(Some(None)),
            Ok(_) => Ok(Some(self.said.map(|said| said.elapsed()))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if is_closed(&error) => Ok(Some(None)),
            Err(error) => Err(error),
        }
    }
}

fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

/// Connections that send their greetings byte by byte, and begin anew when they are answered or closed.
struct Gutter {
    port: u16,
    config: Arc<ClientConfig>,
    epoll: Epoll,
    drips: Vec<Drip>,
    at: usize,
    timetable: Timetable,
    ready: Vec<(usize, bool)>,
}

impl Gutter {
    fn new(port: u16, n: usize) -> io::Result<Gutter> {
        let config = secure::config(None)?;
        let mut gutter = Gutter {
            port,
            config,
            epoll: Epoll::new()?,
            drips: Vec::with_capacity(n),
            at: 0,
            timetable: Timetable::every(TICK),
            ready: Vec::new(),
        };
        for token in 0..n {
            let mut drip = Drip::begin(port, &gutter.config)?;
            gutter.epoll.add(&drip.stream, token, Interest::Read)?;
            // They are at all places of their greetings from the beginning.
            drip.drip(token * (drip.hello.len() - 1) / n)?;
            gutter.drips.push(drip);
        }
        Ok(gutter)
    }

    fn renew(&mut self, token: usize) -> io::Result<()> {
        self.drips[token] = Drip::begin(self.port, &self.config)?;
        self.epoll.add(&self.drips[token].stream, token, Interest::Read)
    }

    /// A piece of the timetable. Returns the mean time from a greeting's last byte to the answer's first;
    /// zero: none was answered.
    fn beat(&mut self) -> io::Result<Duration> {
        let end = Instant::now() + BEAT;
        let mut times = Vec::new();
        loop {
            let now = Instant::now();
            if now >= end {
                return Ok(mean(&times));
            }
            while self.timetable.due(now).is_some() {
                self.tick()?;
            }
            let wait = self.timetable.next.min(end).saturating_duration_since(Instant::now());
            self.epoll.wait(wait, &mut self.ready)?;
            for (token, _) in std::mem::take(&mut self.ready) {
                if let Some(time) = self.drips[token].answer()? {
                    times.extend(time);
                    self.renew(token)?;
                }
            }
        }
    }

    /// One more byte for those whose turn it is.
    fn tick(&mut self) -> io::Result<()> {
        let n = self.drips.len();
        let share = (n as u128 * TICK.as_nanos()).div_ceil(DRIP.as_nanos()) as usize;
        for _ in 0..share {
            self.at = (self.at + 1) % n;
            if !self.drips[self.at].drip(1)? {
                self.renew(self.at)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timetable_leaves_out_what_was_missed_for_long() {
        let mut timetable = Timetable::every(Duration::from_millis(10));
        let start = timetable.next;
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert_eq!(timetable.due(at(25)), Some(at(0)));
        assert_eq!(timetable.due(at(25)), Some(at(10)));
        assert_eq!(timetable.due(at(25)), Some(at(20)));
        assert_eq!(timetable.due(at(25)), None);
        assert_eq!(timetable.due(at(1000)), Some(at(1000)));
        assert_eq!(timetable.due(at(1000)), None);
    }

    #[test]
    fn each_user_is_a_line_of_its_own() {
        let text = users(3);
        let names: Vec<&str> = text.lines().filter_map(|line| line.split(' ').nth(1)).collect();
        assert_eq!(names, ["default", "u0", "u1", "u2"]);
        let mut hashes: Vec<&str> = text.lines().skip(1).filter_map(|line| line.split(' ').nth(3)).collect();
        hashes.dedup();
        assert_eq!(hashes.len(), 3);
        assert!(hashes.iter().all(|hash| hash.len() == 65 && hash.starts_with('#')));
    }

    #[test]
    fn logins_of_all_attackers_add_up() {
        for attackers in [1, 3, 10, 100] {
            let each = per_tick(LOGINS, attackers);
            let a_second = (attackers * each) as f64 / pace(attackers * each, LOGINS).as_secs_f64();
            assert!((a_second - LOGINS as f64).abs() < 1.0, "{attackers}: {a_second}");
        }
        assert_eq!((per_tick(LOGINS, 1), pace(10, LOGINS)), (10, TICK));
    }
}
