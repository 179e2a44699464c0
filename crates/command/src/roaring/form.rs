//! The form of a bitmap in memory: OPTIMIZE, STAT.

use super::{Narrow, Wide, Width, paced, present, rows, whole};
use crate::table::{Command, KeySpec, READONLY, RO_ACCESS, RW_UPDATE, Run, WRITE, acl};
use crate::{Cx, Error};
use keyspace::View;
use resp::Args;
use value::{Ints, ValueRef};

rows! {
    "optimize", -2, Write(optimize), WRITE, &[KeySpec::one(1, RW_UPDATE)], whole_cost, "O(N) for N containers.",
        "Brings each container of a compressed bitmap into its smallest form.";
    "stat", -2, Read(stat), READONLY, &[KeySpec::one(1, RO_ACCESS)], whole_cost, "O(N) for N containers.",
        "Counts the containers of each kind in a compressed bitmap.";
}

fn whole_cost(view: &View<'_>, args: Args<'_>) -> usize {
    whole(view, args.at(1))
}

/// `R.OPTIMIZE key [MEM]`: OK. MEM changes nothing, as containers are never larger than needed.
///
/// Cost: O(containers). Errors: WRONGTYPE, no such key.
fn optimize<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    // A clone, so that a dropped run changes nothing.
    let mut bits = present::<W>(cx.view, args.at(1))?.clone();
    paced(&mut cx.budget, |pause| bits.optimize(pause).then_some(()))?;
    if let Some(place) = cx.view.ints_mut(args.at(1), W::KIND)? {
        *place = bits;
    }
    cx.out.ok();
    Ok(())
}

/// `R.STAT key [TEXT | JSON]`: statistics of a bitmap of either width, or null without the key.
///
/// Cost: O(containers). Errors: WRONGTYPE, arity.
fn stat<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    if args.len() > 3 {
        return Err(Error::Arity(W::STAT.to_owned()));
    }
    let json = args.get(2).is_some_and(|word| *word == *b"JSON");
    let text = match cx.view.value(args.at(1)) {
        None => None,
        Some(ValueRef::Roaring(bits)) => Some(told::<Narrow>(bits, json)),
        Some(ValueRef::Roaring64(bits)) => Some(told::<Wide>(bits, json)),
        Some(_) => return Err(Error::WrongType),
    };
    cx.view.count_lookup(args.at(1), text.is_some());
    match text {
        Some(text) => cx.out.verbatim("txt", text.as_bytes()),
        None => cx.out.null(),
    }
    Ok(())
}

/// Containers of one kind, counted as in the portable serialized form.
struct FormPart {
    containers: u128,
    values: u128,
    bytes: u128,
}

/// Arrays, bitsets, runs. Other forms are mapped: small and wide leaves count as arrays, full ones as runs.
fn parts(bits: &Ints) -> [FormPart; 3] {
    let s = bits.statistics();
    let in_arrays = u128::from(s.array_elements + s.sparse_elements);
    let full = s.full_elements >> 16;
    let of_runs = u128::from(s.runs) + full;
    [
        FormPart { containers: (s.arrays + s.sparse_chunks).into(), values: in_arrays, bytes: in_arrays * 2 },
        FormPart {
            containers: s.bitmaps.into(),
            values: s.bitmap_elements.into(),
            bytes: u128::from(s.bitmaps) * 8192,
        },
        FormPart {
            containers: of_runs,
            values: u128::from(s.run_elements) + s.full_elements,
            bytes: of_runs * 2 + (u128::from(s.run_count) + full) * 4,
        },
    ]
}

fn told<W: Width>(bits: &Ints, json: bool) -> String {
    let parts = parts(bits);
    let containers: u128 = parts.iter().map(|part| part.containers).sum();
    let (kind, len) = (W::TYPE, bits.len());
    // Without bits, min is larger than max.
    let (min, max) = (bits.min().unwrap_or(W::MAX), bits.max().unwrap_or(0));
    if json {
        let [array, bitset, run] = parts.map(|FormPart { containers, values, bytes }| {
            format!(
                r#"{{"number_of_containers":"{containers}","container_cardinality":"{values}","container_allocated_bytes":"{bytes}"}}"#
            )
        });
        return format!(
            r#"{{"type":"{kind}","cardinality":"{len}","number_of_containers":"{containers}","max_value":"{max}","min_value":"{min}","array_container":{array},"bitset_container":{bitset},"run_container":{run}}}"#
        );
    }
    let mut text = format!(
        "type: {kind}\ncardinality: {len}\nnumber of containers: {containers}\nmax value: {max}\nmin value: {min}\n"
    );
    let names = [("number of array", "array"), ("bitset ", "bitset "), ("run", "run")];
    for ((number, name), FormPart { containers, values, bytes }) in names.into_iter().zip(parts) {
        text += &format!(
            "{number} containers: {containers}\n\t{name} container values: {values}\n\t{name} container bytes: {bytes}\n"
        );
    }
    text
}
