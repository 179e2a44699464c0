use super::*;
use std::collections::BTreeSet;

type Letters = Arc<Mutex<Vec<Letter>>>;

/// A keyspace and its readers, whose letters a test opens.
struct World {
    keyspace: Arc<Keyspace>,
    tracking: Arc<Tracking>,
    letters: Letters,
}

impl World {
    fn new() -> World {
        let letters = Letters::default();
        let sent = letters.clone();
        let tracking = Arc::new(Tracking::new(Box::new(move |letter| sent.lock().push(letter))));
        let keyspace = Keyspace::new(2);
        keyspace.set_readers(tracking.clone());
        World { keyspace, tracking, letters }
    }

    fn begin(&self, id: u64, options: Options) -> Arc<Peer> {
        self.tracking.begin(&self.keyspace, id, &options)
    }

    fn read(&self, peer: &Peer, key: &str) {
        let mut view = View::locked_one(&self.keyspace, key.as_bytes(), 0, 1);
        peer.remember(&mut view, key.as_bytes());
        view.finish();
    }

    fn write(&self, key: &str) {
        let mut view = View::locked_one(&self.keyspace, key.as_bytes(), 0, 1);
        view.put_string(key.as_bytes(), b"v", None);
        view.changed(key.as_bytes(), keyspace::Class::String, "set");
        view.finish();
    }

    fn flush(&self) {
        let mut view = View::whole(&self.keyspace, 0, 1);
        view.flush(Some(0));
        view.finish();
    }

    /// Does all tasks; gives the number of slices.
    fn work(&self) -> usize {
        let mut slices = 0;
        loop {
            let letters = std::mem::take(&mut *self.letters.lock());
            let tasks: Vec<_> = letters
                .into_iter()
                .filter_map(|l| if let Letter::Task(t) = l { Some(t) } else { None })
                .collect();
            if tasks.is_empty() {
                return slices;
            }
            for mut task in tasks {
                slices += 1;
                while task.advance(&self.tracking, &self.keyspace) {
                    slices += 1;
                }
            }
        }
    }

    fn heard(&self, id: u64, resp3: bool) -> String {
        self.work();
        let Some(peer) = self.tracking.peer(id) else { return "gone".into() };
        let mut out = Reply::new(resp3);
        while self.tracking.take(&peer, Hearer { resp3, subscribed: true, blocked: false }, &mut out).more {}
        String::from_utf8(out.into_bytes()).unwrap().replace("\r\n", " ")
    }
}

fn key_message(key: &str) -> String {
    format!(">2 $10 invalidate *1 ${} {key} ", key.len())
}

#[test]
fn a_reader_is_told_once_for_each_read() {
    let world = World::new();
    let peer = world.begin(1, Options::default());
    world.read(&peer, "a");
    world.read(&peer, "a");
    assert_eq!(world.keyspace.tracked(), (1, 1));
    world.write("a");
    world.write("a");
    world.write("b");
    assert_eq!(world.heard(1, true), key_message("a"));
    assert_eq!(world.keyspace.tracked(), (0, 0));
    assert!(peer.keys.lock().names.is_empty());
}

#[test]
fn very_many_readers_are_told_in_slices() {
    let world = World::new();
    let peers: Vec<_> = (1..=1000).map(|id| world.begin(id, Options::default())).collect();
    peers.iter().for_each(|peer| world.read(peer, "a"));
    assert_eq!(world.keyspace.tracked(), (1, 1000));
    world.write("a");
    assert!(peers.iter().all(|peer| !peer.has_mail()), "the writer tells nobody itself");
    assert!(world.work() >= 1000 / 32);
    assert!((1..=1000).all(|id| world.heard(id, true) == key_message("a")));
}

