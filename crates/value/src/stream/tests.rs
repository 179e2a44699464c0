use super::*;
use crate::testing::{Rng, rounds};
use std::collections::BTreeMap;

type Texts = Vec<(Vec<u8>, Vec<u8>)>;

/// The dull model.
#[derive(Clone, Default, Debug)]
struct Model {
    entries: BTreeMap<StreamId, Texts>,
    last: StreamId,
    pending: BTreeMap<StreamId, (Vec<u8>, u64, u64)>,
    consumers: Vec<Vec<u8>>,
}

fn texts(rng: &mut Rng) -> Texts {
    let same = rng.below(3) > 0;
    let count = if same { 2 } else { 1 + rng.below(4) };
    let name = |rng: &mut Rng, i| if same { format!("f{i}").into_bytes() } else { rng.text(9, 700) };
    (0..count).map(|i| (name(rng, i), rng.text(50, 700))).collect()
}

fn borrowed(texts: &Texts) -> Vec<(&[u8], &[u8])> {
    texts.iter().map(|(name, value)| (&name[..], &value[..])).collect()
}

fn owned(entry: Entry<'_>) -> (StreamId, Texts) {
    (entry.id, entry.fields().map(|(name, value)| (name.to_vec(), value.to_vec())).collect())
}

fn check(stream: &Stream, model: &Model) {
    stream.check_invariants();
    assert_eq!((stream.len(), stream.last_id()), (model.entries.len(), model.last));
    let all: Vec<_> = model.entries.iter().map(|(id, texts)| (*id, texts.clone())).collect();
    assert_eq!(stream.range(StreamId::MIN, StreamId::MAX).map(owned).collect::<Vec<_>>(), all);
    let back: Vec<_> = stream.range_back(StreamId::MIN, StreamId::MAX).map(owned).collect();
    assert_eq!(back, all.into_iter().rev().collect::<Vec<_>>());
    let Some(group) = stream.group(b"g") else { return };
    let pending: BTreeMap<_, _> = group
        .pending_from(StreamId::MIN)
        .map(|(id, found)| (id, (found.consumer.to_vec(), found.time_ms, found.count)))
        .collect();
    assert_eq!(pending, model.pending);
    assert!(group.iter_consumers().map(|(name, _)| name.to_vec()).eq(model.consumers.iter().cloned()));
}

fn change_entries(stream: &mut Stream, model: &mut Model, rng: &mut Rng) {
    let any = StreamId::new(rng.below(model.last.ms + 2), rng.below(3));
    match rng.below(100) {
        0..80 => {
            let step = rng.below(3);
            let seq = if step == 0 { model.last.seq + 1 + rng.below(300) } else { rng.below(3) };
            let id = StreamId::new(model.last.ms + step, seq);
            let fields = texts(rng);
            assert_eq!(stream.append(id, &borrowed(&fields)), id > model.last);
            if id > model.last {
                model.entries.insert(id, fields);
                model.last = id;
            }
        }
        80..96 => {
            let id = model.entries.range(any..).next().map_or(any, |(id, _)| *id);
            assert_eq!(stream.remove(id), model.entries.remove(&id).is_some());
            assert!(!stream.contains(id));
        }
        96..98 => {
            let keep = model.entries.len() as u64 - rng.below(1 + model.entries.len() as u64 / 8);
            let removed = stream.trim_to_len(keep, false, 0);
            assert_eq!(removed, model.entries.len() as u64 - keep);
            (0..removed).for_each(|_| drop(model.entries.pop_first()));
        }
        98 => {
            let excess = model.entries.range(..any).count() as u64;
            let limit = rng.below(400);
            let removed = stream.trim_below(any, true, limit);
            assert!(removed <= excess && (limit == 0 || removed <= limit), "{removed} {excess} {limit}");
            (0..removed).for_each(|_| drop(model.entries.pop_first()));
        }
        _ => {
            let (from, to) = (any, StreamId::new(any.ms + rng.below(200), rng.below(9)));
            let found: Vec<_> = stream.range(from, to).map(|entry| entry.id).collect();
            assert!(model.entries.range(from..=to).map(|(id, _)| *id).eq(found.iter().copied()));
            assert_eq!(stream.count(from, to), found.len());
            let back: Vec<_> = stream.range_back(from, to).map(|entry| entry.id).collect();
            assert!(back.iter().rev().eq(&found));
            assert_eq!(stream.get(any).map(owned).map(|(_, texts)| texts), model.entries.get(&any).cloned());
        }
    }
}

