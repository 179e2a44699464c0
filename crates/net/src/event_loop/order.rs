//! The order in which events are served. Others' requests go before the rest of what one connection sent, and
//! before endings when many connections end at once.
//!
//! ```text
//! events:  requests, in the order they came ───────────────► served first, FRESH at a time
//! arrears: further bytes of a connection that sent much ───► a slice of long work, after the events that came before them
//! endings: connections that end, when there are many ──────► at the end of a turn, likewise
//! bulky:   connections in the middle of a large request ───► a slice of long work: one piece is read, the rest goes last
//! ```
//!
//! - R1: the events of a connection are served in the order they came: events behind its arrears join them.
//! - R2: a slot is free for another connection only behind all events of the one before.
//!
//! Arrears hold at most the transport's receive buffers (128 a loop) and a few events per connection. `bulky`
//! holds one entry per connection.

use super::{EventLoop, SLICE_NS};
use crate::transport::{Event, Transport};
use std::sync::atomic::Ordering;

/// Waiting events from which on endings are served after the others.
const ENDINGS: usize = 16;
/// Buffers of one connection's bytes that may wait among others' requests; further ones come behind.
const AMONG: u32 = 2;

impl EventLoop {
    /// Queues received bytes. A connection that sends much fills many buffers at once, so others' requests
    /// stand behind at most [`AMONG`] of them. The events of one connection stay in order.
    pub(super) fn sort_bytes(&mut self, slot: usize, event: Event) {
        match self.conns[slot].as_mut() {
            Some(conn)
                if conn.arrears > 0 || conn.is_queued() || conn.holds_much() || conn.among >= AMONG =>
            {
                self.stand_behind(slot, event)
            }
            Some(conn) => {
                conn.among += 1;
                self.events.push_back(event);
            }
            None => self.events.push_back(event),
        }
    }

    pub(super) fn stand_behind(&mut self, slot: usize, event: Event) {
        if let Some(conn) = self.conns[slot].as_mut() {
            conn.arrears += 1;
        }
        self.arrears.push_back((self.taken + self.events.len() as u64, event));
    }

    /// Serves arrears for one slice's time.
    pub(super) fn serve_arrears<T: Transport>(&mut self, io: &mut T) {
        if self.arrears.is_empty() {
            return;
        }
        let until = self.local.log.lap() + SLICE_NS;
        while self.arrears.front().is_some_and(|(after, _)| *after <= self.taken) {
            let Some((_, event)) = self.arrears.pop_front() else { return };
            if let Some(slot) = event.slot()
                && let Some(conn) = self.conns[slot].as_mut()
            {
                conn.arrears -= 1;
            }
            self.serve(io, event);
            if self.local.log.lap() >= until {
                return;
            }
        }
    }

    /// Queues an ending. When many events wait, it goes behind others' requests: an ending costs some
    /// microseconds. Endings stay in order, behind the events that came before them. A blocked command of an
    /// ending connection is cancelled at once.
    pub(super) fn sort_in<T: Transport>(&mut self, io: &mut T, event: Event) {
        let goes = match event {
            Event::Ended(slot) | Event::Broken(slot) | Event::Half(slot) | Event::Last(slot) => Some(slot),
            Event::Free(_) => None,
            _ => return self.events.push_back(event),
        };
        if let Some(slot) = goes
            && let Some(conn) = self.conns[slot].as_mut()
        {
            if conn.is_blocked() {
                conn.session.cancel.store(true, Ordering::Relaxed);
            }
            if conn.arrears > 0 {
                return self.stand_behind(slot, event);
            }
            if self.events.len() < ENDINGS && self.endings.is_empty() {
                return self.events.push_back(event);
            }
            io.put_off(slot, &conn.socket);
        }
        self.endings.push_back((self.taken + self.events.len() as u64, event));
    }

