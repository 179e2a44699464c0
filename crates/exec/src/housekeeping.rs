//! Each loop's housekeeping, ten times a second.

use crate::actions::observe::collect;
use crate::{Local, Server};
use observe::info::Sections;
use observe::stats::Counter;
use std::sync::Arc;

/// Does a loop's share of the housekeeping, ten times a second.
pub fn cron(server: &Arc<Server>, local: &mut Local) {
    let leaving = std::mem::take(&mut local.leaving);
    for client in leaving {
        if crate::blocking::leave(server, local, client).is_none() && server.park.holds(client) {
            local.leaving.push(client);
        }
    }
    server.keyspace.still.end_pause(local.log.now_ms);
    if let Some(lua) = &mut local.lua {
        lua.heed();
        let (scripts, functions) = lua.bytes();
        local.log.recorder.set(Counter::LuaBytes, scripts as u64);
        local.log.recorder.set(Counter::LuaFunctionBytes, functions as u64);
    }
    if local.log.id == 0 {
        server.durability.tend(&mut local.works, local.log.now_ms);
        server.tracking.trim(&server.keyspace, server.config.live.tracking_max_keys.size());
        let orphan_ms = server.config.live.script_orphan_ms.size() as u64;
        server.work.lines.tend(local.log.clock_ns);
        server.scripts.end_orphans(local.log.clock_ns / 1_000_000, orphan_ms);
        // The allocator asks its arenas one by one, and may wait for a lock whose holder was preempted.
        let (task, now_ms) = (server.clone(), local.log.now_ms);
        server.observe.background.send(move || {
            let speeds = task.observe.stats.sample(now_ms, crate::shortage::look(&task, now_ms));
            task.observe.measured.note_speeds(speeds);
            task.observe.measured.sample(now_ms, &task.observe.crowd);
            task.past.tick(now_ms, || {
                (collect(&task, Sections::wanted([&b"cpu"[..]])), crate::http::readiness(&task).trouble)
            });
        });
    }
}
