//! Logs that were cut, changed or made to harm: read or refused, never a panic, and no memory for what is
//! only announced.

mod checks;
mod stream;

use persist::disk::Power;
use persist::{Fsync, Hooks, Place, Preallocate, Settings, Writer, check_file};
use std::sync::Arc;
use stream::{Random, Source};
use tikv_jemalloc_ctl::thread;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// A file of commands with lines, and the same without.
fn samples() -> Vec<Vec<u8>> {
    let disk = Power::default();
    let place = Place::new("/nowhere", "appendonly.aof");
    let settings = Settings { fsync: Fsync::Always, preallocate: Preallocate::No, ..Settings::default() };
    let writer =
        Writer::open(Arc::new(disk.clone()), place, None, 0, settings, Hooks::default()).expect("room");
    let (mut outlet, mut source) = (writer.outlet(), Source::new(3, 0));
    for _ in 0..6 {
        source.give(&mut outlet);
        while writer.pending_bytes() > 0 {
            std::thread::yield_now();
        }
    }
    writer.close().expect("room");
    let files = disk.files();
    let lined = files.into_iter().find(|(path, _)| path.extension().is_some_and(|ending| ending == "aof"));
    let plain = b"*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n#TS:17\r\n*1\r\n$5\r\nMULTI\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$2\r\n\r\n\r\n*1\r\n$4\r\nEXEC\r\n";
    vec![lined.expect("a file").1, plain.repeat(3)]
}

#[test]
fn any_file_is_read_or_refused() {
    let mut random = Random(77);
    for sample in samples() {
        for len in 0..sample.len() {
            checks::log_file(&sample[..len]);
        }
        for _ in 0..6_000 {
            let mut changed = sample.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(changed.len() as u64) as usize;
                match random.below(4) {
                    0 => changed[at] = random.below(256) as u8,
                    1 => changed[at] = b"0123456789*$#\r\n "[random.below(16) as usize],
                    2 => {
                        changed.remove(at);
                    }
                    _ => {
                        let from = random.below(changed.len() as u64) as usize;
                        let piece = changed[from..].iter().copied().take(40).collect::<Vec<_>>();
                        changed.splice(at..at, piece);
                    }
                }
            }
            checks::log_file(&changed);
        }
    }
}

#[test]
fn any_manifest_is_read_or_refused() {
    let sample = b"file appendonly.aof.2.base.rdb seq 2 type b\nfile \"a \\x01\\\" b\" seq 1 type h\nfile c seq 3 type i\n";
    let mut random = Random(5);
    for _ in 0..40_000 {
        let mut changed = sample.to_vec();
        for _ in 0..=random.below(4) {
            let at = random.below(changed.len() as u64) as usize;
            changed[at] = match random.below(3) {
                0 => random.below(256) as u8,
                _ => b"\"'\\ \n\t/.xbhi0123"[random.below(16) as usize],
            };
        }
        checks::log_manifest(&changed);
    }
}

#[test]
fn announced_words_take_no_memory() {
    let allocated = thread::allocatedp::mib().expect("statistics").read().expect("statistics");
    for text in [
        "*999999999\r\n$3\r\nSET\r\n",
        "*3\r\n$3\r\nSET\r\n$999999999999\r\nx",
        "*999999999999999999\r\n",
        "*2\r\n$999999999999999999\r\n",
        "*1\r\n$5\r\nMULTI\r\n*100000000\r\n$1\r\n",
    ] {
        let before = allocated.get();
        let bytes = text.as_bytes().to_vec();
        let about = check_file(&bytes, bytes.len() as u64, 0).expect("memory is read");
        assert!(about.is_torn && about.ends_at == 0, "{text:?}: {about:?}");
        assert!(allocated.get() - before < 1 << 20, "{text:?}");
    }
}