fn change_group(stream: &mut Stream, model: &mut Model, rng: &mut Rng) {
    let name = format!("c{}", rng.below(5)).into_bytes();
    let id = StreamId::new(rng.below(300), 0);
    let Some(mut group) = stream.group_mut(b"g") else {
        assert!(stream.create_group(b"g", StreamId::MIN, None));
        return;
    };
    let known = model.consumers.binary_search(&name);
    match rng.below(20) {
        0 => {
            assert_eq!(group.create_consumer(&name, 7), known.is_err());
            if let Err(at) = known {
                model.consumers.insert(at, name);
            }
        }
        1 if rng.below(8) == 0 => {
            let before = model.pending.len();
            model.pending.retain(|_, (consumer, ..)| *consumer != name);
            let gone = known.is_ok().then(|| before - model.pending.len());
            assert_eq!(group.delete_consumer(&name), gone);
            known.map(|at| drop(model.consumers.remove(at))).ok();
        }
        2..6 => assert_eq!(group.ack(id), model.pending.remove(&id).is_some()),
        _ => {
            let (time, count) = (rng.below(100), rng.below(5));
            assert_eq!(group.claim(&name, id, time, count), known.is_ok());
            if known.is_ok() {
                model.pending.insert(id, (name, time, count));
            }
        }
    }
}

#[test]
fn a_stream_is_what_a_map_is_and_snapshots_stay() {
    for seed in 0..rounds(12) {
        let mut rng = Rng::new(seed);
        let (mut stream, mut model) = (Stream::new(), Model::default());
        let mut kept: Vec<(Stream, Model)> = Vec::new();
        for step in 0..4_000 {
            change_entries(&mut stream, &mut model, &mut rng);
            change_group(&mut stream, &mut model, &mut rng);
            if step % 500 == 77 {
                check(&stream, &model);
                kept.push((stream.clone(), model.clone()));
                if kept.len() > 3 {
                    kept.remove(0);
                }
            }
        }
        check(&stream, &model);
        kept.iter().for_each(|(stream, model)| check(stream, model));
    }
}

fn numbered(count: u64) -> Stream {
    let mut stream = Stream::new();
    for i in 1..=count {
        let value = format!("value:{i}");
        assert!(stream.append(StreamId::new(i, 0), &[(b"name", value.as_bytes()), (b"other", b"5")]));
    }
    stream
}

#[test]
fn approximate_trims_take_whole_leaves() {
    let mut stream = numbered(1000);
    assert_eq!(stream.leaves(), 10);
    assert_eq!(stream.trim_to_len(950, true, 0), 0);
    assert_eq!(stream.trim_to_len(750, true, 0), 200);
    assert_eq!(stream.trim_to_len(0, true, 150), 100);
    assert_eq!(stream.trim_below(StreamId::new(450, 0), true, 0), 100);
    assert_eq!((stream.first_id().ms, stream.len()), (401, 600));
    assert_eq!(stream.trim_below(StreamId::new(450, 0), false, 0), 49);
    assert_eq!((stream.first_id().ms, stream.len(), stream.entries_added()), (450, 551, 1000));
    assert_eq!(stream.trim_to_len(0, false, 0), 551);
    assert_eq!(
        (stream.leaves(), stream.first_id(), stream.max_deleted_id()),
        (0, StreamId::MIN, StreamId::MIN)
    );
    stream.check_invariants();
}

#[test]
fn small_entries_take_little_memory() {
    let stream = numbered(100_000);
    // Two values of about 12 bytes, and what tells them apart.
    assert!(stream.mem_bytes() < 100_000 * 24, "{}", stream.mem_bytes());
}

#[test]
fn the_lag_is_that_of_redis() {
    let mut stream = numbered(5);
    assert!(stream.create_group(b"g", StreamId::MIN, None));
    assert!(!stream.create_group(b"g", StreamId::MIN, None));
    assert!(stream.group_mut(b"g").unwrap().create_consumer(b"c", 1));
    let lag = |stream: &Stream| stream.group(b"g").and_then(|group| stream.lag(group));
    let read = |stream: &mut Stream, ms: u64| stream.deliver(b"g", b"c", &[StreamId::new(ms, 0)], 1, false);
    assert_eq!(lag(&stream), Some(5));
    assert!(read(&mut stream, 1));
    assert_eq!((lag(&stream), stream.group(b"g").unwrap().entries_read()), (Some(4), Some(1)));
    assert!(read(&mut stream, 2));
    assert_eq!(lag(&stream), Some(3));
    assert!(stream.remove(StreamId::new(4, 0)));
    assert_eq!(lag(&stream), None, "a tombstone is ahead");
    assert!(read(&mut stream, 3));
    assert_eq!(stream.group(b"g").unwrap().entries_read(), None);
    assert!(read(&mut stream, 5));
    assert_eq!(lag(&stream), Some(0));
    assert!(stream.destroy_group(b"g") && !stream.destroy_group(b"g"));
    stream.check_invariants();
}

