Function libraries for FUNCTION LOAD. Each section starts with --- and a note.

--- reads and writes
#!lua name=lib1
redis.register_function('f_get', function(keys, args) return redis.call('GET', keys[1]) end)
redis.register_function('f_set', function(keys, args) return redis.call('SET', keys[1], args[1]) end)
--- flags and a description
#!lua name=lib2
local function read(keys, args)
  return redis.call('TYPE', keys[1])
end
redis.register_function{function_name='f_ro', callback=read, flags={'no-writes'}, description='reads'}
redis.register_function{function_name='f_err', callback=function() return redis.error_reply('ERR from a function') end}
--- another f_get, which clashes with lib1's
#!lua name=lib3
redis.register_function('f_get', function(keys, args) return 'other' end)
--- one function, no-writes that writes
#!lua name=lib2
redis.register_function{function_name='f_ro', callback=function(keys, args) return redis.call('SET', keys[1], 'x') end, flags={'no-writes'}}
--- registers nothing
#!lua name=empty
return 1
--- no shebang
redis.register_function('x', function() return 1 end)
--- no name
#!lua
redis.register_function('x', function() return 1 end)
--- bad name
#!lua name=a-b
redis.register_function('x', function() return 1 end)
--- bad function name
#!lua name=bad1
redis.register_function('a b', function() return 1 end)
--- unknown engine
#!nosuch name=bad2
x
--- syntax error
#!lua name=bad3
redis.register_function(
--- run-time error while loading
#!lua name=bad4
error('while loading')
--- calls while loading
#!lua name=bad5
redis.call('SET', 'x', 1)
--- unknown flag
#!lua name=bad6
redis.register_function{function_name='x', callback=function() end, flags={'nosuch'}}
--- unknown argument
#!lua name=bad7
redis.register_function{function_name='x', callback=function() end, nosuch=1}
--- no callback
#!lua name=bad8
redis.register_function{function_name='x'}
--- wrong arguments
#!lua name=bad9
redis.register_function('x')
--- the same function twice
#!lua name=bad10
redis.register_function('x', function() return 1 end)
redis.register_function('x', function() return 2 end)
--- unknown metadata
#!lua name=bad11 nosuch=1
redis.register_function('x', function() return 1 end)
--- global
#!lua name=bad12
g = 1
