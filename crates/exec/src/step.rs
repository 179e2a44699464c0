//! One command among others that run together: in a transaction, or in a script over a whole view.

use crate::act::Act;
use command::Flow;
use command::effects::Ran;
use command::{Budget, Caller, Command, Cx, Room, Run, facts};
use keyspace::View;
use resp::{Args, OwnedArgs};
use std::sync::Arc;
use stdx::budget::Holding;

/// Runs a command on a view that its caller holds: a step of EXEC, or of a script over a whole view. `kept`:
/// its words, if they are many.
pub(crate) fn step(
    act: &mut Act<'_, '_>,
    view: &mut View<'_>,
    command: &'static Command,
    args: Args<'_>,
    kept: Option<&Arc<OwnedArgs>>,
) -> Option<Flow> {
    let mark = act.out.len();
    let result = match command.run {
        Run::Read(handler) | Run::Write(handler) | Run::Whole(handler) => {
            // The command before may have looked at keys without counting that as use.
            view.set_quiet(act.session.settings.no_touch && !command.is(facts::TOUCHES));
            crate::tracking::remember(act.session, view, command, args);
            let before = view.changes().made();
            let in_replay = act.session.link.is_some();
            let (in_script, client_id) = (act.in_script, act.session.id);
            let caller = Caller { in_script, client_id, in_replay, ..Caller::default() };
            // No command runs here that is estimated to be long. This bounds one whose estimate is wrong.
            let mut holding = Holding::default();
            let memory = crate::hand_on::budget(act.server, act.session);
            let room = Room::new(&memory, &mut holding, 0);
            let budget = Budget::unlimited(None).within(room, mark);
            let mut cx = Cx::new(view, act.out, caller, budget, act.local.random());
            let result = handler(&mut cx, args);
            let effects = std::mem::take(&mut cx.effects);
            let ran = Ran { command, args, effects: &effects, before, failed: result.is_err() };
            act.server.log_effect(ran, view);
            act.server.gate_of(act.session, view, command, args);
            result.map(|()| None)
        }
        Run::Exec => {
            let mut inner = Act {
                server: act.server,
                local: act.local,
                session: act.session,
                out: act.out,
                view: Some(view),
                in_script: act.in_script,
                in_multi: true,
                committed: false,
                kept,
                key_hash: None,
                is_job: false,
                collects: None,
            };
            inner.server.actions.perform(&mut inner, command, args).map(Some)
        }
        Run::Container => Err(command.arity_error()),
    };
    match result {
        Ok(flow) => flow,
        Err(error) => {
            act.out.truncate(mark);
            act.out.error(&error.text());
            None
        }
    }
}
