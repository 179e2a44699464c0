//! The lines of HELP, by container: its subcommands and what they do.

pub const CLIENT: &[&str] = &[
    "CACHING <YES | NO>",
    "    Remember the keys of the next command, or do not (OPTIN, OPTOUT).",
    "CAPA <option> [<option> ...]",
    "    Tell what this connection can do. REDIRECT: it can be sent to another server.",
    "GETNAME",
    "    Tell this connection's name.",
    "GETREDIR",
    "    Tell which connection gets the invalidation messages of this one.",
    "ID",
    "    Tell this connection's number.",
    "IMPORT-SOURCE <ON | OFF>",
    "    Fill a server in import mode: expired keys are there for this connection.",
    "INFO",
    "    Describe this connection.",
    "MAINT_NOTIFICATIONS <ON | OFF> [MOVING-ENDPOINT-TYPE <type>]",
    "    Tell this connection by a push message when another server leads (RESP3).",
    "KILL <ip:port>",
    "    Close the connection from this address.",
    "KILL <filter> <value> [<filter> <value> ...]",
    "    Close all connections that match every filter; tell how many.",
    "LIST [<filter> <value> ...]",
    "    Describe connections, all or those that match every filter. Filters:",
    "    ADDR <ip:port>, LADDR <ip:port>, IP <ip>, TYPE <normal | master | replica | pubsub>,",
    "    USER <name>, NAME <name>, LIB-NAME <name>, LIB-VER <version>, FLAGS <letters>, CAPA <letters>,",
    "    DB <number>, ID <number> [<number> ...], SKIPME <YES | NO>, MAXAGE <seconds>, IDLE <seconds>.",
    "    All but the last three may have NOT- in front.",
    "NO-EVICT <ON | OFF>",
    "    Spare this connection when client buffers must be freed.",
    "NO-TOUCH <ON | OFF>",
    "    Leave access times alone when this connection reads.",
    "PAUSE <milliseconds> [WRITE | ALL]",
    "    Hold the commands of all clients, or only those that write.",
    "REPLY <ON | OFF | SKIP>",
    "    Turn replies on or off, or leave out the next one.",
    "SETINFO <LIB-NAME | LIB-VER> <value>",
    "    Remember what library the client uses.",
    "SETNAME <name>",
    "    Name this connection.",
    "TRACKING <ON | OFF> [REDIRECT <number>] [BCAST] [PREFIX <prefix> ...] [OPTIN] [OPTOUT] [NOLOOP]",
    "    Client-side caching: send a message when a key that was read here changes.",
    "TRACKINGINFO",
    "    Tell how client-side caching is set up.",
    "UNBLOCK <number> [TIMEOUT | ERROR]",
    "    End another connection's waiting, as if its time were up or with an error.",
    "UNPAUSE",
    "    End PAUSE.",
];

pub const COMMAND: &[&str] = &[
    "(none)",
    "    Facts about every command.",
    "COUNT",
    "    How many commands there are.",
    "DOCS [<name> ...]",
    "    Descriptions, of all commands or of these.",
    "GETKEYS <command> [<arg> ...]",
    "    Which arguments of this command are keys.",
    "GETKEYSANDFLAGS <command> [<arg> ...]",
    "    The same, and what is done with each key.",
    "INFO [<name> ...]",
    "    Facts about all commands or about these.",
    "LIST [FILTERBY <MODULE name | ACLCAT category | PATTERN glob>]",
    "    Names of commands.",
];

pub const CONFIG: &[&str] = &[
    "GET <pattern> [<pattern> ...]",
    "    Settings whose names match, and their values.",
    "RESETSTAT",
    "    Set the counters of INFO back to zero.",
    "REWRITE",
    "    Write the settings in force into the configuration file.",
    "SET <name> <value> [<name> <value> ...]",
    "    Change settings: all of these or, if one is wrong, none.",
];

pub const DEBUG: &[&str] = &[
    "CHANGE-REPL-ID",
    "    Taken without effect: there is no replication.",
    "DIGEST",
    "    A number in hex that depends on all keys and values, not on their order.",
    "DIGEST-VALUE <key> [<key> ...]",
    "    The same for each of these values.",
    "ERROR <text>",
    "    Answer with this error.",
    "HTTP-SHOW [<name> <pattern> <url> [<option> <value> ...]]",
    "    Show keys over HTTP as if they were of such a source, which nobody connects to; alone: of none.",
    "HTSTATS <db>",
    "    How many keys a database has.",
    "JMAP",
    "    Taken without effect.",
    "LOADAOF",
    "    End the append-only log in order, empty all databases and load it again; others are refused meanwhile.",
    "LOG <text>",
    "    Write into the server's log.",
    "OBJECT <key>",
    "    How a value is kept.",
    "PANIC",
    "    Crash the server as a mistake in it would.",
    "POINT <name> [OFF | DELAY <microseconds> | HOLD <count> | PANIC <count>]",
    "    Slow or hold the server at job-start, job-end, script-start, script-step, script-end, reclaim, stream,",
    "    accept, publish, loop, commit-place, commit-fold, sweep or serve; without an action: how many are held there.",
    "    PANIC: what the first so many to get there do fails.",
    "POPULATE <count> [<prefix>] [<size>]",
    "    Make string keys <prefix>:0, <prefix>:1, ... where there are none.",
    "PROTOCOL <type>",
    "    Answer with a reply of this type: string, integer, double, bignum, null, array, set, map,",
    "    attrib, push, verbatim, true, false.",
    "QUICKLIST-PACKED-THRESHOLD <size>",
    "    Taken without effect.",
    "RELOAD [MERGE] [NOFLUSH] [NOSAVE]",
    "    Save a snapshot, empty all databases and load it again; others are refused meanwhile.",
    "SET-ACTIVE-EXPIRE <0 | 1>",
    "    Whether expired keys are removed before somebody looks at them.",
    "SLEEP <seconds>",
    "    Let this client wait; others are served.",
    "STALL [<key>]",
    "    Make everybody on this event loop wait, if the point loop is set to HOLD or DELAY; and who wants the key's lock.",
    "STRINGMATCH-LEN <length> <pattern>",
    "    Whether so many letters a match the pattern.",
];

