//! Compiles Lua 5.1 from the sources of crate `lua-src`, with some places changed.
//!
//! Lua hashes only some characters of a string of 32 bytes or more, so that of a million keys that differ in a few digits
//! hundreds have one hash, and each look at one of them is compared with all. Redis's Lua hashes all characters. The order in
//! which `pairs` and `cjson.encode` go through a table follows from the hashes, so that is done here in the same way.
//!
//! Lua writes every number by `printf` with `%.14g`, which took a third of a script that made 100,000 keys of a name and a
//! number. Whole numbers of up to 14 digits are written as such, which is the same text, and read as such, which is the same number.
//!
//! Strings that come in numbers (the reply of a SMEMBERS) are made several at a time: each needs two or three places of a table
//! that no cache holds, which are asked for together. Who sweeps that table asks for places ahead. A hash is compared before a text.
//!
//! The hook asks every so many instructions whether a script may go on, and an instruction may copy, hash or compare 200 KB. What
//! takes that long counts as so many instructions (`evenkeel_charge`). Strings are compared by `memcmp`: piece by piece between
//! zeros, as `strcoll` needs it, 200 KB of zeros took 4 ms. The order is the same, since nobody sets a locale.
//!
//! Who makes a long string asks for memory before, where garbage can be collected (`evenkeel_room`). When there is none, Lua says which
//! directive did not allow it.
//!
//! A C function cannot ask how many results its caller wants. Here it can: the reply of a `redis.call` that stands alone is
//! not made into values that nobody sees.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// File, what stands there, and what is to stand there.
const CHANGES: [(&str, &str, &str); 23] = [
    ("lstring.c", "size_t step = (l>>5)+1;", "size_t step = 1;"),
    ("lstring.c", "TString *luaS_newlstr (lua_State *L, const char *str, size_t l) {\n  GCObject *o;", HASH),
    ("lstring.c", "  for (o = G(L)->strt.hash[lmod(h, G(L)->strt.size)];", HASHED),
    (
        "lstring.c",
        "    if (ts->tsv.len == l && (memcmp",
        "    if (ts->tsv.hash == h && ts->tsv.len == l && (memcmp",
    ),
    ("lgc.c", "      sweepwholelist(L, &g->strt.hash[g->sweepstrgc++]);", SWEEP),
    ("lobject.c", "int luaO_str2d (const char *s, lua_Number *result) {\n  char *endptr;", READ),
    ("lapi.c", "LUA_API int lua_gettop (lua_State *L) {", WANTED),
    ("lvm.c", "static int l_strcmp (const TString *ls, const TString *rs) {", COMPARE),
    (
        "lvm.c",
        "    return l_strcmp(rawtsvalue(l), rawtsvalue(r)) < 0;",
        "    return compare(L, rawtsvalue(l), rawtsvalue(r)) < 0;",
    ),
    (
        "lvm.c",
        "    return l_strcmp(rawtsvalue(l), rawtsvalue(r)) <= 0;",
        "    return compare(L, rawtsvalue(l), rawtsvalue(r)) <= 0;",
    ),
    ("lvm.c", "int luaV_lessthan (", "#endif\n\nint luaV_lessthan ("),
    (
        "lvm.c",
        "          Protect(luaD_checkstack(L, n));",
        "          evenkeel_charge(L, (size_t)n * 8);\n          Protect(luaD_checkstack(L, n));",
    ),
    ("ltable.c", "static void rehash (lua_State *L, Table *t, const TValue *ek) {", REHASH),
    (
        "ltable.c",
        "  na = computesizes(nums, &nasize);",
        "  evenkeel_charge(L, (size_t)totaluse * 64);\n  na = computesizes(nums, &nasize);",
    ),
    ("lstrlib.c", "static int str_byte (lua_State *L) {", BYTE),
    (
        "lstrlib.c",
        "    lua_pushinteger(L, uchar(s[posi+i-1]));\n  return n;",
        "    lua_pushinteger(L, uchar(s[posi+i-1]));\n  evenkeel_charge(L, (size_t)n * 8);\n  return n;",
    ),
    ("ltablib.c", "static int maxn (lua_State *L) {", MAXN),
    (
        "ltablib.c",
        "    lua_pop(L, 1);  /* remove value */\n    if",
        "    lua_pop(L, 1);\n    evenkeel_charge(L, 16);\n    if",
    ),
    ("lbaselib.c", "static int luaB_unpack (lua_State *L) {", UNPACK),
    (
        "lbaselib.c",
        "  lua_rawgeti(L, 1, i);  /* push arg[i] (avoiding overflow problems) */",
        "  evenkeel_charge(L, (size_t)n * 8);\n  lua_rawgeti(L, 1, i);",
    ),
    ("lapi.c", "LUA_API void lua_pushstring (lua_State *L, const char *s) {", STRINGS),
    ("lvm.c", "int luaV_tostring (", WHOLE),
    ("lvm.c", "    lua_number2str(s, n);", "    if (!whole2str(s, n)) lua_number2str(s, n);"),
];

