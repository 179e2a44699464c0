//! Compiles Lua 5.1 from the sources of crate `lua-src`, with these changes:
//!
//! - Hashing: a string's hash covers all its characters, as in Redis's Lua. Lua skips some from 32 bytes on,
//!   so similar keys collide. Traversal order follows from the hashes and must match Redis.
//! - Numbers: whole numbers of up to 14 digits are written and read without `printf` and `strtod`, with the
//!   same result.
//! - Strings: the strings of a long reply are made several at a time (`evenkeel_setstrings`), and their
//!   places in the string table are fetched together. A sweep of that table fetches ahead. Hashes are
//!   compared before texts.
//! - Accounting: an instruction may copy, hash or compare 200 KB, so such work counts as many instructions
//!   (`evenkeel_charge`) and the hook comes in time. Loops in C that a script can make long ask as well: a
//!   sort, a removal from the front, a walk over empty slots, keys of one hash.
//! - Comparing: strings are compared by `memcmp`. The order is that of `strcoll`, since no locale is set.
//! - Memory: a function that makes a long string asks for memory first, where garbage can be collected
//!   (`evenkeel_room`). A memory error names the limit.
//! - Results: a C function can ask how many results its caller wants. So an unused reply of `redis.call` is
//!   not converted.
//! - Integers: numbers become ints in one defined way, and sums wrap (`-fwrapv`). Code that trusted a wrapped
//!   sum is changed: `unpack`, the brackets of long strings.
//! - Compiler: tokens, and looks at lists of jumps or names, count as instructions, and the hook may run
//!   between two tokens (`evenkeel_step`). Joining two lists of jumps takes the time of the shorter one. The
//!   name of a chunk being compiled is on the stack, where the collector finds it.
//!
//! `EVENKEEL_LUA=sanitize` compiles Lua with AddressSanitizer, UndefinedBehaviorSanitizer and its own
//! assertions. `EVENKEEL_LUA=collect` also collects and moves stacks wherever memory may be taken (`make
//! lua-sanitize`).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// File, old text, new text.
const CHANGES: [(&str, &str, &str); 72] = [
    ("lstring.c", "size_t step = (l>>5)+1;", "size_t step = 1;"),
    ("lstring.c", "TString *luaS_newlstr (lua_State *L, const char *str, size_t l) {\n  GCObject *o;", HASH),
    (
        "lstring.c",
        "  for (o = G(L)->strt.hash[lmod(h, G(L)->strt.size)];\n       o != NULL;\n       o = o->gch.next) {",
        HASHED,
    ),
    (
        "lstring.c",
        "    if (ts->tsv.len == l && (memcmp(str, getstr(ts), l) == 0)) {",
        "    if (ts->tsv.hash == h && ts->tsv.len == l && (looked += l / 8, memcmp(str, getstr(ts), l) == 0)) {
      if (looked > 64) evenkeel_charge(L, looked * 8);",
    ),
    (
        "lstring.c",
        "  return newlstr(L, str, l, h);  /* not found */",
        "  if (looked > 64) evenkeel_charge(L, looked * 8);\n  return newlstr(L, str, l, h);",
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
    ("ltablib.c", "static int foreachi (lua_State *L) {", TABLES),
    (
        "ltablib.c",
        "    lua_pushvalue(L, 2);  /* function */\n    lua_pushinteger(L, i);",
        "    evenkeel_step(L, 64);\n    lua_pushvalue(L, 2);\n    lua_pushinteger(L, i);",
    ),
    (
        "ltablib.c",
        "    lua_pushvalue(L, 2);  /* function */\n    lua_pushvalue(L, -3);",
        "    evenkeel_step(L, 64);\n    lua_pushvalue(L, 2);\n    lua_pushvalue(L, -3);",
    ),
    (
        "ltablib.c",
        "    lua_pop(L, 1);  /* remove value */\n    if",
        "    lua_pop(L, 1);\n    evenkeel_step(L, 16);\n    if",
    ),
    (
        "ltablib.c",
        "  for ( ;pos<e; pos++) {",
        "  for ( ;pos<e; pos++) {\n    if (pos % 64 == 0) evenkeel_step(L, 64 * 16);",
    ),
    ("ltablib.c", "  while (l < u) {  /* for tail recursion */\n    int i, j;", SORT),
    (
        "ltablib.c",
        "        if (i>u) luaL_error(L, \"invalid order function for sorting\");",
        "        if (i>u) luaL_error(L, \"invalid order function for sorting\");
        if (i % SORTED == 0) evenkeel_step(L, SORTED * 16);",
    ),
    (
        "ltablib.c",
        "        if (j<l) luaL_error(L, \"invalid order function for sorting\");",
        "        if (j<l) luaL_error(L, \"invalid order function for sorting\");
        if (j % SORTED == 0) evenkeel_step(L, SORTED * 16);",
    ),
    ("lbaselib.c", "static int luaB_unpack (lua_State *L) {\n  int i, e, n;", UNPACK),
    (
        "lbaselib.c",
        "  n = e - i + 1;  /* number of elements */
  if (n <= 0 || !lua_checkstack(L, n))  /* n <= 0 means arith. overflow */",
        "  far = (unsigned int)e - (unsigned int)i;\n  if (far >= LUAI_MAXCSTACK || !lua_checkstack(L, n = (int)far + 1))",
    ),
    (
        "lbaselib.c",
        "  while (i++ < e)  /* push arg[i + 1...e] */\n    lua_rawgeti(L, 1, i);",
        "  while (i < e)\n    lua_rawgeti(L, 1, ++i);",
    ),
    (
        "lbaselib.c",
        "  status = lua_resume(co, narg);",
        "  evenkeel_runs(co);\n  status = lua_resume(co, narg);\n  evenkeel_runs(L);",
    ),
    ("lbaselib.c", "static int auxresume (", "struct lua_State *evenkeel_runs (lua_State *L);\n\nstatic int auxresume ("),
    (
        "lbaselib.c",
        "  lua_rawgeti(L, 1, i);  /* push arg[i] (avoiding overflow problems) */",
        "  evenkeel_charge(L, (size_t)n * 8);\n  lua_rawgeti(L, 1, i);",
    ),
    ("lapi.c", "LUA_API void lua_pushstring (lua_State *L, const char *s) {", STRINGS),
    ("lvm.c", "int luaV_tostring (", WHOLE),
    ("lvm.c", "    lua_number2str(s, n);", "    if (!whole2str(s, n)) lua_number2str(s, n);"),
    // Numbers.
    (
        "luaconf.h",
        "#define lua_number2int(i,d)\t((i)=(int)(d))\n#define lua_number2integer(i,d)\t((i)=(lua_Integer)(d))",
        CUT,
    ),
    ("lstrlib.c", "static int str_format (lua_State *L) {", FORMAT),
    ("lstrlib.c", "(int)luaL_checknumber(L, arg)", "(int)whole(luaL_checknumber(L, arg))"),
    ("lstrlib.c", "(LUA_INTFRM_T)luaL_checknumber(L, arg)", "whole(luaL_checknumber(L, arg))"),
    ("lstrlib.c", "(unsigned LUA_INTFRM_T)luaL_checknumber(L, arg)", "bits(luaL_checknumber(L, arg))"),
    ("ltable.c", "  if (cast(unsigned int, key-1) <", "  if (cast(unsigned int, key) - 1u <"),
    // Chains and empty slots.
    ("ltable.c", "static int findindex (lua_State *L, Table *t, StkId key) {\n  int i;", FINDINDEX),
    (
        "ltable.c",
        "        return i + t->sizearray;\n      }\n      else n = gnext(n);",
        "        return i + t->sizearray;\n      }\n      else NEXT(n);",
    ),
    ("ltable.c", "  for (i -= t->sizearray; i < sizenode(t); i++) {", SLOTS),
    (
        "ltable.c",
        "  int i = findindex(L, t, key);  /* find original element */
  for (i++; i < t->sizearray; i++) {",
        "  int i = findindex(L, t, key);\n  int from = ++i;\n  for (; i < t->sizearray; i++) {
    if (i % 64 == 63) evenkeel_charge(L, 64 * 2);",
    ),
    (
        "ltable.c",
        "      while (gnext(othern) != mp) othern = gnext(othern);",
        "      unsigned int looked = 0;\n      while (gnext(othern) != mp) NEXT(othern);",
    ),
    (
        "ltable.c",
        "    Node *n = hashnum(t, nk);",
        "    Node *n = hashnum(t, nk);\n    unsigned int looked = 0;",
    ),
    (
        "ltable.c",
        "        return gval(n);  /* that's it */\n      else n = gnext(n);
    } while (n);\n    return luaO_nilobject;\n  }\n}",
        "        return gval(n);\n      else NEXT(n);\n    } while (n);\n    return luaO_nilobject;\n  }\n}",
    ),
    (
        "ltable.c",
        "  Node *n = hashstr(t, key);",
        "  Node *n = hashstr(t, key);\n  unsigned int looked = 0;",
    ),
    (
        "ltable.c",
        "      return gval(n);  /* that's it */\n    else n = gnext(n);",
        "      return gval(n);\n    else NEXT(n);",
    ),
    (
        "ltable.c",
        "      Node *n = mainposition(t, key);\n      do {  /* check whether `key' is somewhere in the chain */
        if (luaO_rawequalObj(key2tval(n), key))\n          return gval(n);  /* that's it */\n        else n = gnext(n);",
        "      Node *n = mainposition(t, key);\n      unsigned int looked = 0;\n      do {
        if (luaO_rawequalObj(key2tval(n), key))\n          return gval(n);\n        else NEXT(n);",
    ),
    ("ltable.c", "      while (!ttisnil(luaH_getnum(t, i))) i++;\n      return i - 1;", BORDER),
    // Pieces of long strings.
    (
        "lauxlib.c",
        "static int emptybuffer (luaL_Buffer *B) {",
        "void evenkeel_step (lua_State *L, size_t bytes);\n\nstatic int emptybuffer (luaL_Buffer *B) {",
    ),
    (
        "lauxlib.c",
        "    lua_pushlstring(B->L, B->buffer, l);",
        "    evenkeel_step(B->L, l);\n    lua_pushlstring(B->L, B->buffer, l);",
    ),
    // Precompiled code.
    (
        "lundump.c",
        "static TString* LoadString(LoadState* S)\n{\n size_t size;\n LoadVar(S,size);",
        "void evenkeel_step (lua_State *L, size_t bytes);

static TString* LoadString(LoadState* S)\n{\n size_t size;\n LoadVar(S,size);\n evenkeel_step(S->L, size / 4 + 64);",
    ),
    // The compiler.
    (
        "lparser.c",
        "  luaX_setinput(L, &lexstate, z, luaS_new(L, name));",
        "  setsvalue2s(L, L->top, luaS_new(L, name));\n  incr_top(L);
  luaX_setinput(L, &lexstate, z, rawtsvalue(L->top - 1));",
    ),
    (
        "lparser.c",
        "  lua_assert(lexstate.fs == NULL);\n  return funcstate.f;",
        "  lua_assert(lexstate.fs == NULL);\n  L->top--;\n  return funcstate.f;",
    ),
    (
        "lparser.c",
        "static int indexupvalue (FuncState *fs, TString *name, expdesc *v) {",
        "void evenkeel_charge (lua_State *L, size_t bytes);

static int indexupvalue (FuncState *fs, TString *name, expdesc *v) {",
    ),
    (
        "lparser.c",
        "    int v = searchvar(fs, n);  /* look up at current level */",
        "    int v = searchvar(fs, n);\n    evenkeel_charge(fs->L, (size_t)(fs->nactvar + fs->f->nups + 8) * 2);",
    ),
    (
        "llex.c",
        "void luaX_next (LexState *ls) {",
        "void evenkeel_step (lua_State *L, size_t bytes);

void luaX_next (LexState *ls) {\n  evenkeel_step(ls->L, 96);",
    ),
    ("llex.c", "static int skip_sep (LexState *ls) {\n  int count = 0;", BRACKETS),
    ("llex.c", "  return (ls->current == s) ? count : (-count) - 1;", "  *equals = count;\n  return ls->current == s;"),
    (
        "llex.c",
        "static void read_long_string (LexState *ls, SemInfo *seminfo, int sep) {\n  int cont = 0;",
        "static void read_long_string (LexState *ls, SemInfo *seminfo, size_t sep) {\n  size_t equals;\n  int cont = 0;",
    ),
    (
        "llex.c",
        "      case '[': {\n        if (skip_sep(ls) == sep) {",
        "      case '[': {\n        if (skip_sep(ls, &equals) && equals == sep) {",
    ),
    (
        "llex.c",
        "      case ']': {\n        if (skip_sep(ls) == sep) {",
        "      case ']': {\n        if (skip_sep(ls, &equals) && equals == sep) {",
    ),
    (
        "llex.c",
        "          int sep = skip_sep(ls);\n          luaZ_resetbuffer(ls->buff);  /* `skip_sep' may dirty the buffer */
          if (sep >= 0) {",
        "          size_t sep;\n          int is_long = skip_sep(ls, &sep);\n          luaZ_resetbuffer(ls->buff);\n          if (is_long) {",
    ),
    (
        "llex.c",
        "        int sep = skip_sep(ls);\n        if (sep >= 0) {",
        "        size_t sep;\n        if (skip_sep(ls, &sep)) {",
    ),
    ("llex.c", "        else if (sep == -1) return '[';", "        else if (sep == 0) return '[';"),
    ("lcode.c", "static int need_value (FuncState *fs, int list) {", JUMPS),
    (
        "lcode.c",
        "    if (GET_OPCODE(i) != OP_TESTSET) return 1;",
        "    LOOK(fs);\n    if (GET_OPCODE(i) != OP_TESTSET) return 1;",
    ),
    (
        "lcode.c",
        "static void removevalues (FuncState *fs, int list) {
  for (; list != NO_JUMP; list = getjump(fs, list))\n      patchtestreg(fs, list, NO_REG);",
        "static void removevalues (FuncState *fs, int list) {\n  unsigned int looked = 0;
  for (; list != NO_JUMP; list = getjump(fs, list)) {\n    LOOK(fs);\n    patchtestreg(fs, list, NO_REG);\n  }",
    ),
    (
        "lcode.c",
        "  while (list != NO_JUMP) {\n    int next = getjump(fs, list);",
        "  unsigned int looked = 0;\n  while (list != NO_JUMP) {\n    int next = getjump(fs, list);\n    LOOK(fs);",
    ),
    (
        "lcode.c",
        "    int list = *l1;\n    int next;\n    while ((next = getjump(fs, list)) != NO_JUMP)  /* find last element */
      list = next;\n    fixjump(fs, list, l2);",
        JOIN,
    ),
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

/// The hash of a string, for callers that make many strings at once.
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
  size_t looked = 0;
  for (o = G(L)->strt.hash[lmod(h, G(L)->strt.size)];
       o != NULL;
       o = o->gch.next, looked++) {";

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

/// Sets `t[first]` and the following to strings, at most 16.
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

/// Work on bytes counts as an eighth as many instructions. The hook runs with the next instruction at the
/// earliest.
const WANTED: &str = "
LUA_API void evenkeel_charge (lua_State *L, size_t bytes);
LUA_API void evenkeel_charge (lua_State *L, size_t bytes) {
  size_t took = bytes / 8;
  if (L->hookcount > 1) L->hookcount = took + 1 < (size_t)L->hookcount ? L->hookcount - (int)took : 1;
}

/* What may take long within C: the work counts, and the hook is called here if it is due. */
LUA_API void evenkeel_step (lua_State *L, size_t bytes);
LUA_API void evenkeel_step (lua_State *L, size_t bytes) {
  evenkeel_charge(L, bytes);
  if (L->hookcount == 1 && (L->hookmask & LUA_MASKCOUNT) && L->allowhook) {
    resethookcount(L);
    luaD_callhook(L, LUA_HOOKCOUNT, -1);
  }
}

/* Who runs on this thread, for those who know a table only. */
static __thread lua_State *running;
LUA_API lua_State *evenkeel_runs (lua_State *L);
LUA_API lua_State *evenkeel_runs (lua_State *L) {
  lua_State *before = running;
  running = L;
  return before;
}
void evenkeel_looked (size_t nodes);
void evenkeel_looked (size_t nodes) {
  if (running != NULL) evenkeel_charge(running, nodes * 8);
}

LUA_API int evenkeel_wanted (lua_State *L);
LUA_API int evenkeel_wanted (lua_State *L) {
  return L->ci->nresults;
}

LUA_API int lua_gettop (lua_State *L) {";

/// The first words behind the allocator's pointer hold the text of a memory error and the function that is
/// called before something large is made. Reading a string as a number counts all its bytes. Each call takes
/// one step of the collector, however much Lua owes.
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

/// Zeros are ordinary characters. A sort compares often between two instructions, so the hook is called here.
const COMPARE: &str = "
void evenkeel_charge (lua_State *L, size_t bytes);
void evenkeel_step (lua_State *L, size_t bytes);
static int compare (lua_State *L, const TString *ls, const TString *rs) {
  size_t ll = ls->tsv.len, lr = rs->tsv.len, l = ll < lr ? ll : lr;
  int order = memcmp(getstr(ls), getstr(rs), l);
  if (order == 0) order = (ll > lr) - (ll < lr);
  if (l >= 512) evenkeel_step(L, l / 8);
  return order;
}

#if 0
static int l_strcmp (const TString *ls, const TString *rs) {";

const REHASH: &str = "
void evenkeel_charge (lua_State *L, size_t bytes);

static void rehash (lua_State *L, Table *t, const TValue *ek) {";

/// Elements that a sort looks at between two questions.
const TABLES: &str = "
#define SORTED 256
void evenkeel_step (lua_State *L, size_t bytes);

static int foreachi (lua_State *L) {";

const SORT: &str = "  while (l < u) {
    int i, j;
    evenkeel_step(L, (size_t)(u - l < SORTED ? u - l : SORTED) * 16);";

const BYTE: &str = "
void evenkeel_charge (lua_State *L, size_t bytes);

static int str_byte (lua_State *L) {";

/// The distance of two ints may exceed an int.
const UNPACK: &str = "
void evenkeel_charge (lua_State *L, size_t bytes);

static int luaB_unpack (lua_State *L) {
  int i, e, n;
  unsigned int far;";

/// A number that does not fit becomes the smallest integer, as on x86. In C that is undefined.
const CUT: &str = "
#if defined(__x86_64__)
#include <emmintrin.h>
#define lua_number2int(i,d) ((i) = _mm_cvttsd_si32(_mm_set_sd(d)))
#define lua_number2integer(i,d) ((i) = (lua_Integer)_mm_cvttsd_si64(_mm_set_sd(d)))
#else
#define lua_number2int(i,d) \\
  ((i) = (d) >= -2147483648.0 && (d) < 2147483648.0 ? (int)(d) : -2147483647 - 1)
#define lua_number2integer(i,d) \\
  ((i) = (d) >= -9223372036854775808.0 && (d) < 9223372036854775808.0 ? (lua_Integer)(d) \\
      : (lua_Integer)(-9223372036854775807 - 1))
#endif";

/// Numbers for `%d` and `%x`: those beyond 2^63 keep their bits there.
const FORMAT: &str = "
static LUA_INTFRM_T whole (lua_Number n) {
  lua_Integer i;
  lua_number2integer(i, n);
  return (LUA_INTFRM_T)i;
}

static unsigned LUA_INTFRM_T bits (lua_Number n) {
  const lua_Number half = 9223372036854775808.0;
  if (!(n >= half)) return (unsigned LUA_INTFRM_T)whole(n);
  return (unsigned LUA_INTFRM_T)whole(n - half) ^ ((unsigned LUA_INTFRM_T)1 << 63);
}

static int str_format (lua_State *L) {";

/// The next node of a chain. Long chains count.
const FINDINDEX: &str = "
#define NEXT(n) ((n) = gnext(n), ++looked % 64 == 0 ? evenkeel_looked(64) : (void)0)
void evenkeel_looked (size_t nodes);

static int findindex (lua_State *L, Table *t, StkId key) {
  unsigned int looked = 0;
  int i;";

const SLOTS: &str = "  for (i -= t->sizearray; i < sizenode(t); i++) {
    if (i % 64 == 63) evenkeel_charge(L, 64 * 4);";

/// With keys at all powers of two, millions might be looked at one by one. Any border will do then.
const BORDER: &str = "      while (i < 4096 && !ttisnil(luaH_getnum(t, i))) i++;
      if (i < 4096) return i - 1;
      j = cast(unsigned int, MAX_INT);
      if (!ttisnil(luaH_getnum(t, j))) return j;
      break;";

/// Counts the `=` between two brackets, and checks for the second bracket.
const BRACKETS: &str = "static int skip_sep (LexState *ls, size_t *equals) {\n  size_t count = 0;";

/// A look at a jump of a list counts as an instruction.
const JUMPS: &str = "
#define LOOK(fs) do { if (++looked % 64 == 0) evenkeel_step((fs)->L, 64 * 8); } while (0)
void evenkeel_step (lua_State *L, size_t bytes);

static int need_value (FuncState *fs, int list) {
  unsigned int looked = 0;";

/// A list has no order, so the other list goes behind the one that ends first.
const JOIN: &str = "    int a = *l1, b = l2, next;
    unsigned int looked = 0;
    for (;;) {
      LOOK(fs);
      if ((next = getjump(fs, a)) == NO_JUMP) {
        fixjump(fs, a, l2);
        return;
      }
      a = next;
      if ((next = getjump(fs, b)) == NO_JUMP) {
        fixjump(fs, b, *l1);
        *l1 = l2;
        return;
      }
      b = next;
    }";

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
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("lua");
    fs::create_dir_all(&out)?;
    let mut build = cc::Build::new();
    build.include(&out).define("LUA_USE_LINUX", None).flag("-fwrapv").warnings(false);
    if env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
        build.define("LUA_USE_APICHECK", None);
    }
    let mut changes = [&CHANGES[..], &MEMORY].concat();
    match env::var("EVENKEEL_LUA").as_deref() {
        Ok("sanitize") => sanitize(&mut build),
        Ok("collect") => {
            sanitize(&mut build);
            build.define("HARDSTACKTESTS", None);
            changes.extend(COLLECT);
            println!("cargo:rustc-cfg=lua_collects");
        }
        Ok(other) if !other.is_empty() => panic!("EVENKEEL_LUA is neither sanitize nor collect: {other}"),
        _ => {}
    }
    for entry in fs::read_dir(source()?)? {
        let path = entry?.path();
        let to = out.join(path.file_name().expect("a file has a name"));
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("c") => _ = build.file(&to),
            Some("h") => {}
            _ => continue,
        }
        fs::write(&to, changed(&path, &changes)?)?;
    }
    build.compile("lua5.1");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=EVENKEEL_LUA");
    println!("cargo:rustc-check-cfg=cfg(lua_collects)");
    Ok(())
}

/// Collects wherever Lua may, unless the collector is stopped.
const COLLECT: [(&str, &str, &str); 1] = [(
    "lgc.h",
    "  if (G(L)->totalbytes >= G(L)->GCthreshold) \\\n\tluaC_step(L); }",
    "  if (G(L)->GCthreshold != MAX_LUMEM) luaC_fullgc(L); }",
)];

/// The program that links this also links the sanitizers.
fn sanitize(build: &mut cc::Build) {
    for flag in [
        "-fsanitize=address,undefined,float-cast-overflow",
        "-fno-sanitize-recover=all",
        "-fno-omit-frame-pointer",
    ] {
        build.flag(flag);
    }
    build.flag("-include").flag("assert.h").define("lua_assert(c)", "assert(c)");
}

/// The text of a file with its changes.
fn changed(path: &Path, changes: &[(&str, &str, &str)]) -> io::Result<String> {
    let mut text = fs::read_to_string(path)?;
    for (file, before, after) in changes.iter().filter(|(file, ..)| path.ends_with(file)) {
        assert!(text.matches(before).count() == 1, "this version of lua-src has another {file}: {before}");
        text = text.replace(before, after);
    }
    Ok(text)
}

/// Where cargo has put Lua's sources.
fn source() -> io::Result<PathBuf> {
    let cargo = env::var_os("CARGO").expect("cargo sets it");
    let target = env::var("TARGET").expect("cargo sets it");
    // Packages that are not needed here may not have been fetched. Then they are, if possible.
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
