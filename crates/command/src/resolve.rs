//! Finds the row of a command's words, or the error that there is none.

use crate::{Command, Error, registry};
use resp::Args;

/// Finds the row, subcommands included, and checks the number of arguments.
#[inline]
pub fn resolve(args: Args<'_>) -> Result<&'static Command, Error> {
    let Some(mut command) = registry::find(args.at(0)) else { return Err(unknown(args)) };
    if !command.subs.is_empty() && args.len() > 1 {
        command = registry::find_sub(command, args.at(1)).ok_or_else(|| unknown_sub(args))?;
    }
    if !command.arity_fits(args.len()) {
        return Err(command.arity_error());
    }
    Ok(command)
}

fn unknown(args: Args<'_>) -> Error {
    let name = String::from_utf8_lossy(&args.at(0)[..args.at(0).len().min(128)]).into_owned();
    // Redis counts bytes, so they are made a text at the end.
    let mut rest = Vec::new();
    for arg in args.iter().skip(1) {
        if rest.len() >= 128 {
            break;
        }
        let shown = &arg[..arg.len().min(128 - rest.len())];
        rest.extend_from_slice(&[b"'", shown, b"' "].concat());
    }
    let rest = String::from_utf8_lossy(&rest);
    format!("ERR unknown command '{name}', with args beginning with: {rest}").into()
}

fn unknown_sub(args: Args<'_>) -> Error {
    let sub = String::from_utf8_lossy(&args.at(1)[..args.at(1).len().min(128)]).into_owned();
    // As the client calls it: it may have been renamed.
    let container = String::from_utf8_lossy(args.at(0)).to_uppercase();
    format!("ERR unknown subcommand '{sub}'. Try {container} HELP.").into()
}
