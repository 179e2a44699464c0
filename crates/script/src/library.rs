//! Functions. A library is code that registers callbacks while it is loaded.

use crate::header;
use crate::lua::{Outcome, Ref, State, Type};
use crate::reply::push_error;
use crate::{ScriptFlags, lua::Raise};

/// A loaded library. Give it back with [`Engine::delete_library`](crate::Engine::delete_library).
#[derive(Clone, Debug)]
pub struct Library {
    pub name: String,
    pub functions: Vec<Function>,
}

#[derive(Clone, Debug)]
pub struct Function {
    pub name: String,
    pub description: Option<String>,
    pub flags: ScriptFlags,
    /// The argument for [`Engine::call_function`](crate::Engine::call_function), in the engine that loaded
    /// the library.
    pub callback: FunctionRef,
}

/// A function of a library in one engine. `generation` exposes a reference from before a flush.
#[derive(Clone, Copy, Debug)]
pub struct FunctionRef {
    pub(crate) reference: Ref,
    pub(crate) generation: u64,
}

/// The arguments of `redis.register_function`.
pub(crate) struct Registration {
    pub(crate) name: Vec<u8>,
    pub(crate) description: Option<Vec<u8>>,
    pub(crate) flags: ScriptFlags,
    pub(crate) callback: Ref,
}

/// `redis.register_function`, in both forms: `(name, callback)` and `{function_name=, callback=, flags=,
/// description=}`.
pub(crate) fn register_function(s: &mut State<'_>) -> Outcome {
    match register(s) {
        Ok(()) => Ok(0),
        Err(text) => {
            push_error(s, text.as_bytes());
            Err(Raise)
        }
    }
}

fn register(s: &mut State<'_>) -> Result<(), &'static str> {
    let Some(mut registered) = s.session().registering.take() else {
        return Err("redis.register_function can only be called on FUNCTION LOAD command");
    };
    let result = read_registration(s).and_then(|(name, description, flags)| {
        if !header::valid_name(&name) {
            return Err(header::BAD_NAME);
        }
        if registered.iter().any(|r| r.name.eq_ignore_ascii_case(&name)) {
            return Err("Function already exists in the library");
        }
        // The callback is on top.
        let callback = s.keep();
        registered.push(Registration { name, description, flags, callback });
        Ok(())
    });
    s.session().registering.set(Some(registered));
    result
}

type Read = (Vec<u8>, Option<Vec<u8>>, ScriptFlags);

/// Reads the arguments. Leaves the callback on top.
fn read_registration(s: &mut State<'_>) -> Result<Read, &'static str> {
    match s.top() {
        1 if s.type_of(1) == Type::Table => read_table(s),
        1 => Err("calling redis.register_function with a single argument is only applicable to Lua table \
                  (representing named arguments)."),
        2 => {
            let Some(name) = s.text(1).map(<[u8]>::to_vec) else {
                return Err("first argument to redis.register_function must be a string");
            };
            if s.type_of(2) != Type::Function {
                return Err("second argument to redis.register_function must be a function");
            }
            Ok((name, None, ScriptFlags::default()))
        }
        _ => Err("wrong number of arguments to redis.register_function"),
    }
}

fn read_table(s: &mut State<'_>) -> Result<Read, &'static str> {
    let mut name = None;
    let mut description = None;
    let mut flags = ScriptFlags::default();
    let mut has_callback = false;
    s.push_nil(); // slot 2: the callback
    s.push_nil();
    while s.next(1) {
        let Some(key) = s.bytes(-2).map(<[u8]>::to_vec) else {
            return Err(if s.type_of(-2) == Type::Number {
                "unknown argument given to redis.register_function"
            } else {
                "named argument key given to redis.register_function is not a string"
            });
        };
        match key.to_ascii_lowercase().as_slice() {
            b"function_name" => {
                let Some(text) = s.text(-1) else {
                    return Err("function_name argument given to redis.register_function must be a string");
                };
                name = Some(text.to_vec());
            }
            b"description" => {
                let Some(text) = s.text(-1) else {
                    return Err("description argument given to redis.register_function must be a string");
                };
                description = Some(text.to_vec());
            }
            b"callback" => {
                if s.type_of(-1) != Type::Function {
                    return Err("callback argument given to redis.register_function must be a function");
                }
                has_callback = true;
                s.push_value(-1);
                s.insert(2);
                s.remove(3);
            }
            b"flags" => {
                if s.type_of(-1) != Type::Table {
                    return Err(
                        "flags argument to redis.register_function must be a table representing function \
                                flags",
                    );
                }
                flags = read_flags(s)?;
            }
            _ => return Err("unknown argument given to redis.register_function"),
        }
        s.pop(1);
    }
    let name = name.ok_or("redis.register_function must get a function name argument")?;
    if !has_callback {
        return Err("redis.register_function must get a callback argument");
    }
    s.set_top(2);
    Ok((name, description, flags))
}

/// Reads the array of flags on top.
fn read_flags(s: &mut State<'_>) -> Result<ScriptFlags, &'static str> {
    let mut flags = ScriptFlags::default();
    for i in 1.. {
        s.raw_get_i(-1, i);
        let known = match s.bytes(-1) {
            Some(name) => flags.set(name),
            None if s.type_of(-1) == Type::Nil => {
                s.pop(1);
                break;
            }
            None => false,
        };
        s.pop(1);
        if !known {
            return Err("unknown flag given");
        }
    }
    Ok(flags)
}