#[test]
fn a_group_that_was_set_back_gives_an_entry_to_its_new_reader() {
    let mut stream = numbered(3);
    let ids: Vec<StreamId> = (1..=3).map(|ms| StreamId::new(ms, 0)).collect();
    stream.create_group(b"g", StreamId::MIN, Some(0));
    let mut group = stream.group_mut(b"g").unwrap();
    assert!(group.create_consumer(b"a", 1) && group.create_consumer(b"b", 1));
    drop(group);
    assert!(!stream.deliver(b"g", b"nobody", &ids, 2, true) && !stream.deliver(b"none", b"a", &ids, 2, true));
    assert_eq!(stream.group(b"g").unwrap().last_id(), StreamId::MIN);
    assert!(stream.deliver(b"g", b"a", &ids[..2], 2, true));
    stream.group_mut(b"g").unwrap().set_id(StreamId::MIN, Some(0));
    assert!(stream.deliver(b"g", b"b", &ids, 3, true));
    let group = stream.group(b"g").unwrap();
    let pending = |name: &[u8]| group.consumer(name).unwrap().pending_len();
    assert_eq!((pending(b"a"), pending(b"b"), group.pending_len()), (0, 3, 3));
    assert_eq!((group.last_id(), group.entries_read()), (ids[2], Some(3)));
    let first = group.pending(ids[0]).unwrap();
    assert_eq!((&*first.consumer, first.time_ms, first.count), (&b"b"[..], 3, 1));
    stream.check_invariants();
}

#[test]
fn ids_have_neighbours() {
    assert_eq!(StreamId::new(1, u64::MAX).next(), Some(StreamId::new(2, 0)));
    assert_eq!(StreamId::new(2, 0).prev(), Some(StreamId::new(1, u64::MAX)));
    assert_eq!((StreamId::MAX.next(), StreamId::MIN.prev()), (None, None));
    let mut stream = Stream::new();
    assert!(stream.append(StreamId::MAX, &[(b"a", b"b")]));
    assert_eq!(stream.count(StreamId::MIN, StreamId::MAX), 1);
    assert_eq!(stream.range_back(StreamId::MIN, StreamId::MAX).count(), 1);
}

/// The index by time follows whatever happens to pending entries (J2).
#[test]
fn pending_entries_are_found_by_their_time() {
    let mut stream = numbered(9);
    let ids: Vec<StreamId> = (1..=9).map(|ms| StreamId::new(ms, 0)).collect();
    stream.create_group(b"g", StreamId::MIN, Some(0));
    let mut group = stream.group_mut(b"g").unwrap();
    assert!(group.create_consumer(b"a", 1) && group.create_consumer(b"b", 1) && group.is_indexed());
    drop(group);
    assert!(stream.deliver(b"g", b"a", &ids[..4], 50, true));
    let before = stream.mem_bytes();
    let mut group = stream.group_mut(b"g").unwrap();
    assert!(!group.is_indexed() && group.oldest().next().is_none());
    group.index();
    group.index();
    assert!(group.is_indexed());
    drop(group);
    assert!(stream.mem_bytes() > before);
    let times = |stream: &Stream| {
        let group = stream.group(b"g").unwrap();
        stream.check_invariants();
        group.oldest().map(|(time, id)| (time, id.ms)).collect::<Vec<_>>()
    };
    assert_eq!(times(&stream), [(50, 1), (50, 2), (50, 3), (50, 4)]);
    assert!(stream.deliver(b"g", b"b", &ids[4..6], 40, true));
    let mut group = stream.group_mut(b"g").unwrap();
    assert!(group.claim(b"b", ids[1], 60, 2) && group.ack(ids[2]));
    assert_eq!(
        (group.delivered_until(40), group.delivered_until(59), group.delivered_until(u64::MAX)),
        (2, 4, 5)
    );
    drop(group);
    assert_eq!(times(&stream), [(40, 5), (40, 6), (50, 1), (50, 4), (60, 2)]);
    let mut group = stream.group_mut(b"g").unwrap();
    group.leave_out(50, ids[0]);
    assert!(group.delete_consumer(b"b") == Some(3) && group.claim(b"a", ids[3], 70, 2));
    drop(group);
    assert_eq!(times(&stream), [(70, 4)]);
    assert_eq!(stream.group_mut(b"g").unwrap().delete_consumer(b"a"), Some(2));
    assert_eq!(times(&stream), []);
}
