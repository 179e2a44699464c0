//! Behaviour through sockets alone, one sentence a test.
//!
//! By default the tests start the evenkeel that cargo built. With
//! `EVENKEEL_TEST_SERVER=/usr/bin/redis-server` the same tests run against a real Redis, which settles what
//! the right behaviour is; those about Evenkeel's own front door are skipped then ([`support::foreign`]).
//!
//! A family's tests live in the file of its name: add `mod family;` below.

mod acl;
mod acl_rows;
mod acl_waits;
mod acts;
mod advisories;
mod answers;
mod attackers;
mod backends;
mod blocked;
mod bounds;
mod cli;
mod client_modes;
mod clients;
mod commandlog;
mod company;
mod compiling;
mod connections;
mod crowd;
mod docs;
mod door;
mod eviction;
mod first_minutes;
mod functions;
mod gated;
mod held;
mod hostile;
mod hotkeys;
mod http;
mod http_rows;
mod import_mode;
mod info;
mod limits;
mod lines;
mod loading;
mod loading_copy;
mod loading_ends;
mod loading_tls;
mod locked;
mod logged;
mod lscan;
mod messages;
mod migrate;
mod migrate_redis;
mod migrate_tls;
mod millions;
mod monitor;
mod muted;
mod no_wait;
mod one_moment;
mod panics;
mod paused;
mod places;
mod race_tables;
mod races;
mod renames;
mod restarts;
mod roaring;
mod rows_hostile;
mod rows_kept;
mod script_memory;
mod serialized;
mod snapshot_places;
mod snapshots;
mod sources;
mod sources_keys;
mod sources_mongodb;
mod sources_postgres;
mod sources_tracking;
mod startup;
mod streams;
mod support;
mod texts;
mod tls;
mod tls_halfway;
mod tracking;
mod transactions;
mod waits;
mod walls;
mod whole;
mod wire;
