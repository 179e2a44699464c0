use crate::mail::Mail;
use crate::session::ClientInfo;
use crate::{Local, Server, Session, drive};
use command::Flow;
use resp::{OwnedArgs, Reply};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use work::piece::Delivery;

const KEYS: usize = 1_000;

fn client(id: u64) -> Session {
    let info = ClientInfo::new(id, 0, String::new(), String::new(), 0, false, 0);
    Session::new(Arc::new(info), &acl::Acl::default(), true)
}

/// Runs a command until its client is parked or answered.
fn run(server: &Arc<Server>, local: &mut Local, session: &mut Session, words: &[&[u8]]) -> Flow {
    let (words, mut out) = (OwnedArgs::from_slices(words), Reply::new(false));
    loop {
        match crate::execute(server, local, session, words.args().into(), &mut out) {
            Flow::Held(_) => {}
            flow => return flow,
        }
    }
}

fn watch(server: &Arc<Server>, local: &mut Local, session: &mut Session, keys: &[String]) {
    let words: Vec<&[u8]> =
        std::iter::once("WATCH").chain(keys.iter().map(|k| &**k)).map(str::as_bytes).collect();
    assert!(matches!(run(server, local, session, &words), Flow::Done));
    assert_eq!(session.watched.watch.keys.len(), KEYS);
}

/// Does the loop's work until the client's job is over. Gives the reply, and the count of watches left after
/// each letter.
fn until_delivered(
    server: &Arc<Server>,
    local: &mut Local,
    left: impl Fn() -> usize,
) -> (Delivery, Vec<usize>) {
    let (mut letters, mut delivery, mut seen) = (Vec::new(), None, Vec::new());
    while delivery.is_none() || local.works.any() {
        server.mailbox(0).drain(&mut letters);
        for letter in letters.drain(..) {
            if let Mail::Work(letter) = letter {
                let mut done = Vec::new();
                drive::receive(server, local, letter, &mut done);
                delivery = delivery.or(done.pop());
            }
            seen.push(left());
        }
        let mut done = Vec::new();
        drive::advance(server, local, &mut done);
        delivery = delivery.or(done.pop());
        std::thread::yield_now();
    }
    (delivery.unwrap(), seen)
}

/// A long EXEC gives up its client's watches in slices, however it ends. Afterwards none of them is left, and
/// other clients' watches of the same keys remain.
#[test]
fn a_long_transaction_leaves_no_watch_behind() {
    let server = Server::start(Arc::default(), 1).unwrap();
    let mut local = Local::new(0, &server);
    let keys: Vec<String> = (0..KEYS).map(|i| format!("k{i}")).collect();
    for (gone, touched, write) in [
        (false, false, false),
        (false, true, false),
        (true, false, false),
        (false, false, true),
        (true, false, true),
        (true, true, true),
    ] {
        let (mut session, mut other) = (client(1), client(2));
        watch(&server, &mut local, &mut other, &keys);
        watch(&server, &mut local, &mut session, &keys);
        let mark = Arc::downgrade(&session.watched.watch.dirty);
        assert_eq!(mark.strong_count(), KEYS + 1);
        run(&server, &mut local, &mut session, &[b"MULTI"]);
        for key in &keys {
            let get: &[&[u8]] = &[b"GET", key.as_bytes()];
            let set: &[&[u8]] = &[b"SETNX", b"written", key.as_bytes()];
            run(&server, &mut local, &mut session, if write { set } else { get });
        }
        assert!(matches!(run(&server, &mut local, &mut session, &[b"EXEC"]), Flow::Parked(_)));
        if touched {
            let mut third = client(3);
            run(&server, &mut local, &mut third, &[b"SET", b"k7", b"1"]);
        }
        if gone {
            // As the loop does: gives up what the session still watches, and tells its job.
            session.cancel.store(true, Ordering::Relaxed);
            crate::multi::leave(&server, &mut local, &mut session);
            drop(session);
        }
        let (delivery, seen) = until_delivered(&server, &mut local, || mark.strong_count());
        let case = format!("gone {gone}, touched {touched}, write {write}");
        assert_eq!(mark.strong_count(), 0, "{case}");
        // The commit in slices ended within one slice, which may have given up some more watches.
        let after_first = KEYS - work::watch::AT_A_STRETCH;
        // A watch whose mark was set is not kept.
        let expected = after_first - usize::from(touched)..=after_first + 1;
        let in_slices = seen.iter().any(|left| expected.contains(left));
        assert!(in_slices || write && !touched, "{case}: {seen:?}");
        assert_eq!(delivery.bytes == b"*-1\r\n", touched && !delivery.bytes.is_empty(), "{case}");
        // The other client's watches are all there, except the one that was touched, and are given up once.
        assert_eq!(Arc::strong_count(&other.watched.watch.dirty), KEYS + 1 - usize::from(touched), "{case}");
        assert_eq!(other.watched.watch.dirty.load(Ordering::Relaxed), touched, "{case}");
        let his = Arc::downgrade(&other.watched.watch.dirty);
        run(&server, &mut local, &mut other, &[b"UNWATCH"]);
        while local.works.any() {
            drive::advance(&server, &mut local, &mut Vec::new());
        }
        assert_eq!(his.strong_count(), 0, "{case}");
        run(&server, &mut local, &mut other, &[b"DEL", b"k7", b"written"]);
    }
}