/// Memory that a script asks for, and long numerals.
const MEMORY: [(&str, &str, &str); 8] = [
    (
        "ldo.c",
        "setsvalue2s(L, oldtop, luaS_newliteral(L, MEMERRMSG));",
        "setsvalue2s(L, oldtop, luaS_new(L, *(const char **)G(L)->ud));",
    ),
    ("lapi.c", "LUA_API int lua_checkstack (lua_State *L, int size) {", ROOM),
    (
        "lapi.c",
        "LUA_API void lua_pushlstring (lua_State *L, const char *s, size_t len) {\n  lua_lock(L);",
        "LUA_API void lua_pushlstring (lua_State *L, const char *s, size_t len) {\n  lua_lock(L);\n  evenkeel_room(L, len);",
    ),
    (
        "lvm.c",
        "void luaV_concat (lua_State *L, int total, int last) {",
        "void evenkeel_room (lua_State *L, size_t bytes);\n\nvoid luaV_concat (lua_State *L, int total, int last) {",
    ),
    (
        "lvm.c",
        "      buffer = luaZ_openspace(L, &G(L)->buff, tl);",
        "      evenkeel_room(L, 2 * tl);\n      top = L->base + last + 1;\n      buffer = luaZ_openspace(L, &G(L)->buff, tl);",
    ),
    ("lvm.c", "const TValue *luaV_tonumber (const TValue *obj, TValue *n) {", NUMBER),
    (
        "lvm.c",
        "  TValue tempb, tempc;\n  const TValue *b, *c;",
        "  TValue tempb, tempc;\n  const TValue *b, *c;\n  evenkeel_number(L, rb);\n  evenkeel_number(L, rc);",
    ),
    (
        "lbaselib.c",
        "    n = strtoul(s1, &s2, base);",
        "    {\n      void evenkeel_charge (lua_State *L, size_t bytes);
      evenkeel_charge(L, lua_objlen(L, 1) * 4);\n    }\n    n = strtoul(s1, &s2, base);",
    ),
];

/// The hash of a string, for who has many at once.
const HASH: &str = "
void evenkeel_charge (lua_State *L, size_t bytes);
unsigned int luaS_hash (const char *str, size_t l);
TString *luaS_hashed (lua_State *L, const char *str, size_t l, unsigned int h);

unsigned int luaS_hash (const char *str, size_t l) {";

const HASHED: &str = "
  return h;
}

TString *luaS_newlstr (lua_State *L, const char *str, size_t l) {
  if (l >= 512) evenkeel_charge(L, l);
  return luaS_hashed(L, str, l, luaS_hash(str, l));
}

