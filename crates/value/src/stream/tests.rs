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
    let lag = |stream: &Stream| stream.group(b"g").and_then(|group| stream.lag(group));
    assert_eq!(lag(&stream), Some(5));
    stream.advance(b"g", StreamId::new(1, 0));
    assert_eq!((lag(&stream), stream.group(b"g").unwrap().entries_read()), (Some(4), Some(1)));
    stream.advance(b"g", StreamId::new(2, 0));
    assert_eq!(lag(&stream), Some(3));
    assert!(stream.remove(StreamId::new(4, 0)));
    assert_eq!(lag(&stream), None, "a tombstone is ahead");
    stream.advance(b"g", StreamId::new(3, 0));
    assert_eq!(stream.group(b"g").unwrap().entries_read(), None);
    stream.advance(b"g", StreamId::new(5, 0));
    assert_eq!(lag(&stream), Some(0));
    assert!(stream.destroy_group(b"g") && !stream.destroy_group(b"g"));
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
