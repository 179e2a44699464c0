//! The small kernels that everything else relies on, run in every order of their steps by a model checker.
//!
//! `build.rs` copies files of the server into *worlds*, with loom's atomics and locks in place of the real
//! ones. The world `real` must pass each model. A world with one mistake must fail the model about it, or the
//! model proves nothing. Some code cannot be taken as it is (shards, threads, descriptors). The models play
//! it, and say so.
//!
//! Bounds: two to four threads, and at most [`PREEMPTIONS`] switches away from a thread that could go on.
//! Loom orders SeqCst accesses no more strongly than AcqRel, so a passing model needs no more than that.
#![cfg(test)]
#![allow(dead_code, unused, clippy::all)]

mod reclaim;

const PREEMPTIONS: usize = 3;

/// Runs a model in every order of its steps.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

/// The part of `stdx` that the files under test use.
mod stdx {
    pub(crate) mod sync {
        pub(crate) use loom::sync::atomic;

        pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

        impl<T> Mutex<T> {
            pub(crate) fn new(value: T) -> Mutex<T> {
                Mutex(loom::sync::Mutex::new(value))
            }

            pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
                self.0.lock().unwrap()
            }

            pub(crate) fn into_inner(self) -> T {
                self.0.into_inner().unwrap()
            }
        }

        impl<T: Default> Default for Mutex<T> {
            fn default() -> Mutex<T> {
                Mutex::new(T::default())
            }
        }
    }

    pub(crate) mod reclaim {
        pub(crate) fn defer(_: usize, free: impl FnOnce()) {
            free();
        }
    }

    pub(crate) mod doing {
        pub(crate) fn now() -> u64 {
            0
        }

        pub(crate) fn within<T>(_: u64, f: impl FnOnce() -> T) -> T {
            f()
        }
    }

    pub(crate) mod cache {
        pub(crate) fn prefetch_at<T>(_: *const T) {}
    }

    pub(crate) mod hash {
        /// The letter's position in the alphabet.
        pub(crate) fn hash_bytes(key: &[u8]) -> u64 {
            u64::from(key[0] - b'a')
        }
    }

    pub(crate) mod locks {
        /// A set of shards.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub(crate) struct Bits(u64);

        impl Bits {
            pub(crate) fn below(count: usize) -> Bits {
                Bits((1 << count) - 1)
            }

            pub(crate) const EMPTY: Bits = Bits(0);

            pub(crate) fn one(shard: usize) -> Bits {
                Bits::EMPTY.with(shard)
            }

            pub(crate) const fn with(self, shard: usize) -> Bits {
                Bits(self.0 | 1 << shard)
            }

            pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
                (0..64).filter(move |i| self.0 >> i & 1 == 1)
            }
        }
    }
}

/// The part of `value` that the files under test use.
mod value {
    #[derive(Clone, Debug, PartialEq)]
    pub struct Str(pub u64);

    impl Str {
        pub(crate) fn from_slice(bytes: &[u8]) -> Str {
            Str(bytes[0].into())
        }

        pub(crate) fn prefetch(&self) {}
    }

    #[derive(Clone, Debug, PartialEq)]
    pub enum Value {
        Str(Str),
    }
}

/// A world: the files under test, and the models over them.
macro_rules! world {
    ($world:ident) => {
        mod $world {
            use crate::stdx::sync;

            /// Snapshots at once, fewer than in the server, as each adds a step to every look.
            pub(crate) const MAX_ACTIVE: usize = 2;
            pub(crate) const MAX_LONG: usize = MAX_ACTIVE;

            mod entry {
                pub(crate) type Owned = u64;
            }

            /// The part of a keyspace that a snapshot uses.
            #[derive(Default)]
            pub struct Keyspace {
                sequence: sequence::Sequence,
            }

            impl Keyspace {
                fn generation(&self) -> u64 {
                    0
                }

                fn closed_snapshot(&self) {}
            }

            mod tell {
                include!("told.rs");
            }
            mod sequence {
                include!(concat!(env!("OUT_DIR"), "/", stringify!($world), "/sequence.rs"));
            }
            mod preimages {
                include!(concat!(env!("OUT_DIR"), "/", stringify!($world), "/preimages.rs"));
            }
            mod record {
                include!(concat!(env!("OUT_DIR"), "/", stringify!($world), "/record.rs"));
            }
            mod letterbox {
                include!(concat!(env!("OUT_DIR"), "/", stringify!($world), "/letterbox.rs"));
            }
            mod claim {
                include!(concat!(env!("OUT_DIR"), "/", stringify!($world), "/claim.rs"));
            }

            pub(crate) mod snapshots {
                include!("snapshots.rs");
            }
            pub(crate) mod records {
                include!("records.rs");
            }
            pub(crate) mod letters {
                include!("letters.rs");
            }
            pub(crate) mod claims {
                include!("claims.rs");
            }
        }
    };
}

