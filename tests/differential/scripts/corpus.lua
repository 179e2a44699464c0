Scripts for EVAL. Each section: --- check | numkeys keys and arguments (drawn as in groups/*.txt), then the script.

--- = | 0 val
return ARGV[1]
--- = | 1 str val
return redis.call('SET', KEYS[1], ARGV[1])
--- = | 1 str
return redis.call('GET', KEYS[1])
--- = | 2 str str int
redis.call('SET', KEYS[1], ARGV[1])
return redis.call('INCRBY', KEYS[2], ARGV[1])
--- = | 1 str int
local v = redis.pcall('INCRBY', KEYS[1], ARGV[1])
if type(v) == 'table' and v.err then return {'caught', v.err} end
return {'value', v}
--- = | 0
return {1, 2, {3, 'four', {5.9, -5.9}}, 'x', nil, 'unseen'}
--- = | 0
return {true, false, 1 == 1}
--- = | 0
return nil
--- = | 0
return {ok = 'FINE'}
--- = | 0
return {err = 'MY own error'}
--- = | 0
return {err = 'noprefix'}
--- = | 0
return redis.error_reply('ERR built')
--- = | 0
return redis.error_reply('-BAD with dash')
--- = | 0
return redis.status_reply('status')
--- = | 0
error('thrown text')
--- = | 0
error({err = 'ERR thrown table'})
--- = | 0
local x = nil; return x.y
--- = | 0
return undefined_global
--- = | 0
new_global = 1
--- = | 0
return redis.call('nosuch')
--- = | 0
return redis.call()
--- = | 0
return redis.call('GET')
--- = | 0
return redis.call('GET', {})
--- = | 0
return redis.pcall('GET')
--- = | 1 key
return redis.call('LPUSH', KEYS[1], 'x')
--- = | 1 key
return redis.pcall('HSET', KEYS[1], 'f', 'v')
--- = | 1 list val val
redis.call('RPUSH', KEYS[1], unpack(ARGV))
return redis.call('LRANGE', KEYS[1], 0, -1)
--- any | 1 set
return redis.call('SMEMBERS', KEYS[1])
--- = | 1 set
local m = redis.call('SMEMBERS', KEYS[1])
table.sort(m)
return m
--- = | 2 set set
local d = redis.call('SDIFF', KEYS[1], KEYS[2])
local out = {}
for i = 1, #d do local n = tonumber(d[i]); if n then out[#out + 1] = n end end
table.sort(out)
return cjson.encode(out)
--- = | 1 zset
return redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
--- = | 1 zset score member
return redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])
--- = | 1 hash
redis.setresp(3)
local r = redis.call('HGETALL', KEYS[1])
local n = 0
for k, v in pairs(r.map or {}) do n = n + 1 end
return n
--- = | 1 set
redis.setresp(3)
local r = redis.call('SMEMBERS', KEYS[1])
local out = {}
for k, v in pairs(r.set or {}) do out[#out + 1] = k end
table.sort(out)
return out
--- = | 1 zset member
redis.setresp(3)
local r = redis.call('ZSCORE', KEYS[1], ARGV[1])
if type(r) == 'table' then return {tostring(r.double), type(r.double)} end
return type(r)
--- = | 0
redis.setresp(3)
return {map = {a = 1}}
--- = | 0
redis.setresp(3)
return {double = 3.25}
--- = | 0
redis.setresp(3)
return {big_number = '123456789012345678901234567890'}
--- = | 0
redis.setresp(3)
return {set = {x = true}}
--- = | 0
redis.setresp(3)
return true
--- = | 0
redis.setresp(3)
return {redis.call('GET', 'nosuchkey') == nil, type(redis.call('GET', 'nosuchkey'))}
--- = | 0
redis.setresp(4)
--- = | 0
return {redis.call('GET', 'nosuchkey') == false, type(redis.call('GET', 'nosuchkey'))}
--- = | 0
return cjson.encode({1, 2, 'three', {four = 4}, true, cjson.null})
--- = | 0
return cjson.encode({})
--- = | 0
return cjson.encode({[1] = 1, [2] = 2, [3] = 0.1, [4] = 1e20, [5] = 123456789012})
--- = | 0
return cjson.encode('a"b\\c/\n\t\1\127é')
--- = | 0
local t = cjson.decode('{"a":[1,2.5,null,true,"x\\u00e9\\n"],"b":{}}')
return {t.a[1], tostring(t.a[2]), tostring(t.a[3]), tostring(t.a[4]), t.a[5], #t.a, type(t.b)}
--- = | 0
return cjson.decode('{"a":')
--- = | 0
return cjson.decode('[1,2,]')
--- = | 0
return cjson.encode({1, 2, nil, 4})
--- = | 0
return cjson.encode({[1] = 'a', [100] = 'b'})
--- = | 0
return cjson.encode(0/0)
--- = | 0 val
local ok, v = pcall(cjson.decode, ARGV[1])
if ok then return type(v) end
return v
--- = | 0
return cmsgpack.pack(1, 'two', {3, 4}, nil, true, 1.5, -1, 300, 70000, 2^40)
--- = | 0
local a, b, c = cmsgpack.unpack(cmsgpack.pack({1, 2, 3}, 'x', {k = 'v'}))
return {a, b, c.k}
--- = | 0
return cmsgpack.unpack('\193')
--- = | 0 val
return cmsgpack.pack(ARGV[1])
--- = | 0
return struct.pack('>I2i4dz', 1, -2, 1.5, 'str')
--- = | 0
return {struct.unpack('<i4I2', struct.pack('<i4I2', -7, 65535))}
--- = | 0
return struct.size('>I2i4d')
--- = | 0
return struct.pack('Q', 1)
--- = | 0
return {bit.band(0xff, 0x0f), bit.bor(1, 2), bit.bxor(7, 2), bit.bnot(0), bit.lshift(1, 31), bit.rshift(-1, 28), bit.arshift(-1, 28), bit.tohex(255), bit.tobit(2^32 + 1), bit.bswap(1), bit.rol(1, 4), bit.ror(1, 4)}
--- = | 0 val
return redis.sha1hex(ARGV[1])
--- = | 0
return redis.sha1hex()
--- = | 0
return redis.log(redis.LOG_DEBUG, 'quiet')
--- = | 0
return redis.log('x')
--- = | 0
return {redis.LOG_DEBUG, redis.LOG_VERBOSE, redis.LOG_NOTICE, redis.LOG_WARNING}
--- = | 0
return redis.acl_check_cmd('GET', 'k')
--- = | 0
return redis.acl_check_cmd('nosuch')
--- =@7.2 | 0
return {type(os), type(io), type(require), type(dofile), type(loadfile), type(load), type(loadstring), type(print), type(setfenv), type(newproxy)}
--- =@7.2 | 0
return os.clock() >= 0
--- = | 0
return {type(string), type(table), type(math), type(coroutine), type(debug), type(package)}
--- = | 0
return tostring(_VERSION)
--- = | 0
redis.call = nil
--- = | 0
string.x = 1
--- = | 0
setmetatable(_G, {})
--- = | 0
getmetatable('').__index = nil
--- = | 0
return math.floor(3.7) + string.len('abc')
--- = | 0
return {3.999, -3.999, 1e15, 2^53}
--- = | 0
return 1e300
--- = | 0
return tostring(1e15) .. ' ' .. tostring(0.1) .. ' ' .. tostring(1/0) .. ' ' .. tostring(-1/0)
--- = | 0
return string.format('%d %5.2f %s %q %x %c', 42, 3.14159, 'str', 'q"uote', 255, 65)
--- = | 0
local t = {}; for w in string.gmatch('one two three', '%a+') do t[#t + 1] = w end
return t
--- = | 0
return {string.gsub('hello world', 'o', '0')}
--- = | 0
return {string.find('abc[d', '[d', 1, true), string.match('key=val', '(%w+)=(%w+)')}
--- = | 0
return table.concat({1, 2, 3}, ',')
--- = | 0
local t = {5, 2, 8, 1}; table.sort(t, function(a, b) return a > b end); return t
--- = | 0
return {pcall(function() error('inside') end)}
--- = | 0
return {pcall(redis.call, 'GET')}
--- = | 0
local ok, e = pcall(redis.call, 'nosuch'); return {tostring(ok), type(e), e.err or 'none'}
--- = | 0
local co = coroutine.create(function(a) local b = coroutine.yield(a + 1); return b * 2 end)
local _, x = coroutine.resume(co, 1)
local _, y = coroutine.resume(co, 10)
return {x, y}
--- = | 0
return select('#', unpack({1, 2, 3}))
--- = | 0
return tonumber('0x10') + tonumber('1e1') + (tonumber('z') or 0)
--- = | 0
return redis.call('MULTI')
--- = | 0
return redis.call('SUBSCRIBE', 'c')
--- =@7.2 | 1 list
return redis.call('BLPOP', KEYS[1], 0)
--- = | 0
return redis.call('EVAL', 'return 1', 0)
--- = | 0
return redis.call('SELECT', 1)
--- = | 0
redis.call('SELECT', 1); redis.call('SET', 'from_script', 'x'); return redis.call('GET', 'from_script')
--- = | 0
return redis.call('PUBLISH', 'nobody', 'hears')
--- = | 0
return redis.call('PING')
--- = | 0
return redis.call('ECHO', 42)
--- = | 0
return redis.call('ECHO', 3.5)
--- = | 0
return redis.call('ECHO', 1e20)
--- = | 1 str
return redis.call('SET', KEYS[1], 1e15 + 0.5)
--- = | 1 key
return redis.call('TYPE', KEYS[1])
--- = | 1 key
return redis.call('TYPE', KEYS[1]).ok
--- = | 1 key
return {redis.call('EXISTS', KEYS[1]), redis.call('DEL', KEYS[1])}
--- = | 2 key key
return redis.call('RENAME', KEYS[1], KEYS[2])
--- = | 1 list
redis.call('RPUSH', KEYS[1], 1, 2, 3)
redis.call('nosuch')
--- = | 1 list
redis.call('RPUSH', KEYS[1], 'kept')
error('after a write')
--- = | 1 str
redis.replicate_commands()
return redis.call('APPEND', KEYS[1], 'z')
--- = | 0
return redis.set_repl(redis.REPL_ALL)
--- = | 0
return redis.breakpoint()
--- = | 0
return {#KEYS, #ARGV}
--- = | 2 key key val val val
return {#KEYS, #ARGV, KEYS[2], ARGV[3]}
--- = | 1 str val
#!lua
return redis.call('SET', KEYS[1], ARGV[1])
--- = | 1 str val
#!lua flags=no-writes
return redis.call('SET', KEYS[1], ARGV[1])
--- = | 1 str
#!lua flags=no-writes
return redis.call('GET', KEYS[1])
--- = | 0
#!lua flags=nosuch
return 1
--- = | 0
#!python
return 1
--- = | 0
#!lua name=x
return 1
--- = | 0
return +
--- = | 0
return 'unfinished
--- = | 0
for i = 1, 3 do
--- = | 0
return {redis.REDIS_VERSION ~= nil, type(redis.REDIS_VERSION_NUM)}
--- = | 1 str count
for i = 1, math.min(tonumber(ARGV[1]) or 3, 300) do redis.call('INCR', KEYS[1]) end
return redis.call('GET', KEYS[1])
--- = | 1 hash field val
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return redis.call('HGET', KEYS[1], ARGV[1])
--- pairs | 1 hash
return redis.call('HGETALL', KEYS[1])
--- = | 1 str
return redis.call('SETEX', KEYS[1], 1000000, 'v')
--- = | 1 str
return redis.pcall('GET', KEYS[1], 'extra')
--- = | 1 zset
return redis.call('ZSCORE', KEYS[1], 'a1')
--- = | 1 zset score
return redis.call('ZINCRBY', KEYS[1], ARGV[1], 'a1')
--- = | 1 str float
return redis.call('INCRBYFLOAT', KEYS[1], ARGV[1])