#[test]
fn a_flush_tells_all_and_frees_their_keys() {
    let world = World::new();
    let peers: Vec<_> = (1..=100).map(|id| world.begin(id, Options::default())).collect();
    peers.iter().for_each(|peer| (0..10).for_each(|n| world.read(peer, &format!("k{n}"))));
    assert_eq!(world.keyspace.tracked(), (10, 1000));
    world.flush();
    assert_eq!(world.keyspace.tracked(), (0, 0));
    // One reads again before it has heard.
    world.read(&peers[0], "k3");
    assert!((1..=100).all(|id| world.heard(id, true) == ">2 $10 invalidate _ "));
    assert!(peers[1].keys.lock().names.is_empty());
    assert_eq!(peers[0].keys.lock().names.len(), 1);
    world.write("k3");
    assert_eq!(world.heard(1, true), key_message("k3"));
}

#[test]
fn a_client_that_goes_takes_its_keys_along_and_nobody_elses() {
    let world = World::new();
    let (one, two) = (world.begin(1, Options::default()), world.begin(2, Options::default()));
    for n in 0..100 {
        world.read(&one, &format!("k{n}"));
        world.read(&two, &format!("k{}", n + 50));
    }
    assert_eq!(world.keyspace.tracked(), (150, 200));
    let mut task = world.tracking.end(&world.keyspace, &one, &[]).unwrap();
    world.tracking.leave(1);
    let mut slices = 1;
    while task.advance(&world.tracking, &world.keyspace) {
        slices += 1;
    }
    assert!(slices > 1);
    assert_eq!(world.keyspace.tracked(), (100, 100));
    assert!(world.tracking.end(&world.keyspace, &two, &[]).is_some());
    assert!(!world.keyspace.is_tracking());
}

/// A registration that is taken back late takes no later one of the same client along.
#[test]
fn only_the_registration_of_that_number_is_taken_back() {
    let world = World::new();
    let peer = world.begin(1, Options::default());
    world.read(&peer, "a");
    let mut task = world.tracking.end(&world.keyspace, &peer, &[]).unwrap();
    world.write("a");
    world.begin(1, Options::default());
    world.read(&peer, "a");
    while task.advance(&world.tracking, &world.keyspace) {}
    assert_eq!(world.keyspace.tracked(), (1, 1));
    world.write("a");
    assert!(world.heard(1, true).ends_with(&key_message("a")));
}

#[test]
fn prefixes_are_told_in_order_and_own_writes_left_out() {
    let world = World::new();
    let prefixes = |names: &[&str]| names.iter().map(|name| name.as_bytes().into()).collect();
    world.begin(1, Options { bcast: true, prefixes: prefixes(&[""]), ..Options::default() });
    world.begin(
        2,
        Options { bcast: true, noloop: true, prefixes: prefixes(&["p:", "q"]), ..Options::default() },
    );
    let author = Author::is(2);
    world.write("p:3");
    drop(author);
    ["p:2", "x", "p:1", "q"].iter().for_each(|key| world.write(key));
    assert_eq!(world.heard(1, true), ">2 $10 invalidate *5 $3 p:1 $3 p:2 $3 p:3 $1 q $1 x ");
    assert_eq!(world.heard(2, true), ">2 $10 invalidate *2 $3 p:1 $3 p:2 >2 $10 invalidate *1 $1 q ");
    let author = Author::is(2);
    world.write("p:3");
    drop(author);
    assert_eq!(world.heard(2, true), "");
    let author = Author::is(1);
    world.write("p:3");
    drop(author);
    assert_eq!(world.heard(1, true), key_message("p:3").repeat(2), "without NOLOOP nothing is left out");
}

#[test]
fn an_inbox_that_is_full_says_that_everything_is_old() {
    let world = World::new();
    let peer = world.begin(1, Options::default());
    for n in 0..10_001 {
        world.read(&peer, &format!("k{n}"));
        world.write(&format!("k{n}"));
    }
    assert_eq!(world.heard(1, true), ">2 $10 invalidate _ ");
}

#[test]
fn a_target_hears_for_its_source_and_when_that_goes() {
    let world = World::new();
    world.tracking.expect(9);
    let peer = world.begin(1, Options { redirect: 9, ..Options::default() });
    world.read(&peer, "a");
    world.write("a");
    assert_eq!(world.heard(9, false), "*3 $7 message $20 __redis__:invalidate *1 $1 a ");
    world.read(&peer, "a");
    world.tracking.leave(9);
    world.write("a");
    assert_eq!(world.heard(1, true), ">2 $21 tracking-redir-broken :9 ");
    world.tracking.expect(9);
    world.tracking.leave(1);
    assert_eq!(world.heard(9, true), ">2 $10 invalidate _ ");
}