/// A world of long commits: the directory of its files, and the models over them.
macro_rules! commit_world {
    ($world:ident, $dir:literal) => {
        mod $world {
            pub(crate) use stage::{Conflict, Keyspace, MAX_ACTIVE, MAX_LONG, SHARDS, shard_of};

            mod entry {
                pub(crate) use super::stage::Owned;
            }
            mod overlay {
                pub(crate) use super::stage::{Cell, Names, Overlay, Parts, ReadKeys, apply, is_live};
            }
            mod beside {
                pub(crate) use super::stage::{BESIDE, Beside};
            }
            mod segment {
                pub(crate) use super::stage::Table as Directory;
            }
            mod view {
                pub(crate) use super::stage::{Changes, Class, View};
            }
            mod tell {
                include!("told.rs");
            }
            mod sequence {
                include!(concat!(env!("OUT_DIR"), "/", $dir, "/sequence.rs"));
            }
            mod preimages {
                include!(concat!(env!("OUT_DIR"), "/", $dir, "/preimages.rs"));
            }
            mod record {
                include!(concat!(env!("OUT_DIR"), "/", $dir, "/record.rs"));
            }
            mod underway {
                include!(concat!(env!("OUT_DIR"), "/", $dir, "/underway.rs"));
            }
            mod intent {
                use crate::value;
                include!(concat!(env!("OUT_DIR"), "/", $dir, "/intent.rs"));
            }
            mod stage {
                include!("stage.rs");
            }
            pub(crate) mod commits {
                include!("commits.rs");
            }
        }
    };
}

/// A world of what is told: the directory of its files, and the models over them.
macro_rules! stream_world {
    ($world:ident, $dir:literal) => {
        mod $world {
            use crate::stdx::sync;

            pub(crate) const MAX_ACTIVE: usize = 2;
            pub(crate) const MAX_LONG: usize = MAX_ACTIVE;

            #[derive(Default)]
            pub struct Keyspace {
                sequence: sequence::Sequence,
            }

            impl Keyspace {
                fn generation(&self) -> u64 {
                    0
                }

                fn closed_snapshot(&self) {}
            }

            mod sequence {
                include!(concat!(env!("OUT_DIR"), "/", $dir, "/sequence.rs"));
            }
            mod record {
                include!(concat!(env!("OUT_DIR"), "/", $dir, "/record.rs"));
            }
            mod slots {
                include!(concat!(env!("OUT_DIR"), "/", $dir, "/slots.rs"));
            }
            mod rings {
                include!(concat!(env!("OUT_DIR"), "/", $dir, "/rings.rs"));
            }
            mod tell {
                include!("voices.rs");
            }
            pub(crate) mod stream {
                include!("stream.rs");
            }
        }
    };
}

/// A world of the way of a row: the directory of its files, and the models over them.
macro_rules! row_world {
    ($world:ident, $dir:literal) => {
        mod $world {
            mod marks {
                include!(concat!(env!("OUT_DIR"), "/", $dir, "/marks.rs"));
            }
            mod shelf {
                include!(concat!(env!("OUT_DIR"), "/", $dir, "/shelf.rs"));
            }
            pub(crate) mod rows {
                include!("rows.rs");
            }
        }
    };
}

/// Tests that a model holds in the real world, and that it catches a mistake.
macro_rules! models {
    ($($model:ident :: $name:ident, not $($world:ident),*;)*) => {
        models! { real $($model :: $name, not $($world),*;)* }
    };
    ($real:ident $($model:ident :: $name:ident, not $($world:ident),*;)*) => {$(
        mod $name {
            #[test]
            fn holds() {
                crate::check(crate::$real::$model::$name);
            }
            $(#[test]
            #[should_panic]
            fn $world() {
                crate::check(crate::$world::$model::$name);
            })*
        }
    )*};
}

world!(real);
world!(drawn_before_published);
world!(opening_ignored);
world!(kept_once);
world!(drawn_before_deciding);
world!(drawn_twice);
world!(decided_though_aborted);
world!(taken_before_cleared);
world!(rung_before_sent);
world!(no_note);
world!(claimed_twice);

commit_world!(real_commits, "real");
commit_world!(position_ignored, "position_ignored");
commit_world!(snapshot_ignored, "snapshot_ignored");
commit_world!(writer_does_not_abort, "writer_does_not_abort");
commit_world!(writer_does_not_fold, "writer_does_not_fold");
commit_world!(placed_unchecked, "placed_unchecked");
commit_world!(older_not_spared, "older_not_spared");
commit_world!(younger_not_ended, "younger_not_ended");
commit_world!(decided_too_early, "decided_too_early");
commit_world!(folded_later, "folded_later");
commit_world!(placed_though_changed, "placed_though_changed");
commit_world!(placed_beside_another, "placed_beside_another");
commit_world!(set_beside_another, "set_beside_another");
commit_world!(committed_not_dropped, "committed_not_dropped");
commit_world!(dropped_though_ended, "dropped_though_ended");
commit_world!(withdrawn_undecided, "withdrawn_undecided");
commit_world!(gone_uncounted, "gone_uncounted");
commit_world!(new_not_asked_for, "new_not_asked_for");
commit_world!(asked_before_it_is_folded, "asked_before_it_is_folded");
commit_world!(folded_counted_again, "folded_counted_again");
commit_world!(exchanged_unsaid, "exchanged_unsaid");
commit_world!(exchanged_undecided, "exchanged_undecided");
commit_world!(exchanged_before_it_began, "exchanged_before_it_began");