/// A blocked command's job that finds its key empty must not answer null before the time-out. Its client
/// waits, and a job serves it once there is much again.
#[test]
fn a_job_that_finds_nothing_has_its_client_wait() {
    let server = Server::start(Arc::default(), 1).unwrap();
    let mut local = Local::new(0, &server);
    let (mut session, mut other) = (client(1), client(2));
    let members: Vec<String> = (0..20_000).map(|i| format!("m{i}")).collect();
    let mut fill = |server: &Arc<Server>, local: &mut Local, key: &str| {
        for some in members.chunks(100) {
            let pairs = some.iter().flat_map(|m| [&b"1"[..], m.as_bytes()]);
            let words: Vec<&[u8]> = [&b"ZADD"[..], key.as_bytes()].into_iter().chain(pairs).collect();
            assert!(matches!(run(server, local, &mut other, &words), Flow::Done));
        }
    };
    fill(&server, &mut local, "z");
    let words: [&[u8]; 7] = [b"BZMPOP", b"1000", b"1", b"z", b"MIN", b"COUNT", b"10000"];
    assert!(matches!(run(&server, &mut local, &mut session, &words), Flow::Parked(_)));
    let mut third = client(3);
    run(&server, &mut local, &mut third, &[b"DEL", b"z"]);
    let until_letter = |local: &mut Local, wanted: fn(&Mail) -> bool| {
        loop {
            let mut letters = Vec::new();
            server.mailbox(0).drain(&mut letters);
            for letter in letters {
                match letter {
                    letter if wanted(&letter) => return letter,
                    Mail::Work(letter) => {
                        let mut done = Vec::new();
                        drive::receive(&server, local, letter, &mut done);
                        assert!(done.is_empty(), "it is answered");
                    }
                    _ => {}
                }
            }
            drive::advance(&server, local, &mut Vec::new());
            std::thread::yield_now();
        }
    };
    let Mail::Wait(wait) = until_letter(&mut local, |letter| matches!(letter, Mail::Wait(_))) else {
        panic!()
    };
    let (flow, answer) = crate::blocking::wait(&server, &mut local, &mut session, *wait, None);
    let Flow::Parked(Some(left_ms)) = flow else { panic!("it does not wait") };
    assert!((1..=1_000_000).contains(&left_ms) && answer.is_empty() && server.park.holds(1));
    // So much comes that a job takes it, whatever the speed of the machine.
    fill(&server, &mut local, "y");
    run(&server, &mut local, &mut third, &[b"RENAME", b"y", b"z"]);
    let Mail::Serve(waiter) = until_letter(&mut local, |letter| matches!(letter, Mail::Serve(_))) else {
        panic!()
    };
    assert!(!server.park.holds(1));
    crate::blocking::give_to_job(&server, &mut local, &mut session, &waiter);
    let (delivery, _) = until_delivered(&server, &mut local, || 0);
    assert!(delivery.bytes.starts_with(b"*2\r\n$1\r\nz\r\n*10000\r\n"), "{:?}", &delivery.bytes[..40]);
    run(&server, &mut local, &mut third, &[b"ZADD", b"z", b"1", b"left"]);
    assert!(server.park.is_empty());
}