    /// Serves endings for one slice's time.
    pub(super) fn hear_endings<T: Transport>(&mut self, io: &mut T) {
        if self.endings.is_empty() {
            return;
        }
        let until = self.local.log.lap() + SLICE_NS;
        while self.endings.front().is_some_and(|(after, _)| *after <= self.taken) {
            let Some((_, event)) = self.endings.pop_front() else { return };
            match event {
                // The arrears may contain bytes of the slot's former connection.
                Event::Free(_) if !self.arrears.is_empty() => self.arrears.push_back((self.taken, event)),
                event => self.serve(io, event),
            }
            if self.local.log.lap() >= until {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals::Arrivals;
    use crate::conn::Conn;
    use crate::doors::{Doors, Listeners};
    use crate::listed::{List, Listed};
    use crate::load::Load;
    use crate::socket::Socket;
    use crate::transport::{Pool, Received, Sent};
    use exec::session::ClientInfo;
    use exec::{Server, Session};
    use std::io;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::time::Duration;

    /// A transport whose connections have their bytes in memory. It reports a connection for as long as bytes
    /// are left.
    #[derive(Default)]
    struct Script {
        sent: Vec<Vec<u8>>,
        news: Vec<Event>,
        /// The slots that were read from; `answered` are those that were sent to.
        read: Vec<usize>,
        answered: Vec<usize>,
        /// Bytes that were sent, and to which slot.
        said: Vec<(usize, Vec<u8>)>,
        scratch: Vec<u8>,
        /// Sends are queued, and the system takes none of them now.
        queues: bool,
        is_full: bool,
    }

    impl Transport for Script {
        fn add(&mut self, _: usize, _: &Socket) -> io::Result<()> {
            Ok(())
        }

        fn set_input(&mut self, _: usize, _: &Socket, _: bool) -> io::Result<()> {
            Ok(())
        }

        fn receive<'a>(
            &'a mut self,
            event: &Event,
            _: &mut Socket,
            direct: Option<(&mut Vec<u8>, usize)>,
        ) -> io::Result<Received<'a>> {
            let slot = event.slot().expect("a connection's event");
            self.read.push(slot);
            let room = direct.as_ref().map_or(64 * 1024, |(_, room)| *room);
            let sent = &mut self.sent[slot];
            self.scratch = sent.drain(..room.min(sent.len())).collect();
            match direct {
                Some((buffer, _)) => {
                    buffer.extend_from_slice(&self.scratch);
                    Ok(Received::Appended(self.scratch.len()))
                }
                None => Ok(Received::Bytes(&self.scratch)),
            }
        }

        fn done(&mut self, event: Event) -> Option<Event> {
            event.slot().is_some_and(|slot| !self.sent[slot].is_empty()).then_some(event)
        }

        fn send(&mut self, slot: usize, _: &mut Socket, bytes: Vec<u8>, from: usize) -> io::Result<Sent> {
            self.answered.push(slot);
            self.said.push((slot, bytes[from..].to_vec()));
            if self.queues { Ok(Sent::Queued) } else { Ok(Sent::Done(bytes)) }
        }

        fn remove(&mut self, _: usize, _: Socket) -> bool {
            true
        }

        fn is_still(&self, _: usize) -> bool {
            false
        }

        fn part(&mut self, _: usize, _: &Socket) -> bool {
            true
        }

        fn wait(&mut self, _: Duration, events: &mut Vec<Event>, _: &mut Pool) -> bool {
            events.append(&mut self.news);
            !self.is_full
        }
    }

    impl EventLoop {
        fn connect(&mut self, io: &mut Script) {
            let slot = self.conns.len();
            let (_, near) = UnixStream::pair().unwrap();
            let info = ClientInfo::new(slot as u64 + 1, 0, String::new(), String::new(), 0, true, 0);
            let session = Session::new(Arc::new(info), &self.server.acl, true);
            let conn = Conn::new(Socket::unix(near).unwrap(), session, &self.server);
            self.adopt(io, Box::new(conn));
            self.conns[slot].as_mut().unwrap().outside = false;
        }

        fn turn_until_slices(&mut self, io: &mut Script) {
            self.wait(io, Duration::ZERO);
            self.local.log.tick();
            self.look_at_leaving();
            self.serve_fresh(io);
            self.write_all(io);
        }
    }

    /// However many clients are sending large requests, a small request is served before their next bytes.
    #[test]
    fn requests_go_before_the_rest_of_large_ones() {
        const LARGE: usize = 10;
        const WORDS: usize = 30_000;
        let server = Server::start(Arc::default(), 1).unwrap();
        let (arrivals, doors) = (Arrivals::new().unwrap(), Doors::new(Listeners::default()).unwrap());
        let mut event_loop = EventLoop::new(0, server, doors, Load::new(1), arrivals);
        let mut io = Script::default();
        (0..=LARGE).for_each(|_| event_loop.connect(&mut io));
        let word = format!("$40\r\n{}\r\n", "k".repeat(40));
        io.sent = vec![format!("*{}\r\n{}", WORDS + 1, word.repeat(WORDS)).into_bytes(); LARGE];
        io.sent.push(Vec::new());
        io.news = (0..LARGE).map(Event::Readable).collect();
        let (mut asked, mut answered, mut read) = (0, 0, 0);
        while io.sent[..LARGE].iter().any(|rest| !rest.is_empty()) {
            let mut large = event_loop.conns[..LARGE].iter().flatten();
            let asks = asked < 20 && asked == answered && large.all(|conn| conn.has_bulk_to_come());
            if asks {
                io.sent[LARGE] = b"PING\r\n".to_vec();
                io.news.push(Event::Readable(LARGE));
            }
            event_loop.turn_until_slices(&mut io);
            if asks {
                asked += 1;
                // Each turn serves one event at least. If the processor is taken away, it serves no more.
                for _ in 0..LARGE {
                    if io.read.is_empty() {
                        event_loop.turn_until_slices(&mut io);
                    }
                }
                assert_eq!(io.read, [LARGE]);
            }
            event_loop.do_slices(&mut io);
            event_loop.write_all(&mut io);
            read += io.read.iter().filter(|slot| **slot != LARGE).count();
            // Not every answer comes in its own turn: if the processor is taken away in the middle of a PING,
            // its time is used up.
            answered += io.answered.iter().filter(|slot| **slot == LARGE).count();
            io.read.clear();
            io.answered.clear();
        }
        assert!(asked == 20 && answered == 20 && read > LARGE * 20, "{asked} {answered} {read}");
    }

    /// Two clients of one loop, and what each was told since it was last asked.
    struct Pair {
        event_loop: EventLoop,
        io: Script,
    }

    impl Pair {
        fn new() -> Pair {
            let server = Server::start(Arc::default(), 1).unwrap();
            let (arrivals, doors) = (Arrivals::new().unwrap(), Doors::new(Listeners::default()).unwrap());
            let mut event_loop = EventLoop::new(0, server, doors, Load::new(1), arrivals);
            let mut io = Script { sent: vec![Vec::new(); 2], ..Script::default() };
            (0..2).for_each(|_| event_loop.connect(&mut io));
            Pair { event_loop, io }
        }

        fn turn(&mut self) {
            self.event_loop.turn_until_slices(&mut self.io);
            self.event_loop.do_slices(&mut self.io);
            self.event_loop.write_all(&mut self.io);
        }

        fn ask(&mut self, slot: usize, words: &str) {
            self.io.sent[slot] = format!("{words}\r\n").into_bytes();
            self.io.news.push(Event::Readable(slot));
            (0..10).for_each(|_| self.turn());
        }

        fn last(&self) -> u64 {
            self.event_loop.server.keyspace.last_lsn()
        }

        fn set_durable(&mut self, lsn: u64) {
            self.event_loop.server.set_durable(lsn);
            (0..10).for_each(|_| self.turn());
        }

        fn said(&mut self, slot: usize) -> String {
            let said =
                self.io.said.extract_if(.., |(to, _)| *to == slot).flat_map(|(_, bytes)| bytes).collect();
            String::from_utf8(said).unwrap()
        }
    }

    #[test]
    fn replies_wait_in_order_until_what_they_tell_of_is_durable() {
        let mut pair = Pair::new();
        pair.set_durable(pair.last());
        pair.ask(0, "PING\r\nGET k");
        assert_eq!(pair.said(0), "+PONG\r\n$-1\r\n");
        pair.ask(0, "SET k 1\r\nPING");
        let first = pair.last();
        pair.ask(0, "PING\r\nINCR k");
        // An untouched key is told at once; an effect that is not durable is not.
        pair.ask(1, "GET other");
        pair.ask(1, "GET k");
        assert_eq!((&*pair.said(0), &*pair.said(1)), ("", "$-1\r\n"));
        pair.set_durable(first);
        assert_eq!(pair.said(0), "+OK\r\n+PONG\r\n");
        pair.set_durable(u64::MAX);
        assert_eq!((&*pair.said(0), &*pair.said(1)), ("+PONG\r\n:2\r\n", "$1\r\n2\r\n"));
        pair.ask(0, "INCR k");
        assert_eq!(pair.said(0), ":3\r\n");
    }

    /// Under `always` a message that tells of a write waits for it, and a message that tells of none does not.
    #[test]
    fn messages_wait_for_what_they_tell_of() {
        let mut pair = Pair::new();
        pair.set_durable(pair.last());
        pair.ask(1, "CONFIG SET notify-keyspace-events K$");
        pair.ask(0, "SUBSCRIBE c __keyspace@0__:k");
        pair.said(0);
        pair.ask(1, "PUBLISH c free");
        assert_eq!(pair.said(0), "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$4\r\nfree\r\n");
        pair.said(1);
        let wide = "x".repeat(20_000);
        let requests = [
            "SET k 1".to_owned(),
            "SET n 1\r\nPUBLISH c told".into(),
            format!("SET n 1\r\nPUBLISH c {wide}"),
            "MULTI\r\nSET n 1\r\nPUBLISH c told\r\nEXEC".into(),
            "EVAL \"redis.call('SET','n',1) redis.call('PUBLISH','c','told')\" 0".into(),
        ];
        for words in requests {
            let before = pair.last();
            pair.ask(1, &words);
            // A script may run on another thread.
            for _ in 0..60_000 {
                pair.turn();
                if pair.last() > before {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(pair.said(0), "", "{words:.40}");
            pair.set_durable(pair.last());
            let said = pair.said(0);
            assert!(said.starts_with("*3\r\n$7\r\nmessage\r\n"), "{words:.40}: {said:.80}");
            assert!(said.ends_with("told\r\n") || said.ends_with("set\r\n") || said.len() > wide.len());
        }
    }

    /// A system that takes not all of what is queued would send the end of a connection before its last
    /// bytes.
    #[test]
    fn a_connection_does_not_end_before_its_last_bytes_were_taken() {
        let mut pair = Pair::new();
        (pair.io.queues, pair.io.is_full) = (true, true);
        pair.ask(0, "QUIT");
        assert_eq!(pair.said(0), "+OK\r\n");
        assert!(pair.event_loop.conns[0].as_ref().is_some_and(|conn| !conn.doomed));
        pair.io.is_full = false;
        (0..10).for_each(|_| pair.turn());
        assert!(pair.event_loop.conns[0].as_ref().is_none_or(|conn| conn.doomed));
    }

    /// A request that waits for a late server does not count as the client's silence.
    #[test]
    fn a_client_whose_request_waits_is_not_idle() {
        let mut pair = Pair::new();
        pair.event_loop.server.config.live.timeout_s.set(1);
        let (mut far, near) = UnixStream::pair().unwrap();
        let looks = |pair: &mut Pair, conn: fn(&mut Conn)| {
            let silent = pair.event_loop.conns[0].as_mut().unwrap();
            silent.session.info.last_ms.store(0, Ordering::Relaxed);
            conn(silent);
            pair.event_loop.close_if_idle(0);
            pair.event_loop.conns[0].as_ref().is_none_or(|conn| conn.doomed)
        };
        pair.event_loop.conns[0].as_mut().unwrap().socket = Socket::unix(near).unwrap();
        // Received, and not run yet: it was held until now.
        assert!(!looks(&mut pair, |conn| conn.keep(b"PING\r\n")));
        pair.event_loop.queue(0);
        (0..10).for_each(|_| pair.turn());
        assert_eq!(pair.said(0), "+PONG\r\n");
        // Reported by the transport, and not served yet.
        assert!(!looks(&mut pair, |conn| conn.ready = true));
        assert!(!looks(&mut pair, |conn| (conn.ready, conn.among) = (false, 1)));
        assert!(!looks(&mut pair, |conn| (conn.among, conn.arrears) = (0, 1)));
        // Run, and not answered, because its effect is not durable.
        assert!(!looks(&mut pair, |conn| (conn.arrears, conn.gated_since_ns) = (0, Some(1))));
        // Still in the socket.
        io::Write::write_all(&mut far, b"PING\r\n").unwrap();
        assert!(!looks(&mut pair, |conn| conn.gated_since_ns = None));
        assert!(looks(&mut pair, |conn| _ = conn.socket.read_into(&mut Vec::new(), 100)));
    }

    /// With a mark that came along, the new loop would not list the connection again.
    #[test]
    fn a_connection_that_moves_leaves_the_lists_of_its_loop() {
        let mut pair = Pair::new();
        let EventLoop { lists, conns, .. } = &mut pair.event_loop;
        let conn = conns[0].as_mut().unwrap();
        let all = [List::Gated, List::Bulky, List::Streaming, List::Hauling, List::Limited];
        for list in all {
            assert!(lists.add(list, 0, &mut **conn));
        }
        conn.pack(0);
        for list in all {
            assert_eq!(lists.pop(list, conns), None, "{list:?}");
        }
        let mut there = Listed::default();
        assert!(there.add(List::Gated, 0, &mut **conns[0].as_mut().unwrap()));
    }

    #[test]
    fn a_reply_waits_whichever_way_it_takes() {
        let many = format!("MSET{}", " key value".repeat(500));
        let scripts = "EVAL \"return redis.call('incr', 'n')\" 0";
        for words in ["MULTI\r\nSET k 1\r\nEXEC", scripts, &*many, "BLPOP list 0"] {
            let mut pair = Pair::new();
            let before = pair.last();
            pair.set_durable(before);
            pair.ask(0, words);
            pair.ask(1, "RPUSH list x");
            for _ in 0..60_000 {
                pair.turn();
                if pair.last() > before + 1
                    && pair.event_loop.conns[0].as_ref().is_some_and(|conn| conn.pending_out() > 0)
                {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            (0..10).for_each(|_| pair.turn());
            // The replies before EXEC tell of nothing, and leave at once if a slice ended behind them.
            let tells_nothing = if words.starts_with("MULTI") { "+OK\r\n+QUEUED\r\n" } else { "" };
            let (early, others) = (pair.said(0), pair.said(1));
            assert!(
                tells_nothing.starts_with(&early) && others.is_empty(),
                "{words:.30}: {early:?} {others:?}"
            );
            pair.set_durable(pair.last());
            assert!(!pair.said(0).is_empty() && pair.said(1) == ":1\r\n", "{words:.30}");
        }
    }
}