pub const MEMORY: &[&str] = &[
    "DOCTOR",
    "    What is remarkable about the use of memory, in words.",
    "MALLOC-STATS",
    "    What the allocator says about itself.",
    "PURGE",
    "    Give unused memory back; the allocator does so by itself.",
    "STATS",
    "    Where the memory goes, in numbers.",
    "USAGE <key> [SAMPLES <count>]",
    "    What a key and its value take.",
];

pub const COMMANDLOG: &[&str] = &[
    "GET <count> <type>",
    "    The newest entries: number, time, amount, words, client's address and name. -1 is all.",
    "    Types: slow (microseconds), large-request and large-reply (bytes).",
    "LEN <type>",
    "    How many entries of a type there are.",
    "RESET <type>",
    "    Forget all entries of a type.",
];

pub const HOTKEYS: &[&str] = &[
    "GET",
    "    What was found: sums, and the keys with the most run time and network bytes.",
    "RESET",
    "    Forget what was found.",
    "START METRICS <count> [CPU] [NET] [COUNT <keys>] [DURATION <seconds>] [SAMPLE <ratio>]",
    "    Begin to watch keys: one of so many commands, for so long.",
    "STOP",
    "    End it; what was found stays.",
];

pub const SLOWLOG: &[&str] = &[
    "GET [<count>]",
    "    The newest entries: number, time, microseconds, words, client's address and name.",
    "    Without a count 10; -1 is all.",
    "LEN",
    "    How many entries there are.",
    "RESET",
    "    Forget all entries.",
    "WHY [<count>]",
    "    As GET, and where the time went, and whom it waited for: command, address, name.",
];

pub const LATENCY: &[&str] = &[
    "DOCTOR",
    "    What the remembered delays tell, in words.",
    "GRAPH <event>",
    "    The delays of an event as a drawing.",
    "HISTOGRAM [<command> ...]",
    "    Run times of commands by doubling bounds.",
    "HISTORY <event>",
    "    Time and delay of each remembered second with this event.",
    "LATEST",
    "    The latest and the longest delay of every event.",
    "RESET [<event> ...]",
    "    Forget all events, or these.",
];

pub const PUBSUB: &[&str] = &[
    "CHANNELS [<pattern>]",
    "    Channels somebody listens on.",
    "NUMPAT",
    "    How many different patterns are subscribed to.",
    "NUMSUB [<channel> ...]",
    "    How many listen on each of these channels.",
    "SHARDCHANNELS [<pattern>]",
    "    Shard channels somebody listens on.",
    "SHARDNUMSUB [<channel> ...]",
    "    How many listen on each of these shard channels.",
];

pub const SCRIPT: &[&str] = &[
    "DEBUG <YES | SYNC | NO>",
    "    There is no debugger: only NO works.",
    "EXISTS <sha1> [<sha1> ...]",
    "    Which of these scripts are known.",
    "FLUSH [ASYNC | SYNC]",
    "    Forget all scripts.",
    "KILL",
    "    Stop the script that runs.",
    "LOAD <script>",
    "    Make a script known; answers its SHA1.",
    "SHOW <sha1>",
    "    The text of a known script.",
];

pub const FUNCTION: &[&str] = &[
    "DELETE <library>",
    "    Remove a library and its functions.",
    "DUMP",
    "    All libraries in a form that RESTORE reads.",
    "FLUSH [ASYNC | SYNC]",
    "    Remove all libraries.",
    "KILL",
    "    Stop the function that runs.",
    "LIST [LIBRARYNAME <pattern>] [WITHCODE]",
    "    Libraries and their functions.",
    "LOAD [REPLACE] <code>",
    "    Add a library.",
    "RESTORE <payload> [FLUSH | APPEND | REPLACE]",
    "    Add the libraries of a dump.",
    "STATS",
    "    What runs now, and how many libraries and functions there are.",
];

pub const MODULE: &[&str] = &["LIST", "    The modules in use: there are none."];

/// The lines of EVENKEEL SOURCE.
pub const SOURCE: &[&str] = &[
    "SOURCE ADD <name> <key-pattern> <url> [<option> <value> ...]",
    "    Reads keys such as item:{id} through to a table or collection. Options as those of the source directive.",
    "    If there are such keys already it is refused, or with the option existing delete they are deleted.",
    "SOURCE LIST",
    "    The sources, as they are configured.",
    "SOURCE STATS [<name>]",
    "    What is cached of each source, and how it does.",
    "SOURCE PAUSE <name> | RESUME <name>",
    "    Loads nothing from its database; what is cached is answered and kept fresh.",
    "SOURCE FLUSH <name> [<id> ...]",
    "    Gives up what is cached of these rows, or of all.",
    "SOURCE REMOVE <name>",
    "    Ends it.",
];

/// A ship on an even keel (LOLWUT).
pub const SHIP: &str = r"
                 |    |    |
                )_)  )_)  )_)
               )___))___))___)\
              )____)____)_____)\\
            _____|____|____|____\\\__
   ---------\                      /---------
     ~~~~ ~~~\____________________/~~~ ~~~~
        ~~~~      ~~~      ~~~~      ~~~
  ------+------+------+--0--+------+------+------
               on an even keel
";