#[test]
fn the_table_is_bounded() {
    let world = World::new();
    let peer = world.begin(1, Options::default());
    for n in 0..500 {
        world.read(&peer, &format!("k{n}"));
        world.tracking.trim(&world.keyspace, 100);
    }
    assert_eq!(world.keyspace.tracked(), (100, 100));
    let told = world.heard(1, true);
    let told: BTreeSet<_> = told.split(' ').filter(|word| word.starts_with('k')).collect();
    assert_eq!(told.len(), 400);
    world.tracking.trim(&world.keyspace, 3);
    world.work();
    assert_eq!(world.keyspace.tracked(), (3, 3));
    assert_eq!(peer.keys.lock().names.len(), 3);
}

#[test]
fn a_late_reader_is_told_what_changed_meanwhile() {
    let world = World::new();
    world.begin(1, Options::default());
    let since = world.keyspace.last_lsn();
    world.write("a");
    let keys = ["a", "b"].map(|key| Box::from(key.as_bytes()));
    let mut task = Task::remember(1, keys.into_iter(), since, Vec::new());
    while task.advance(&world.tracking, &world.keyspace) {}
    assert!(world.heard(1, true).contains(&key_message("a")));
    world.write("b");
    assert!(world.heard(1, true).ends_with(&key_message("b")));
}

/// Two threads, one key: after all is still, a reader that was not told has the newest value.
#[test]
fn no_copy_stays_old() {
    use std::sync::atomic::AtomicU64;
    let world = World::new();
    let peer = world.begin(1, Options::default());
    let number = |view: &View<'_>| {
        let text = view.string(b"k").unwrap().map(|text| String::from_utf8(text.to_vec()).unwrap());
        text.map_or(0, |text| text.parse::<u64>().unwrap())
    };
    let written = AtomicU64::new(0);
    let mut copy = None;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..=20_000u64 {
                let mut view = View::locked_one(&world.keyspace, b"k", 0, 1);
                view.put_string(b"k", n.to_string().as_bytes(), None);
                view.changed(b"k", keyspace::Class::String, "set");
                view.finish();
                written.store(n, Ordering::Release);
            }
        });
        while written.load(Ordering::Acquire) < 20_000 {
            let mut view = View::locked_one(&world.keyspace, b"k", 0, 1);
            peer.remember(&mut view, b"k");
            copy = Some(number(&view));
            view.finish();
            if !world.heard(1, true).is_empty() {
                copy = None;
            }
        }
    });
    if !world.heard(1, true).is_empty() {
        copy = None;
    }
    assert!(copy.is_none_or(|copy| copy == 20_000), "{copy:?}");
}

/// The overlap that is told is the one that a comparison of all with all finds first.
#[test]
fn overlaps_are_those_of_a_comparison_of_all_with_all() {
    let words = |text: &str| text.split(' ').map(|word| word.as_bytes().into()).collect::<Vec<Box<[u8]>>>();
    let texts = ["a", "b c d", "ab b", "b ab a", "ac ab a", "b b", "d cc ca c", "ca cb cab", "zz a z"];
    for known in ["b", "ba bb", "c"] {
        for new in texts {
            let (known, new) = (words(known), words(new));
            let meet = |a: &[u8], b: &[u8]| a.starts_with(b) || b.starts_with(a);
            let expected = new.iter().enumerate().find_map(|(at, prefix)| {
                let before = known.iter().find(|other| meet(prefix, other)).map(|other| (other, true));
                let behind =
                    || new[at + 1..].iter().find(|other| meet(prefix, other)).map(|other| (other, false));
                before.or_else(behind).map(|(other, is_known)| (&**prefix, &**other, is_known))
            });
            assert_eq!(overlap(&known, &new), expected, "{new:?} after {known:?}");
        }
    }
}