stream_world!(real_stream, "real");
stream_world!(slots_read_first, "slots_read_first");
stream_world!(left_before_put, "left_before_put");
stream_world!(entered_after_draw, "entered_after_draw");
stream_world!(not_nested, "not_nested");
stream_world!(published_unwritten, "published_unwritten");
stream_world!(next_read_late, "next_read_late");

row_world!(real_rows, "real");
row_world!(kept_unlooked, "kept_unlooked");
row_world!(lent_stays, "lent_stays");
row_world!(absence_stays, "absence_stays");
row_world!(removal_unseen, "removal_unseen");

models! {
    snapshots::a_snapshot_is_one_moment, not drawn_before_published;
    snapshots::two_snapshots_see_their_own_moments, not kept_once;
    snapshots::what_is_pruned_nobody_needs, not opening_ignored;
    records::both_keys_or_none, not drawn_before_deciding;
    records::one_position_for_all, not drawn_twice;
    records::decided_or_aborted, not decided_though_aborted;
    letters::no_letter_is_left, not taken_before_cleared, rung_before_sent;
    claims::nothing_lies_there_for_who_waits, not no_note;
    claims::served_once, not claimed_twice;
}

models! {
    real_commits
    commits::a_reader_sees_all_or_nothing, not position_ignored, decided_too_early;
    commits::a_snapshot_sees_all_or_nothing, not snapshot_ignored, folded_later;
    commits::a_writer_goes_first_and_nothing_is_lost,
        not writer_does_not_abort, writer_does_not_fold, placed_unchecked, placed_though_changed;
    commits::readers_and_writers_beside_a_commit, not position_ignored;
    commits::two_transactions_lose_nothing, not older_not_spared, younger_not_ended, placed_beside_another;
    commits::what_is_emptied_and_filled_is_seen_whole, not decided_too_early;
    commits::who_empties_ends_the_others, not dropped_though_ended;
    commits::who_empties_ends_those_who_have_read, not committed_not_dropped, exchanged_undecided;
    commits::what_is_exchanged_is_seen_whole, not exchanged_unsaid;
    commits::who_exchanges_loses_nothing_of_others,
        not exchanged_unsaid, exchanged_before_it_began;
    commits::what_was_found_is_of_one_database, not exchanged_unsaid;
    commits::what_is_removed_is_counted_though_its_table_goes, not gone_uncounted;
    commits::what_is_folded_is_counted_once_though_its_table_goes, not folded_counted_again;
    commits::new_keys_are_new, not new_not_asked_for;
    commits::new_keys_are_new_beside_a_long_commit, not asked_before_it_is_folded;
    commits::two_bulks_are_one_after_the_other,
        not older_not_spared, younger_not_ended, set_beside_another;
    commits::a_dropped_commit_leaves_nothing_half_done, not withdrawn_undecided;
}

models! {
    real_stream
    stream::what_is_settled_was_told, not slots_read_first, entered_after_draw;
    stream::a_record_decided_within_a_write, not;
    stream::a_mark_beside_a_snapshot, not slots_read_first, left_before_put;
    stream::a_ring_keeps_all_in_order, not published_unwritten, next_read_late;
}

models! {
    real_rows
    rows::no_answer_is_older_than_one_before, not kept_unlooked, lent_stays;
    rows::no_absence_is_older_than_a_row, not absence_stays;
    rows::what_is_lent_is_for_one_command, not lent_stays;
    rows::a_list_is_no_older_than_what_was_known, not kept_unlooked;
    rows::what_nobody_recorded_is_given_up_first, not;
    rows::who_watches_is_told, not removal_unseen;
}

/// Mistakes in the played parts of a row's way.
mod played_rows {
    #[test]
    #[should_panic(expected = "after")]
    fn a_change_that_is_marked_after_its_removal() {
        crate::check(crate::real_rows::rows::marked_after_removal);
    }

    #[test]
    #[should_panic(expected = "after")]
    fn a_row_that_is_lent_for_ever() {
        crate::check(crate::real_rows::rows::lent_for_ever);
    }

    #[test]
    #[should_panic(expected = "after")]
    fn a_list_with_a_row_from_before() {
        crate::check(crate::real_rows::rows::list_kept);
    }

    #[test]
    #[should_panic(expected = "after")]
    fn a_changelog_that_is_read_behind_its_schema() {
        crate::check(crate::real_rows::rows::schema_first);
    }
}

/// M4 says why the bell must ring for edges: with a level this fails.
#[test]
#[should_panic(expected = "a late ring")]
fn a_late_ring_would_keep_a_level_bell_ringing() {
    check(real::letters::no_ring_stays);
}