TString *luaS_hashed (lua_State *L, const char *str, size_t l, unsigned int h) {
  GCObject *o;
  for (o = G(L)->strt.hash[lmod(h, G(L)->strt.size)];";

const SWEEP: &str = "
      if (g->sweepstrgc + 8 < g->strt.size) __builtin_prefetch(g->strt.hash[g->sweepstrgc + 8]);
      sweepwholelist(L, &g->strt.hash[g->sweepstrgc++]);";

/// Fifteen digits are less than 2^53.
const READ: &str = "
static int whole2d (const char *s, lua_Number *result) {
  const char *c = s + (*s == '-');
  const char *first = c;
  long long whole = 0;
  while ('0' <= *c && *c <= '9' && c - first < 15) whole = whole * 10 + (*c++ - '0');
  if (c == first || *c != 0 || (whole == 0 && *s == '-')) return 0;
  *result = (lua_Number)(*s == '-' ? -whole : whole);
  return 1;
}

int luaO_str2d (const char *s, lua_Number *result) {
  char *endptr;
  if (whole2d(s, result)) return 1;";

/// `t[first]` and the next ones become strings, at most 16.
const STRINGS: &str = "
unsigned int luaS_hash (const char *str, size_t l);
TString *luaS_hashed (lua_State *L, const char *str, size_t l, unsigned int h);
typedef struct { const char *s; size_t len; } evenkeel_piece;
LUA_API void evenkeel_setstrings (lua_State *L, int idx, int first, const evenkeel_piece *piece, int n);
LUA_API void evenkeel_setstrings (lua_State *L, int idx, int first, const evenkeel_piece *piece, int n) {
  unsigned int h[16];
  int i;
  for (i = 0; i < n; i++) {
    h[i] = luaS_hash(piece[i].s, piece[i].len);
    __builtin_prefetch(&G(L)->strt.hash[lmod(h[i], G(L)->strt.size)]);
  }
  for (i = 0; i < n; i++) {
    GCObject *o = G(L)->strt.hash[lmod(h[i], G(L)->strt.size)];
    if (o != NULL) __builtin_prefetch(o);
  }
  for (i = 0; i < n; i++) {
    Table *t;
    luaC_checkGC(L);
    setsvalue2s(L, L->top, luaS_hashed(L, piece[i].s, piece[i].len, h[i]));
    api_incr_top(L);
    t = hvalue(index2adr(L, idx));
    setobj2t(L, luaH_setnum(L, t, first + i), L->top-1);
    luaC_barriert(L, t, L->top-1);
    L->top--;
  }
}

LUA_API void lua_pushstring (lua_State *L, const char *s) {";

/// Work on so many bytes is as much as an eighth as many instructions; the hook comes with the next one at the earliest.
const WANTED: &str = "
LUA_API void evenkeel_charge (lua_State *L, size_t bytes);
LUA_API void evenkeel_charge (lua_State *L, size_t bytes) {
  size_t took = bytes / 8;
  if (L->hookcount > 1) L->hookcount = took + 1 < (size_t)L->hookcount ? L->hookcount - (int)took : 1;
}

LUA_API int evenkeel_wanted (lua_State *L);
LUA_API int evenkeel_wanted (lua_State *L) {
  return L->ci->nresults;
}

LUA_API int lua_gettop (lua_State *L) {";

/// What allocates for a script is known by the first words behind the allocator's pointer: what is said when there is nothing left, and
/// who is told before something large is made. Who reads a string as a number looks at all of it. A step of the collector is a step
/// here, whatever Lua thinks it owes.
const ROOM: &str = "
void evenkeel_charge (lua_State *L, size_t bytes);
void evenkeel_room (lua_State *L, size_t bytes);
void evenkeel_room (lua_State *L, size_t bytes) {
  struct first { const char *said; void (*room) (lua_State *L, size_t bytes); };
  if (bytes >= 65536) ((struct first *)G(L)->ud)->room(L, bytes);
}

void evenkeel_number (lua_State *L, const TValue *o);
void evenkeel_number (lua_State *L, const TValue *o) {
  if (ttype(o) == LUA_TSTRING && tsvalue(o)->len >= 256) evenkeel_charge(L, tsvalue(o)->len * 4);
}

#undef tonumber
#define tonumber(o,n) (ttype(o) == LUA_TNUMBER || (evenkeel_number(L, o), ((o) = luaV_tonumber(o,n)) != NULL))

LUA_API int evenkeel_collect (lua_State *L);
LUA_API int evenkeel_collect (lua_State *L) {
  G(L)->GCthreshold = G(L)->totalbytes;
  luaC_step(L);
  return G(L)->gcstate == GCSpause;
}

LUA_API int lua_checkstack (lua_State *L, int size) {";

const NUMBER: &str = "
void evenkeel_number (lua_State *L, const TValue *o);
#undef tonumber
#define tonumber(o,n) (ttype(o) == LUA_TNUMBER || (evenkeel_number(L, o), ((o) = luaV_tonumber(o,n)) != NULL))

const TValue *luaV_tonumber (const TValue *obj, TValue *n) {";

/// Zeros are characters like others. A sort compares very often between two instructions, so the hook is called here.
const COMPARE: &str = "
void evenkeel_charge (lua_State *L, size_t bytes);
static int compare (lua_State *L, const TString *ls, const TString *rs) {
  size_t ll = ls->tsv.len, lr = rs->tsv.len, l = ll < lr ? ll : lr;
  int order = memcmp(getstr(ls), getstr(rs), l);
  if (order == 0) order = (ll > lr) - (ll < lr);
  if (l >= 512) {
    evenkeel_charge(L, l / 8);
    if (L->hookcount == 1 && (L->hookmask & LUA_MASKCOUNT) && L->allowhook) {
      resethookcount(L);
      luaD_callhook(L, LUA_HOOKCOUNT, -1);
    }
  }
  return order;
}

#if 0
static int l_strcmp (const TString *ls, const TString *rs) {";

const REHASH: &str = "
void evenkeel_charge (lua_State *L, size_t bytes);

static void rehash (lua_State *L, Table *t, const TValue *ek) {";

const MAXN: &str = "
void evenkeel_charge (lua_State *L, size_t bytes);

static int maxn (lua_State *L) {";

const BYTE: &str = "
void evenkeel_charge (lua_State *L, size_t bytes);

static int str_byte (lua_State *L) {";

const UNPACK: &str = "
void evenkeel_charge (lua_State *L, size_t bytes);

static int luaB_unpack (lua_State *L) {";

/// Minus zero is no whole number: it is written as "-0".
const WHOLE: &str = "
static int whole2str (char *s, lua_Number n) {
  char digits[16];
  long long whole;
  int count = 0;
  if (!(n > -1e14 && n < 1e14)) return 0;
  whole = (long long)n;
  if ((lua_Number)whole != n || (whole == 0 && 1 / n < 0)) return 0;
  if (whole < 0) {
    *s++ = '-';
    whole = -whole;
  }
  do {
    digits[count++] = (char)('0' + whole % 10);
    whole /= 10;
  } while (whole != 0);
  while (count > 0) *s++ = digits[--count];
  *s = 0;
  return 1;
}

int luaV_tostring (";

fn main() -> io::Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let source = source()?;
    let mut build = cc::Build::new();
    build.include(&source).define("LUA_USE_LINUX", None).warnings(false);
    if env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
        build.define("LUA_USE_APICHECK", None);
    }
    for entry in fs::read_dir(&source)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "c") {
            build.file(changed(&path, &out)?.unwrap_or(path));
        }
    }
    build.compile("lua5.1");
    println!("cargo:rerun-if-changed=build.rs");
    Ok(())
}

/// Where the file stands with its changes; none if it has none.
fn changed(path: &Path, out: &Path) -> io::Result<Option<PathBuf>> {
    let mut changes = CHANGES.iter().chain(&MEMORY).filter(|(file, ..)| path.ends_with(file)).peekable();
    if changes.peek().is_none() {
        return Ok(None);
    }
    let mut text = fs::read_to_string(path)?;
    for (file, before, after) in changes {
        assert!(text.matches(before).count() == 1, "this version of lua-src has another {file}");
        text = text.replace(before, after);
    }
    let to = out.join(path.file_name().expect("a file has a name"));
    fs::write(&to, text)?;
    Ok(Some(to))
}

/// Where cargo has put Lua's sources.
fn source() -> io::Result<PathBuf> {
    let cargo = env::var_os("CARGO").expect("cargo sets it");
    let target = env::var("TARGET").expect("cargo sets it");
    // What is not needed here may not have been fetched; then it is, if that is possible.
    let ask = |more: &[&str]| {
        let mut command = Command::new(&cargo);
        command.args(["metadata", "--format-version", "1", "--filter-platform", &target]).args(more);
        command.output()
    };
    let asked = match ask(&["--offline"])? {
        found if found.status.success() => found,
        _ => ask(&[])?,
    };
    let text = String::from_utf8_lossy(&asked.stdout);
    let manifest = text.split("\"manifest_path\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    let package = manifest.map(Path::new).filter_map(Path::parent);
    let is_lua =
        |dir: &&Path| dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with("lua-src"));
    let found = package.filter(is_lua).map(|dir| dir.join("lua-5.1.5")).find(|dir| dir.exists());
    found.ok_or_else(|| {
        let said = String::from_utf8_lossy(&asked.stderr).into_owned();
        io::Error::new(io::ErrorKind::NotFound, format!("where is crate lua-src? {said}"))
    })
}
